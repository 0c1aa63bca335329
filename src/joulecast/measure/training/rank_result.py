"""The result of a rank: the stages of its steps, and other measurements. It sends this to rank 0, which makes
the record.

All ranks load this module. Only rank 0 loads pandas, when it makes the record.
"""

import math
import os
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from joulecast.measure.power.host_clocks import RunClock
from joulecast.measure.power.other_load import Load
from joulecast.measure.power.samples import Left
from joulecast.runs.frames import STAGE_COLUMNS, STAGES
from joulecast.runs.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd

    from joulecast.runs.record import RunRecord

Intervals = dict[str, NDArray[Any]]
"""Step, number of the stage in :data:`~joulecast.runs.frames.STAGES`, start and stop in s of the host's
clock, each (intervals,)."""

_NUMBER = {stage: number for number, stage in enumerate(STAGES)}


class StageClock:
    """Collects stage intervals on this host's monotonic clock.

    Intervals come from the training thread and from the thread that communicates. Intervals of one thread do
    not overlap. ``step`` is the number of the current step. Warm-up steps have negative numbers.
    """

    def __init__(self) -> None:
        self.step = 0
        # 32 bytes an interval: a training of days has millions.
        self._rows = array("d")

    def record(self, stage: str, start: float, stop: float) -> None:
        """Record ``stage`` from ``start`` to ``stop``."""
        self._rows.extend((self.step, _NUMBER[stage], start, stop))

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Record the time of a ``with`` block as stage ``name``."""
        start = time.monotonic()
        yield
        self.record(name, start, time.monotonic())

    @property
    def rows(self) -> list[tuple[int, str, float, float]]:
        """Step, stage, start and stop of all intervals, also of the warm-up."""
        table = np.array(self._rows).reshape(-1, 4)
        return [(int(step), STAGES[int(stage)], *times) for step, stage, *times in table.tolist()]

    def intervals(self) -> Intervals:
        """All intervals without warm-up."""
        table = np.array(self._rows).reshape(-1, 4)
        step, stage, start_s, stop_s = table[table[:, 0] >= 0].T
        return {
            "step": step.astype(int),
            "stage": stage.astype(int),
            "start_s": start_s,
            "stop_s": stop_s,
        }


@dataclass
class Measured:
    """Start and stop of a run on this host's clock, and the fields of the record that follow from the run."""

    start: float
    stop: float
    outcome: dict[str, Any]
    checks: dict[str, Any]
    info: dict[str, Any]


@dataclass
class FromRank:
    """Measurements that one rank sends to rank 0. Only one rank of each host sends ``sampled``.

    Times of ``intervals`` are on the host's clock. ``start_s`` and ``stop_s`` are on the run's clock.
    """

    node: str
    host: str
    host_node: str
    clock: RunClock
    start_s: float
    stop_s: float
    intervals: Intervals
    peak_rss_bytes: int
    oversubscribed: bool
    sampled: Left | None
    fingerprint: dict[str, Any]
    scheduler_node: str | None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _stages(ranks: Sequence[FromRank]) -> "pd.DataFrame":
    """The stages of all ranks on the run's clock."""
    import pandas as pd

    names = np.array(STAGES, dtype=object)
    tables = []
    for number, rank in enumerate(ranks):
        own = rank.intervals
        times = rank.clock(own["start_s"]), rank.clock(own["stop_s"])
        columns = (np.full(len(own["step"]), number), own["step"], names[own["stage"]], *times)
        tables.append(pd.DataFrame(dict(zip(STAGE_COLUMNS, columns, strict=True))))
    return pd.concat(tables, ignore_index=True)


def assemble(
    spec: RunSpec, measured: Measured, ranks: Sequence[FromRank], load_before: Load | None = None
) -> "RunRecord":
    """The record of a run.

    Args:
        measured: start, stop, and the fields that follow from the run.
        ranks: the measurements of all ranks, in the order of the ranks.
        load_before: load by other programs before the run.
    """
    from joulecast.measure.run_record import SampledHost, run_record
    from joulecast.runs.record import Checks, Outcome

    samplers = [
        SampledHost(rank.host, rank.host_node, rank.clock, rank.sampled.samples())
        for rank in ranks
        if rank.sampled is not None
    ]
    did: dict[str, Any] = {key: _finite(value) for key, value in measured.outcome.items()}
    outcome = Outcome(
        # Ranks leave the barrier one after the other; the run lasts from the first start to the last stop.
        start_s=min(rank.start_s for rank in ranks),
        stop_s=max(rank.stop_s for rank in ranks),
        peak_rss_bytes=max(rank.peak_rss_bytes for rank in ranks),
        **did,
    )
    return run_record(
        spec,
        samplers,
        [rank.fingerprint for rank in ranks if rank.sampled is not None],
        outcome,
        _stages(ranks),
        load=load_before,
        nodes=list(dict.fromkeys(rank.node for rank in ranks)),
        node_of_rank=[rank.node for rank in ranks],
        scheduler_job=os.environ.get("SLURM_JOB_ID"),
        scheduler_node_of_rank=[r.scheduler_node for r in ranks if r.scheduler_node is not None],
        checks=Checks(ranks=len(ranks), distinct_hosts=len(samplers), **measured.checks),
        oversubscribed=any(rank.oversubscribed for rank in ranks),
        **measured.info,
    )
