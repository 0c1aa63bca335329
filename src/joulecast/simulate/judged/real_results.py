"""The folder of results of real training: its tables, op graphs and costs of operators.

Besides the tables it has

``database-NETWORK-RANKS-SESSION.json``
                          operators of each network (:mod:`joulecast.graphs.database`), with both ranks at
                          work, as in replicas, and with one: stages are never at the same operator
``graph-NETWORK.json``    its op graph

Everything was measured in several sessions, and of everything the quiet time is used
(:mod:`joulecast.graphs.quiet`): that of the fastest quarter, whichever session it is from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from joulecast.graphs.database import Database, read_database
from joulecast.graphs.opgraph import OpGraph, read_graph
from joulecast.graphs.quiet import quiet_mean
from joulecast.simulate.judged.real_step import TrainingConfiguration
from joulecast.simulate.judged.results import STAGES, Experiment, Results, Table, read_folder

_OUTCOME = ("seconds", "waited_share", "foreign_cores")

REAL = Experiment(
    configuration=TrainingConfiguration,
    tables={
        "steps": Table(("configuration", "repeat"), (*_OUTCOME, "buckets", *STAGES)),
        "collectives": Table(("kind", "network", "bytes"), _OUTCOME),
        # Stand-alone pieces of a step that no operator is: copying gradients, adding them up, the
        # optimizer, the batch.
        "parts": Table(("part", "network", "rank", "bytes"), _OUTCOME),
    },
    typical=quiet_mean,
    formats=(2,),
    missing="no measurements of training ({why}); the kept ones are in recorded/two-core-training, "
    "experiments/two-core-training makes new ones",
)

Databases = Mapping[tuple[str, int], Database]
"""By network and number of ranks that were at work."""


def quietest_database(databases: Sequence[Database]) -> Database:
    """The database whose steps took the least time."""
    return min(databases, key=lambda each: sum(step.ops_s for step in each.steps))


@dataclass(frozen=True)
class TrainingResults(Results[TrainingConfiguration]):
    """Measured real training; ``steps`` has the ``buckets`` that the gradients went in.

    Attributes:
        parts: ``part``, ``network``, ``rank``, ``bytes``, and their summary as of ``collectives``.
        databases: the quietest of the sessions.
        graphs: by network.
    """

    parts: pd.DataFrame
    databases: Databases
    graphs: dict[str, OpGraph]


def _database(folder: Path, network: str, ranks: int, sessions: int) -> Database:
    names = [f"database-{network}-{ranks}-{number}.json" for number in range(sessions)]
    return quietest_database([read_database(folder / name) for name in names])


def read_training_results(folder: Path) -> TrainingResults:
    """Read what was measured of real training.

    Raises:
        JoulecastError: ``folder`` is not such data, or was changed since it was written.
    """
    results = read_folder(folder, REAL)
    rows, sessions = results.rows["steps"], len(results.provenance["sessions"])
    buckets = rows[rows.repeat == 0].groupby("configuration", sort=False).buckets.first()
    networks = list(dict.fromkeys(each.network for each in results.configurations))
    return TrainingResults(
        configurations=results.configurations,
        steps=results.steps.assign(buckets=buckets),
        collectives=results.collectives,
        rows=results.rows,
        provenance=results.provenance,
        parts=REAL.apart_from_steps("parts", results.rows["parts"]),
        databases={
            (network, ranks): _database(folder, network, ranks, sessions)
            for network in networks
            for ranks in (1, 2)
        },
        graphs={network: read_graph(folder / f"graph-{network}.json") for network in networks},
    )
