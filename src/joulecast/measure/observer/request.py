"""What is to be measured: a training, its name, and what the user knows of it."""

import re
from dataclasses import dataclass

from joulecast.errors import JoulecastError
from joulecast.measure.power.meter_registry import ALL_METERS, METERS
from joulecast.runs.files.shipped import PLATFORMS
from joulecast.runs.meter_settings import AS_USUAL, MeterSettings
from joulecast.runs.platforms import Platform, find_platform
from joulecast.runs.spec import RunSpec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SHORTEST_S, _LONGEST_S = 0.01, 60.0


@dataclass(frozen=True)
class MeasureRequest:
    """What is to be measured, and what the user knows of it.

    ``samples_per_step`` is of all ranks; ``steps`` are the first and the last one, from 0, of the part that
    counts; ``meters`` and ``period_s`` are the sampler's; ``attached`` is the process that ran before it was
    measured; ``metering`` is where meters look and what they call. A run of a campaign has a ``spec``, which
    its record must answer.
    """

    name: str
    command: tuple[str, ...]
    platform: Platform
    samples_per_step: int | None = None
    steps: tuple[int, int] | None = None
    meters: tuple[str, ...] = ALL_METERS
    period_s: float = 0.1
    spec: RunSpec | None = None
    attached: int | None = None
    metering: MeterSettings = AS_USUAL


def measure_request(
    name: str,
    command: tuple[str, ...],
    *,
    platform: str = "this-machine",
    samples_per_step: int | None = None,
    steps: tuple[int, int] | None = None,
    meters: tuple[str, ...] = ALL_METERS,
    period_s: float = 0.1,
    sysfs_root: str = "/sys",
    power_command: tuple[str, ...] = (),
) -> MeasureRequest:
    """What a user asks for, checked.

    Raises:
        JoulecastError: a name that no folder can have, an unknown platform or meter, a useless period.
    """
    if not _NAME.fullmatch(name):
        raise JoulecastError(
            f"--name {name}: use letters, digits, '.', '_' and '-', with a letter or digit first"
        )
    if steps is not None and not 0 <= steps[0] <= steps[1]:
        raise JoulecastError(
            f"--steps {steps[0]}:{steps[1]}: give the first and the last one, in this order"
        )
    if not _SHORTEST_S <= period_s <= _LONGEST_S:
        raise JoulecastError(f"--period {period_s:g}: give {_SHORTEST_S:g} to {_LONGEST_S:g} s")
    unknown = [meter for meter in meters if meter not in METERS]
    if unknown or not meters:
        raise JoulecastError(
            f"--meters {','.join(meters)}: {', '.join(unknown) or 'nothing'} is no meter; known are "
            f"{', '.join(METERS)}"
        )
    on = find_platform(platform, PLATFORMS)
    settings = MeterSettings(sysfs_root, power_command)
    return MeasureRequest(
        name, command, on, samples_per_step, steps, meters, period_s, metering=settings
    )


def request_of(spec: RunSpec) -> MeasureRequest:
    """What is asked of a campaign's run that is a command of the user."""
    observed = spec.observed
    assert observed is not None
    return MeasureRequest(
        observed.name,
        observed.command,
        spec.platform,
        observed.samples_per_step,
        observed.steps,
        spec.meters,
        spec.sample_period_s,
        spec,
        metering=spec.metering,
    )
