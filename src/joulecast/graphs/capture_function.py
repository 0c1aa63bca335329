"""Capturing a network of one's own: ``MODULE:FUNCTION`` gives a torch module and example inputs."""

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.graphs.opgraph import OpGraph


def captured_function(function: str) -> OpGraph:
    """The op graph of what a function gives: a torch module and example inputs.

    Args:
        function: as ``package.module:function``; the module is looked for in the working folder too. The
            function takes no arguments and gives ``(module, inputs)``: inputs are tensors whose first axis is
            the batch. Both may be on the ``meta`` device.

    Raises:
        JoulecastError: no such module or function, it gives something else, or torch cannot export it.
    """
    import torch

    from joulecast.graphs.capture import capture

    module_name, _, name = function.partition(":")
    if not module_name or not name.isidentifier():
        raise JoulecastError(f"capture {function}: give it as MODULE:FUNCTION, as mynet:build")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module_name), name)
    except ImportError as error:
        raise JoulecastError(f"capture {function}: {error}") from error
    except AttributeError:
        raise JoulecastError(
            f"capture {function}: module {module_name} has no function {name}"
        ) from None
    finally:
        sys.path.pop(0)
    given = found()
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], torch.nn.Module):
        raise JoulecastError(
            f"capture {function}: it must give (module, example inputs), not {type(given).__name__}"
        )
    module, inputs = given
    tensors = [inputs] if isinstance(inputs, torch.Tensor) else inputs
    if not isinstance(tensors, Iterable) or isinstance(tensors, dict):
        raise JoulecastError(f"capture {function}: give its example inputs as a list of tensors")
    listed = list(tensors)
    if not all(isinstance(tensor, torch.Tensor) and tensor.dim() for tensor in listed):
        raise JoulecastError(
            f"capture {function}: its example inputs must be tensors with the batch in front"
        )
    return capture(module, listed, name)
