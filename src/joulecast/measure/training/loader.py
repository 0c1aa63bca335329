"""Batches, divided over the ranks, seeded, and prepared ahead.

The order of an epoch is a permutation given by seed and epoch. A global batch is the next piece of this
order. Each rank takes a part of it. So N ranks together see the same images as a single rank. The sizes of
the parts differ by at most one.
"""

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from joulecast.measure.workloads.datasets import Images

Batch = tuple[Tensor, Tensor]


def rank_share(global_batch: int, ranks: int, rank: int) -> tuple[int, int]:
    """Begin and end (exclusive) of a rank's part in a global batch."""
    return global_batch * rank // ranks, global_batch * (rank + 1) // ranks


def batch_indices(
    length: int, global_batch: int, ranks: int, rank: int, seed: int
) -> Iterator[list[int]]:
    """Yields without end: the image indices of this rank's part of the next global batch. A global batch may
    span two epochs."""
    first, last = rank_share(global_batch, ranks, rank)
    epoch = 0
    order = np.random.default_rng((seed, epoch)).permutation(length)
    while True:
        while len(order) < global_batch:
            epoch += 1
            following = np.random.default_rng((seed, epoch)).permutation(length)
            order = np.concatenate([order, following])
        yield [int(i) for i in order[first:last]]
        order = order[global_batch:]


class _IndexedBatches(torch.utils.data.Dataset[Batch]):
    """A torch data set with whole batches as items, for worker processes."""

    def __init__(self, images: Images) -> None:
        self._images = images

    def __getitem__(self, indices: Any) -> Batch:
        return self._images.batch(indices)


class Loader:
    """Iterator over this rank's batches (images, labels).

    Args:
        workers: number of processes that prepare batches. 0: a thread of this rank prepares them.
        prefetch: number of batches that each worker (or the thread) prepares ahead. 0, without workers: a
            batch is prepared when it is needed.
        slow_down: for emulation, without workers: preparing a batch is extended to this multiple of its CPU
            time.
        pins: whether workers put batches into pinned memory, so that a GPU can copy them while it computes.
    """

    def __init__(
        self,
        images: Images,
        indices: Iterator[list[int]],
        *,
        workers: int = 0,
        prefetch: int = 2,
        slow_down: float = 1.0,
        pins: bool = False,
    ) -> None:
        self._images, self._indices, self._slow_down = images, indices, slow_down
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._worker_batches: Iterator[Batch] | None = None
        self._queue: queue.Queue[Batch | BaseException] = queue.Queue(max(1, prefetch))
        if workers:
            # No fork, as MPI and its threads run in the parent.
            self._worker_batches = iter(
                torch.utils.data.DataLoader(
                    _IndexedBatches(images),
                    batch_size=None,
                    sampler=indices,
                    num_workers=workers,
                    prefetch_factor=max(1, prefetch),
                    pin_memory=pins,
                    multiprocessing_context="forkserver",
                )
            )
        elif prefetch:
            self._thread = threading.Thread(target=self._prefetch, daemon=True)
            self._thread.start()

    def _prepare(self) -> Batch:
        start, work = time.monotonic(), time.thread_time()
        batch = self._images.batch(next(self._indices))
        due = start + (time.thread_time() - work) * self._slow_down
        if self._slow_down > 1:
            time.sleep(max(0.0, due - time.monotonic()))
        return batch

    def _prefetch(self) -> None:
        while not self._stop.is_set():
            try:
                item: Batch | BaseException = self._prepare()
            except BaseException as error:
                item = error
            while not self._stop.is_set():
                try:
                    self._queue.put(item, timeout=0.2)
                    break
                except queue.Full:
                    continue
            if isinstance(item, BaseException):
                return

    def __next__(self) -> Batch:
        if self._worker_batches is not None:
            return next(self._worker_batches)
        if self._thread is None:
            return self._prepare()
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Stop the preparation of batches."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._worker_batches = None
