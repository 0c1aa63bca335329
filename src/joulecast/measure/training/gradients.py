"""Gradients that are summed over the ranks, during the backward pass or after it.

On CPUs (:class:`GradientBuckets`), each gradient from autograd is copied once, into the flat buffer of the
reducer, and freed. Buckets are contiguous parts of this buffer. The backward pass fills them one after the
other, and all ranks sum them in this order. On GPUs (:class:`GpuGradients`), torch's DistributedDataParallel
sums the gradients over NCCL.
"""

import queue
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from joulecast.measure.training.allreduce import AllReduce, open_allreduce
from joulecast.measure.training.mpi import MPI, Hosts
from joulecast.measure.training.stage_clock import StageClock

_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


class _Bucket:
    def __init__(self, start: int, stop: int, missing: set[int]) -> None:
        self.start, self.stop, self.members = start, stop, frozenset(missing)
        self.missing = set(missing)


class GradientBuckets:
    """The gradients of some parameters, in the flat buffer of a reducer.

    Args:
        parameters: parameters that all have the same floating-point dtype. Parameters without
            ``requires_grad`` are ignored.
        bucket_bytes: smallest size of a bucket. (The last bucket may be smaller.)
        overlap: whether to sum each bucket in a separate thread as soon as it is full.
        yields: whether to release the core while waiting.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        hosts: Hosts,
        clock: StageClock,
        *,
        algorithm: str = "two_level",
        bucket_bytes: float = 64e6,
        overlap: bool = False,
        yields: bool = False,
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self._clock = clock
        dtype = self.parameters[0].dtype
        elements = sum(p.numel() for p in self.parameters)
        self._comm = hosts.comm
        self.reducer: AllReduce = open_allreduce(algorithm, hosts, elements, _NUMPY[dtype], yields)
        self.algorithm = self.reducer.name
        self._flat = torch.from_numpy(self.reducer.buffer)
        self._lay_out(bucket_bytes)
        self._next = 0
        self._launched: queue.SimpleQueue[_Bucket | None] = queue.SimpleQueue()
        self._done = threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._receiver(index))
            for index, parameter in enumerate(self.parameters)
        ]
        self.overlap = overlap
        if overlap:
            self._thread = threading.Thread(target=self._reduce_as_they_come, daemon=True)
            self._thread.start()

    def _lay_out(self, bucket_bytes: float) -> None:
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[int, _Bucket] = {}
        self._views: list[Tensor] = [torch.empty(0)] * len(self.parameters)
        start = stop = 0
        members: set[int] = set()
        # Backward finishes the last layers first.
        for index in reversed(range(len(self.parameters))):
            parameter = self.parameters[index]
            self._views[index] = self._flat[stop : stop + parameter.numel()].view_as(parameter)
            stop += parameter.numel()
            members.add(index)
            if (stop - start) * parameter.element_size() >= bucket_bytes or index == 0:
                bucket = _Bucket(start, stop, members)
                self._buckets.append(bucket)
                self._bucket_of |= dict.fromkeys(members, bucket)
                start, members = stop, set()

    @torch.no_grad()
    def broadcast_parameters(self) -> None:
        """Copy the parameters of rank 0 to all ranks, through the buffer."""
        root = self._comm.rank == 0
        if root:
            for parameter, view in zip(self.parameters, self._views, strict=True):
                view.copy_(parameter)
        self.reducer.broadcast()
        if not root:
            for parameter, view in zip(self.parameters, self._views, strict=True):
                parameter.copy_(view)

    def _receiver(self, index: int) -> Any:
        def receive(parameter: Tensor) -> None:
            bucket = self._bucket_of[index]
            assert parameter.grad is not None
            self._views[index].copy_(parameter.grad)
            parameter.grad = None
            bucket.missing.discard(index)
            if self.overlap:
                self._launch_full_buckets()

        return receive

    def _launch_full_buckets(self) -> None:
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._launched.put(self._buckets[self._next])
            self._next += 1

    def _reduce_as_they_come(self) -> None:
        while (bucket := self._launched.get()) is not None:
            try:
                if self._failure is None:
                    self._reduce(bucket)
            except BaseException as error:
                self._failure = error
            self._done.release()

    def _reduce(self, bucket: _Bucket) -> None:
        begin = time.monotonic()
        self.reducer.arrive()
        together = time.monotonic()
        self.reducer.sum(bucket.start, bucket.stop)
        self._clock.record("communicating_wait", begin, together)
        self._clock.record("communicating_copy", together, time.monotonic())

    def computed(self) -> float:
        """Time at which the backward pass has computed the gradients of this rank."""
        return time.monotonic()

    def finish(self) -> list[Tensor]:
        """Sum the remaining buckets after a backward pass, and return the summed gradients.

        Each of the :attr:`parameters` has one view into the flat buffer, which is valid until the next
        backward pass. If the backward pass did not reach a parameter, its gradient is zero on this rank.
        """
        for bucket in self._buckets:
            for index in bucket.missing:
                self._views[index].zero_()
            bucket.missing = set()
        if self._thread is None:
            for bucket in self._buckets:
                self._reduce(bucket)
        else:
            self._launch_full_buckets()
            for _ in self._buckets:
                self._done.acquire()
            if self._failure is not None:
                raise self._failure
        return self._begin_again()

    def discard(self) -> list[Tensor]:
        """Set the gradients to zero after a backward pass that ran with :attr:`overlap` off."""
        self._flat.zero_()
        return self._begin_again()

    def _begin_again(self) -> list[Tensor]:
        for bucket in self._buckets:
            bucket.missing = set(bucket.members)
        self._next = 0
        return self._views

    def close(self) -> None:
        """Stop the thread, remove the hooks and free the buffer (collective)."""
        if self._thread is not None:
            self._launched.put(None)
            self._thread.join()
        for hook in self._hooks:
            hook.remove()
        self._views, self._flat = [], torch.empty(0)
        self.reducer.close()


class GpuGradients:
    """A replica on this rank's GPU. Its backward pass sums the gradients over all ranks.

    CUDA events time the all-reduces. NCCL does not separate waiting for other ranks from copying, so both
    count as copying.

    Args:
        network: the network, on the GPU. Rank 0's parameters and buffers are copied to all ranks.
        comm: communicator of all ranks, by which they learn the address of rank 0.
        bucket_mb: least size of a bucket.
        overlap: whether to sum a bucket as soon as it is full. Otherwise there is only one bucket, which is
            full after the backward pass.
    """

    algorithm = "nccl"

    def __init__(
        self,
        network: nn.Module,
        comm: MPI.Intracomm,
        clock: StageClock,
        bucket_mb: float,
        overlap: bool,
    ) -> None:
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        self._clock = clock
        self._sums: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._join(comm)
        self.replica = DistributedDataParallel(
            network,
            device_ids=[torch.cuda.current_device()],
            bucket_cap_mb=bucket_mb if overlap else sum(p.nbytes for p in self.parameters) / 1e6,
            gradient_as_bucket_view=True,
        )
        self.replica.register_comm_hook(None, self._sum)

    def _join(self, comm: MPI.Intracomm) -> None:
        host = comm.bcast(socket.gethostname())
        if comm.rank == 0:
            store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
            comm.bcast(store.port)
        else:
            store = TCPStore(host, comm.bcast(None))
        distributed.init_process_group("nccl", store=store, rank=comm.rank, world_size=comm.size)

    def _sum(
        self,
        _: Any,
        bucket: distributed.GradBucket,  # type: ignore[name-defined]  # DDP looks at it
    ) -> torch.futures.Future[Tensor]:
        """Sum a bucket. DDP would take the mean, but the loss is divided by the global batch already."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._sums.append((begin, end))

        def summed(future: torch.futures.Future[Any]) -> Tensor:
            end.record()  # in a stream that has waited for the sum
            tensor: Tensor = future.value()[0]
            return tensor

        work = distributed.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(summed)

    def computed(self) -> float:
        """Time, on the host's clock, at which the backward pass has computed the last gradient."""
        now = torch.cuda.Event(enable_timing=True)
        now.record()
        torch.cuda.synchronize()
        now_s = time.monotonic()
        times: list[list[float]] = [
            [now_s - event.elapsed_time(now) / 1e3 for event in pair] for pair in self._sums
        ]
        for begin, end in times:
            self._clock.record("communicating_copy", begin, end)
        self._sums.clear()
        return max(begin for begin, _ in times)

    def finish(self) -> list[Tensor]:
        """The summed gradients after a backward pass. They are valid until the next backward pass."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        return gradients

    def close(self) -> None:
        """Leave the group of ranks (collective)."""
        distributed.destroy_process_group()
