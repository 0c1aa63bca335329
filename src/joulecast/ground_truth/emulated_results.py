"""The folder of results of the emulated network: its tables, and how they are summarized."""

from pathlib import Path
from statistics import median

from joulecast.ground_truth.emulated_step import Configuration
from joulecast.ground_truth.results import (
    BYTES,
    COUNT,
    SECONDS,
    SHARE,
    TEXT,
    Experiment,
    Results,
    Table,
    read_folder,
)

_OUTCOME = {"iteration": COUNT, "seconds": SECONDS, "foreign_cores": SHARE, "late_s": SECONDS}
_STEP = {"configuration": TEXT, "repeat": COUNT}
_COLLECTIVE = {
    "kind": TEXT,
    "algorithm": TEXT,
    "ranks": COUNT,
    "ranks_per_node": COUNT,
    "bytes": BYTES,
}
_RANK = {"iteration": COUNT, "rank": COUNT, "began_s": SECONDS, "ended_s": SECONDS}

EMULATED = Experiment(
    configuration=Configuration,
    tables={
        "steps": Table(tuple(_STEP), {**_STEP, **_OUTCOME}),
        # Seconds after the common start at which each rank began and had finished everything.
        "ranks": Table((*_STEP, "rank"), {**_STEP, **_RANK}),
        "collectives": Table(tuple(_COLLECTIVE), {**_COLLECTIVE, **_OUTCOME}),
    },
    typical=median,
    # The first has one session, whose facts are the provenance, and no column for it.
    formats=(1, 2),
    missing="no measurements of the emulated network ({why}); the kept ones are in "
    "recorded/emulated-network, new ones are made by joulecast.ground_truth.emulated_network",
)


def read_results(folder: Path) -> Results[Configuration]:
    """Read what was measured on the emulated network.

    Raises:
        JoulecastError: ``folder`` is not such data, or was changed since it was written.
    """
    return read_folder(folder, EMULATED)
