"""Requests for a measurement: of a command, or of a block of the user's program."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field

from joulecast.measure.power.meter_registry import ALL_METERS, METERS
from joulecast.quantities import duration_s
from joulecast.runs.files.shipped import MEASURED, PLATFORMS
from joulecast.runs.platforms import find_platform
from joulecast.runs.request import Name, Request, Shell, from_text, split_names
from joulecast.runs.spec import (
    AS_USUAL,
    THIS_MACHINE,
    MeterSettings,
    Observed,
    RunSpec,
    StepsThatCount,
    TrainingName,
)


def _steps(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    found = re.fullmatch(r"(\d+):(\d+)", given)
    if found is None:
        raise ValueError("give the first and the last one, such as 10:200")
    return int(found[1]), int(found[2])


def _known(meters: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [meter for meter in meters if meter not in METERS]
    if unknown or not meters:
        raise ValueError(
            f"{', '.join(unknown) or 'nothing'} is no meter; known are {', '.join(METERS)}"
        )
    return meters


class ObserveRequest(Request):
    """Observe a training: its power, its time, and the stages of its steps."""

    name: TrainingName | None = Field(
        default=None,
        description="Name of the training, for `forecast NAME`. By default the name of its script.",
    )
    out: Path = Field(
        default=MEASURED, description="Folder for the records. All hosts must see it."
    )
    samples_per_step: int | None = Field(
        default=None,
        ge=1,
        le=10**18,
        description="Samples in one step, of all ranks together. By default the batches of the data "
        "loaders.",
    )
    steps: Annotated[StepsThatCount | None, BeforeValidator(_steps)] = Field(
        default=None,
        description="First and last step that count, such as 10:200. By default all steps but the first "
        "and the slow ones directly after it (more than five times as long as usual).",
    )
    meters: Annotated[tuple[str, ...], BeforeValidator(split_names), AfterValidator(_known)] = (
        Field(default=(), description=f"Meters, best first; by default all: {','.join(METERS)}.")
    )
    period_s: Annotated[float, Shell("--period")] = Field(
        default=0.1, ge=0.01, le=60, description="Seconds between two readings."
    )
    platform: Name = Field(
        default=THIS_MACHINE,
        description="Platform, by name or as a FILE.yaml. Its watts are used if energy has to be estimated.",
    )


class MeasureRequest(ObserveRequest):
    """Run a training and measure it."""

    command: ClassVar[str] = "measure"

    capture: bool = Field(
        default=False,
        description="Capture the network in the first step, for `plan --network NAME`.",
    )
    window_s: Annotated[float | None, from_text(duration_s), Shell("--for")] = Field(
        default=None,
        gt=0,
        description="Measure only this time from the start, such as 10min; the training continues after it.",
    )
    config: Path | None = Field(
        default=None,
        description="Configuration file. Only its keys power.sysfs_root and power.command are used.",
    )


def observed(
    request: ObserveRequest, words: Sequence[str], metering: MeterSettings = AS_USUAL
) -> RunSpec:
    """The specification of a run that observes the user's command, from the request and the words of the
    command. The number of ranks is not known yet.

    Raises:
        JoulecastError: an unknown platform.
    """
    scripts = [Path(word).stem for word in words if word.endswith(".py")]
    script = scripts[0] if scripts else Path(words[0]).name
    by_script = re.sub(r"[^A-Za-z0-9_.-]+", "-", script).lstrip("._-")
    name = request.name or by_script or "training"
    return RunSpec(
        run=name,
        campaign=name,
        platform=find_platform(request.platform, PLATFORMS).model_copy(update={"hosts": None}),
        nodes=1,
        observed=Observed(
            name=name,
            command=tuple(words),
            samples_per_step=request.samples_per_step,
            steps=request.steps,
        ),
        meters=request.meters or ALL_METERS,
        sample_period_s=request.period_s,
        metering=metering,
    )
