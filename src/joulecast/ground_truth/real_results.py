"""Measured steps of real training on two ranks, and what was measured beside them: needs no torch, no MPI.

A folder has

``configurations.json``   what was trained, and how
``steps.csv``             a row an iteration: seconds from the first rank's start to the last one's end
``collectives.csv``       stand-alone all-reduces and sends
``parts.csv``             stand-alone pieces of a step that no operator is: copying gradients, adding them
                          up, the optimizer, the batch
``database-NETWORK-RANKS-SESSION.json``
                          operators of each network (:mod:`joulecast.graphs.database`), with both ranks at
                          work, as in replicas, and with one: stages are never at the same operator
``graph-NETWORK.json``    its op graph
``provenance.json``       where all this comes from, with the SHA-256 of the others

Nothing in collectives, parts and databases is a step that is judged. Disturbed iterations are kept and marked
``polluted``. Everything was measured in several sessions, and of everything the quiet time is used
(:mod:`joulecast.graphs.quiet`): that of the fastest quarter, whichever session it is from.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from joulecast.files.writing import directory_written_aside, sha256_of
from joulecast.graphs.database import Database, read_database
from joulecast.graphs.opgraph import OpGraph, read_graph
from joulecast.graphs.quiet import quiet_mean
from joulecast.ground_truth.kept import PROVENANCE_FILE, checked_provenance

FORMAT = 2
TABLES = ("steps.csv", "collectives.csv", "parts.csv")
WAITING = 0.03
"""An iteration in which some rank had no core for more than this share (and longer than its clock of CPU time
is off by) is polluted."""
_WAITING_S = 5e-5
_LONG_S = 0.1
FOREIGN = 0.2
"""Or in which other processes had this many cores (their memory traffic slows the ranks)."""

_KEY = ["configuration"]
_DISTURBED = ("waited_share", "foreign_cores")
STEP_COLUMNS = (
    *("configuration", "repeat", "iteration", "seconds", *_DISTURBED, "buckets"),
    *("materials_s", "computing_s", "communicating_wait_s", "communicating_copy_s", "update_s"),
)
COLLECTIVE_COLUMNS = ("kind", "network", "bytes", "iteration", "seconds", *_DISTURBED)
PART_COLUMNS = ("part", "network", "rank", "bytes", "iteration", "seconds", *_DISTURBED)


def is_polluted(row: Mapping[str, Any]) -> bool:
    """Whether an iteration was disturbed: a rank had no core, or others used the machine."""
    waited = row["waited_share"]
    # Of a few milliseconds, the clocks and the ticks say little.
    is_long = row["seconds"] >= _LONG_S
    return bool(
        (waited > WAITING and waited * row["seconds"] > _WAITING_S)
        or (is_long and row["foreign_cores"] > FOREIGN)
    )


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainingConfiguration(_Frozen):
    """A step of training on two ranks: two replicas, or a pipeline of two stages."""

    name: str = Field(pattern=r"^[a-z0-9_-]+$")
    family: Literal["data parallel", "overlapped", "gpipe", "1f1b"]
    network: str
    batch: int = Field(ge=1, description="Samples of a replica's step.")
    bucket_mb: float | None = Field(None, gt=0, description="Least size of a gradient bucket.")
    overlap: bool = False
    micro_batches: int = Field(1, ge=1)
    cut: str | None = Field(None, description="Module at which the second stage begins.")
    fits_gamma: bool = Field(False, description="Whether the overlap slowdown is fitted on it.")

    @property
    def is_pipeline(self) -> bool:
        """Whether it is two stages; otherwise it is two replicas."""
        return self.cut is not None

    @property
    def samples(self) -> int:
        """Samples of one micro-batch."""
        return self.batch // self.micro_batches

    @model_validator(mode="after")
    def _is_one_of_both(self) -> "TrainingConfiguration":
        if self.is_pipeline != (self.family in ("gpipe", "1f1b")):
            raise ValueError(f"{self.name}: a pipeline needs a cut, and nothing else has one")
        if self.is_pipeline == (self.bucket_mb is not None):
            raise ValueError(f"{self.name}: replicas need bucket_mb, and a pipeline has none")
        if self.batch % self.micro_batches:
            raise ValueError(f"{self.name}: batch does not divide into micro_batches")
        return self


class Workload(_Frozen):
    """What all configurations train on."""

    image_size: int = 32
    patch_size: int = 16
    classes: int = 10
    dataset: str = "digits"
    learning_rate: float = 1e-4
    momentum: float = 0.9


@dataclass(frozen=True)
class MeasuredSession:
    """What one session measured: tables by name as in :data:`TABLES`, databases, and where it comes from."""

    tables: Mapping[str, pd.DataFrame]
    databases: Mapping[tuple[str, int], Database]
    provenance: Mapping[str, Any]


def quietest_database(databases: Sequence[Database]) -> Database:
    """The one whose steps took the least time."""
    return min(databases, key=lambda each: sum(step.ops_s for step in each.steps))


@dataclass(frozen=True)
class TrainingResults:
    """What was measured.

    Attributes:
        configurations: of all measured steps.
        steps: a row for each configuration (the index): ``quiet_s`` and ``spread_s`` (interquartile range)
            of clean iterations, how many are ``clean`` of how many ``iterations``, the ``buckets`` that the
            gradients went in, and ``again_s``, the quiet time of the A/A repeat or NaN.
        collectives: ``kind``, ``network``, ``bytes``, ``seconds`` (quiet, of clean iterations), ``clean``.
        parts: the same by ``part``, ``network``, ``rank`` and ``bytes``.
        databases: by network and number of ranks that were at work.
        graphs: by network.
        iterations: the raw table of steps.
        provenance: where all this comes from.
    """

    configurations: list[TrainingConfiguration]
    steps: pd.DataFrame
    collectives: pd.DataFrame
    parts: pd.DataFrame
    databases: dict[tuple[str, int], Database]
    graphs: dict[str, OpGraph]
    iterations: pd.DataFrame
    provenance: dict[str, Any]

    def configuration(self, name: str) -> TrainingConfiguration:
        """The configuration of a name."""
        return next(each for each in self.configurations if each.name == name)


def write_training_results(
    out: Path,
    configurations: Sequence[TrainingConfiguration],
    sessions: Sequence[MeasuredSession],
    graphs: Mapping[str, OpGraph],
) -> None:
    """Write what was measured to a new folder."""
    with directory_written_aside(out) as folder:
        listed = [each.model_dump(mode="json") for each in configurations]
        (folder / "configurations.json").write_text(json.dumps(listed, indent=1) + "\n")
        for name in TABLES:
            numbered = [each.tables[name].assign(session=i) for i, each in enumerate(sessions)]
            frame = pd.concat(numbered, ignore_index=True)
            frame["polluted"] = [is_polluted(row) for row in frame.to_dict("records")]
            frame.to_csv(folder / name, index=False, float_format="%.6f", lineterminator="\n")
        for number, session in enumerate(sessions):
            for (network, ranks), database in session.databases.items():
                database.write(folder / f"database-{network}-{ranks}-{number}.json")
        for network, graph in graphs.items():
            graph.write(folder / f"graph-{network}.json")
        files = sorted(file.name for file in folder.iterdir())
        provenance = {
            "format": FORMAT,
            "source_of_seconds": "measured",
            "ended_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "sessions": [dict(session.provenance) for session in sessions],
            "sha256": {name: sha256_of(folder / name) for name in files},
        }
        (folder / PROVENANCE_FILE).write_text(json.dumps(provenance, indent=1) + "\n")


def _summary(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Quiet time and spread of clean iterations in groups; NaN where none is clean."""
    clean = frame[~frame.polluted].groupby(by, sort=False).seconds
    summary = pd.DataFrame({"iterations": frame.groupby(by, sort=False).size()})
    summary["quiet_s"] = clean.agg(lambda seconds: quiet_mean(seconds.tolist()))
    summary["spread_s"] = clean.quantile(0.75) - clean.quantile(0.25)
    summary["clean"] = clean.size()
    summary["clean"] = summary.clean.fillna(0).astype(int)
    return summary


def read_training_results(folder: Path) -> TrainingResults:
    """Read what was measured.

    Raises:
        JoulecastError: ``folder`` is not such data, or was changed since it was written.
    """
    provenance = checked_provenance(
        folder,
        FORMAT,
        ("configurations.json", *TABLES),
        "no measurements of training ({why}); the kept ones are in recorded/two-core-training, new ones are "
        "made by joulecast.ground_truth.real_training",
    )
    listed = (folder / "configurations.json").read_text()
    configurations = TypeAdapter(list[TrainingConfiguration]).validate_json(listed)
    iterations, collectives, parts = (
        pd.read_csv(folder / name, dtype={"polluted": bool, "seconds": float}) for name in TABLES
    )
    first = iterations[iterations.repeat == 0]
    steps = _summary(first, _KEY).reindex([each.name for each in configurations])
    steps["buckets"] = first.groupby(_KEY, sort=False).buckets.first()
    steps["again_s"] = _summary(iterations[iterations.repeat > 0], _KEY).quiet_s
    alone = _summary(collectives, ["kind", "network", "bytes"]).reset_index()
    pieces = _summary(parts, ["part", "network", "rank", "bytes"]).reset_index()
    networks = list(dict.fromkeys(each.network for each in configurations))
    return TrainingResults(
        configurations=configurations,
        steps=steps,
        collectives=alone.rename(columns={"quiet_s": "seconds"}),
        parts=pieces.rename(columns={"quiet_s": "seconds"}),
        databases={
            (name, ranks): quietest_database(
                [
                    read_database(folder / f"database-{name}-{ranks}-{number}.json")
                    for number in range(len(provenance["sessions"]))
                ]
            )
            for name in networks
            for ranks in (1, 2)
        },
        graphs={name: read_graph(folder / f"graph-{name}.json") for name in networks},
        iterations=iterations,
        provenance=provenance,
    )
