"""Calibration runs, each of which measures one part of MC2 alone.

``idle``           a loaded process that does nothing: the power of an idle node.
``allreduce``      sums of several sizes without pause: the communication's time and power.
``sleeping_rank``  all ranks wait for the last one, which sleeps: the power of waiting.
"""

import time

import numpy as np

from joulecast.measure.training.allreduce import AllReduce, open_allreduce
from joulecast.measure.training.mpi import Hosts, arrive
from joulecast.measure.training.rank_result import StageClock
from joulecast.runs.spec import Calibration, RunSpec


def _elements(nbytes: int) -> int:
    return max(1, nbytes // 4)


def load_what_training_loads() -> None:
    """Load the modules that a training loads, so that the process is as between two training steps."""
    import torch

    from joulecast.measure.workloads import networks

    torch.set_num_threads(1)
    networks.build_network("resnet18", 32, 16, 10)


def run_allreduce(reducer: AllReduce, calibration: Calibration, clock: StageClock) -> list[int]:
    """Sum buffers of every size ``repeats`` times. Returns the bytes of each step."""
    step_bytes: list[int] = []
    for size in calibration.sizes_bytes:
        elements = _elements(size)
        for _ in range(calibration.repeats):
            clock.step = len(step_bytes)
            with clock.stage("communicating_wait"):
                reducer.arrive()
            with clock.stage("communicating_copy"):
                reducer.sum(0, elements)
            step_bytes.append(size)
    return step_bytes


def run_sleeping_rank(
    calibration: Calibration, hosts: Hosts, clock: StageClock, yields: bool
) -> None:
    """The last rank sleeps. The others wait for it, as in a training."""
    last = hosts.comm.size - 1
    arrive(hosts.comm, yields)
    if hosts.comm.rank == last:
        with clock.stage("other"):
            time.sleep(calibration.seconds)
        arrive(hosts.comm, yields)
    else:
        with clock.stage("communicating_wait"):
            arrive(hosts.comm, yields)


def run(
    spec: RunSpec, hosts: Hosts, clock: StageClock, yields: bool
) -> tuple[float, float, list[int] | None, str | None]:
    """Run a calibration. Returns start and stop on this host's clock, the bytes of each step, and the
    algorithm."""
    assert spec.calibration is not None
    calibration, step_bytes, reducer = spec.calibration, None, None
    if spec.kind == "idle":
        load_what_training_loads()
    elif spec.kind == "allreduce":
        elements = _elements(max(calibration.sizes_bytes))
        reducer = open_allreduce(calibration.algorithm, hosts, elements, np.float32, yields)
        reducer.arrive()
        reducer.sum(0, elements)  # the first use of the memory is slow, and not measured
    arrive(hosts.comm, yields)
    start = time.monotonic()
    if reducer is not None:
        step_bytes = run_allreduce(reducer, calibration, clock)
    elif spec.kind == "idle":
        with clock.stage("other"):
            time.sleep(calibration.seconds)
    else:
        run_sleeping_rank(calibration, hosts, clock, yields)
    arrive(hosts.comm, yields)
    stop = time.monotonic()
    if reducer is not None:
        reducer.close()
    return start, stop, step_bytes, None if reducer is None else reducer.name
