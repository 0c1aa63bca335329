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
    """The results of ``work`` for each item, in the order of the items. A free process takes the next items.

    Args:
        work: a function of a module. What it returns is pickled.
        items: its arguments.
        processes: how many, forked from this one.
        together: how many items a process gets at once.

    Raises:
        JoulecastError: a process was ended from outside, or could not start.
    """
    try:
        with ProcessPoolExecutor(processes, mp_context=FORKING) as pool:
            return list(pool.map(work, items, chunksize=together))
    except (OSError, BrokenProcessPool) as error:
        raise JoulecastError(
            f"one of {processes} processes ended before its work: {error}"
        ) from None
