"""Who sits where, and what time it is there.

Ranks are grouped by physical host (name and boot id, so that several node names of one machine count
once). The run clock is rank 0's monotonic clock; hosts elsewhere are brought onto it by an offset
that ping-pong measures before and after the run, the round trip with the least delay being the best
witness.
"""

import os
import time
from dataclasses import dataclass
from typing import cast

from joulecast.records.provenance import physical_host
from joulecast.training.mpi import MPI

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
    def label(self) -> str:
        """This host's name in records: with a piece of its boot id where another has the same name."""
        name, _, boot = self.own.partition(":")
        alike = sum(other.partition(":")[0] == name for other in self.names)
        return name if alike == 1 else f"{name}~{boot[:8]}"

    def usable_cores(self) -> int:
        """Cores that the ranks of this host may use together; they all ask. A scheduler may bind each rank
        to cores of its own."""
        return len(set().union(*self.local.allgather(os.sched_getaffinity(0))))

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
    """Add ``offset_s`` to a host's monotonic clock for rank 0's, off by ``uncertainty_s`` at most;
    ``at_s`` is when that was measured, on the host's own clock."""

    offset_s: float
    uncertainty_s: float
    at_s: float


@dataclass(frozen=True)
class RunClock:
    """Brings times of one host's monotonic clock onto the run clock.

    Clocks of two hosts drift apart by some 10 ppm, tens of milliseconds in an hour. Between the
    measurements before and after the run the offset is taken to change evenly.

    ``origin_s`` is the run clock's zero on rank 0's monotonic clock.
    """

    origin_s: float
    before: ClockOffset
    after: ClockOffset

    @property
    def _lasted_s(self) -> float:
        return self.after.at_s - self.before.at_s

    @property
    def drift(self) -> float:
        """Seconds that the offset grows by in a second."""
        grown = self.after.offset_s - self.before.offset_s
        return grown / self._lasted_s if self._lasted_s > 0 else 0.0

    def __call__(self, host_s: float) -> float:
        offset = self.before.offset_s + self.drift * (host_s - self.before.at_s)
        return host_s + offset - self.origin_s

    def facts(self) -> dict[str, float]:
        """What the record says of the clock; the offset is that before the run."""
        doubt_s = self.before.uncertainty_s + self.after.uncertainty_s
        return {
            "offset_s": self.before.offset_s,
            "uncertainty_s": max(self.before.uncertainty_s, self.after.uncertainty_s),
            "drift_ppm": 1e6 * self.drift,
            "drift_uncertainty_ppm": 1e6 * doubt_s / self._lasted_s if self._lasted_s > 0 else 0.0,
        }


def _ping(comm: MPI.Intracomm, other: int) -> tuple[float, float, float]:
    best = (float("inf"), 0.0, 0.0)
    for _ in range(_PINGS):
        sent = time.monotonic()
        comm.send(None, other, tag=71)
        there = comm.recv(source=other, tag=72)
        back = time.monotonic()
        best = min(best, (back - sent, (sent + back) / 2 - there, there))
    return best


def clock_offsets(hosts: Hosts) -> dict[str, ClockOffset]:
    """Offset of every host's clock from rank 0's; all ranks call it and get the same answer."""
    comm = hosts.comm
    leaders = comm.allgather((hosts.is_leader, hosts.own))
    offsets = {leaders[0][1]: ClockOffset(0.0, 0.0, 0.0)}
    for rank, (is_leader, host) in enumerate(leaders):
        if not is_leader or rank == 0:
            continue
        if comm.rank == 0:
            round_trip, offset, there = _ping(comm, rank)
            offsets[host] = ClockOffset(offset, round_trip / 2, there)
        elif comm.rank == rank:
            for _ in range(_PINGS):
                comm.recv(source=0, tag=71)
                comm.send(time.monotonic(), 0, tag=72)
    answer: dict[str, ClockOffset] = comm.bcast(offsets)
    return answer
