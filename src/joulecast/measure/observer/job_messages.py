"""The files of plain data in which the processes of a launch tell each other, and later readers, what was.

What a killed measurement left is read by the next one, so that each file is checked where it is read.
"""

from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from joulecast.measure.observer.observed_training import ObservedTraining

Moment = Annotated[float, Field(ge=-1e10, le=1e10)]
Offset = tuple[Moment, Annotated[float, Field(ge=0, le=1e10)], Moment]
"""Fields of a :class:`~joulecast.measure.power.host_clocks.ClockOffset`, in s."""
Count = Annotated[int, Field(ge=0, le=10**18)]


class Part(BaseModel):
    """One file of a launch."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Asked(Part):
    """What is measured."""

    training: ObservedTraining


class Began(Part):
    """Zero of the run's clock, and the same moment on the first host's own, in s."""

    utc: AwareDatetime
    clock_s: Moment


class Came(Part):
    """A process of the launch."""

    host: str
    pid: Count


class Clock(Part):
    """The first host's clock, and where others may ask it."""

    host: str
    addresses: tuple[str, ...]
    port: Annotated[int, Field(ge=0, le=65535)]
    clock_s: Moment
    wall_s: Moment


class Fingerprint(Part):
    """Facts of a host that decide how fast a run is."""

    host: str
    cpu: str
    cores: Count
    memory_bytes: Count
    gpus: list[str] = []
    system: str


class SamplerBegun(Part):
    """A host whose sampler has begun; ``load_before``: cores that others kept busy, and their names."""

    host: str
    label: str
    meters: tuple[str, ...]
    load_before: tuple[Annotated[float, Field(ge=0, le=1e9)], tuple[str, ...]] | None
    clock: Offset | None
    fingerprint: Fingerprint


class SamplerEnded(Part):
    """A host whose sampler has ended; ``died`` is the reason if that was not in order."""

    host: str
    died: str | None
    clock: Offset | None


class Ended(Part):
    """The return code of a process's command; ``None`` if it runs on."""

    host: str
    code: Annotated[int, Field(ge=-1000, le=1000)] | None
