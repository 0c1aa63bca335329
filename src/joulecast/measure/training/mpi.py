"""MPI, the hosts of a job's ranks, and their clocks.

All ranks import this module first, so it ties them to their launcher. If no MPI can be loaded, the error says
how to get one. Ranks are grouped by physical host: by name and boot id, so that a machine with several node
names counts once. The run clock is rank 0's monotonic clock. The offsets of other hosts' clocks are measured
by ping-pong before and after the run, from the round trip with the least delay.
"""

import os
import time
from dataclasses import dataclass
from typing import cast

from joulecast.errors import JoulecastError
from joulecast.measure.power.host_clocks import ClockOffset
from joulecast.measure.training.ranks import tie_to_launcher
from joulecast.runs.provenance import physical_host

tie_to_launcher()
try:
    from mpi4py import MPI as MPI
except (ImportError, RuntimeError) as error:
    raise JoulecastError(
        f"no MPI library can be loaded ({str(error).splitlines()[-1]}); load the site's module, or install "
        "one: `pip install 'joulecast[campaign,mpich]'` (`./run` installs it, unless JOULECAST_MPI is `site`)"
    ) from None

_POLL_S = 50e-6
_SLOW_POLL_S = 2e-3
_PINGS = 50


@dataclass(frozen=True)
class Hosts:
    """The hosts of a communicator, seen from one rank.

    ``local`` is the communicator of the ranks on this host. ``across`` is the communicator of the ranks that
    have the same local rank on their hosts. ``smallest`` is the least number of ranks on any host.
    """

    comm: MPI.Intracomm
    local: MPI.Intracomm
    across: MPI.Intracomm
    names: tuple[str, ...]
    own: str
    smallest: int

    @classmethod
    def of(cls, comm: MPI.Intracomm, name: str | None = None) -> "Hosts":
        """The hosts of ``comm``. In tests, ``name`` replaces this host's name."""
        of_rank = comm.allgather(physical_host() if name is None else name)
        distinct = tuple(dict.fromkeys(of_rank))
        local = cast(MPI.Intracomm, comm.Split(distinct.index(of_rank[comm.rank]), comm.rank))
        across = cast(MPI.Intracomm, comm.Split(local.rank, comm.rank))
        smallest = comm.allreduce(local.size, op=MPI.MIN)
        return cls(comm, local, across, distinct, of_rank[comm.rank], smallest)

    @property
    def count(self) -> int:
        """Number of distinct physical hosts."""
        return len(self.names)

    @property
    def label(self) -> str:
        """This host's name in records. If another host has the same name, a part of the boot id is added."""
        name, _, boot = self.own.partition(":")
        alike = sum(other.partition(":")[0] == name for other in self.names)
        return name if alike == 1 else f"{name}~{boot[:8]}"

    def usable_cores(self) -> int:
        """Number of cores that the ranks of this host may use together (collective on the host).

        A scheduler may have bound each rank to different cores.
        """
        return len(set().union(*self.local.allgather(os.sched_getaffinity(0))))

    @property
    def is_leader(self) -> bool:
        """Whether this rank acts for its host: the rank with local rank 0 does."""
        return self.local.rank == 0


def arrive(comm: MPI.Comm, yields: bool) -> None:
    """Wait for all ranks. MPI keeps the core busy while it waits. With ``yields``, the core is released.
    Ranks that share cores need this."""
    if not yields:
        comm.Barrier()
        return
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_POLL_S)


def arrive_slowly(comm: MPI.Comm) -> None:
    """Wait for ranks that are not ready yet. This wait uses hardly any of a core."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_SLOW_POLL_S)


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
    """For every host: rank 0's clock minus the host's clock. The result is the same on all ranks
    (collective)."""
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
