"""Calibration runs, each of which measures one part of MC2 alone.

``idle``           a loaded process that does nothing: the power of an idle node.
``allreduce``      all-reduces of several sizes without pause: the communication's time and power.
``sleeping_rank``  all ranks wait for the last one, which sleeps: the power of waiting.
"""

import time
from contextlib import nullcontext

import numpy as np

from joulecast.measure.training.allreduce import open_allreduce
from joulecast.measure.training.mpi import Hosts, arrive
from joulecast.measure.training.stage_clock import StageClock
from joulecast.runs.spec import RunSpec

_FLOAT_BYTES = 4


def run(
    spec: RunSpec, hosts: Hosts, clock: StageClock, yields: bool
) -> tuple[float, float, list[int] | None, str | None]:
    """Run a calibration. Returns start and stop on this host's clock, and the bytes of each step and the
    algorithm of its all-reduces (``None`` without all-reduces)."""
    assert spec.calibration is not None
    calibration, step_bytes, reducer = spec.calibration, None, None
    if spec.kind == "idle":
        # The process is loaded like a process that trains: it has torch and a network.
        import torch

        from joulecast.measure.workloads import networks

        torch.set_num_threads(1)
        networks.build_network("resnet18", 32, 16, 10)
    elif spec.kind == "allreduce":
        elements = max(1, max(calibration.sizes_bytes) // _FLOAT_BYTES)
        reducer = open_allreduce(calibration.algorithm, hosts, elements, np.float32, yields)
        reducer.arrive()
        reducer.sum(0, elements)  # the first use of the memory is slow, and not measured
    arrive(hosts.comm, yields)
    start = time.monotonic()
    if reducer is not None:
        step_bytes = [s for s in calibration.sizes_bytes for _ in range(calibration.repeats)]
        for step, size in enumerate(step_bytes):
            clock.step = step
            with clock.stage("communicating_wait"):
                reducer.arrive()
            with clock.stage("communicating_copy"):
                reducer.sum(0, max(1, size // _FLOAT_BYTES))
    elif spec.kind == "idle":
        with clock.stage("other"):
            time.sleep(calibration.seconds)
    else:
        is_last = hosts.comm.rank == hosts.comm.size - 1
        arrive(hosts.comm, yields)
        if is_last:
            with clock.stage("other"):
                time.sleep(calibration.seconds)
        with nullcontext() if is_last else clock.stage("communicating_wait"):
            arrive(hosts.comm, yields)
    arrive(hosts.comm, yields)
    stop = time.monotonic()
    if reducer is not None:
        reducer.close()
    return start, stop, step_bytes, None if reducer is None else reducer.name
