"""The folder of results of the emulated network: its tables, and how they are summarized."""

from pathlib import Path
from statistics import median

from joulecast.simulate.judged.emulated_step import Configuration
from joulecast.simulate.judged.results import Experiment, Results, Table, read_folder

_STEP = ("configuration", "repeat")
_COLLECTIVE = ("kind", "algorithm", "ranks", "ranks_per_node", "bytes")
_OUTCOME = ("seconds", "foreign_cores", "late_s")

EMULATED = Experiment(
    configuration=Configuration,
    tables={
        "steps": Table(_STEP, _OUTCOME),
        # Seconds after the common start at which each rank began and had finished everything.
        "ranks": Table((*_STEP, "rank"), ("began_s", "ended_s")),
        "collectives": Table(_COLLECTIVE, _OUTCOME),
    },
    typical=median,
    # The first has one session, whose facts are the provenance, and no column for it.
    formats=(1, 2),
    missing="no measurements of the emulated network ({why}); the kept ones are in "
    "recorded/emulated-network, experiments/emulated-network makes new ones",
)


def read_results(folder: Path) -> Results[Configuration]:
    """Read what was measured on the emulated network.

    Raises:
        JoulecastError: ``folder`` is not such data, or was changed since it was written.
    """
    return read_folder(folder, EMULATED)
