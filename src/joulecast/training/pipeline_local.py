"""All stages of a pipeline in one process, one after the other, to time a stage alone.

The stages are those that run over MPI, with another transport of messages.
"""

import pickle
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.graphs.schedules import Schedule
from joulecast.training.pieces import Piece
from joulecast.training.pipeline import Stage

_OBJECTS = -1
_Boxes = dict[tuple[int, int, int], deque[Any]]


class _Sent:
    def Wait(self) -> None:  # noqa: N802 (mpi4py's name)
        pass

    def Test(self) -> bool:  # noqa: N802
        return True


class _Receiving:
    def __init__(self, boxes: _Boxes, way: tuple[int, int, int], place: Any) -> None:
        self._boxes, self._way, self._place = boxes, way, place

    def Wait(self) -> None:  # noqa: N802
        if not self.Test():
            source, dest, tag = self._way
            raise JoulecastError(
                f"rank {dest} waits for message {tag} of rank {source}: none was sent"
            )

    def Test(self) -> bool:  # noqa: N802
        box = self._boxes[self._way]
        if not box:
            return False
        message = box.popleft()
        if message.shape != self._place.shape:
            raise JoulecastError(
                f"a message of {message.shape} bytes arrives at a place of {self._place.shape}"
            )
        self._place[:] = message
        return True


class LocalRank:
    """One of the ranks of :func:`local_ranks`."""

    def __init__(self, rank: int, size: int, boxes: _Boxes) -> None:
        self.rank, self.size, self._boxes = rank, size, boxes

    def Isend(self, buf: Any, dest: int, tag: int) -> _Sent:  # noqa: N802
        """Begin to send memory; it is read when it is received, which MPI may also do."""
        self._boxes[self.rank, dest, tag].append(buf)
        return _Sent()

    def Irecv(self, buf: Any, source: int, tag: int) -> _Receiving:  # noqa: N802
        """Begin to receive into memory."""
        return _Receiving(self._boxes, (source, self.rank, tag), buf)

    def send(self, obj: Any, dest: int) -> None:
        """Send an object."""
        self._boxes[self.rank, dest, _OBJECTS].append(pickle.dumps(obj))

    def recv(self, *, source: int) -> Any:
        """Receive an object that was sent before."""
        return pickle.loads(self._boxes[source, self.rank, _OBJECTS].popleft())


def local_ranks(size: int) -> list[LocalRank]:
    """Ranks in one process; their messages arrive immediately."""
    boxes: _Boxes = defaultdict(deque)
    return [LocalRank(rank, size, boxes) for rank in range(size)]


def local_stages(
    pieces: Sequence[Piece],
    schedule: Schedule,
    micro_batches: int,
    samples: int,
    image_shape: Sequence[int],
) -> list[Stage]:
    """All stages of a pipeline in this process; for the arguments see ``Stage``."""
    ranks = local_ranks(len(pieces))
    return [
        Stage(piece, rank, schedule, micro_batches, samples, image_shape)
        for piece, rank in zip(pieces, ranks, strict=True)
    ]
