"""Measuring a command: its host's power from its start to its end, and its steps, as one run record."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil

from joulecast.errors import JoulecastError
from joulecast.measure.observer.asked import Asked
from joulecast.measure.observer.command import Command, Ending, RunningProcess
from joulecast.measure.observer.observation import Observation, Result

_SITE = Path(__file__).parent / "site"
FOLDER = "JOULECAST_OBSERVER"
"""Variable that has the folder for the marks, in the processes of a command that is measured."""


def _environment(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment that brings the observer into the Python processes of a command."""
    own = [str(_SITE), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(own), FOLDER: str(folder)}


def measure_command(
    asked: Asked,
    out: Path,
    *,
    window_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[Ending, Result]:
    """Run a command and make a run record of it.

    Of several processes of one launch (``srun``, ``mpiexec``) the first makes the record.

    Args:
        asked: the command, and what the user knows of it.
        out: folder of the records, which all hosts share.
        window_s: measure for so many seconds only; the command runs on.
        environment: of the command; this process's by default.

    Raises:
        JoulecastError: the command cannot be started.
    """
    environment = dict(os.environ if environment is None else environment)
    observation = Observation(asked, out, environment)
    try:
        command = Command(asked.command, _environment(environment, observation.marks))
        ending = command.wait(window_s)
        faults = [ending.fault] if ending is not None and ending.fault else []
        result = observation.end(None if ending is None else ending.code, faults)
        return ending or command.to_the_end(), result
    finally:
        observation.close()


def command_of(pid: int) -> tuple[str, ...]:
    """The command line of a process that runs and is not measured yet.

    Raises:
        JoulecastError: there is no such process, it is another user's, or it is measured already.
    """
    try:
        process = psutil.Process(pid)
        words, environment = process.cmdline(), process.environ()
    except psutil.NoSuchProcess:
        raise JoulecastError(
            f"--attach {pid}: no such process; `pgrep -f SCRIPT` lists those of a script"
        ) from None
    except psutil.AccessDenied:
        raise JoulecastError(
            f"--attach {pid}: the process is another user's; attach as that user"
        ) from None
    if FOLDER in environment:
        raise JoulecastError(
            f"--attach {pid}: `joulecast measure` runs it, and measures it already"
        )
    return tuple(words)


def measure_running(asked: Asked, pid: int, out: Path, window_s: float | None = None) -> Result:
    """Make a run record of a process that runs already, without its steps.

    It ends with the process, after ``window_s``, or by SIGINT or SIGTERM, which are not passed on.

    Args:
        asked: what the user knows of it.
        pid: the process; its descendants count as its own.
        out: folder of the records.
        window_s: measure for so many seconds only.
    """
    observation = Observation(replace(asked, attached=pid), out, {})
    try:
        RunningProcess(pid).wait(window_s)
        return observation.end(None)
    finally:
        observation.close()
