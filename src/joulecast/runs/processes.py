"""Work that is divided over several processes of this machine."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

from joulecast.errors import JoulecastError

T = TypeVar("T")
_WORK: list[Callable[[Any], Any]] = []
"""The function that this process applies to each item, if it is one of the forked processes."""


def _start(work: Callable[[Any], Any]) -> None:
    _WORK[:] = [work]


def _do(item: Any) -> Any:
    return _WORK[0](item)


@contextmanager
def workers(work: Callable[[Any], T], processes: int) -> Iterator[Callable[[Any], Future[T]]]:
    """A function that submits an item to a process that is free.

    Args:
        work: what is done with an item. It may hold anything: the processes are forked from this one. Items
            and results must be picklable.
        processes: number of processes. A single one is this process.

    Raises:
        JoulecastError: a process was ended from outside, or could not start.
    """

    def here(item: Any) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(work(item))
        return done

    if processes == 1:
        yield here
        return
    try:
        with ProcessPoolExecutor(
            processes, mp_context=get_context("fork"), initializer=_start, initargs=(work,)
        ) as pool:
            yield lambda item: pool.submit(_do, item)
    except (OSError, BrokenProcessPool) as error:
        raise JoulecastError(
            f"one of {processes} processes ended before its work: {error}"
        ) from None


def mapped(work: Callable[[Any], T], items: Iterable[Any], processes: int) -> list[T]:
    """The result of ``work`` for each item, in the order of the items (:func:`workers`)."""
    with workers(work, processes) as submit:
        return [done.result() for done in [submit(item) for item in items]]
