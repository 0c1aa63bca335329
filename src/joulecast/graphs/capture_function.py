"""A network of one's own: ``MODULE:FUNCTION`` gives a torch module and example inputs."""

import sys
import traceback
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.graphs.opgraph import OpGraph


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
