"""What one MPI job measures: a configuration, or a series of stand-alone collectives."""

from typing import Literal

from pydantic import Field

from joulecast.ground_truth.configurations import Algorithm, Configuration, Frozen

KIB = 1024
SIZES_BYTES = tuple(size * KIB for size in (128, 256, 512, 1024, 2048, 4096))


class Collective(Frozen):
    """A communication with nothing beside it: ``all_reduce`` of all ranks, ``send`` from 0 to 1."""

    kind: Literal["all_reduce", "send"]
    algorithm: Algorithm = "ring"
    bytes: int = Field(ge=4, multiple_of=4)


class Job(Frozen):
    """One launch: parts measured one after the other, each ``iterations`` times after a warm-up.

    ``repeat`` tells a second measurement of the same thing (A/A) from the first.
    """

    name: str
    ranks: int = Field(ge=1)
    ranks_per_node: int = Field(1, ge=1)
    repeat: int = Field(0, ge=0)
    warm_up: int = Field(2, ge=0)
    iterations: int = Field(7, ge=1)
    parts: tuple[Configuration | Collective, ...]


def step_job(configuration: Configuration, repeat: int = 0) -> Job:
    """The measurement of one configuration."""
    suffix = f".again{repeat}" if repeat else ""
    return Job(
        name=configuration.name + suffix,
        ranks=configuration.ranks,
        ranks_per_node=configuration.ranks_per_node,
        repeat=repeat,
        parts=(configuration,),
    )


def calibration_jobs() -> list[Job]:
    """Stand-alone collectives only: nothing in them is a step of training."""
    jobs = []
    for ranks in (2, 4, 8):
        parts = [
            Collective(kind="all_reduce", algorithm=algorithm, bytes=size)
            for algorithm in ("ring", "recursive_doubling", "rabenseifner")
            for size in SIZES_BYTES
        ]
        if ranks == 2:
            parts += [Collective(kind="send", bytes=size) for size in SIZES_BYTES]
        jobs.append(Job(name=f"collectives-{ranks}", ranks=ranks, parts=tuple(parts)))
    local = [
        Collective(kind=kind, bytes=size) for kind in ("all_reduce", "send") for size in SIZES_BYTES
    ]
    jobs.append(
        Job(name="collectives-2-on-one-node", ranks=2, ranks_per_node=2, parts=tuple(local))
    )
    return jobs
