"""The training that is observed: from a user's request, or from a run of a campaign."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from joulecast.measure.observer.request import ObserveRequest, StepsThatCount, TrainingName
from joulecast.measure.power.meter_registry import ALL_METERS
from joulecast.runs.files.shipped import PLATFORMS
from joulecast.runs.platforms import Platform, find_platform
from joulecast.runs.spec import AS_USUAL, MeterSettings, RunSpec


@dataclass(frozen=True)
class ObservedTraining:
    """The training that is observed, and what its user knows about it.

    Attributes:
        samples_per_step: samples in a step, of all ranks together.
        steps: first and last step that count; the first step of the training is 0.
        meters, period_s: the meters that the sampler reads, and the seconds between two readings.
        metering: the folder in which meters look, and the command that they call.
        capture: the function that builds the network to capture, written ``package.module:function``.
        spec: the specification of a campaign's run. The record must match it.
    """

    name: TrainingName
    command: tuple[str, ...]
    platform: Platform
    samples_per_step: Annotated[int, Field(ge=1, le=10**18)] | None = None
    steps: StepsThatCount | None = None
    meters: tuple[str, ...] = ALL_METERS
    period_s: Annotated[float, Field(gt=0, le=1e6)] = 0.1
    spec: RunSpec | None = None
    metering: MeterSettings = AS_USUAL
    capture: str | None = None


def observed(
    request: ObserveRequest, words: Sequence[str], metering: MeterSettings = AS_USUAL
) -> ObservedTraining:
    """The training that a user asks to observe, with the words of its command.

    Raises:
        JoulecastError: an unknown platform.
    """
    return ObservedTraining(
        request.name or _name_of(words),
        tuple(words),
        find_platform(request.platform, PLATFORMS),
        request.samples_per_step,
        request.steps,
        request.meters or ALL_METERS,
        request.period_s,
        metering=metering,
    )


def _name_of(words: Sequence[str]) -> str:
    """Name of the script that a command runs; without a script, of the program."""
    scripts = [Path(word).stem for word in words if word.endswith(".py")]
    name = scripts[0] if scripts else Path(words[0]).name
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).lstrip("._-") or "training"


def observed_run(spec: RunSpec) -> ObservedTraining:
    """The training in a campaign's run, if this run is a command of the user."""
    asked = spec.observed
    assert asked is not None
    return ObservedTraining(
        asked.name,
        asked.command,
        spec.platform,
        asked.samples_per_step,
        asked.steps,
        spec.meters,
        spec.sample_period_s,
        spec,
        metering=spec.metering,
    )
