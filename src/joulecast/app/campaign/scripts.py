"""Runs a script of the workflow: its arguments from Snakemake's job, its log, its exit code."""

import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from pydantic import validate_call

from joulecast.errors import JoulecastError


def script_arguments(job: Any, main: Callable[..., None]) -> dict[str, Any]:
    """Arguments of a script's ``main``: each parameter gets what the job has under the same name.

    The job has inputs, outputs, params and wildcards under their names. ``log`` is the path of the log, and
    ``resources`` is everything that the rule asks for. ``config`` is the configuration. If only the
    configuration changes, no job is repeated. If an input is missing or an empty list, the parameter keeps
    its default.

    Args:
        job: the object ``snakemake``, which Snakemake puts into the script.

    Raises:
        TypeError: the job has nothing under a parameter's name, or several things.
    """
    parts = (job.input, job.output, job.params, job.wildcards)
    arguments = {}
    for name, parameter in signature(main).parameters.items():
        values = [value for part in parts for key, value in part.items() if key == name]
        if name in ("resources", "config"):
            values = [getattr(job, name)]
        elif name == "log":
            values = [job.log[0]]
        # An optional input that a campaign does not have is missing, or an empty list.
        if values in ([], [[]]) and parameter.default is not Parameter.empty:
            continue
        if len(values) != 1:
            raise TypeError(f"the rule gives {len(values)} values named `{name}`, not one")
        arguments[name] = values[0]
    return arguments


def call_main(job: Any, main: Callable[..., None]) -> None:
    """Call a script's ``main`` with :func:`script_arguments`, converted to the types that ``main``
    declares."""
    validate_call(main)(**script_arguments(job, main))


def run_script(job: Any, main: Callable[..., None]) -> None:
    """Run a script of the workflow: its ``main`` with the job's files and params, its output in the log.

    A :class:`JoulecastError` ends the script with code 2, and is printed on the terminal, too. Any other
    error leaves its traceback in the log, and is raised.

    Args:
        main: takes inputs, outputs, params and wildcards by name; paths as ``Path`` or ``list[Path]``.
    """
    log, terminal = Path(job.log[0]), sys.stderr
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            call_main(job, main)
        except JoulecastError as error:
            print(f"error: {error}", file=file)
            print(f"error: {error}", file=terminal)
            sys.exit(2)
        except BaseException:
            traceback.print_exc(file=file)
            raise
