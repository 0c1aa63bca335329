"""The program of one rank: ``mpiexec ... python -m rank JOB OUT``.

Every iteration starts on all ranks at one agreed moment of the clock that they share (they are on
one machine), so that no barrier's own duration is in the time. Rank 0 writes what all of them saw.
"""

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
from families import Collective, EmulatedJob
from jobs import Answer, Row
from measuring import OtherLoad, hand_over
from messages import (
    ALL_REDUCES,
    Numbers,
    Operation,
    Rank,
    now,
    single,
)

from joulecast.measure.training.mpi import MPI
from joulecast.simulate.judged.emulated_network import EmulatedStep, strategy_of
from joulecast.simulate.schedules import device_order

_REAL_TIME_PRIORITY = 10
_HEADSTART_S = 0.03
_SET_TIMER_SLACK = 29

Timed = tuple[Row, list[Row]]
"""The outcome of an iteration, and when each rank began and ended."""


def _numbers(nbytes: int) -> Numbers:
    return np.ones(nbytes // 4, np.float32)


class Step:
    """One rank's part of a step of training."""

    def __init__(self, configuration: EmulatedStep, comm: MPI.Intracomm, rank: Rank) -> None:
        self._of, self._rank, self._comm = configuration, rank, comm
        rest, shard = divmod(comm.rank, configuration.tensor_parallel)
        stage, replica = divmod(rest, configuration.data_parallel)
        of_a_stage = configuration.data_parallel * configuration.tensor_parallel
        tensor_group = stage * configuration.data_parallel + replica
        data_group = stage * configuration.tensor_parallel + shard
        self._tensor = cast(MPI.Intracomm, comm.Split(tensor_group, shard))
        self._data = cast(MPI.Intracomm, comm.Split(data_group, replica))
        self._stage, self._is_last = stage, stage == configuration.pipeline - 1
        self._layers = configuration.stage_layers(stage)
        slow = configuration.straggler
        self._slowdown = slow.factor if slow is not None and slow.rank == comm.rank else 1.0
        self._buckets = {layer: _numbers(nbytes) for layer, nbytes in configuration.buckets(stage)}
        self._inline = [_numbers(layer.activation_bytes) for layer in self._layers]
        if stage > 0:
            self._before = comm.rank - of_a_stage
            cut_bytes = configuration.stage_layers(stage - 1)[-1].activation_bytes
            self._activations = self._places(cut_bytes)
            self._sent_back = _numbers(cut_bytes)
        if not self._is_last:
            self._after = comm.rank + of_a_stage
            self._gradients = self._places(self._layers[-1].activation_bytes)
            self._sent_on = _numbers(self._layers[-1].activation_bytes)

    def _places(self, nbytes: int) -> list[Numbers]:
        return [_numbers(nbytes) for _ in range(self._of.micro_batches)]

    def run(self) -> None:
        """Do it once; when it returns, everything of this rank is computed, sent and received."""
        self._receive_ahead()
        order = device_order(strategy_of(self._of), self._stage)
        for turn in order[:-1]:
            if turn.phase == "forward":
                self._forward(turn.micro_batch)
            else:
                self._backward(turn.micro_batch, False)
        self._backward(order[-1].micro_batch, True)
        if not self._of.overlap:
            for bucket in self._buckets.values():
                self._reduce(bucket)
        self._rank.finish()

    def _receive_ahead(self) -> None:
        # All receives are posted at once: what is sent travels whether or not it is waited for.
        begin, comm = self._rank.start, self._comm
        self._arriving: dict[tuple[str, int], Operation] = {}
        for index in range(self._of.micro_batches):
            if self._stage > 0:
                request = comm.Irecv(self._activations[index], self._before, 2 * index)
                self._arriving["forward", index] = begin(single(request))
            if not self._is_last:
                request = comm.Irecv(self._gradients[index], self._after, 2 * index + 1)
                self._arriving["backward", index] = begin(single(request))

    def _compute(self, layer: int, seconds: float) -> None:
        self._rank.compute(seconds * self._slowdown)
        if self._tensor.size > 1 and self._inline[layer].size:
            all_reduce = ALL_REDUCES[self._of.algorithm]
            self._rank.wait(self._rank.start(all_reduce(self._tensor, self._inline[layer])))

    def _reduce(self, bucket: Numbers) -> None:
        self._rank.queue(ALL_REDUCES[self._of.algorithm](self._data, bucket))

    def _forward(self, index: int) -> None:
        if self._stage > 0:
            self._rank.wait(self._arriving["forward", index])
        for number, layer in enumerate(self._layers):
            self._compute(number, layer.forward_s)
        if not self._is_last:
            self._rank.start(single(self._comm.Isend(self._sent_on, self._after, 2 * index)))

    def _backward(self, index: int, is_last: bool) -> None:
        if not self._is_last:
            self._rank.wait(self._arriving["backward", index])
        for number in reversed(range(len(self._layers))):
            self._compute(number, self._layers[number].backward_s)
            if is_last and self._of.overlap and number in self._buckets:
                self._reduce(self._buckets[number])
        if self._stage > 0:
            request = self._comm.Isend(self._sent_back, self._before, 2 * index + 1)
            self._rank.start(single(request))


def _collective(of: Collective, comm: MPI.Intracomm, rank: Rank) -> Callable[[], None]:
    """One stand-alone collective, ready to be run again and again."""
    buffer = _numbers(of.bytes)

    def all_reduce() -> None:
        rank.start(ALL_REDUCES[of.algorithm](comm, buffer))
        rank.finish()

    def send() -> None:
        if comm.rank == 0:
            rank.start(single(comm.Isend(buffer, 1)))
        elif comm.rank == 1:
            rank.start(single(comm.Irecv(buffer, 0)))
        rank.finish()

    return all_reduce if of.kind == "all_reduce" else send


class Clock:
    """Gives ranks common starts, and times what they do."""

    def __init__(self, comm: MPI.Intracomm, rank: Rank) -> None:
        self._comm, self._rank = comm, rank
        self._other_load = OtherLoad(comm.allgather(os.getpid()), looks=comm.rank == 0)

    def _gathered(self, values: list[float]) -> list[list[float]]:
        # Not MPI's blocking call, which would keep a core busy in every rank.
        mine, of_all = np.array(values), np.empty((self._comm.size, len(values)))
        request = self._comm.Iallgather(mine, of_all)
        while not request.Test():
            time.sleep(5e-4)
        answer: list[list[float]] = of_all.tolist()
        return answer

    def time(self, run: Callable[[], None]) -> Timed:
        """The outcome of one iteration, and when each rank began and ended; complete on rank 0.

        Times are seconds after the common start.
        """
        self._other_load.begin()
        start = max(row[0] for row in self._gathered([now()])) + _HEADSTART_S
        self._rank.begin(start)
        began = now()
        run()
        ended = now()
        rows = self._gathered([began - start, ended - start, self._rank.late_s])
        outcome = {
            "seconds": max(row[1] for row in rows),
            "other_cores": self._other_load.cores(),
            "late_s": max(row[2] for row in rows),
        }
        of_ranks = [
            {"rank": rank, "began_s": row[0], "ended_s": row[1]} for rank, row in enumerate(rows)
        ]
        return outcome, of_ranks


def _rows(job: EmulatedJob, part: EmulatedStep | Collective, timed: Timed) -> Answer:
    """The rows that an iteration of a part is in the tables."""
    outcome, of_ranks = timed
    if isinstance(part, Collective):
        what: Row = {"ranks": job.ranks, "ranks_per_node": job.ranks_per_node}
        return {"collectives": [{**part.model_dump(), **what, **outcome}]}
    what = {"configuration": part.name, "repeat": job.repeat}
    return {"steps": [what | outcome], "ranks": [what | each for each in of_ranks]}


def _measured(job: EmulatedJob, comm: MPI.Intracomm) -> Answer:
    """All parts of a job, one after the other, as rank 0 sees them."""
    rank = Rank()
    clock = Clock(comm, rank)
    runs = [
        Step(part, comm, rank).run
        if isinstance(part, EmulatedStep)
        else _collective(part, comm, rank)
        for part in job.parts
    ]
    answer: Answer = {}
    _on_real_time(True)
    for part, run in zip(job.parts, runs, strict=True):
        iterations = [clock.time(run) for _ in range(job.warm_up + job.iterations)]
        for timed in iterations[job.warm_up :]:
            for table, rows in _rows(job, part, timed).items():
                answer.setdefault(table, []).extend(rows)
        gc.collect()
    _on_real_time(False)
    return answer


def _on_real_time(wanted: bool) -> None:
    # Not around MPI's own start and end: they wait busily, and nothing could interrupt that.
    policy = os.SCHED_RR if wanted else os.SCHED_OTHER
    os.sched_setscheduler(0, policy, os.sched_param(_REAL_TIME_PRIORITY if wanted else 0))


def main(job_file: Path, out: Path) -> None:
    """Do a job and write its answer, as one of ``job.ranks`` ranks."""
    job = EmulatedJob.model_validate_json(job_file.read_text())
    comm = MPI.COMM_WORLD
    if comm.size != job.ranks:
        raise SystemExit(f"{job.name} is for {job.ranks} ranks, this is {comm.size}")
    ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1, 0, 0, 0)
    gc.freeze()
    gc.disable()
    answer = _measured(job, comm)
    hand_over(comm, answer, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
