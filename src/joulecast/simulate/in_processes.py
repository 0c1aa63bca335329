"""Work on a list by several processes, which know what the others have found and taken.

The processes are forked: they have all that their parent knows, and nothing of it is copied.
"""

import bisect
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from ctypes import c_double, c_int
from multiprocessing import get_context
from typing import Any, TypeVar

from joulecast.errors import JoulecastError

_FORKING = get_context("fork")
T = TypeVar("T")
R = TypeVar("R")


class Found:
    """What all processes have found and taken so far.

    Args:
        top: how many of the least values are wanted; ``None``: all, so that no value is too large.
    """

    def __init__(self, top: int | None) -> None:
        self._least = None if top is None else _FORKING.Array(c_double, [float("inf")] * top)
        self._taken = _FORKING.Value(c_int, 0)

    @property
    def limit(self) -> float:
        """The largest of the least values: what is above it is not among them."""
        return float("inf") if self._least is None else float(self._least[-1])

    @property
    def taken(self) -> int:
        """How many items, from the first on, have been taken."""
        return int(self._taken.value)

    def take(self) -> int:
        """Take the next item; returns its place."""
        with self._taken.get_lock():
            self._taken.value += 1
            return int(self._taken.value) - 1

    def add(self, value: float) -> None:
        """Note a value."""
        if self._least is None:
            return
        with self._least.get_lock():
            known = [self._least[place] for place in range(len(self._least))]
            bisect.insort(known, value)
            self._least[:] = known[:-1]


_SHARED: list[Any] = []
"""What processes find that are forked next: the function, the items, and what has been found."""


def _in_this_process(_: int) -> Any:
    work, items, found = _SHARED
    return work(items, found)


def in_processes(
    work: Callable[[Sequence[T], Found], dict[int, R]],
    items: Sequence[T],
    processes: int,
    top: int | None,
) -> dict[int, R]:
    """The results of ``work`` in all processes.

    Args:
        work: gets all items, takes some of them, and returns results by number, which are pickled.
        items: the most promising first.
        processes: how many; with one, the work is done here.
        top: how many of the least values are wanted.

    Raises:
        JoulecastError: a process was ended from outside, or could not start.
    """
    found = Found(top)
    if processes <= 1:
        return work(items, found)
    _SHARED[:] = work, items, found
    results: dict[int, R] = {}
    try:
        with ProcessPoolExecutor(processes, mp_context=_FORKING) as pool:
            for part in pool.map(_in_this_process, range(processes)):
                results |= part
    except (OSError, BrokenProcessPool) as error:
        raise JoulecastError(f"a process of the search ended before its work: {error}") from None
    finally:
        _SHARED.clear()
    return results
