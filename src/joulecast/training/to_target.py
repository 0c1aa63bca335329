"""Training to a target accuracy, again and again, in this process: what tuning does all day.

    training = TrainingToTarget(Workload(network="lenet5", image_size=8), target_accuracy=0.9)
    trained = training.train(batch_size=64, seed=3)

The loop is that of the campaign (:class:`~joulecast.training.loop.Trainer`) on a single rank, evaluated on
the test split after each epoch. The data set is opened once, the network is drawn anew by each seed.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from joulecast.errors import JoulecastError
from joulecast.platforms import Platform
from joulecast.records.spec import RunSpec, Training, Workload
from joulecast.training.hosts import Hosts
from joulecast.training.loop import Splits, Trained, Trainer
from joulecast.training.mpi import MPI
from joulecast.training.stage_clock import StageClock

GoOn = Callable[[int, float], bool]
_WARM_UP_STEPS = 2


@dataclass(frozen=True, slots=True)
class TrainedToTarget:
    """How a training ended.

    Attributes:
        reached: whether the accuracy met the target.
        stopped: whether ``go_on`` ended it; otherwise it was the target or the last epoch.
        epochs: whole ones, at least 1 unless it broke.
        time_s: of training and its evaluations; setting up is left out.
        accuracy: of the last evaluation, 0 to 1; ``None``: there was none.
        failed: why it broke (its memory did not suffice); ``epochs`` may be 0 then, and ``time_s`` includes
            setting up where it did not come further.
    """

    reached: bool
    stopped: bool
    epochs: int
    time_s: float
    accuracy: float | None
    failed: str | None = None


class _Unbooked(StageClock):
    """Books nothing: nobody reads the stages of a training that is tuned, and there may be millions."""

    def record(self, stage: str, start: float, stop: float) -> None:
        pass

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        yield


class TrainingToTarget:
    """One network and data set, to be trained with different batch sizes and seeds.

    Args:
        target_accuracy: on the test split, above 0 to 1.
        max_epochs: a training that has not reached the target by then has failed.
        default_batch_size: where the learning rate is ``learning_rate``; at other sizes it is in
            proportion (linear scaling for SGD: Goyal et al. 2017, section 2.1). The square root of the
            proportion is for adaptive optimisers, which the loop does not have.
        max_learning_rate: the scaled learning rate is held to this; ``None``: it is not held.
        threads: of torch; how many there are is a setting of the machine, and nothing that limits power.
        prefetch_batches: prepared ahead in a thread; 0 is faster where preparing is next to nothing.

    Raises:
        JoulecastError: this is a job of several MPI ranks; the data set cannot be opened.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        target_accuracy: float,
        max_epochs: int = 100,
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
        self._splits = Splits.of(workload)
        self._warm = set[int]()

    def steps_per_epoch(self, batch_size: int) -> int:
        """Images by batch size to the nearest whole number, at least 1.

        Batches run on from one epoch's order into the next, so that rounding loses no image.
        """
        return max(1, round(len(self._splits.train) / batch_size))

    def learning_rate(self, batch_size: int) -> float:
        """In proportion to the batch size, up to the most that is allowed."""
        scaled = self._learning_rate * batch_size / self._default_batch_size
        return scaled if self._max_learning_rate is None else min(scaled, self._max_learning_rate)

    def device_uuid(self) -> str | None:
        """As NVML has it, of the GPU that is trained on; ``None`` on a CPU."""
        if self._device == "cpu" or not torch.cuda.is_available():
            return None
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"

    def train(
        self,
        batch_size: int,
        seed: int,
        *,
        begun: Callable[[], None] | None = None,
        stepped: Callable[[int], None] | None = None,
        ended: Callable[[], None] | None = None,
        go_on: GoOn | None = None,
    ) -> TrainedToTarget:
        """Train once.

        Args:
            seed: of the weights, the order of images and dropout.
            begun: called when all is set up.
            stepped: called with the steps done after each.
            ended: called when the last evaluation is over, before anything is torn down.
            go_on: asked after an epoch that missed the target, with the steps done and the accuracy,
                whether there may be another one.

        Raises:
            JoulecastError: a GPU is asked for and there is none; the network does not take the images.
        """
        steps = self.steps_per_epoch(batch_size)
        done, stopped = 0, False
        accuracy: float | None = None
        first_s = time.monotonic()

        def asked(steps_done: int, reached: float) -> bool:
            nonlocal stopped, accuracy
            accuracy = reached
            stopped = go_on is not None and not go_on(steps_done, reached)
            return not stopped

        def progress(steps_done: int, loss: float) -> None:
            nonlocal done
            done = steps_done
            if stepped is not None:
                stepped(steps_done)

        def all_set_up() -> None:
            nonlocal first_s
            first_s = time.monotonic()
            if begun is not None:
                begun()

        try:
            self._warm_up(batch_size, seed)
            trained = self._train(
                batch_size, seed, steps, all_set_up, progress, ended or (lambda: None), asked
            )
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            broke_s = time.monotonic()
            failed = f"out of memory ({str(error).splitlines()[0] if str(error) else type(error)})"
        else:
            assert trained.accuracy is not None
            return TrainedToTarget(
                bool(trained.reached_target),
                stopped,
                trained.steps // steps,
                trained.stop - trained.start,
                trained.accuracy,
            )
        if self._device == "cuda":
            # What the broken replica had would be missing in the next one.
            torch.cuda.empty_cache()
        return TrainedToTarget(False, False, done // steps, broke_s - first_s, accuracy, failed)

    def _train(
        self,
        batch_size: int,
        seed: int,
        steps: int,
        begun: Callable[[], None],
        progress: Callable[[int, float], None],
        ended: Callable[[], None],
        go_on: GoOn,
    ) -> Trained:
        trainer = self._trainer(batch_size, seed, steps * self._max_epochs, steps, self._target)
        try:
            begun()
            trained = trainer.train(progress, go_on)
            ended()
        finally:
            trainer.close()
        return trained

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
        return Trainer(spec, self._hosts, _Unbooked(), yields=False, splits=self._splits)

    def _warm_up(self, batch_size: int, seed: int) -> None:
        """Train a replica that is thrown away, for the first training of a batch size would otherwise pay
        for what torch sets up once (and chooses anew for each shape of batch)."""
        if batch_size in self._warm:
            return
        trainer = self._trainer(batch_size, seed, _WARM_UP_STEPS, _WARM_UP_STEPS, None)
        try:
            trainer.train(lambda done, loss: None)
            if not self._warm:
                trainer.accuracy()
        finally:
            trainer.close()
        self._warm.add(batch_size)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # On a CPU, and where a library of the GPU asks for memory, torch has no type of its own for it.
    said = str(error)
    return any(
        part in said for part in ("can't allocate memory", "STATUS_ALLOC_FAILED", "out of memory")
    )
