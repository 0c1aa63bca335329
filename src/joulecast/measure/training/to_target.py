"""Repeated training to a target accuracy in this process, for tuning.

    training = TrainingToTarget(Workload(network="lenet5", image_size=8), target_accuracy=0.9)
    trained = training.train(batch_size=64, seed=3)

The training uses the loop of the campaign (:class:`~joulecast.measure.training.loop.Trainer`) on a single
rank. After each epoch, the network is evaluated on the test split. The data set is opened once. Each seed
gives new weights.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import torch

from joulecast.errors import JoulecastError
from joulecast.measure.training.loop import Trainer, open_images
from joulecast.measure.training.mpi import MPI, Hosts
from joulecast.measure.training.stage_clock import StageClock
from joulecast.runs.platforms import Platform
from joulecast.runs.spec import RunSpec, Training, Workload

MayContinue = Callable[[int, float], bool]
_WARM_UP_STEPS = 2


def _nothing(*_: Any) -> None:
    pass


def _always(done: int, accuracy: float) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class TrainedToTarget:
    """Result of one training.

    Attributes:
        reached: whether the accuracy met the target.
        stopped: whether ``may_continue`` ended the training (and not the target or the last epoch).
        epochs: number of whole epochs. It is at least 1, unless the training failed.
        time_s: seconds of training and evaluations, without setting up.
        accuracy: result of the last evaluation, 0 to 1; ``None`` if there was none.
        failed: why it failed (out of memory). ``epochs`` may then be 0. If it failed while setting up,
            ``time_s`` includes the time of setting up.
    """

    reached: bool
    stopped: bool
    epochs: int
    time_s: float
    accuracy: float | None
    failed: str | None = None


class TrainingToTarget:
    """One network and data set, to be trained with different batch sizes and seeds.

    Args:
        target_accuracy: accuracy to reach on the test split: above 0, at most 1.
        max_epochs: largest number of epochs. After them, a training ends, even if it has not reached the
            target.
        default_batch_size: batch size to which ``learning_rate`` belongs. The learning rate is proportional
            to the batch size (linear scaling for SGD: Goyal et al. 2017, section 2.1). Scaling by the square
            root is for adaptive optimisers, which the loop does not have.
        max_learning_rate: limit of the scaled learning rate; no limit if ``None``.
        prefetch_batches: number of batches that a thread prepares ahead. If preparing takes hardly any time,
            0 is faster.

    Raises:
        JoulecastError: this process belongs to a job of several MPI ranks, or the data set cannot be opened.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        target_accuracy: float,
        max_epochs: int,
        default_batch_size: int = 256,
        learning_rate: float = 0.05,
        momentum: float = 0.9,
        max_learning_rate: float | None = None,
        device: Literal["cpu", "cuda"] = "cpu",
        threads: int = 1,
        prefetch_batches: int = 0,
    ) -> None:
        if MPI.COMM_WORLD.size > 1:
            raise JoulecastError(
                f"tuning trains in one process, and this is one of {MPI.COMM_WORLD.size} MPI ranks; start it "
                "without a launcher"
            )
        self._workload, self._target, self._max_epochs = workload, target_accuracy, max_epochs
        self._default_batch_size, self._learning_rate = default_batch_size, learning_rate
        self._max_learning_rate, self._momentum = max_learning_rate, momentum
        self._device, self._threads, self._prefetch = device, threads, prefetch_batches
        self._hosts = Hosts.of(MPI.COMM_WORLD)
        self._images, _ = open_images(workload), open_images(workload, train=False)
        self._warm = set[int]()

    def steps_per_epoch(self, batch_size: int) -> int:
        """Number of images divided by the batch size, rounded, at least 1.

        A batch may span two epochs. So no image is lost by rounding.
        """
        return max(1, round(len(self._images) / batch_size))

    def learning_rate(self, batch_size: int) -> float:
        """The learning rate for a batch size: proportional to the batch size, and at most
        ``max_learning_rate``."""
        scaled = self._learning_rate * batch_size / self._default_batch_size
        return scaled if self._max_learning_rate is None else min(scaled, self._max_learning_rate)

    def device_uuid(self) -> str | None:
        """UUID of the GPU in use, as in NVML; ``None`` on a CPU."""
        if self._device == "cpu" or not torch.cuda.is_available():
            return None
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"

    def train(
        self,
        batch_size: int,
        seed: int,
        *,
        begun: Callable[[], None] = _nothing,
        stepped: Callable[[int], None] = _nothing,
        ended: Callable[[], None] = _nothing,
        may_continue: MayContinue = _always,
    ) -> TrainedToTarget:
        """Train once. Returns the result.

        Args:
            seed: seed of the weights, the order of images, and dropout.
            begun: is called when everything is prepared.
            stepped: is called after each step, with the number of steps so far.
            ended: is called after the last evaluation, before memory is freed.
            may_continue: is called after an epoch that missed the target, with the number of steps so far and
                the accuracy. It returns whether to continue.

        Raises:
            JoulecastError: a GPU is configured, but there is none; or the network does not fit the images.
        """
        steps = self.steps_per_epoch(batch_size)
        done, stopped = 0, False
        accuracy: float | None = None
        first_s = time.monotonic()

        def evaluated(steps_done: int, reached: float) -> bool:
            nonlocal stopped, accuracy
            accuracy = reached
            stopped = not may_continue(steps_done, reached)
            return not stopped

        def progress(steps_done: int, loss: float) -> None:
            nonlocal done
            done = steps_done
            stepped(steps_done)

        try:
            self._warm_up(batch_size, seed)
            whole = steps * self._max_epochs
            with closing(self._trainer(batch_size, seed, whole, steps, self._target)) as trainer:
                first_s = time.monotonic()
                begun()
                trained = trainer.train(progress, evaluated)
                ended()
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            broke_s = time.monotonic()
            failed = f"out of memory ({str(error).splitlines()[0] if str(error) else type(error)})"
        else:
            return TrainedToTarget(
                bool(trained.reached_target),
                stopped,
                trained.steps // steps,
                trained.stop - trained.start,
                trained.accuracy,
            )
        if self._device == "cuda":
            # Otherwise the memory of the failed replica would not be free for the next one.
            torch.cuda.empty_cache()
        return TrainedToTarget(False, False, done // steps, broke_s - first_s, accuracy, failed)

    def _trainer(
        self, batch_size: int, seed: int, steps: int, evaluate_every: int, target: float | None
    ) -> Trainer:
        training = Training(
            global_batch_size=batch_size,
            steps=steps,
            warmup_steps=0,
            target_accuracy=target,
            evaluate_every=evaluate_every,
            learning_rate=self.learning_rate(batch_size),
            momentum=self._momentum,
            device=self._device,
            algorithm="mpi",
            prefetch_batches=self._prefetch,
        )
        spec = RunSpec(
            run=f"{self._workload.network}-{batch_size}",
            campaign="tuning",
            platform=Platform(name="this machine", hosts=1),
            nodes=1,
            threads_per_rank=self._threads,
            seed=seed,
            workload=self._workload,
            training=training,
        )
        return Trainer(spec, self._hosts, StageClock(), yields=False)

    def _warm_up(self, batch_size: int, seed: int) -> None:
        """Train a replica that is then discarded. Here torch does the set-up that it needs once for each
        shape of batch. So the set-up is not part of a measured training."""
        if batch_size in self._warm:
            return
        with closing(self._trainer(batch_size, seed, _WARM_UP_STEPS, 1, None)) as trainer:
            trainer.train(_nothing)
            if not self._warm:
                trainer.accuracy()
        self._warm.add(batch_size)


def _is_out_of_memory(error: BaseException) -> bool:
    # On a CPU, and in libraries of the GPU, torch raises no specific type.
    parts = "can't allocate memory", "STATUS_ALLOC_FAILED", "out of memory"
    is_named = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return is_named or any(part in str(error) for part in parts)
