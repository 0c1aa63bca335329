"""One rank of a measured pipeline: ``mpiexec -n S python -m joulecast.training.pipeline_worker JOB OUT``.

The parts of a measurement take turns, so that a disturbance of the machine affects all of them. What needs
one process only is measured by rank 0 while the others sleep. Rank 0 writes the answer of all ranks.
"""

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from joulecast.errors import JoulecastError
from joulecast.training.hosts import arrive, arrive_slowly, hand_over
from joulecast.training.loop import keep_freed_memory, loss_sum, momentum_step
from joulecast.training.mpi import MPI
from joulecast.training.pieces import split_tasks
from joulecast.training.pipeline import Stage
from joulecast.training.pipeline_local import local_stages
from joulecast.training.pipeline_runs import PipelineJob
from joulecast.training.pipeline_tasks import completed, numbered
from joulecast.training.ranks import say_reason
from joulecast.workloads.networks import build_network

# So small that random weights hardly change; the update takes as long as with any other rate.
_LEARNING_RATE, _MOMENTUM = 1e-6, 0.9
_Times = dict[str, list[float]]


class Whole:
    """The whole network, trained on the same micro-batches one after the other."""

    def __init__(self, network: nn.Module, micro_batches: int) -> None:
        self.network, self.micro_batches = network, micro_batches
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        self._momenta: list[Tensor | None] = [torch.zeros_like(p) for p in self.parameters]

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Do forward and backward of a batch."""
        for parameter in self.parameters:
            parameter.grad = None
        for part in zip(
            images.chunk(self.micro_batches), labels.chunk(self.micro_batches), strict=True
        ):
            (loss_sum(self.network(part[0]), part[1]) / len(images)).backward()

    def update(self) -> None:
        """Do one step of the optimizer."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        momentum_step(self.parameters, gradients, self._momenta, _LEARNING_RATE, _MOMENTUM)


class Measurement:
    """One rank's part of the measurement."""

    def __init__(self, job: PipelineJob, comm: MPI.Intracomm, cores: int) -> None:
        self.job, self.comm = job, comm
        torch.manual_seed(0)
        network = build_network(job.network, job.image_size, job.patch_size, job.classes).train()
        shape = (3, job.image_size, job.image_size)
        self.images = torch.randn(job.global_batch, *shape)
        self.labels = torch.randint(job.classes, (job.global_batch,))
        stage_of = completed(network, numbered(job.stages), self.images[:1])
        pieces = split_tasks(network, stage_of)
        pipeline = (job.schedule, job.micro_batches, job.global_batch, shape)
        self.stage = Stage(pieces[comm.rank], comm, *pipeline, yields=job.oversubscribed)
        self.at_once = min(comm.size, cores)
        # A rank that runs only its stage frees the rest of the network.
        self.whole = Whole(network, job.micro_batches) if comm.rank < self.at_once else None
        self.stages = local_stages(pieces, *pipeline) if comm.rank == 0 else []
        self.forward_s: list[list[float]] = [[] for _ in pieces]
        self.backward_s: list[list[float]] = [[] for _ in pieces]
        self.found: dict[str, _Times] = defaultdict(lambda: defaultdict(list))
        self.of_processes: list[list[float]] = [[] for _ in range(self.at_once)]

    def _turn(self, work: Callable[[bool], None]) -> None:
        for number in range(self.job.warm_up + self.job.iterations):
            work(number >= self.job.warm_up)

    def _stages_alone(self, keep: bool) -> None:
        """Run every stage in turn, one micro-batch after the other."""
        for stage in self.stages:
            stage.begin()
        for batch in range(self.job.micro_batches):
            for at, stage in enumerate(self.stages):
                begin = time.perf_counter()
                stage.forward(batch, self.images, self.labels)
                if keep:
                    self.forward_s[at].append(time.perf_counter() - begin)
            for at, stage in reversed(list(enumerate(self.stages))):
                begin = time.perf_counter()
                stage.backward(batch)
                if keep:
                    self.backward_s[at].append(time.perf_counter() - begin)
        for stage in self.stages:
            stage.finish()

    def _whole_step(self) -> tuple[float, float, float]:
        """Seconds of the step, seconds with the update, and the share of these without a core."""
        assert self.whole is not None
        begin, cpu = time.perf_counter(), time.process_time()
        self.whole.step(self.images, self.labels)
        stepped = time.perf_counter()
        self.whole.update()
        updated = time.perf_counter()
        waited = max(0.0, 1 - (time.process_time() - cpu) / (updated - begin))
        return stepped - begin, updated - begin, waited

    def _whole_alone(self, keep: bool) -> None:
        times = self._whole_step()
        if keep:
            for name, value in zip(("step_s", "updated_s", "waited_share"), times, strict=True):
                self.found["whole"][name].append(value)

    def _whole_at_once(self, keep: bool) -> None:
        step_s, _, _ = self._whole_step()
        if keep:
            self.of_processes[self.comm.rank].append(step_s)

    def _pipeline(self, keep: bool) -> None:
        arrive(self.comm, self.job.oversubscribed)
        # All ranks are on one machine and share its monotonic clock.
        begin, cpu = time.monotonic(), time.process_time()
        self.stage.step(self.images, self.labels)
        stepped = time.monotonic()
        self.stage.update(_LEARNING_RATE, _MOMENTUM)
        updated = time.monotonic()
        waited = max(0.0, 1 - (time.process_time() - cpu) / (updated - begin))
        ranks = self.comm.allgather((begin, stepped, updated, waited))
        if keep:
            begins, steps, updates, waits = zip(*ranks, strict=True)
            row = {
                "step_s": max(steps) - min(begins),
                "updated_s": max(updates) - min(begins),
                "waited_share": max(waits),
            }
            for name, value in row.items():
                self.found["pipeline"][name].append(value)

    def measure(self) -> dict[str, Any]:
        """The answer to the job, complete on rank 0."""
        for _ in range(self.job.rounds):
            if self.comm.rank == 0:
                self._turn(self._stages_alone)
                self._turn(self._whole_alone)
            arrive_slowly(self.comm)
            self._turn(self._pipeline)
            arrive_slowly(self.comm)
            if self.comm.rank < self.at_once:
                self._turn(self._whole_at_once)
            arrive_slowly(self.comm)
        times: list[list[list[float]]] = self.comm.allgather(self.of_processes)
        answer = {
            "alone": {"forward_s": self.forward_s, "backward_s": self.backward_s},
            **self.found,
            "at_once": {"step_s": [times[rank][rank] for rank in range(self.at_once)]},
            "message_bytes": self.comm.allgather(self.stage.message_bytes),
        }
        return answer


def main(job_file: str, out: str) -> None:
    """Do this rank's part of a job."""
    comm = MPI.COMM_WORLD
    job = PipelineJob.model_validate_json(Path(job_file).read_text())
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        answer = Measurement(job, comm, len(cores)).measure()
    except JoulecastError as error:
        # The end of one rank ends all of them, so each gives its reason before it ends.
        say_reason(error, Path(job_file))
        raise
    hand_over(comm, answer, Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
