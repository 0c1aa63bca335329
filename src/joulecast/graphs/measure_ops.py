"""Measures an op database: times every distinct op of a network inside its training.

All ranks train side by side, each in a process with one thread. So ops share the bandwidth of the memory as
in training. Steps that are timed op by op alternate with steps that are timed as a whole.
:class:`~joulecast.graphs.database.StepCheck` compares the two.
"""

import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import fmean, median
from threading import BrokenBarrierError
from typing import TYPE_CHECKING, get_args
from unittest.mock import patch

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Direction
from joulecast.graphs.database import (
    FEWEST,
    Database,
    Entry,
    StepCheck,
    fastest_quarter,
    mean_of_fastest,
    merged,
    optimizer_signature,
    signature,
)
from joulecast.graphs.opgraph import OpGraph
from joulecast.measure.power.other_load import Load, load_now
from joulecast.measure.training.ranks import keep_freed_memory, rank_environment
from joulecast.measure.workloads.networks import build_network, check_size
from joulecast.runs.provenance import host_fingerprint, usable_cores, versions

if TYPE_CHECKING:
    from joulecast.graphs.instrumented import TimedNetwork

ITERATIONS, WARM_UP = 5, 2
WAITING = 0.03
"""Largest share of a step's time without a core. In a step above it, other processes delayed the rank."""
_ARRIVAL_S = 600.0


@dataclass(frozen=True)
class StepTimes:
    """Times of a whole step, and of a step timed op by op. ``waited`` is the share of the time of these two
    steps in which the rank had no core."""

    whole: float
    by_op: dict[tuple[str, Direction], float]
    optimizer: float
    waited: float

    @property
    def timed(self) -> float:
        """Seconds of the step that was timed op by op."""
        return sum(self.by_op.values())


def _step(network: "TimedNetwork", barrier: Barrier | None) -> StepTimes:
    def arrive() -> tuple[float, float]:
        if barrier:
            barrier.wait(_ARRIVAL_S)
        return time.perf_counter(), time.process_time()

    before = arrive()
    whole = network.whole_step()
    # Both kinds of steps begin as in training: on weights that were just updated.
    network.optimizer_step()
    wall_s, cpu_s = time.perf_counter() - before[0], time.process_time() - before[1]
    before = arrive()
    forward, backward = network.step_by_op()
    optimizer = network.optimizer_step()
    wall_s += time.perf_counter() - before[0]
    cpu_s += time.process_time() - before[1]
    by_op: dict[tuple[str, Direction], float] = {(op, "forward"): s for op, s in forward.items()}
    by_op |= {(op, "backward"): s for op, s in backward.items()}
    return StepTimes(whole, by_op, optimizer, 1 - cpu_s / wall_s)


def time_steps(
    network: "TimedNetwork", iterations: int, barrier: Barrier | None = None
) -> list[StepTimes]:
    """After a warm-up, train ``iterations`` whole steps, and as many steps that are timed op by op.

    All ranks start each step together.

    Steps in which the rank had no core for more than :data:`WAITING` of the time are dropped, the worst
    first. At least :data:`~joulecast.graphs.database.FEWEST` steps are kept.
    """
    for _ in range(WARM_UP):
        _step(network, barrier)
    taken = [_step(network, barrier) for _ in range(iterations)]
    taken.sort(key=lambda step: step.waited)
    return taken[:FEWEST] + [step for step in taken[FEWEST:] if step.waited <= WAITING]


def tabulated(
    graph: OpGraph, steps: Sequence[StepTimes], taken: int, precision: str = "fp32"
) -> tuple[tuple[Entry, ...], StepCheck]:
    """Times of a graph's ops, with one entry for each signature. Also the check of their sum.

    The time of an op is its mean over the fastest quarter of the steps. The same steps are used for all ops.
    So the times of the ops add up to the mean time of these steps, with all delays.

    Args:
        steps: steps of all ranks that were kept.
        taken: number of steps that all ranks took.
    """
    fastest = [steps[place] for place in fastest_quarter([step.timed for step in steps])]
    seconds: dict[tuple[str, Direction], float] = {
        (op.name, direction): fmean(step.by_op[op.name, direction] for step in fastest)
        for op in graph.ops
        for direction in get_args(Direction)
        if (op.name, direction) in fastest[0].by_op
    }
    ops = {op.name: op for op in graph.ops}
    entries = [
        Entry(signature(graph, ops[name], direction, precision=precision), 1e3 * s, len(fastest))
        for (name, direction), s in seconds.items()
    ]
    optimizer = mean_of_fastest([step.optimizer for step in steps])
    size = sum(tensor.bytes for tensor in graph.parameters)
    entries.append(Entry(optimizer_signature(size, precision), optimizer * 1e3, len(steps)))
    check = StepCheck(
        network=graph.name,
        batch=graph.batch,
        whole_s=mean_of_fastest([step.whole for step in steps]),
        ops_s=sum(seconds.values()),
        timed_s=mean_of_fastest([step.timed for step in steps]),
        optimizer_s=optimizer,
        kept=len(steps),
        dropped=taken - len(steps),
        waited_share=max(0.0, median(step.waited for step in steps)),
    )
    return merged(entries), check


_BARRIER: list[Barrier] = []
"""Barrier of this process. All ranks start each step together."""


def _set_barrier(barrier: Barrier) -> None:
    """Set the barrier in the process of a rank."""
    _BARRIER[:] = [barrier]


def _rank(
    size: tuple[str, int, int, int], batches: Sequence[int], iterations: int, core: int
) -> list[tuple[OpGraph, list[StepTimes]]]:
    """Train as one rank. Returns the graph and the times of its steps for each batch size."""
    (barrier,) = _BARRIER
    try:
        # Each rank has its own core. Ranks that the kernel moves between cores disturb each other.
        os.sched_setaffinity(0, {core})
        import torch

        from joulecast.graphs.instrumented import TimedNetwork

        torch.set_num_threads(1)
        keep_freed_memory()
        torch.manual_seed(0)
        network = build_network(*size)
        found = []
        for batch in batches:
            images = torch.randn(batch, 3, size[1], size[1])
            timed = TimedNetwork(network, images, size[3], size[0])
            found.append((timed.graph, time_steps(timed, iterations, barrier)))
        return found
    except Exception:
        # Otherwise the other ranks would wait for this one.
        barrier.abort()
        raise


def _measure_ranks(
    size: tuple[str, int, int, int], batches: Sequence[int], iterations: int, ranks: int
) -> list[tuple[OpGraph, list[StepTimes]]]:
    """The graph, and the times of all ranks, for each batch size.

    Raises:
        JoulecastError: a rank failed. The error has its message.
    """
    context = multiprocessing.get_context("spawn")
    # Huge pages and one thread, as in the launch of a training.
    launched = rank_environment(threads=1)
    names = ("GLIBC_TUNABLES", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    cores = sorted(os.sched_getaffinity(0))[:ranks]
    with (
        patch.dict(os.environ, {name: launched[name] for name in names}),
        ProcessPoolExecutor(ranks, context, _set_barrier, (context.Barrier(ranks),)) as pool,
    ):
        # Each rank waits for the others at its first step. So no process of the pool gets two ranks.
        each = [pool.submit(_rank, size, tuple(batches), iterations, core) for core in cores]
    failures = [error for error in (rank.exception() for rank in each) if error is not None]
    # The error of a rank that found the barrier broken does not say why it is broken.
    failures.sort(key=lambda error: isinstance(error, BrokenBarrierError))
    if failures and isinstance(failures[0], BrokenProcessPool):
        raise JoulecastError(
            f"measuring the ops of {size[0]}: a rank was ended from outside; was it killed because memory "
            "ran out? Try fewer samples or ranks"
        )
    if failures:
        raise JoulecastError(
            f"measuring the ops of {size[0]}: {type(failures[0]).__name__}: {failures[0]}"
        ) from failures[0]
    first, *others = [rank.result() for rank in each]
    for other in others:
        for (_, steps), (_, more) in zip(first, other, strict=True):
            steps += more
    return first


def _check(ranks: int, batches: Sequence[int], iterations: int) -> None:
    if not 1 <= ranks <= usable_cores():
        raise JoulecastError(
            f"ops can be measured by 1 to {usable_cores()} ranks here, one on each core, not by {ranks}: "
            "ranks that take turns on a core measure the waiting, not the op"
        )
    if not batches or min(batches) < 1 or iterations < 1:
        raise JoulecastError(
            "an op database needs batch sizes and iterations, each of them 1 at least"
        )


def measure_database(
    network: str,
    image_size: int,
    patch_size: int,
    classes: int,
    batches: Sequence[int],
    ranks: int,
    out: Path | None = None,
    iterations: int = ITERATIONS,
    load: Load | None = None,
) -> Database:
    """Measure every distinct op of a network, forward and backward, and write the database to ``out``.

    Args:
        network: a name in :data:`joulecast.measure.workloads.networks.NETWORKS`.
        image_size: width of an image in pixels.
        patch_size: width of a patch of a vision transformer, in pixels.
        classes: number of classes of the data set.
        batches: batch sizes of a rank. Interpolation needs several.
        ranks: number of processes that train side by side, each with one thread.
        out: JSON file, or ``None``.
        iterations: number of timed steps. Means are taken over the fastest quarter of them, on all ranks.
        load: load by other programs before the measurement; if ``None``, it is measured.

    Raises:
        JoulecastError: there are more ranks than cores, the network or its size is unknown, or a rank failed.
    """
    check_size(network, image_size, patch_size)
    _check(ranks, batches, iterations)
    load = load or load_now()
    start = time.monotonic()
    measured = _measure_ranks(
        (network, image_size, patch_size, classes), batches, iterations, ranks
    )
    tables = [tabulated(graph, steps, ranks * iterations) for graph, steps in measured]
    database = Database(
        provenance={
            "source": "measured",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": host_fingerprint(),
            "load_before": {"busy_cores": load.busy_cores},
            "threads": 1,
            "ranks": ranks,
            "iterations": iterations,
            "versions": versions(),
            "network": network,
            "image_size": image_size,
            "patch_size": patch_size,
            "classes": classes,
            "batches": list(batches),
            "wall_s": round(time.monotonic() - start, 1),
        },
        entries=merged(entry for entries, _ in tables for entry in entries),
        steps=tuple(check for _, check in tables),
    )
    if out:
        database.write(out)
    return database
