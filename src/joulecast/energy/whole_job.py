"""What surrounds a training: start-up, checkpoints, restarts and switches, each with its source.

A forecast has the time and the energy of the nodes while they train. It contains none of these terms.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from joulecast.quantities import consumptions, duration_in_words, times
from joulecast.runs.scale import scale_in_words

SWITCHES = 0.19
"""Energy of the switches, divided by the energy of the nodes: the estimate in an MLPerf submission for 64
nodes. Fewer nodes need fewer layers of switches, so their ratio is not larger."""
NODE_HOURS_A_FAILURE = 6300.0
"""Node-hours between two interruptions of a job: 419 in 54 days on 2,048 nodes of 8 H100 (The Llama 3 Herd of
Models, 2024)."""
_MOST_FAILURES = 10.0
"""Most failures that are expected in a part of a training between two checkpoints. Such a part takes 2,200
times as long as without failures. A larger number would have no meaning."""


class Term(NamedTuple):
    """Seconds and joules that a part of the job adds to the training."""

    name: str
    time_s: float
    energy_j: float
    source: str


def job_terms(
    row: Mapping[str, Any], start_s: float | None, idle_w: float | None, checkpoint_s: float | None
) -> list[Term]:
    """What a job takes in addition to its training.

    After a failure, the job starts up, and trains again from its last checkpoint (without checkpoints, from
    the beginning). It may fail again on this way. Failures come at random times, so the expected time of a
    part of length s is (M + start-up) (exp(s/M) - 1), with the mean time M between failures. The time between
    checkpoints is chosen so that the least time is lost (Young 1974).

    Args:
        row: a forecast with ``hosts``, ``time_s`` and ``energy_j``.
        start_s: seconds from the start of the job to the start of the training; ``None``: not known.
        idle_w: watts of a node during start-up; ``None``: as in the training.
        checkpoint_s: time to write one checkpoint, while the training waits; ``None``: there are none.
    """
    nodes, time_s, energy_j = row["hosts"], row["time_s"], row["energy_j"]
    train_w = energy_j / time_s
    terms = []
    if start_s is not None:
        start_w = train_w if idle_w is None else nodes * idle_w
        drawn = "as in the training" if idle_w is None else "idle, as before the runs"
        terms.append(
            Term("start-up", start_s, start_s * start_w, f"mean of the runs' logs; power {drawn}")
        )
    between_s, mean_s = time_s, 3600 * NODE_HOURS_A_FAILURE / nodes
    if checkpoint_s is not None:
        between_s = math.sqrt(2 * checkpoint_s * mean_s)
        count = math.floor(time_s / between_s)
        writing_s = count * checkpoint_s
        said = f"{count:,} in this time, {duration_in_words(checkpoint_s)} each, as requested: one every "
        said += duration_in_words(between_s)
        terms.append(Term("checkpoints", writing_s, writing_s * train_w, said))
    failures = min(between_s, time_s) / mean_s
    counted = min(failures, _MOST_FAILURES)
    takes = (1 + (start_s or 0.0) / mean_s) * math.expm1(counted) / counted
    lost_s = time_s * (takes - 1)
    said = (
        "expected" if failures <= _MOST_FAILURES else "or more: without checkpoints it hardly ends"
    )
    said += f"; an interruption each {duration_in_words(mean_s)}, as in the training of Llama 3"
    terms.append(Term("restarts", lost_s, lost_s * train_w, said))
    if nodes > 1:
        switched_j = SWITCHES * (energy_j + sum(term.energy_j for term in terms))
        share = f"{100 * SWITCHES:.0f} % of the energy of the nodes"
        said = f"{share}, estimated in MLPerf for 64 nodes; fewer need less"
        terms.append(Term("switches", 0.0, switched_j, said))
    return terms


def in_words(row: Mapping[str, Any], terms: Sequence[Term]) -> str:
    """Words for the time and energy of the whole job of a forecast, and of each of its terms."""
    time_s = row["time_s"] + sum(term.time_s for term in terms)
    joules = [row["energy_j"] + sum(term.energy_j for term in terms), *(t.energy_j for t in terms)]
    # Each in its own unit: a term may be a millionth of the whole.
    total, *each = (consumptions(each_j)[0] for each_j in joules)
    lasts = [times(term.time_s)[0] if term.time_s else "no time" for term in terms]
    parts = [
        f"{term.name} {time} and {drawn} ({term.source})"
        for term, time, drawn in zip(terms, lasts, each, strict=True)
    ]
    scale = scale_in_words(row["nodes"], row["nodes_are"])
    return f"the whole job on {scale} takes {times(time_s)[0]} and {total}: {'; '.join(parts)}"


def start_up(of_workload: pd.DataFrame, started_s: pd.Series, nodes: float) -> float | None:
    """Mean seconds from the begin of a log to the training. Only runs whose log shows this time count, on
    the node count nearest to ``nodes``.

    Args:
        started_s: seconds from the begin of each run's log to the training; 0 if the log does not show it.
    """
    known = of_workload[started_s > 0]
    if known.empty:
        return None
    nearest = (known["nodes"] - nodes).abs()
    return float(started_s[nearest.index[nearest == nearest.min()]].mean())
