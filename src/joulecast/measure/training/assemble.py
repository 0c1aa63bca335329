"""The record of a run, assembled by rank 0 from what all ranks hand over."""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from joulecast.measure.power.foreign_load import Load
from joulecast.measure.power.sampled_hosts import SampledHost
from joulecast.measure.run_record import run_record
from joulecast.measure.training.rank_result import FromRank, Measured
from joulecast.runs.frames import STAGE_COLUMNS, STAGES
from joulecast.runs.record import Checks, Outcome, RunRecord
from joulecast.runs.spec import RunSpec


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _stages(ranks: Sequence[FromRank]) -> pd.DataFrame:
    """The stages of all ranks on the run's clock."""
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
) -> RunRecord:
    """The record of a run.

    Args:
        measured: what the run decides.
        ranks: in their order, what each one has handed over.
        load_before: load by other programs before the run.
    """
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
