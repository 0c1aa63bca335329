"""Measuring a command: its host's power from its start to its end, and its steps, as one run record."""

import os
from collections.abc import Mapping
from pathlib import Path

from joulecast.observer.asked import Asked
from joulecast.observer.command import Command, Ending
from joulecast.observer.observation import Observation, Result

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
