"""Graphs of networks: op graphs that are shipped, made from numbers, or captured from one's own function, so
that a network can be simulated.

The shipped op graphs were captured by :func:`joulecast.graphs.capture.write_shipped`: ImageNet sizes (224
pixels, Inception 299; 1000 classes) and GPT-2 with 1024 tokens, for one sample; ``with_batch`` gives any
other number.
"""

import sys
import traceback
from collections.abc import Iterable
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Literal

from joulecast.errors import JoulecastError
from joulecast.graphs.network_names import has_grouped_queries, is_by_numbers, parse_network
from joulecast.graphs.opgraph import OpGraph, read_graph
from joulecast.graphs.precision import CAPTURED_BYTES, TrainingSetup, at_precision, for_inference
from joulecast.graphs.transformer import ATTENTIONS, Attention, attention_of, in_cudnn, transformer
from joulecast.runs.files.shipped import is_path
from joulecast.runs.folders import measured_records
from joulecast.runs.record import NETWORK


def names() -> list[str]:
    """Networks whose graphs are shipped."""
    folder = resources.files("joulecast.graphs") / "networks"
    return sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name[-5:] == ".json")


def _plain(name: str) -> str:
    """A name as it is known; people write GPT2-XL and ResNet50 as well."""
    base, colon, keys = name.partition(":")
    return f"{base.lower()}{colon}{keys}"


def is_graph_file(graph: str) -> bool:
    """Whether a network is given as the file of an op graph."""
    return is_path(graph, (".json",)) and not graph.startswith("hf:")


def _file_of(graph: str) -> Path | None:
    """The file of a network that is given as one, or by the name of a training that `measure` captured."""
    if is_graph_file(graph):
        return Path(graph)
    name = _plain(graph)
    if ":" in name or name in names() or is_by_numbers(name):
        return None
    captured = [folder / NETWORK for folder in measured_records(graph)]
    return next((path for path in reversed(captured) if path.is_file()), None)


def graph_origin(
    graph: str, attention: Attention | None = None
) -> Literal["file", "shipped", "numbers"]:
    """Where an op graph comes from: a file, one that is shipped (captured from torch), or numbers.

    GPT-2's shipped graph has the kernels of the code that it was captured from; by its numbers it is as other
    transformers are.
    """
    if _file_of(graph) is not None:
        return "file"
    name = _plain(graph)
    by_numbers = attention == "eager" and is_by_numbers(name)
    return "shipped" if name in names() and not by_numbers else "numbers"


def load(name: str, attention: Attention | None = None, half: bool = False) -> OpGraph:
    """The op graph of a network by name, for one sample: a shipped one, or one by numbers.

    Args:
        name: of a shipped graph, in any case, or as ``gpt:layers=36,hidden=1280,heads=20`` or ``llama-7b``
            (:mod:`joulecast.graphs.network_names`).
        attention: of a network by numbers: ``fused`` (the default) or ``eager``. With ``eager`` a name that
            is both shipped and known by numbers (gpt2) is made from its numbers.
        half: whether a network by numbers is run in half precision (see
            :func:`joulecast.graphs.transformer.transformer`).

    Raises:
        JoulecastError: no such network or key (names the nearest), or an attention that the graph lacks.
    """
    if attention is not None and attention not in ATTENTIONS:
        raise JoulecastError(f"attention={attention}: give {' or '.join(ATTENTIONS)}")
    shipped, name = names(), _plain(name)
    if graph_origin(name, attention) == "numbers":
        size = parse_network(name, shipped)
        return transformer(size, name, attention or "fused", half)
    file = resources.files("joulecast.graphs") / "networks" / f"{name}.json"
    with resources.as_file(file) as path:
        return _with_attention(read_graph(Path(path)), attention)


def _with_attention(graph: OpGraph, attention: Attention | None) -> OpGraph:
    has = attention_of(graph)
    if attention is not None and has is not None and attention != has:
        raise JoulecastError(
            f"graph {graph.name}: its attention was captured {has}; --attention {attention} is for networks "
            "by numbers, as gpt:layers=12,hidden=768,heads=12"
        )
    return graph


def op_graph(graph: str, attention: Attention | None = None, half: bool = False) -> OpGraph:
    """An op graph: that of a network by name, of a training that was captured, or of a file, whose path has a
    ``/`` or ends in ``.json``.

    Raises:
        JoulecastError: as :func:`load` and :func:`joulecast.graphs.opgraph.read_graph`.
    """
    file = _file_of(graph)
    if file is not None:
        return _with_attention(read_graph(file), attention)
    return load(graph, attention, half)


def network_for(name: str, training: TrainingSetup, attention: Attention | None = None) -> OpGraph:
    """The op graph of a network as a step runs it: at its precision, and for inference without the loss.

    Raises:
        JoulecastError: as :func:`op_graph`.
    """
    precision = training.precision
    # Transformer Engine, which casts operands, takes cuDNN's attention.
    of_engine = attention is None and precision.operand_bytes is not None
    written = "fused" if attention == "cudnn" else attention
    if attention is None and precision.tensor_bytes >= CAPTURED_BYTES and not precision.autocast:
        # torch's fused attention at 4 bytes takes as many heads of keys as of queries.
        written = "eager" if has_grouped_queries(name) else None
    graph = at_precision(op_graph(name, written, precision.half), precision)
    if attention == "cudnn" or of_engine:
        graph = in_cudnn(graph)
    return for_inference(graph) if training.inference else graph


def _called(found: Any, function: str) -> Any:
    """What a user's function gives; an error names the line of their file that it comes from."""
    try:
        return found()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = Path(getattr(sys.modules[found.__module__], "__file__", None) or "")
        # The last line of the function's own file; what it calls may fail deep inside a library.
        inside = [f for f in frames[1:] if Path(f.filename) == own] or frames[1:] or frames
        first = str(error).strip().splitlines()[:1]
        raise JoulecastError(
            f"{function}: {inside[-1].filename}, line {inside[-1].lineno}: "
            f"{type(error).__name__}: {''.join(first)}"
        ) from error


def module_of_function(function: str) -> tuple[Any, list[Any]]:
    """What a function gives: a torch module and its example inputs.

    Args:
        function: as ``package.module:function``; the module is looked for in the working folder too. The
            function takes no arguments and gives ``(module, inputs)``: inputs are tensors whose first axis is
            the batch. Both may be on the ``meta`` device.

    Raises:
        JoulecastError: no such module or function, or it gives something else.
    """
    import torch

    module_name, _, name = function.partition(":")
    if not module_name or not name.isidentifier():
        raise JoulecastError(f"{function}: give it as MODULE:FUNCTION, as mynet:build")
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
    return module, listed


def captured_function(function: str) -> OpGraph:
    """The op graph of what a function gives; see :func:`module_of_function`.

    Raises:
        JoulecastError: as there, or torch cannot export the module.
    """
    from joulecast.graphs.capture import capture

    return capture(*module_of_function(function), function.partition(":")[2])
