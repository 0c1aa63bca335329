"""Gradients of replicas on GPUs: torch's DistributedDataParallel sums them over NCCL during backward."""

import socket
import time
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from joulecast.measure.training.mpi import MPI
from joulecast.measure.training.rank_result import StageClock


class GpuGradients:
    """A replica on this rank's GPU, whose backward leaves the gradients summed over all ranks.

    CUDA events time the sums. NCCL does not tell waiting for other ranks from copying, so that both count as
    copying.

    Args:
        network: on the GPU; rank 0's parameters and buffers are copied to all ranks.
        comm: of all ranks; MPI started them, and tells them where rank 0 is.
        bucket_mb: least size of a bucket.
        overlap: sum a bucket as soon as it is full; otherwise there is one bucket, full after backward.
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
            forward_sync_buffers=False,
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

    def _sum(self, _: Any, bucket: Any) -> torch.futures.Future[Tensor]:
        """Sum a bucket where DDP would take the mean: the loss is divided by the global batch already."""
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
        """Time at which the last gradient was there, on the host's clock, after a backward pass."""
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
        """The summed gradients, which backward has left; valid until the next one."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        return gradients

    def close(self) -> None:
        """Leave the group of ranks (collective)."""
        distributed.destroy_process_group()
