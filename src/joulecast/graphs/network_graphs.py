"""Finds the op graph of a network. It is shipped, made from numbers, or captured from a user's function.

``benchmarks/shipped_graphs.py`` captured the shipped op graphs: networks for ImageNet (224 pixels, Inception
299; 1000 classes), and GPT-2 with 1024 tokens. They are for one sample.
"""

import sys
import traceback
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from joulecast.errors import JoulecastError
from joulecast.graphs.network_names import is_by_numbers, parse_network
from joulecast.graphs.opgraph import OpGraph, read_graph
from joulecast.graphs.precision import CAPTURED_BYTES, TrainingSetup, at_precision, for_inference
from joulecast.graphs.transformer import Attention, attention_of, in_cudnn, transformer
from joulecast.graphs.written_attention import write_out_attention, write_out_unfused
from joulecast.runs.files.shipped import is_path
from joulecast.runs.folders import measured_records
from joulecast.runs.record import NETWORK, read_info

_SHIPPED = Path(__file__).with_name("networks")


def names() -> list[str]:
    """Names of the networks whose graphs are shipped."""
    return sorted(path.stem for path in _SHIPPED.glob("*.json"))


def _plain(name: str) -> str:
    """The known form of a name. People also write GPT2-XL and ResNet50."""
    base, colon, keys = name.partition(":")
    return f"{base.lower()}{colon}{keys}"


def network_file(graph: str) -> Path | None:
    """The file of a network, if ``graph`` is the path of a file, or the name of a training that `measure`
    captured. ``None`` otherwise."""
    if is_path(graph, (".json",)) and not graph.startswith("hf:"):
        return Path(graph)
    name = _plain(graph)
    if ":" in name or name in names() or is_by_numbers(name):
        return None
    captured = [folder / NETWORK for folder in measured_records(graph)]
    return next((path for path in reversed(captured) if path.is_file()), None)


def _require_captured(training: str) -> None:
    """Raise an error if there is a training of this name, because its network was not captured."""
    records = measured_records(training)
    if records:
        remarks = read_info(records[-1]).remarks
        why = next((each for each in remarks if "not captured" in each), "it ran without --capture")
        raise JoulecastError(
            f"{training}: this training has no captured network ({why}); run it again with `joulecast "
            "measure --capture`, or take `joulecast capture`"
        )


def graph_origin(
    graph: str, attention: Attention | None = None
) -> Literal["file", "shipped", "numbers"]:
    """Where an op graph comes from: a user's file, a shipped graph (captured from torch), or numbers.

    GPT-2's shipped graph has the kernels of the captured code. Its graph from numbers has the kernels of all
    transformers from numbers.
    """
    if network_file(graph) is not None:
        return "file"
    name = _plain(graph)
    by_numbers = attention == "eager" and is_by_numbers(name)
    return "shipped" if name in names() and not by_numbers else "numbers"


def _with_attention(graph: OpGraph, attention: Attention | None) -> OpGraph:
    has = attention_of(graph)
    if attention == "eager" and has == "fused":
        return write_out_attention(graph)
    if attention is not None and has is not None and attention != has:
        raise JoulecastError(
            f"graph {graph.name}: its attention was captured {has}; --attention {attention} is for networks "
            "by numbers, such as gpt:layers=12,hidden=768,heads=12"
        )
    return graph


def op_graph(graph: str, attention: Attention | None = None, half: bool = False) -> OpGraph:
    """The op graph of a network, for one sample.

    Args:
        graph: name of a shipped graph (upper or lower case); numbers, for example
            ``gpt:layers=36,hidden=1280,heads=20`` or ``llama-7b`` (:mod:`joulecast.graphs.network_names`);
            the name of a captured training; or a file (the path has a ``/`` or ends in ``.json``).
        attention: ``fused`` (the default) or ``eager``. With ``eager``, a network that is both shipped and
            known by numbers (gpt2) is made from its numbers.
        half: whether a network by numbers runs in half precision (see
            :func:`joulecast.graphs.transformer.transformer`).

    Raises:
        JoulecastError: network or key are unknown (the error has the nearest); the graph lacks this
            attention; or an error of :func:`joulecast.graphs.opgraph.read_graph`.
    """
    file, name = network_file(graph), _plain(graph)
    if file is None and graph_origin(name, attention) == "numbers":
        if not is_by_numbers(name):
            _require_captured(graph)
        return transformer(parse_network(name, names()), name, attention or "fused", half)
    return _with_attention(read_graph(file or _SHIPPED / f"{name}.json"), attention)


def network_for(name: str, training: TrainingSetup, attention: Attention | None = None) -> OpGraph:
    """The op graph of a network at the precision of a step. For inference, it has no loss.

    Raises:
        JoulecastError: an error of :func:`op_graph`.
    """
    precision = training.precision
    # Transformer Engine casts operands, and uses cuDNN's attention.
    of_engine = attention is None and precision.operand_bytes is not None
    written = "fused" if attention == "cudnn" else attention
    graph = op_graph(name, written, precision.half)
    if attention is None and precision.tensor_bytes >= CAPTURED_BYTES and not precision.autocast:
        # At 4 bytes, torch's fused attention needs the same number of heads for keys and queries.
        graph = write_out_attention(graph, only=lambda op: bool(op.attributes.get("grouped")))
    graph = write_out_unfused(graph)
    graph = at_precision(graph, precision)
    if attention == "cudnn" or of_engine:
        graph = in_cudnn(graph)
    return for_inference(graph) if training.inference else graph


def _called(found: Any, function: str) -> Any:
    """Call a user's function. If it fails, the error names the line in the user's file."""
    try:
        return found()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = Path(getattr(sys.modules[found.__module__], "__file__", None) or "")
        # Take the last line in the function's own file, because the failure may be deep inside a library.
        inside = [f for f in frames[1:] if Path(f.filename) == own] or frames[1:] or frames
        first = str(error).strip().splitlines()[:1]
        raise JoulecastError(
            f"{function}: {inside[-1].filename}, line {inside[-1].lineno}: "
            f"{type(error).__name__}: {''.join(first)}"
        ) from error


def module_of_function(function: str) -> tuple[Any, list[Any]]:
    """Call a function that returns a torch module and its example inputs.

    Args:
        function: the function as ``package.module:function``. Python also looks for the module in the working
            folder. The function takes no arguments and returns ``(module, inputs)``. The inputs are tensors
            whose first axis is the batch. Module and inputs may be on the ``meta`` device.

    Raises:
        JoulecastError: module or function do not exist, or the function fails or returns something else.
    """
    import torch

    module_name, _, name = function.partition(":")
    if not module_name or not name.isidentifier():
        raise JoulecastError(f"{function}: give it as MODULE:FUNCTION, such as mynet:build")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module_name), name)
    except ImportError as error:
        raise JoulecastError(f"{function}: {error}") from error
    except AttributeError:
        raise JoulecastError(f"{function}: module {module_name} has no function {name}") from None
    finally:
        sys.path.pop(0)
    given = _called(found, function)
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], torch.nn.Module):
        raise JoulecastError(
            f"{function}: it must give (module, example inputs), not {type(given).__name__}"
        )
    module, inputs = given
    tensors = [inputs] if isinstance(inputs, torch.Tensor) else inputs
    if not isinstance(tensors, Iterable) or isinstance(tensors, dict):
        raise JoulecastError(f"{function}: give its example inputs as a list of tensors")
    listed = list(tensors)
    if not all(isinstance(tensor, torch.Tensor) and tensor.dim() for tensor in listed):
        raise JoulecastError(
            f"{function}: its example inputs must be tensors with the batch in front"
        )
    sizes = list(dict.fromkeys(len(tensor) for tensor in listed))
    if len(sizes) > 1:
        raise JoulecastError(
            f"{function}: the first dimension of each example input must be the batch, but these have "
            f"{' and '.join(map(str, sizes))}; let the module hold an input that has no batch, such as a mask"
        )
    return module, listed


def captured_function(function: str) -> OpGraph:
    """The op graph of the module that a function returns (see :func:`module_of_function`).

    Raises:
        JoulecastError: an error of :func:`module_of_function`; or torch cannot export the module.
    """
    from joulecast.graphs.capture import capture

    return capture(*module_of_function(function), function.partition(":")[2])
