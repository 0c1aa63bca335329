"""The record of a run, assembled by rank 0 from what all ranks hand over."""

import math
import os
from typing import Any

import numpy as np
import pandas as pd

from joulecast.power.foreign_load import Load, disturbances
from joulecast.power.integration import reading_quality
from joulecast.records import provenance
from joulecast.records.frames import ACTIVITY_COLUMNS, PHASE_COLUMNS, POWER_COLUMNS, STAGE_COLUMNS
from joulecast.records.metering import MeterInfo
from joulecast.records.record import Checks, Outcome, RunInfo, RunRecord
from joulecast.records.spec import RunSpec
from joulecast.training.from_ranks import FromRank, Measured
from joulecast.training.mpi import MPI

_SEEN_S = 1.0
"""Foreign load is judged over at least this many seconds, as far as the sampler ran that long."""
_SHORTEST_JUDGED_S = 0.2
"""In less time, foreign load is not judged: the kernel counts work in ticks of 10 ms."""


def _nodes_by_device(samplers: list[FromRank]) -> dict[str | None, list[str]]:
    """The nodes that read each device: several where containers of one machine count as hosts."""
    nodes: dict[str | None, list[str]] = {None: []}
    for rank in samplers:
        assert rank.sampled is not None
        for meter in rank.sampled["meters"]:
            if meter["identity"] is not None:
                nodes.setdefault(meter["identity"], []).append(meter["node"])
    return nodes


def _meter_infos(
    spec: RunSpec, samplers: list[FromRank], power: pd.DataFrame, outcome: Outcome
) -> list[MeterInfo]:
    infos = []
    read_by = _nodes_by_device(samplers)
    for rank in samplers:
        assert rank.sampled is not None
        host_node, answer = rank.host_node, rank.sampled
        for absent in answer["absent"]:
            reason = f"{absent['reason']}; {absent['remedy']}"
            infos.append(
                MeterInfo(node=host_node, meter=absent["meter"], available=False, reason=reason)
            )
        for meter in answer["meters"]:
            fault = meter["fault"] or answer["died"]
            of_meter = power[(power["node"] == meter["node"]) & (power["meter"] == meter["meter"])]
            coverage, gap = reading_quality(
                of_meter["t_s"].to_numpy(float),
                outcome.start_s,
                outcome.stop_s,
                spec.sample_period_s,
            )
            infos.append(
                MeterInfo(
                    node=meter["node"],
                    meter=meter["meter"],
                    available=fault is None,
                    source=meter["source"],
                    counter=meter["counter"],
                    reason=fault,
                    readings=len(of_meter),
                    failed_reads=meter["failed"],
                    missed_deadlines=answer["missed_deadlines"],
                    longest_gap_s=gap,
                    coverage=coverage,
                    shared_with=[
                        node for node in read_by[meter["identity"]] if node != meter["node"]
                    ],
                )
            )
    return infos


def _frames(samplers: list[FromRank]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Power and activity of all hosts on the run clock."""
    power: list[list[Any]] = []
    activity: list[list[Any]] = []
    for rank in samplers:
        assert rank.sampled is not None
        at = rank.clock
        power += [[n, m, at(t), w, j] for n, m, t, w, j in rank.sampled["power"]]
        activity += [
            [node, at(t), cpu, gpu, memory, network]
            for node, t, cpu, gpu, memory, network in rank.sampled["activity"]
        ]
    numbers = dict.fromkeys(POWER_COLUMNS[2:], float)
    return (
        pd.DataFrame(power, columns=list(POWER_COLUMNS)).astype(numbers),
        pd.DataFrame(activity, columns=list(ACTIVITY_COLUMNS)).astype(
            dict.fromkeys(ACTIVITY_COLUMNS[1:], float)
        ),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _load_during(samplers: list[FromRank], outcome: Outcome) -> Load | None:
    """Load by other programs during the run, on the machine where it was highest; ``None`` if not known.

    For a run of less than a second, the time just before and after it counts too.
    """
    loads = []
    around_s = max(0.0, (_SEEN_S - (outcome.stop_s - outcome.start_s)) / 2)
    machines: dict[str, list[FromRank]] = {}
    for rank in samplers:
        # Containers of one machine see all its work: only together do they know how much is foreign.
        boot = rank.host.partition(":")[2]
        machines.setdefault(rank.host if boot == "unknown-boot" else boot, []).append(rank)
    for ranks in machines.values():
        if any(rank.sampled is None or rank.sampled["died"] for rank in ranks):
            continue
        worked = {"machine": 0.0, "own": 0.0}
        programs: set[str] = set()
        for place, rank in enumerate(ranks):
            assert rank.sampled is not None
            seen = np.array(rank.sampled["work"], dtype=float)
            times = [rank.clock(t) for t in seen[:, 0]]
            ends = [outcome.start_s - around_s, outcome.stop_s + around_s]
            inside = np.clip(ends, times[0], times[-1])
            machine, own = (np.diff(np.interp(inside, times, seen[:, k]))[0] for k in (1, 2))
            worked["own"] += float(own)
            if place == 0:
                worked["machine"] = float(machine)
                span = float(inside[1] - inside[0])
                programs |= set(rank.sampled["programs"])
        if span > _SHORTEST_JUDGED_S:
            foreign = max(0.0, worked["machine"] - worked["own"]) / span
            loads.append(Load(round(foreign, 3), tuple(sorted(programs))))
    return max(loads, key=lambda load: load.busy_cores, default=None)


def assemble(
    spec: RunSpec, measured: Measured, ranks: list[FromRank], load_before: Load | None = None
) -> RunRecord:
    """The record of a run.

    Args:
        ranks: in their order, what each one has handed over.
        load_before: load by other programs before the run.
    """
    samplers = [rank for rank in ranks if rank.sampled is not None]
    power, activity = _frames(samplers)
    did: dict[str, Any] = {key: _finite(value) for key, value in measured.outcome.items()}
    outcome = Outcome(
        # Ranks leave the barrier one after the other; the run lasts from the first start to the last stop.
        start_s=min(rank.start_s for rank in ranks),
        stop_s=max(rank.stop_s for rank in ranks),
        peak_rss_bytes=max(rank.peak_rss_bytes for rank in ranks),
        **did,
    )
    during = _load_during(samplers, outcome)
    stages = pd.DataFrame(
        [row for rank in ranks for row in rank.stages], columns=list(STAGE_COLUMNS)
    ).astype({"rank": int, "step": int, "start_s": float, "stop_s": float})
    info = RunInfo(
        spec=spec,
        spec_sha256=spec.digest(),
        nodes=list(dict.fromkeys(rank.node for rank in ranks)),
        node_of_rank=[rank.node for rank in ranks],
        scheduler_job=os.environ.get("SLURM_JOB_ID"),
        scheduler_node_of_rank=[r.scheduler_node for r in ranks if r.scheduler_node is not None],
        nodes_are=spec.nodes_are,
        outcome=outcome,
        checks=Checks(ranks=len(ranks), distinct_hosts=len(samplers), **measured.checks),
        meters=_meter_infos(spec, samplers, power, outcome),
        clock={rank.host: rank.clock.facts() for rank in samplers},
        hosts=[rank.fingerprint for rank in samplers],
        versions=provenance.versions(),
        mpi_library=MPI.Get_library_version().splitlines()[0].strip("\x00 "),
        oversubscribed=any(rank.oversubscribed for rank in ranks),
        source=provenance.source_state(),
        load_during={} if during is None else {"busy_cores": during.busy_cores},
        disturbed=disturbances(load_before, during),
        **measured.info,
    )
    did_s = ("run", 0.0, outcome.start_s, outcome.stop_s, float(outcome.samples))
    phases = pd.DataFrame([did_s], columns=list(PHASE_COLUMNS))
    return RunRecord(info, stages, power, activity, phases)
