"""Messages that move while their rank sleeps.

Ranks are many and cores are few, so no rank polls busily: it is one thread that sleeps a tenth of
a millisecond, lets MPI move what it can, and sleeps again, be it computing (then the sleep is the
computation) or waiting. An operation is a generator that gives the requests it waits for and is
resumed when they are done; a lane is a queue of operations of which the first is under way. That is
what a communication thread would do, without a second thread to disturb the timing of the first.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from joulecast.measure.training.mpi import MPI
from joulecast.simulate.collectives import Algorithm

Numbers = NDArray[np.float32]
Steps = Iterator[list[MPI.Request]]

POLL_S = 100e-6


def now() -> float:
    """Seconds on the clock that all ranks of one machine share."""
    return time.monotonic()


def _exchange(
    comm: MPI.Comm, to: int, sent: Numbers, source: int, got: Numbers
) -> list[MPI.Request]:
    # Received first, so that what arrives finds its place.
    return [comm.Irecv(got, source), comm.Isend(sent, to)]


def ring(comm: MPI.Comm, buffer: Numbers) -> Steps:
    """Sum ``buffer`` over ``comm`` in 2(R-1) steps of 1/R of it, to the right neighbour.

    Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
    """
    size, rank = comm.size, comm.rank
    bounds = np.linspace(0, buffer.size, size + 1).astype(int)
    parts = [buffer[bounds[index] : bounds[index + 1]] for index in range(size)]
    scratch = np.empty(max(part.size for part in parts), np.float32)
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        sent, got = parts[(rank - step) % size], parts[(rank - step - 1) % size]
        yield _exchange(comm, right, sent, left, scratch[: got.size])
        got += scratch[: got.size]
    for step in range(size - 1):
        sent, got = parts[(rank + 1 - step) % size], parts[(rank - step) % size]
        yield _exchange(comm, right, sent, left, got)


def recursive_doubling(comm: MPI.Comm, buffer: Numbers) -> Steps:
    """Sum ``buffer`` in log2(R) exchanges of all of it; R is a power of two."""
    scratch = np.empty_like(buffer)
    for step in range(_doublings(comm.size)):
        partner = comm.rank ^ (1 << step)
        yield _exchange(comm, partner, buffer, partner, scratch)
        buffer += scratch


def rabenseifner(comm: MPI.Comm, buffer: Numbers) -> Steps:
    """Sum ``buffer`` by recursive halving and then doubling: 2 log2(R) exchanges of a half, a
    quarter, ... of it; R is a power of two.

    Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
    """
    scratch = np.empty((buffer.size + 1) // 2, np.float32)
    first, last = 0, buffer.size
    halves: list[tuple[int, int, int, int, int]] = []
    for step in range(_doublings(comm.size)):
        partner, middle = comm.rank ^ (1 << step), (first + last) // 2
        kept, given = (first, middle), (middle, last)
        if comm.rank > partner:
            kept, given = given, kept
        halves.append((partner, *kept, *given))
        got = scratch[: kept[1] - kept[0]]
        yield _exchange(comm, partner, buffer[slice(*given)], partner, got)
        buffer[slice(*kept)] += got
        first, last = kept
    for partner, mine, mine_end, theirs, theirs_end in reversed(halves):
        yield _exchange(comm, partner, buffer[mine:mine_end], partner, buffer[theirs:theirs_end])


def _doublings(size: int) -> int:
    if size & (size - 1):
        raise ValueError(f"recursive algorithms need a power of two of ranks, not {size}")
    return size.bit_length() - 1


ALL_REDUCES: dict[Algorithm, Callable[[MPI.Comm, Numbers], Steps]] = {
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "rabenseifner": rabenseifner,
}


def single(request: MPI.Request) -> Steps:
    """An operation of one request."""
    yield [request]


class Operation:
    """Something that is under way; ``done`` when it is not any more."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._pending: list[MPI.Request] = []
        self.done = False

    def advance(self) -> None:
        """Go as far as messages that have arrived allow."""
        while not self.done:
            if self._pending and not MPI.Request.Testall(self._pending):
                return
            following = next(self._steps, None)
            self.done = following is None
            self._pending = following or []


class Rank:
    """One rank's work under way: a clock of computing, and lanes of operations.

    Computing is exact whatever the scheduler does: a computation begins where the previous one was
    to end, or at the end of the wait before it, and an end that is noticed late is not carried on.
    ``late_s`` is the latest that an end was noticed.
    """

    def __init__(self) -> None:
        self.clock_s = 0.0
        self.late_s = 0.0
        self._loose: list[Operation] = []
        self._lane: deque[Operation] = deque()

    def begin(self, at_s: float) -> None:
        """Sleep until the clock of all ranks says ``at_s`` and compute from then on."""
        self.clock_s, self.late_s = at_s, 0.0
        self.compute(0.0)

    def start(self, steps: Steps) -> Operation:
        """Begin an operation at once."""
        operation = Operation(steps)
        self._loose.append(operation)
        operation.advance()
        return operation

    def queue(self, steps: Steps) -> None:
        """Begin an operation when those queued before it are done."""
        self._lane.append(Operation(steps))
        self._advance()

    def compute(self, seconds: float) -> None:
        """Sleep for a computation; messages move meanwhile."""
        self.clock_s += seconds
        while (left := self.clock_s - now()) > 0:
            time.sleep(min(POLL_S, left) if self._loose or self._lane else left)
            self._advance()
        self.late_s = max(self.late_s, -left)

    def wait(self, operation: Operation) -> None:
        """Compute nothing until an operation is done."""
        self._wait(lambda: operation.done)

    def finish(self) -> None:
        """Wait until nothing is under way."""
        self._wait(lambda: not self._loose and not self._lane)

    def _wait(self, is_over: Callable[[], bool]) -> None:
        self._advance()
        if is_over():
            return
        while not is_over():
            time.sleep(POLL_S)
            self._advance()
        self.clock_s = now()

    def _advance(self) -> None:
        for operation in self._loose:
            operation.advance()
        self._loose = [operation for operation in self._loose if not operation.done]
        while self._lane:
            self._lane[0].advance()
            if not self._lane[0].done:
                return
            self._lane.popleft()
