"""Work that is divided over several processes of this machine."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

from joulecast.errors import JoulecastError

T = TypeVar("T")


class _ThisProcess(Executor):
    """Does each task in this process when it is submitted."""

    def submit(self, work: Callable[..., T], /, *arguments: Any, **more: Any) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(work(*arguments, **more))
        return done


@contextmanager
def workers(processes: int) -> Iterator[Executor]:
    """Processes that are forked from this one, and do tasks. A single one is this process.

    Raises:
        JoulecastError: a process was ended from outside, or could not start.
    """
    if processes == 1:
        yield _ThisProcess()
        return
    try:
        with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
            yield pool
    except (OSError, BrokenProcessPool) as error:
        raise JoulecastError(
            f"one of {processes} processes ended before its work: {error}"
        ) from None


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
    with workers(processes) as pool:
        return list(pool.map(work, items, chunksize=together))
