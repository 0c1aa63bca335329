"""The all-reduce of gradients: it sums them over all ranks, in place, by one of three algorithms.

``mpi``        one ``MPI_Allreduce`` on the buffer, by whatever algorithm the library chooses.
``shared``     for ranks of one host: their buffers lie in one MPI shared-memory window. Each rank sums one
               slice of all these buffers, in blocks that fit the cache.
``two_level``  ``shared`` within each host. The rank that summed a slice then sums it across hosts.

Gradients are written straight into the reducer's buffer. Within a host they are added in the order of the
ranks, so that all ranks end with the same bits.
"""

import shutil

import numpy as np
from numpy.typing import DTypeLike, NDArray

from joulecast.errors import JoulecastError
from joulecast.measure.training.mpi import MPI, Hosts, arrive

_BLOCK_BYTES = 256 * 1024


class MpiAllReduce:
    """A reducer that calls ``MPI_Allreduce`` in place."""

    name = "mpi"

    def __init__(self, hosts: Hosts, elements: int, dtype: DTypeLike, yields: bool) -> None:
        self._comm, self._yields = hosts.comm, yields
        self.buffer: NDArray[np.generic] = np.zeros(elements, dtype)

    def arrive(self) -> None:
        arrive(self._comm, self._yields)

    def sum(self, start: int, stop: int) -> None:
        self._comm.Allreduce(MPI.IN_PLACE, self.buffer[start:stop])

    def broadcast(self) -> None:
        self._comm.Bcast(self.buffer)

    def close(self) -> None:
        pass


class SharedAllReduce:
    """A reducer whose buffers lie in shared memory of the host. Each rank sums one slice of all these
    buffers. If there are several hosts, it then sums this slice across the hosts."""

    def __init__(self, hosts: Hosts, elements: int, dtype: DTypeLike, yields: bool) -> None:
        self.name = "shared" if hosts.count == 1 else "two_level"
        self._hosts, self._yields = hosts, yields
        local = hosts.local
        itemsize = np.dtype(dtype).itemsize
        self._require_room(local, elements * itemsize)
        info = MPI.Info.Create()
        info.Set("alloc_shared_noncontig", "true")
        self._window = MPI.Win.Allocate_shared(elements * itemsize, itemsize, info, local)
        info.Free()
        self._of_rank = [
            np.frombuffer(self._window.Shared_query(rank)[0], dtype, elements)  # type: ignore
            for rank in range(local.size)
        ]
        self.buffer = self._of_rank[local.rank]
        self._block = _BLOCK_BYTES // itemsize
        self._total = np.empty(self._block, dtype)
        self._window.Lock_all()

    @staticmethod
    def _require_room(local: MPI.Intracomm, nbytes: int) -> None:
        try:
            free = shutil.disk_usage("/dev/shm").free
        except OSError:
            return
        if free < nbytes * local.size:
            raise JoulecastError(
                f"/dev/shm has {free / 1e9:.1f} GB free, {local.size} ranks need "
                f"{nbytes * local.size / 1e9:.1f} GB for their gradients; enlarge it "
                "(mount -o remount,size=...) or set `training.algorithm: mpi`"
            )

    def arrive(self) -> None:
        # For a correct sum, it would be enough to wait for the ranks of this host. But a slice that crosses
        # hosts would then wait later, and this wait would count as copying. So all ranks are waited for here.
        self._window.Sync()
        arrive(self._hosts.comm, self._yields)
        self._window.Sync()

    def sum(self, start: int, stop: int) -> None:
        local, across, slices = self._hosts.local, self._hosts.across, self._hosts.smallest
        if local.rank < slices:
            share = -(-(stop - start) // slices)
            first = start + local.rank * share
            last = min(first + share, stop)
            if across.size > 1:
                self._add(first, last, everywhere=False)
                if last > first:
                    across.Allreduce(MPI.IN_PLACE, self.buffer[first:last])
                self._spread(first, last)
            else:
                self._add(first, last, everywhere=True)
        self._window.Sync()
        arrive(local, self._yields)
        self._window.Sync()

    def _add(self, first: int, last: int, everywhere: bool) -> None:
        targets = self._of_rank if everywhere else [self.buffer]
        others = self._of_rank[1:]
        for begin in range(first, last, self._block):
            end = min(begin + self._block, last)
            total = self._total[: end - begin]
            if not others:
                continue
            np.add(self._of_rank[0][begin:end], others[0][begin:end], out=total)
            for other in others[1:]:
                np.add(total, other[begin:end], out=total)
            for target in targets:
                target[begin:end] = total

    def _spread(self, first: int, last: int) -> None:
        for begin in range(first, last, self._block):
            end = min(begin + self._block, last)
            for target in self._of_rank:
                if target is not self.buffer:
                    target[begin:end] = self.buffer[begin:end]

    def broadcast(self) -> None:
        hosts = self._hosts
        self.arrive()
        if hosts.is_leader:
            hosts.across.Bcast(self.buffer)
        self._window.Sync()
        arrive(hosts.local, self._yields)
        self._window.Sync()
        if not hosts.is_leader:
            self.buffer[:] = self._of_rank[0]
        # The leader may not write its next gradients before all ranks have read.
        arrive(hosts.local, self._yields)

    def close(self) -> None:
        self._window.Unlock_all()
        self.buffer = np.empty(0, self.buffer.dtype)
        self._of_rank = []
        self._window.Free()


AllReduce = MpiAllReduce | SharedAllReduce
"""A reducer. It owns one flat buffer of gradients. ``arrive`` returns when the gradients of all ranks are in
their buffers. ``sum`` replaces some elements by their sum over all ranks. ``broadcast`` replaces the buffer
of every rank by that of rank 0. ``close`` frees the memory. All of these are collective."""


def _memory_is_shared(hosts: Hosts) -> bool:
    """Whether MPI can share memory between all ranks of each host; emulated nodes and containers prevent
    it."""
    together = hosts.comm.Split_type(MPI.COMM_TYPE_SHARED)
    shared = bool(hosts.comm.allreduce(hosts.local.size <= together.size, op=MPI.LAND))
    together.Free()
    return shared


def open_allreduce(
    algorithm: str, hosts: Hosts, elements: int, dtype: DTypeLike, yields: bool = False
) -> AllReduce:
    """A reducer for ``elements`` numbers.

    Args:
        yields: whether to release the core while waiting. Ranks that share cores need this.

    Raises:
        JoulecastError: the algorithm is ``shared``, but there are several hosts, or no shared memory; or the
            shared memory is too small.
    """
    # With one rank on each host a window has no use, and MPI transfers ordinary memory (huge pages) a
    # tenth faster than that of a window.
    alone = hosts.count == hosts.comm.size
    if algorithm == "mpi" or (algorithm == "two_level" and (alone or not _memory_is_shared(hosts))):
        return MpiAllReduce(hosts, elements, dtype, yields)
    if algorithm == "shared" and hosts.count > 1:
        raise JoulecastError(
            f"training.algorithm `shared` works within one host, the ranks are on {hosts.count}; "
            "use `two_level` or `mpi`"
        )
    if not _memory_is_shared(hosts):
        raise JoulecastError(
            "training.algorithm `shared`: MPI does not let the ranks of this host share memory (a "
            "scheduler or container keeps them apart); use `two_level` or `mpi`"
        )
    return SharedAllReduce(hosts, elements, dtype, yields)
