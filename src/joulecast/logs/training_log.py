"""Logs of Megatron-LM, torchtitan, TensorBoard and W&B: when each step was done, as a row of a table of runs.

A line is printed after its steps. So the run begins with the first line, and the steps before it are warm-up.
"""

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.logs.log_times import Clock, TimeForm
from joulecast.logs.scalar_files import read_scalars
from joulecast.runs.files.reading import read_text

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TIME = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?)"
_MEGATRON = re.compile(rf"(?:\[{_TIME}\] +)?iteration +(\d{{1,15}})/ *\d+ \|")
_TITAN = re.compile(rf"{_TIME} - \S+ - INFO - (?:\w+ )?step: *(\d{{1,15}})\b.*\bloss:")
_OVER_SAMPLES = "Train/Samples/"
"""Begin of the names of the scalars of DeepSpeed's monitor. It logs samples in place of steps."""
_BEGINS = re.compile(
    rf"\[before the start of training step\]|{_TIME} - .*?Training starts at step \d"
)
_SAMPLES = re.compile(r"\| +consumed samples: +(\d{1,15}) \|")
_BATCH = re.compile(r"\| +global batch size: +(\d{1,15}) \|")
_LASTS = re.compile(r"\| +elapsed time per iteration \(ms\): +(\d{1,15}(?:\.\d{1,9})?) \|")
_ENERGY = re.compile(r"\| +energy per GPU \(J/iter/GPU\): +(\d{1,15}(?:\.\d{1,9})?) \|")


@dataclass(frozen=True)
class LoggedStep:
    """A line of a training log.

    Attributes:
        step: the last step that was done.
        t_s: time when this step was done, in the form of :class:`StepLog`.
        samples: number of samples that were trained up to this line.
        batch: samples of a step.
        lasts_s: seconds of a step, without evaluations and checkpoints: the mean since the line before.
        gpu_j: joules of a step and a GPU: the mean over all GPUs, and over the steps since the line before.
    """

    where: str
    step: int
    t_s: float = 0.0
    samples: int | None = None
    batch: int | None = None
    lasts_s: float | None = None
    gpu_j: float | None = None


@dataclass(frozen=True)
class StepLog:
    """A training: at least two steps, in their order, and the form of their times."""

    steps: list[LoggedStep]
    form: TimeForm

    @property
    def trained(self) -> dict[str, int]:
        """The work of the training: ``samples``, or ``steps`` if the log has no samples. Also ``batch``, if
        the log has it and it never changes.

        Raises:
            JoulecastError: the samples do not grow.
        """
        first, last = self.steps[0], self.steps[-1]
        batches = {step.batch for step in self.steps[1:]}
        batch = batches.pop() if len(batches) == 1 else None
        found = {"batch": batch} if batch else {}
        if first.samples is None or last.samples is None:
            return {**found, "steps": last.step - first.step}
        if last.samples <= first.samples:
            raise JoulecastError(
                f"{last.where}: consumed samples: {last.samples} are not above {first.samples}"
            )
        return {**found, "samples": last.samples - first.samples}


def read_steps(file: Path, clock: Clock) -> StepLog:
    """The steps of a training.

    Args:
        file: the output of the training; an event file, which has ``tfevents`` in its name; or an offline
            run of W&B, whose name ends with ``.wandb``.
        clock: has the time zone of the file.

    Raises:
        JoulecastError: the file has fewer than two lines of steps, or a line is impossible. The error names
            the line.
    """
    if "tfevents" in file.name or file.suffix == ".wandb":
        name, scalars = read_scalars(file)
        counts_samples = name.startswith(_OVER_SAMPLES)
        steps = [
            LoggedStep(f"{file}, scalar {n}", step, t_s, samples=step if counts_samples else None)
            for n, (step, t_s) in enumerate(scalars, start=1)
        ]
        log = StepLog(_once_each(steps), "placed")
    else:
        log = _printed(file, clock)
    steps = log.steps
    if len(steps) < 2:
        raise JoulecastError(
            f"{file}: has {len(steps)} steps, as Megatron-LM, torchtitan, TensorBoard or W&B log them; give "
            "a log of at least two"
        )
    for before, after in pairwise(steps):
        if after.t_s < before.t_s:
            raise JoulecastError(
                f"{after.where}: its time is earlier than in the line before; make a file of each training, "
                "or give --timezone if the clock was put back"
            )
    return log


def _once_each(steps: list[LoggedStep]) -> list[LoggedStep]:
    """The steps without those that another rank, or another part of a step, has logged already."""
    found = steps[:1]
    for step in steps[1:]:
        if step.step < found[-1].step:
            raise JoulecastError(
                f"{step.where}: step {step.step} follows step {found[-1].step}, so that a training began "
                "again; make a file of each"
            )
        if step.step > found[-1].step:
            found.append(step)
    return found


def _printed(file: Path, clock: Clock) -> StepLog:
    texts: dict[str, str] = {}
    steps: list[LoggedStep] = []
    began_again = False
    for number, line in enumerate(read_text(file, "training log").splitlines(), start=1):
        plain = _COLOUR.sub("", line)
        begins = _BEGINS.search(plain)
        if begins and steps:
            # In torchtitan, each rank says when it starts. The line may come late, but not its time.
            began_again |= begins[1] is None or begins[1] > texts[steps[-1].where]
        found = _MEGATRON.search(plain) or _TITAN.search(plain)
        if found is None:
            continue
        where = f"{file}, line {number}"
        if began_again:
            raise JoulecastError(
                f"{where}: the training began again before this step; make a file of each"
            )
        if found[1] is None:
            raise JoulecastError(
                f"{where}: has no time; write start, stop and samples of the run into a table of runs by hand"
            )
        samples, batch, lasts, energy = (
            each.search(plain) for each in (_SAMPLES, _BATCH, _LASTS, _ENERGY)
        )
        steps.append(
            LoggedStep(
                where,
                int(found[2]),
                samples=int(samples[1]) if samples else None,
                batch=int(batch[1]) if batch else None,
                lasts_s=float(lasts[1]) / 1000 if lasts else None,
                gpu_j=float(energy[1]) if energy else None,
            )
        )
        texts[where] = found[1]
    steps = _once_each(steps)
    said = pd.Series({step.where: texts[step.where] for step in steps}, dtype=str).str.replace(
        ",", "."
    )
    times = clock.place(clock.seconds(said, str(file)), str(file))
    placed = [replace(step, t_s=float(t_s)) for step, t_s in zip(steps, times.t_s, strict=True)]
    return StepLog(placed, times.form)


def read_training_log(file: Path, clock: Clock) -> dict[str, str | int]:
    """The facts of a training: ``start`` and ``stop`` (ISO 8601), and :attr:`StepLog.trained`. Arguments and
    errors are the same as for :func:`read_steps`."""
    log = read_steps(file, clock)
    zone = "UTC" if log.form == "placed" else None
    start, stop = (
        pd.Timestamp(step.t_s, unit="s", tz=zone).isoformat()
        for step in (log.steps[0], log.steps[-1])
    )
    return {"start": start, "stop": stop, **log.trained}
