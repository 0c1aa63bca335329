"""Files of plain data. The processes of a launch use them to tell each other, and later readers, what
happened.

If a measurement is killed, the next one reads its files. So each file is checked when it is read.
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
    """The measurement that the user asked for."""

    training: ObservedTraining


class Began(Part):
    """The begin of the run: zero of the run's clock, and the same moment on the first host's clock, in s."""

    utc: AwareDatetime
    clock_s: Moment


class Came(Part):
    """A process of the launch that has arrived."""

    host: str
    pid: Count


class Clock(Part):
    """The first host's clock, and the address at which other hosts can ask for its time."""

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
    """A host whose sampler has begun. ``load_before`` has the cores that other programs kept busy, and
    their names."""

    host: str
    label: str
    meters: tuple[str, ...]
    load_before: tuple[Annotated[float, Field(ge=0, le=1e9)], tuple[str, ...]]
    clock: Offset | None
    fingerprint: Fingerprint


class SamplerEnded(Part):
    """A host whose sampler has ended. If it did not end in order, ``died`` is the reason."""

    host: str
    died: str | None
    clock: Offset | None


class Ended(Part):
    """The return code of the command of a process; ``None`` if the command still runs."""

    host: str
    code: Annotated[int, Field(ge=-1000, le=1000)] | None
