"""Measured steps and collectives, written and read back: needs no root, MPI or namespaces.

A folder has ``configurations.json``, ``steps.csv`` (one row an iteration), ``ranks.csv`` (one row an
iteration and rank: seconds after the common start at which it began and had finished everything),
``collectives.csv`` (one row an iteration), and ``provenance.json`` with the SHA-256 of the others.
Iterations that were disturbed are kept and marked ``polluted``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter

from joulecast.files.columns import Column, read_csv
from joulecast.files.reading import read_json, validated
from joulecast.files.writing import directory_written_aside, sha256_of, write_csv
from joulecast.ground_truth.configurations import Configuration
from joulecast.ground_truth.jobs import Job
from joulecast.ground_truth.kept import PROVENANCE_FILE, checked_provenance
from joulecast.ground_truth.load import is_polluted

FORMAT = 1
FILES = ("configurations.json", "steps.csv", "ranks.csv", "collectives.csv")

_STEP_COLUMNS = ("configuration", "repeat", "iteration", "seconds", "foreign_cores", "late_s")
_RANK_COLUMNS = ("configuration", "repeat", "iteration", "rank", "began_s", "ended_s")
_COLLECTIVE = ("kind", "algorithm", "ranks", "ranks_per_node", "bytes")
_COLLECTIVE_COLUMNS = (*_COLLECTIVE, "iteration", "seconds", "foreign_cores", "late_s")
_SUMMARY = ["median_s", "spread_s", "clean", "iterations"]

_WHAT = (
    "Steps of training and stand-alone collectives, measured on an emulated network: a node is a "
    "network namespace behind a link limited by tbf in either direction; computations are timed "
    "sleeps; communication is MPI (isend, irecv) over TCP, of ranks with real-time priority "
    "(SCHED_RR) that look after their messages every 0.1 ms, on cores kept awake by spinners of "
    "SCHED_IDLE. `seconds` is from a start that all ranks agreed on to the end of the last rank. "
    "`foreign_cores` is what processes that are not ours used meanwhile (recorded, not judged); "
    "`late_s` the latest that a rank noticed the end of a computation; `polluted` says that it was "
    "more than 5 ms. Two warm-up iterations of every launch are not kept; repeat 1 was measured "
    "at the end of the session, for an A/A comparison."
)


@dataclass(frozen=True)
class Results:
    """What was measured.

    Attributes:
        configurations: of all measured steps.
        steps: a row for each configuration (the index): ``family``, ``ranks``, ``median_s`` and
            ``spread_s`` (interquartile range) of clean iterations, how many are ``clean`` of how
            many ``iterations``, and ``again_s``, the median of the A/A repeat or NaN.
        collectives: the same summary by ``kind``, ``algorithm``, ``ranks``, ``ranks_per_node`` and
            ``bytes`` (columns).
        iterations, ranks, collective_iterations: the raw tables.
        provenance: where all this comes from.
    """

    configurations: list[Configuration]
    steps: pd.DataFrame
    collectives: pd.DataFrame
    iterations: pd.DataFrame
    ranks: pd.DataFrame
    collective_iterations: pd.DataFrame
    provenance: dict[str, Any]

    def configuration(self, name: str) -> Configuration:
        """The configuration of a name."""
        return next(each for each in self.configurations if each.name == name)


def write_results(
    out: Path,
    jobs: Sequence[Job],
    answers: Mapping[str, list[list[dict[str, Any]]]],
    session: dict[str, Any],
) -> None:
    """Write what ``jobs`` measured (by name: for every part its iterations) to a new folder."""
    steps, ranks, collectives = [], [], []
    configurations: dict[str, Configuration] = {}
    for job in jobs:
        for part, seen in zip(job.parts, answers[job.name], strict=True):
            for iteration, each in enumerate(seen):
                outcome = (max(each["ended_s"]), each["foreign_cores"], each["late_s"])
                if not isinstance(part, Configuration):
                    what = (part.kind, part.algorithm, job.ranks, job.ranks_per_node, part.bytes)
                    collectives.append((*what, iteration, *outcome))
                    continue
                configurations[part.name] = part
                head = (part.name, job.repeat, iteration)
                steps.append((*head, *outcome))
                times = zip(each["began_s"], each["ended_s"], strict=True)
                ranks += [(*head, rank, *both) for rank, both in enumerate(times)]
    with directory_written_aside(out) as folder:
        listed = [each.model_dump(mode="json") for each in configurations.values()]
        (folder / "configurations.json").write_text(json.dumps(listed, indent=1) + "\n")
        for name, rows, columns in (
            ("steps.csv", steps, _STEP_COLUMNS),
            ("ranks.csv", ranks, _RANK_COLUMNS),
            ("collectives.csv", collectives, _COLLECTIVE_COLUMNS),
        ):
            frame = pd.DataFrame(rows, columns=list(columns))
            if "late_s" in frame:
                frame["polluted"] = [is_polluted(late_s) for late_s in frame.late_s]
                frame["foreign_cores"] = frame.foreign_cores.astype(float).round(3)
            write_csv(frame, folder / name, float_format="%.6f", lineterminator="\n")
        provenance = {
            "format": FORMAT,
            "what": _WHAT,
            "source_of_seconds": "measured",
            "ended_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            **session,
            "sha256": {name: sha256_of(folder / name) for name in FILES},
        }
        (folder / PROVENANCE_FILE).write_text(json.dumps(provenance, indent=1) + "\n")


def _summary(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Median and spread of clean iterations in groups; NaN where none is clean."""
    clean = frame[~frame.polluted].groupby(by, sort=False).seconds
    summary = pd.DataFrame({"iterations": frame.groupby(by, sort=False).size()})
    summary["median_s"] = clean.median()
    summary["spread_s"] = clean.quantile(0.75) - clean.quantile(0.25)
    summary["clean"] = clean.size()
    summary["clean"] = summary.clean.fillna(0).astype(int)
    return summary[_SUMMARY]


_ITERATION = {
    "iteration": Column("whole", 0, 1e9),
    "seconds": Column("number", 0, 1e9),
    "polluted": Column("text", choices=("True", "False")),
}
_STEP = _ITERATION | {"configuration": Column("text"), "repeat": Column("whole", 0, 1e6)}
_COLLECTIVE_STEP = _ITERATION | {
    **dict.fromkeys(("kind", "algorithm"), Column("text")),
    **dict.fromkeys(("ranks", "ranks_per_node", "bytes"), Column("whole", 1, 1e15)),
}
_RANK = {
    "configuration": Column("text"),
    **dict.fromkeys(("repeat", "iteration", "rank"), Column("whole", 0, 1e9)),
    **dict.fromkeys(("began_s", "ended_s"), Column("number", 0, 1e9)),
}


def _iterations(path: Path, columns: dict[str, Column]) -> pd.DataFrame:
    table = read_csv(path, "table of measured steps", columns)
    return table.assign(polluted=table["polluted"] == "True")


def read_results(folder: Path) -> Results:
    """Read what was measured.

    Raises:
        JoulecastError: ``folder`` is not such data, or was changed since it was written.
    """
    provenance = checked_provenance(
        folder,
        FORMAT,
        FILES,
        "no measurements of the testbed ({why}); the kept ones are in recorded/emulated-network, new ones "
        "are made by joulecast.ground_truth.measure",
    )
    listed = folder / "configurations.json"
    configurations = validated(
        TypeAdapter(list[Configuration]), read_json(listed, "list of configurations"), str(listed)
    )
    iterations = _iterations(folder / "steps.csv", _STEP)
    collective_iterations = _iterations(folder / "collectives.csv", _COLLECTIVE_STEP)
    facts = pd.DataFrame(
        [(each.name, each.family, each.ranks) for each in configurations],
        columns=["configuration", "family", "ranks"],
    ).set_index("configuration")
    first, again = iterations.repeat == 0, iterations.repeat > 0
    steps = facts.join(_summary(iterations[first], ["configuration"]))
    steps["again_s"] = _summary(iterations[again], ["configuration"]).median_s
    return Results(
        configurations=configurations,
        steps=steps,
        collectives=_summary(collective_iterations, list(_COLLECTIVE)).reset_index(),
        iterations=iterations,
        ranks=read_csv(folder / "ranks.csv", "table of ranks", _RANK),
        collective_iterations=collective_iterations,
        provenance=provenance,
    )
