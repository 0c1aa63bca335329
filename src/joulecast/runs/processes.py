"""Work that is divided over several processes of this machine."""

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from joulecast.errors import JoulecastError

FORKING = get_context("fork")
T = TypeVar("T")


def mapped(
    work: Callable[[Any], T], items: Iterable[Any], processes: int, together: int = 1
) -> list[T]:
    """The result of ``work`` for each item, in the order of the items. The next items go to the process that
    is free.

    Args:
        work: a function of a module. Its result must be picklable.
        items: arguments of ``work``, one for each call.
        processes: number of processes. They are forked from this one; a single one is this one.
        together: number of items that a process gets at once.

    Raises:
        JoulecastError: a process was ended from outside, or could not start.
    """
    if processes == 1:
        return [work(item) for item in items]
    try:
        with ProcessPoolExecutor(processes, mp_context=FORKING) as pool:
            return list(pool.map(work, items, chunksize=together))
    except (OSError, BrokenProcessPool) as error:
        raise JoulecastError(
            f"one of {processes} processes ended before its work: {error}"
        ) from None
