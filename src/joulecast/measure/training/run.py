"""A rank's part of a run: it prepares, trains or calibrates while power is sampled, and sends its
measurements to rank 0.

Ranks do not load pandas, and calibrations do not load torch, because loading takes some seconds in every rank
of every run. Rank 0 writes the record at the end.
"""

import math
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.measure.power.host_clocks import RunClock
from joulecast.measure.power.other_load import Load
from joulecast.measure.power.sampler import Sampler, SamplerOrder
from joulecast.measure.power.samples import SAMPLES, Left
from joulecast.measure.training import calibration_runs
from joulecast.measure.training.mpi import MPI, Hosts, arrive_slowly, clock_offsets
from joulecast.measure.training.stage_clock import Intervals, StageClock
from joulecast.runs import provenance
from joulecast.runs.frames import STAGE_COLUMNS, STAGES
from joulecast.runs.spec import RunSpec, check_cores

if TYPE_CHECKING:
    import pandas as pd

    from joulecast.runs.record import RunRecord

_LINE_EVERY_S = 5.0


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
    clock: RunClock
    start_s: float
    stop_s: float
    intervals: Intervals
    peak_rss_bytes: int
    oversubscribed: bool
    sampled: Left | None
    fingerprint: dict[str, Any]
    scheduler_node: str | None


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


def _record(
    spec: RunSpec, measured: Measured, ranks: Sequence[FromRank], load_before: Load | None
) -> "RunRecord":
    """The record of a run, from the measurements of all ranks in the order of the ranks."""
    from joulecast.measure.run_record import SampledHost, run_record
    from joulecast.runs.record import Checks, Outcome

    hosts: list[SampledHost] = []
    for rank in ranks:
        if (left := rank.sampled) is not None:
            # Rank 0 measured the load, on its host.
            load = None if hosts else load_before
            hosts.append(
                SampledHost(
                    rank.host, left.node, rank.clock, left.samples(), rank.fingerprint, load
                )
            )
    did = {
        name: value
        for name, value in measured.outcome.items()
        if value is not None and math.isfinite(value)
    }
    outcome = Outcome(
        # Ranks leave the barrier one after the other; the run lasts from the first start to the last stop.
        start_s=min(rank.start_s for rank in ranks),
        stop_s=max(rank.stop_s for rank in ranks),
        peak_rss_bytes=max(rank.peak_rss_bytes for rank in ranks),
        **did,
    )
    return run_record(
        spec,
        hosts,
        outcome,
        _stages(ranks),
        nodes=list(dict.fromkeys(rank.node for rank in ranks)),
        node_of_rank=[rank.node for rank in ranks],
        scheduler_job=os.environ.get("SLURM_JOB_ID"),
        scheduler_node_of_rank=[r.scheduler_node for r in ranks if r.scheduler_node is not None],
        checks=Checks(ranks=len(ranks), distinct_hosts=len(hosts), **measured.checks),
        oversubscribed=any(rank.oversubscribed for rank in ranks),
        **measured.info,
    )


def _sampler_order(spec: RunSpec, hosts: Hosts, node: str) -> SamplerOrder:
    """The meters and processes that this host's sampler reads; all ranks of the host call it."""
    processes = hosts.local.allgather((node, os.getpid()))
    pids_here = tuple(pid for _, pid in processes)
    if "estimated" in spec.meters:
        spec.platform.require_watts()
    if spec.nodes_are == "hosts":
        return SamplerOrder.of(spec, hosts.label, pids_here)
    pids: dict[str, list[int]] = {}
    for name, pid in processes:
        pids.setdefault(name, []).append(pid)
    slow_down = spec.emulation.nodes_per_core if spec.emulation else 1
    capacity = spec.threads_per_rank * spec.ranks_per_node / slow_down
    return SamplerOrder.of(spec, hosts.label, pids_here, pids, capacity)


def _verify_ranks(spec: RunSpec, hosts: Hosts) -> None:
    size = hosts.comm.size
    if size != spec.ranks:
        raise JoulecastError(
            f"run {spec.run}: the MPI job has {size} ranks, the specification {spec.ranks}; start "
            f"it with -n {spec.ranks}, and check that launcher and mpi4py use the same MPI library"
        )
    if hosts.count != spec.hosts:
        raise JoulecastError(
            f"run {spec.run}: the ranks are on {hosts.count} hosts, {spec.hosts} were requested "
            f"({', '.join(n.split(':')[0] for n in hosts.names)}); check the launcher and the key "
            "`hosts` of the platform file"
        )


def measure_this_run(spec: RunSpec, out: Path, comm: MPI.Intracomm, load: Load | None) -> None:
    """Do this rank's part of a run; rank 0 writes the record to ``out``.

    Args:
        load: load by other programs before the run; ``None`` if it is not known.

    Raises:
        JoulecastError: the MPI job does not fit the specification, or cannot be measured on this machine.
    """
    # A slow arrival leaves the cores to ranks that are still setting up.
    arrive_slowly(comm)
    hosts = Hosts.of(comm)
    _verify_ranks(spec, hosts)
    cores = hosts.usable_cores()
    yields = check_cores(spec, hosts.local.size, cores)
    started_utc = datetime.now(UTC).isoformat(timespec="milliseconds")
    origin: float = comm.bcast(time.monotonic())
    before = clock_offsets(hosts)
    node = hosts.label
    if spec.nodes_are != "hosts":
        node += f"/{comm.rank // spec.ranks_per_node}"
    order = _sampler_order(spec, hosts, node)
    samples = out.with_name(f"{out.name}-rank{comm.rank}{SAMPLES}")
    sampler = Sampler(order, samples) if hosts.is_leader else None
    clock = StageClock()
    if spec.kind == "training":
        measured = _train(spec, hosts, clock, yields)
    else:
        # Training first sets up for seconds, but a calibration may be over before the sampler reads.
        if sampler is not None:
            sampler.wait_until_begun()
        arrive_slowly(comm)
        start, stop, step_bytes, used = calibration_runs.run(spec, hosts, clock, yields)
        info = {"step_bytes": step_bytes, "algorithm_used": used}
        measured = Measured(start, stop, {}, {}, info)
    time.sleep(2 * spec.sample_period_s)
    sampled = sampler.stop() if sampler is not None else None
    arrive_slowly(comm)
    run_clock = RunClock(origin, before[hosts.own], clock_offsets(hosts)[hosts.own])
    mine = FromRank(
        node=node,
        host=hosts.own,
        clock=run_clock,
        start_s=run_clock(measured.start),
        stop_s=run_clock(measured.stop),
        intervals=clock.intervals(),
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        oversubscribed=hosts.local.size * spec.threads_per_rank > cores,
        sampled=sampled,
        fingerprint=provenance.host_fingerprint(),
        scheduler_node=os.environ.get("SLURMD_NODENAME"),
    )
    ranks = comm.gather(mine)
    if ranks is None:
        return
    from joulecast.runs.record import write_record

    library = MPI.Get_library_version().splitlines()[0].strip("\x00 ")
    measured.info |= {
        "started_utc": started_utc,
        "mpi_library": library,
    }
    write_record(out, _record(spec, measured, ranks, load))


def _progress_of(spec: RunSpec) -> Callable[[int, float], None]:
    """A function that prints a line to the run's log every few seconds."""
    assert spec.training is not None
    steps = spec.training.steps
    begin = last = time.monotonic()

    def print_line(done: int, loss: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINE_EVERY_S or done == steps:
            last = now
            left_s = (now - begin) / done * (steps - done)
            print(
                f"{spec.run}: step {done}/{steps}, loss {loss:.3f}, {left_s:.0f} s left", flush=True
            )

    return print_line


def _train(spec: RunSpec, hosts: Hosts, clock: StageClock, yields: bool) -> Measured:
    from joulecast.measure.training.loop import Trainer, weights_sha256

    assert spec.training is not None
    comm = hosts.comm
    trainer = Trainer(spec, hosts, clock, yields)
    trained = trainer.train(_progress_of(spec) if comm.rank == 0 else lambda done, loss: None)
    if comm.rank == 0:
        # The modules that write the record take a second to load: done while the weights are hashed.
        Thread(target=import_module, args=("joulecast.measure.run_record",)).start()
    hashes = comm.allgather(weights_sha256(trainer.network))
    overruns = [o for o in comm.allgather(trainer.speed.overrun_fraction) if o is not None]
    checks = {
        "weights_sha256": hashes[0],
        "replicas_equal": len(set(hashes)) == 1,
        "overrun_fraction": sum(overruns) / len(overruns) if overruns else None,
    }
    info = {
        "algorithm_used": trainer.buckets.algorithm,
        "parameters": sum(p.numel() for p in trainer.parameters),
        "reference_step_s": trainer.speed.reference_s or None,
    }
    trainer.close()
    outcome = asdict(trained)
    start, stop = outcome.pop("start"), outcome.pop("stop")
    return Measured(start, stop, outcome, checks, info)
