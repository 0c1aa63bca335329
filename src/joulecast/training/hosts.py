"""Who sits where, and what time it is there.

Ranks are grouped by physical host (name and boot id, so that several node names of one machine count
once). The run clock is rank 0's monotonic clock; hosts elsewhere are brought onto it by an offset
that ping-pong measures, the round trip with the least delay being the best witness.
"""

import time
from dataclasses import dataclass
from typing import cast

from mpi4py import MPI

from joulecast.provenance import physical_host

_POLL_S = 50e-6
_SLOW_POLL_S = 2e-3
_PINGS = 50


@dataclass(frozen=True)
class Hosts:
    """The hosts of a communicator, seen from one rank.

    ``local`` joins the ranks of this host; ``across`` joins the ranks that have the same local rank
    on their hosts; ``smallest`` is the least number of ranks on any host.
    """

    comm: MPI.Intracomm
    local: MPI.Intracomm
    across: MPI.Intracomm
    names: tuple[str, ...]
    own: str
    smallest: int

    @classmethod
    def of(cls, comm: MPI.Intracomm, name: str | None = None) -> "Hosts":
        """Group ``comm`` by host; ``name`` takes the place of this host's own (for tests)."""
        of_rank = comm.allgather(physical_host() if name is None else name)
        distinct = tuple(dict.fromkeys(of_rank))
        local = cast(MPI.Intracomm, comm.Split(distinct.index(of_rank[comm.rank]), comm.rank))
        across = cast(MPI.Intracomm, comm.Split(local.rank, comm.rank))
        smallest = comm.allreduce(local.size, op=MPI.MIN)
        return cls(comm, local, across, distinct, of_rank[comm.rank], smallest)

    @property
    def count(self) -> int:
        """Distinct physical hosts."""
        return len(self.names)

    @property
    def is_leader(self) -> bool:
        """Whether this rank speaks for its host."""
        return self.local.rank == 0


def arrive(comm: MPI.Comm, yields: bool) -> None:
    """Wait until all ranks are here. MPI waits busily; with ``yields`` the core is given away
    meanwhile, which ranks that share cores need."""
    if not yields:
        comm.Barrier()
        return
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_POLL_S)


def arrive_slowly(comm: MPI.Comm) -> None:
    """Wait for ranks that are still setting up, leaving them all of the machine."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_SLOW_POLL_S)


@dataclass(frozen=True)
class ClockOffset:
    """Add ``offset_s`` to this host's monotonic clock for rank 0's; off by ``uncertainty_s`` at most."""

    offset_s: float
    uncertainty_s: float


def _ping(comm: MPI.Intracomm, other: int) -> tuple[float, float]:
    best = (float("inf"), 0.0)
    for _ in range(_PINGS):
        sent = time.monotonic()
        comm.send(None, other, tag=71)
        there = comm.recv(source=other, tag=72)
        back = time.monotonic()
        best = min(best, (back - sent, (sent + back) / 2 - there))
    return best


def clock_offsets(hosts: Hosts) -> dict[str, ClockOffset]:
    """Offset of every host's clock from rank 0's; the same answer on all ranks."""
    comm = hosts.comm
    leaders = comm.allgather((hosts.is_leader, hosts.own))
    offsets = {leaders[0][1]: ClockOffset(0.0, 0.0)}
    for rank, (is_leader, host) in enumerate(leaders):
        if not is_leader or rank == 0:
            continue
        if comm.rank == 0:
            round_trip, offset = _ping(comm, rank)
            offsets[host] = ClockOffset(offset, round_trip / 2)
        elif comm.rank == rank:
            for _ in range(_PINGS):
                comm.recv(source=0, tag=71)
                comm.send(time.monotonic(), 0, tag=72)
    answer: dict[str, ClockOffset] = comm.bcast(offsets)
    return answer
