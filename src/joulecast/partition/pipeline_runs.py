"""Runs a partition of a network as a pipeline on this machine. Other runs are made to compare its step with.

torchrun starts a rank for each stage. Each rank has its own core and thread. Four kinds of steps take turns:
every stage alone, the whole network in one process, the pipeline, and whole networks in as many processes as
there are cores. The last kind shows the speed of all cores together. No pipeline can be faster than this.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils._pytree import tree_leaves

from joulecast.errors import JoulecastError
from joulecast.measure.power.other_load import LoadWatch, disturbances
from joulecast.measure.training.machine import machine_lock, wait_for_quiet
from joulecast.measure.training.ranks import (
    end_with_parent,
    keep_freed_memory,
    opened_log,
    rank_environment,
)
from joulecast.measure.workloads.networks import build_network
from joulecast.partition.makespan import makespan
from joulecast.partition.torch_stages import cut_into_stages, pipeline_of
from joulecast.runs.provenance import host_fingerprint, source_state, usable_cores, versions

ROUNDS, WARM_UP, ITERATIONS = 2, 1, 4
"""Number of turns of each kind of step. In a turn: number of steps that are dropped, and that are kept."""
_PATCH = 16
_WHAT = (
    "Forward and backward of training steps in fp32 on one machine, one thread a process, each process on a "
    "core of its own unless `oversubscribed`; images are synthetic. `step_s`: a step of the pipeline "
    "(torch.distributed.pipelining over gloo), from the first rank's start to the last one's end. "
    "`forward_s` and `backward_s`: a micro-batch in each stage alone. `unpartitioned_s`: the same "
    "micro-batches through the whole network in one process. `capacity`: how many times as fast "
    "`capacity_processes` of those are at once. All are medians of turns that alternate; "
    "`predicted_makespan_s` is computed from the stages."
)


def measure_pipeline(
    run: dict[str, Any],
    stages: Sequence[Sequence[str]],
    classes: int,
    log_file: Path,
    quiet_wait_s: float = 0.0,
    timeout_s: float = 300.0,
) -> dict[str, Any]:
    """Run a partition as a pipeline, with a rank for each stage. Returns the record.

    Args:
        run: ``network``, ``image_size``, ``batch_size``, ``micro_batches`` and ``schedule``.
        stages: for every stage, the names of its tasks.
        classes: number of classes of the network's output.
        log_file: gets what the ranks print.
        quiet_wait_s: longest wait for other programs to end.

    Raises:
        JoulecastError: the batch does not divide, or a rank failed.
    """
    name = f"pipeline of {run['network']}"
    if run["batch_size"] % run["micro_batches"]:
        raise JoulecastError(
            f"{name}: a batch of {run['batch_size']} does not divide into {run['micro_batches']} "
            "micro-batches"
        )
    with (
        tempfile.TemporaryDirectory(prefix="joulecast-") as scratch,
        opened_log(log_file) as log,
        machine_lock(log) as lock,
    ):
        job, answer = Path(scratch) / "job.json", Path(scratch) / "answer.json"
        job.write_text(json.dumps({**run, "stages": list(map(list, stages)), "classes": classes}))
        load, watch = wait_for_quiet(log, quiet_wait_s), LoadWatch()
        began_utc = datetime.now(UTC).isoformat(timespec="seconds")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={len(stages)}", "-m", "joulecast.partition.pipeline_runs"]
        done = subprocess.run(
            [*command, str(job), str(answer)],
            env={**rank_environment(threads=1), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=log,
            stderr=log,
            pass_fds=[lock],
            timeout=timeout_s,
        )
        if done.returncode:
            raise JoulecastError(f"{name}: a rank failed; its log is {log_file}")
        during = watch.load()
        times = json.loads(answer.read_text())
    return {
        "label": "measured",
        "what": _WHAT,
        **{key: run[key] for key in ("network", "image_size", "micro_batches", "schedule")},
        "global_batch": run["batch_size"],
        "stages": list(map(list, stages)),
        "ranks": len(stages),
        "oversubscribed": len(stages) > usable_cores(),
        "summary": _summary(run, times),
        **times,
        "began_utc": began_utc,
        "host": host_fingerprint(),
        "versions": versions(),
        "load_before": {"busy_cores": load.busy_cores},
        "disturbed": disturbances(load, during),
        "source": source_state(),
    }


def _summary(run: dict[str, Any], times: dict[str, Any]) -> dict[str, Any]:
    """Medians of the times, and the numbers that follow from them."""
    median = statistics.median
    forward_s, backward_s = map(median, times["forward_s"]), map(median, times["backward_s"])
    stages = [*forward_s], [*backward_s]
    whole_s, step_s = median(times["whole_s"]), median(times["pipeline_s"])
    at_once_s = statistics.fmean(map(median, times["at_once_s"]))
    return {
        "forward_s": stages[0],
        "backward_s": stages[1],
        "predicted_makespan_s": makespan(*stages, run["schedule"], run["micro_batches"]),
        "step_s": step_s,
        "unpartitioned_s": whole_s,
        "speedup": whole_s / step_s,
        "capacity_processes": len(times["at_once_s"]),
        "capacity": len(times["at_once_s"]) * whole_s / at_once_s,
    }


def _loss(outputs: Any, labels: Tensor) -> Tensor:
    losses = [nn.functional.cross_entropy(each, labels) for each in tree_leaves(outputs)]
    return torch.stack(losses).sum()


class _Rank:
    """One rank's part of a measurement. Rank 0 also measures what runs in one process: every stage alone, and
    the whole network."""

    def __init__(self, job: dict[str, Any], cores: int) -> None:
        torch.manual_seed(0)
        pixels, self.parts = job["image_size"], job["micro_batches"]
        self.network = build_network(job["network"], pixels, _PATCH, job["classes"]).train()
        self.images = torch.randn(job["batch_size"], 3, pixels, pixels)
        self.labels = torch.randint(job["classes"], (job["batch_size"],))
        micro_batch = self.images[: job["batch_size"] // self.parts]
        self.stages = cut_into_stages(self.network, [micro_batch], job["stages"])
        self.rank, count = distributed.get_rank(), len(self.stages)
        mine = [self.stages[self.rank]]
        self.schedule = pipeline_of(mine, count, job["schedule"], self.parts, _loss)
        self.at_once = min(distributed.get_world_size(), cores)

    def _micro_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.images.chunk(self.parts), self.labels.chunk(self.parts), strict=True)

    def stages_alone(self) -> tuple[list[list[float]], list[list[float]]]:
        """Seconds of every micro-batch forward and backward in each stage, one stage after the other."""
        forward: list[list[float]] = [[] for _ in self.stages]
        backward: list[list[float]] = [[] for _ in self.stages]
        for images, labels in self._micro_batches():
            tape, entering = [], (images,)
            for stage, times in zip(self.stages, forward, strict=True):
                begin = time.perf_counter()
                leaving = stage(*entering)
                if stage is self.stages[-1]:
                    leaving = _loss(leaving, labels)
                times.append(time.perf_counter() - begin)
                leaving = leaving if isinstance(leaving, tuple) else (leaving,)
                tape.append((entering, leaving))
                entering = tuple(
                    each.detach().requires_grad_(each.requires_grad) for each in leaving
                )
            gradients: list[Tensor | None] = [torch.ones(())]
            for times in reversed(backward):
                entered, left = tape.pop()
                begin = time.perf_counter()
                trained = [at for at, each in enumerate(left) if each.requires_grad]
                torch.autograd.backward(
                    [left[at] for at in trained], [gradients[at] for at in trained]
                )
                times.append(time.perf_counter() - begin)
                gradients = [each.grad for each in entered]
        return forward, backward

    def whole(self) -> float:
        """Seconds of a step of the network that is not cut."""
        begin = time.perf_counter()
        for images, labels in self._micro_batches():
            (_loss(self.network(images), labels) / self.parts).backward()
        return time.perf_counter() - begin

    def pipeline(self) -> float:
        """Seconds of a step of the pipeline."""
        distributed.barrier()
        begin = time.monotonic()  # one clock for all ranks of a machine
        self.schedule.step(self.images, target=self.labels, losses=[])
        ends = torch.tensor([begin, -time.monotonic()], dtype=torch.float64)
        distributed.all_reduce(ends, distributed.ReduceOp.MIN)
        return float(-ends[1] - ends[0])

    def turn(self, work: Callable[[], Any]) -> list[Any]:
        """Run a step several times. Returns the result of each run after the warm-up."""
        found = []
        for _ in range(WARM_UP + ITERATIONS):
            self.network.zero_grad()
            found.append(work())
        return found[WARM_UP:]

    def measure(self) -> dict[str, Any]:
        """All times in seconds, complete on rank 0."""
        alone, whole, pipeline, at_once = [], [], [], []
        for _ in range(ROUNDS):
            if self.rank == 0:
                alone += self.turn(self.stages_alone)
                whole += self.turn(self.whole)
            distributed.barrier()
            pipeline += self.turn(self.pipeline)
            distributed.barrier()
            if self.rank < self.at_once:
                at_once += self.turn(self.whole)
            distributed.barrier()
        of_ranks: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(of_ranks, at_once)
        phases = [
            [[s for step in alone for s in step[phase][stage]] for stage in range(len(self.stages))]
            for phase in (0, 1)
        ]
        return {
            "forward_s": phases[0],
            "backward_s": phases[1],
            "whole_s": whole,
            "pipeline_s": pipeline,
            "at_once_s": of_ranks[: self.at_once],
        }


def main(job: Path, answer: Path) -> None:
    """Do this rank's part; torchrun calls this."""
    end_with_parent()  # torchrun
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
    torch.set_num_threads(1)
    keep_freed_memory()
    distributed.init_process_group("gloo")
    found = _Rank(json.loads(job.read_text()), len(cores)).measure()
    if distributed.get_rank() == 0:
        answer.write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
