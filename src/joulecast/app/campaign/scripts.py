"""Runs a script of the workflow: its arguments from Snakemake's job, its log, its exit code."""

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Protocol

from pydantic import validate_call

from joulecast.errors import JoulecastError


class NamedItems(Protocol):
    """One part of a job, such as its inputs: the items that the rule gives by name."""

    def items(self) -> Iterable[tuple[str, Any]]: ...


class WorkflowJob(Protocol):
    """What a script reads of the object ``snakemake``, which Snakemake puts into it."""

    input: NamedItems
    output: NamedItems
    params: NamedItems
    wildcards: NamedItems
    resources: NamedItems
    config: dict[str, Any]
    log: list[str]


@contextmanager
def logged(log: Path) -> Iterator[None]:
    """Send the output of a workflow script to its log.

    A :class:`JoulecastError` ends the script with code 2 and is printed on the terminal too; any other
    error leaves its traceback in the log and is raised.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    terminal = sys.stderr
    with open(log, "w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            yield
        except JoulecastError as error:
            print(f"error: {error}", file=file)
            print(f"error: {error}", file=terminal)
            sys.exit(2)
        except BaseException:
            traceback.print_exc(file=file)
            raise


def _values(job: WorkflowJob, name: str) -> list[Any]:
    """Values that a job has under a name, of which there should be one."""
    if name == "log":
        return [job.log[0]]
    if name in ("resources", "config"):
        return [getattr(job, name)]
    parts = (job.input, job.output, job.params, job.wildcards)
    return [value for part in parts for key, value in part.items() if key == name]


def _is_default(values: list[Any], parameter: Parameter) -> bool:
    # An optional input that a campaign does not have is missing, or an empty list.
    absent = not values or values == [[]]
    return absent and parameter.default is not Parameter.empty


def script_arguments(job: WorkflowJob, main: Callable[..., None]) -> dict[str, Any]:
    """Arguments of a script's ``main``: each parameter gets what the job has under the same name.

    The job has inputs, outputs, params and wildcards under their names. ``log`` is the path of the log, and
    ``resources`` is everything that the rule asks for. ``config`` is the configuration. If only the
    configuration changes, no job is repeated. If an input is missing or an empty list, the parameter keeps
    its default.

    Raises:
        TypeError: the job has nothing under a parameter's name, or several things.
    """
    arguments = {}
    for name, parameter in signature(main).parameters.items():
        values = _values(job, name)
        if _is_default(values, parameter):
            continue
        if len(values) != 1:
            raise TypeError(f"the rule gives {len(values)} values named `{name}`, not one")
        arguments[name] = values[0]
    return arguments


def call_main(job: WorkflowJob, main: Callable[..., None]) -> None:
    """Call a script's ``main`` with :func:`script_arguments`, converted to the types that ``main``
    declares."""
    validate_call(main)(**script_arguments(job, main))


def run_script(job: WorkflowJob, main: Callable[..., None]) -> None:
    """Run a script of the workflow: its ``main`` with the job's files and params, its output in the log.

    Args:
        job: the object ``snakemake`` of the script.
        main: takes inputs, outputs, params and wildcards by name; paths as ``Path`` or ``list[Path]``.
    """
    with logged(Path(job.log[0])):
        call_main(job, main)
