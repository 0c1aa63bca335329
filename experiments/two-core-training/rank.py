"""The program of one rank: ``mpiexec -n 2 python -m rank JOB OUT``.

Trains configurations in turn, with the code that trains in earnest, or measures by itself what a step has
besides operators. Every rank keeps to a core of its own. Rank 0 writes what all of them saw.
"""

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from configurations import TrainingJob
from jobs import Answer, Row, is_disturbed
from measuring import OtherLoad, hand_over
from torch import Tensor, distributed, fx, nn

from joulecast.measure.training.gradients import GradientBuckets
from joulecast.measure.training.loop import Trainer, broadcast_replica
from joulecast.measure.training.mpi import MPI, Hosts, arrive_slowly
from joulecast.measure.training.stage_clock import StageClock
from joulecast.measure.workloads.datasets import open_dataset
from joulecast.partition.tasks import capture_tasks
from joulecast.partition.torch_stages import cut_into_stages, pipeline_of
from joulecast.runs.platforms import Platform
from joulecast.runs.spec import RunSpec, Training
from joulecast.runs.spec import Workload as SpecWorkload
from joulecast.simulate.judged.two_core_training import TrainingConfiguration

_BYTES = 4


class Clocked:
    """Times what all ranks do together."""

    def __init__(self, comm: MPI.Intracomm, job: TrainingJob) -> None:
        self.comm, self.job = comm, job
        self._other_load = OtherLoad(comm.allgather(os.getpid()), looks=comm.rank == 0)

    def take(self, work: Callable[[], object]) -> Row:
        """One iteration of all ranks, from the first start to the last end."""
        self._other_load.begin()
        # Behind the look at other processes, which takes one rank some milliseconds.
        self.comm.Barrier()
        began, cpu = time.monotonic(), time.process_time()
        work()
        ended, used = time.monotonic(), time.process_time() - cpu
        self.comm.Barrier()
        waited = max(0.0, 1 - used / max(ended - began, 1e-9))
        of_ranks = self.comm.allgather((began, ended, waited, self._other_load.cores()))
        begins, ends, waits, loads = zip(*of_ranks, strict=True)
        return {
            "seconds": max(ends) - min(begins),
            "waited_share": round(max(waits), 4),
            "other_cores": max(loads),
        }

    def repeat(self, work: Callable[[int], object]) -> Iterator[Row]:
        """Iterations after a warm-up, until enough were undisturbed on all ranks.

        Args:
            work: gets the number of the iteration; below 0 in the warm-up.
        """
        for number in range(-self.job.warm_up, 0):
            self.take(partial(work, number))
        clean = number = 0
        while clean < self.job.iterations and number < self.job.tries:
            row = self.take(partial(work, number))
            yield row
            clean += not is_disturbed(row)
            number += 1


class Ranks:
    """Both ranks' network, trained as any configuration says."""

    def __init__(self, job: TrainingJob, comm: MPI.Intracomm) -> None:
        self.job, self.comm, self.hosts = job, comm, Hosts.of(comm)
        self.clocked = Clocked(comm, job)
        w = job.workload
        replicas = [c for c in job.configurations if not c.is_pipeline]
        batch = replicas[0].batch if replicas else 1
        spec = RunSpec(
            run=job.name,
            campaign="validation",
            platform=Platform(name="this machine", hosts=1),
            nodes=comm.size,
            workload=SpecWorkload(network=job.network, **w.of_samples()),
            training=Training(
                global_batch_size=batch * comm.size,
                learning_rate=w.learning_rate,
                momentum=w.momentum,
                bucket_mb=1e6,
                prefetch_batches=0,
            ),
        )
        self.clock = StageClock()
        self.trainer = Trainer(spec, self.hosts, self.clock, yields=False)
        self._has_buckets = True

    def _free_buckets(self) -> None:
        """Let go of the gradients, for a pipeline or other buckets."""
        if self._has_buckets:
            self.trainer.buckets.close()
            self._has_buckets = False

    def _new_buckets(self, configuration: TrainingConfiguration) -> None:
        trainer = self.trainer
        self._free_buckets()
        trainer.clock = self.clock = StageClock()
        assert configuration.bucket_mb is not None
        trainer.buckets = GradientBuckets(
            trainer.network.parameters(),
            self.hosts,
            self.clock,
            bucket_bytes=configuration.bucket_mb * 1e6,
            overlap=configuration.overlap,
        )
        self._has_buckets = True
        broadcast_replica(trainer.network, trainer.buckets, self.comm)

    def stage(self, configuration: TrainingConfiguration) -> fx.GraphModule:
        """This rank's stage of a configuration."""
        self._free_buckets()
        size, cut = self.job.workload.image_size, str(configuration.cut).replace(".", "_")
        images = torch.zeros(configuration.samples, 3, size, size)
        network = self.trainer.network
        tasks = [task.name for task in capture_tasks(network, images).tasks]
        first = next(at for at, name in enumerate(tasks) if f"{name}_".startswith(f"{cut}_"))
        stages = [tasks[:first], tasks[first:]]
        (mine,) = cut_into_stages(network, [images], stages, [self.comm.rank])
        return mine

    def optimizer(self, stage: nn.Module) -> torch.optim.Optimizer:
        """That of a stage."""
        w = self.job.workload
        return torch.optim.SGD(stage.parameters(), w.learning_rate, w.momentum, fused=True)

    def _pipeline(self, configuration: TrainingConfiguration) -> Callable[[], Any]:
        stage, w = self.stage(configuration), self.job.workload
        schedule, micro_batches = configuration.family, configuration.micro_batches
        loss = nn.functional.cross_entropy
        pipeline = pipeline_of([stage], self.comm.size, schedule, micro_batches, loss)
        optimizer = self.optimizer(stage)
        data = open_dataset(w.dataset, None, w.image_size, w.classes)
        images, labels = data.batch(range(configuration.batch))
        self.clock = StageClock()

        def step() -> None:
            optimizer.zero_grad()
            pipeline.step(images, target=labels, losses=[])
            optimizer.step()

        return step

    def turn(self, configuration: TrainingConfiguration) -> list[Row]:
        """Train one configuration for a while; its kept iterations."""
        step: Callable[[], Any]
        if configuration.is_pipeline:
            step = self._pipeline(configuration)
        else:
            self._new_buckets(configuration)
            step = self.trainer.step
        gc.collect()

        def work(number: int) -> None:
            self.clock.step = number
            step()

        what: Row = {"configuration": configuration.name, "repeat": self.job.repeat}
        rows = [what | row for row in self.clocked.repeat(work)]
        # Only how long stages last counts here: this host's own clock will do.
        for number, row in enumerate(rows):
            mine = [entry for entry in self.clock.rows if entry[0] == number]
            for _, name, start, stop in mine:
                row[f"{name}_s"] = row.get(f"{name}_s", 0.0) + stop - start
            row["buckets"] = sum(entry[1] == "communicating_copy" for entry in mine)
        return rows

    def steps(self) -> Answer:
        """Train all configurations in turns; their iterations."""
        found: list[Row] = []
        order = list(self.job.configurations)
        for turn in range(self.job.rounds):
            for configuration in order if turn % 2 == 0 else reversed(order):
                arrive_slowly(self.comm)
                found += self.turn(configuration)
        return {"steps": found}


class Parts:
    """Times the parts of a step that are no operators, each by itself: never a step."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.job, self.comm = ranks, ranks.job, ranks.comm
        self.clocked = ranks.clocked
        self.collectives: list[Row] = []
        self.parts: list[Row] = []

    def _collective(self, kind: str, size: int, work: Callable[[], Any]) -> None:
        what = {"kind": kind, "network": self.job.network, "bytes": size}
        rows = self.clocked.repeat(lambda _: work())
        self.collectives += [what | row for row in rows]

    def _part(self, name: str, size: int, work: Callable[[], object]) -> None:
        """Time a part on each rank, without the seconds of preparation that ``work`` may return."""
        own_s = [0.0]

        def timed(_: int) -> None:
            begin = time.monotonic()
            preparing_s = work()
            own_s[0] = time.monotonic() - begin
            own_s[0] -= preparing_s if isinstance(preparing_s, float) else 0.0

        what = {"part": name, "network": self.job.network}
        for row in self.clocked.repeat(timed):
            for rank, (of_rank, seconds) in enumerate(self.comm.allgather((size, own_s[0]))):
                mine = {"rank": rank, "bytes": of_rank, "seconds": seconds}
                self.parts.append({**what, **row, **mine})

    def all_reduces(self) -> None:
        """Time the all-reduces of every bucket that a configuration has."""
        sizes = [p.numel() for p in reversed(self.ranks.trainer.parameters)]
        reducer = self.ranks.trainer.buckets.reducer
        layouts = {c.bucket_mb for c in self.job.configurations if c.bucket_mb is not None}
        done = set()
        for least in sorted(layouts, reverse=True):
            edges = [0]
            for stop in np.cumsum(sizes).tolist():
                if (stop - edges[-1]) * _BYTES >= least * 1e6 or stop == sum(sizes):
                    edges.append(stop)
            for start, stop in pairwise(edges):

                def reduce(start: int = start, stop: int = stop) -> None:
                    reducer.arrive()
                    reducer.sum(start, stop)

                size = (stop - start) * _BYTES
                if size not in done:
                    done.add(size)
                    self._collective("all_reduce", size, reduce)

    def gradients(self) -> None:
        """Time copying all gradients into the buckets, and adding a micro-batch's to those before."""
        trainer = self.ranks.trainer
        sums = [torch.zeros_like(p) for p in trainer.parameters]
        size = sum(p.numel() * _BYTES for p in trainer.parameters)
        self._part("copy", size, lambda: self._pass(trainer.buckets.discard(), Tensor.copy_))
        self._part("accumulate", size, lambda: self._pass(sums, Tensor.add_))

    def _pass(self, places: list[Tensor], move: Callable[[Tensor, Tensor], Any]) -> float:
        """Take every gradient to its place, the last layer's first; seconds of making them."""
        begin, spent = time.perf_counter(), 0.0
        for place, parameter in reversed(
            list(zip(places, self.ranks.trainer.parameters, strict=True))
        ):
            # As backward leaves it: just written, in memory used before.
            fresh = torch.zeros_like(parameter)
            start = time.perf_counter()
            move(place, fresh)
            del fresh
            spent += time.perf_counter() - start
        return time.perf_counter() - begin - spent

    def update(self) -> None:
        """Time the optimizer on a replica, and fetching the batch."""
        trainer = self.ranks.trainer
        size = sum(p.numel() * _BYTES for p in trainer.parameters)
        zeros = trainer.buckets.discard()
        self._part("update", size, lambda: trainer.update(zeros))
        self._part("materials", 0, lambda: next(trainer.loader))

    def stages(self) -> None:
        """Time the optimizer on each stage, and the messages from one to the other."""
        pipelines = [c for c in self.job.configurations if c.is_pipeline]
        for cut in dict.fromkeys(c.cut for c in pipelines):
            alike = [c for c in pipelines if c.cut == cut]
            stage = self.ranks.stage(alike[0])
            self._stage_update(stage)
            crossing = stage.meta["entering" if self.comm.rank else "leaving"]
            sample = sum(each.nbytes for each in crossing) // alike[0].samples
            # Around the sizes that are sent, so that there is a line to fit.
            sent = {c.samples * factor for c in alike for factor in (1, 4)}
            for size in sorted(sample * samples for samples in sent):
                self._collective("send", size, self._send_of(size))

    def _stage_update(self, stage: nn.Module) -> None:
        for parameter in stage.parameters():
            parameter.grad = torch.zeros_like(parameter)
        size = sum(p.numel() * _BYTES for p in stage.parameters())
        self._part("update", size, self.ranks.optimizer(stage).step)
        stage.zero_grad()

    def _send_of(self, size: int) -> Callable[[], Any]:
        message = np.ones(size // _BYTES, np.float32)
        if self.comm.rank == 0:
            return lambda: self.comm.Isend(message, 1).Wait()
        return lambda: self.comm.Irecv(message, 0).Wait()

    def measure(self) -> Answer:
        """Measure all parts; their iterations."""
        self.all_reduces()
        self.gradients()
        self.update()
        self.stages()
        return {"collectives": self.collectives, "parts": self.parts}


def main(job_file: str, out: str) -> None:
    """Do a job's part on this rank."""
    comm = MPI.COMM_WORLD
    job = TrainingJob.model_validate_json(Path(job_file).read_text())
    cores = sorted(os.sched_getaffinity(0))
    if comm.size != job.ranks or len(cores) < comm.size:
        sys.exit(
            f"error: {job.name}: {job.ranks} ranks and a core for each are needed, not {comm.size}"
        )
    os.sched_setaffinity(0, {cores[comm.rank]})
    if comm.rank == 0:
        store = distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        comm.bcast(store.port)
    else:
        store = distributed.TCPStore("localhost", comm.bcast(None))
    distributed.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
    ranks = Ranks(job, comm)
    with torch.no_grad() if job.kind == "parts" else torch.enable_grad():
        answer = ranks.steps() if job.kind == "steps" else Parts(ranks).measure()
    hand_over(comm, answer, Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
