"""The steps that are measured, and the jobs that measure them."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from jobs import Job
from pydantic import Field

from joulecast.simulate.judged.results import Frozen
from joulecast.simulate.judged.two_core_training import TrainingConfiguration

REPLICA_BATCHES = {"vgg16": 4, "resnet50": 8, "vit_s": 16}
"""Samples of a replica's step: few, so that what is sent weighs more; a step takes 0.2 to 0.6 s."""


BUCKETS_MB = {
    "vgg16": (600.0, 100.0, 16.0, 4.0),
    "resnet50": (100.0, 48.0, 24.0, 10.0),
    "vit_s": (100.0, 44.0, 22.0, 10.0),
}
"""Least sizes that give 1 to some 8 buckets; the gradients have 537, 94 and 86 MB."""


WITHOUT_OVERLAP = 2
"""So many of the bucket sizes are also sent after backward."""


CUTS = {
    "vgg16": "features.17",
    "resnet50": "layer3",
    "vit_s": "encoder.layers.encoder_layer_6",
}


PIPELINE_BATCHES = {"vgg16": 8, "resnet50": 16, "vit_s": 32}


PIPELINES: tuple[tuple[Literal["gpipe", "1f1b"], int], ...] = (
    ("gpipe", 2),
    ("gpipe", 4),
    ("1f1b", 2),
    ("1f1b", 4),
)


FITTING_GAMMA = ("vgg16-overlap-16mb", "resnet50-overlap-24mb")
"""Configurations that the overlap slowdown is fitted on; it is tested on the others."""


class Workload(Frozen):
    """Data and optimizer of all configurations."""

    image_size: int = 32
    patch_size: int = 16
    classes: int = 10
    dataset: str = "digits"
    learning_rate: float = 1e-4
    momentum: float = 0.9

    def of_samples(self) -> dict[str, Any]:
        """The fields that say what is learnt, without how."""
        return self.model_dump(exclude={"learning_rate", "momentum"})


class TrainingJob(Job):
    """Steps of a network's configurations in ``rounds``, or the parts of a step by themselves."""

    kind: Literal["steps", "parts"]
    network: str
    configurations: tuple[TrainingConfiguration, ...]
    workload: Workload = Workload()
    rounds: int = Field(1, description="Turns of every configuration, forwards and then backwards.")
    iterations: int = Field(4, description="Undisturbed ones that are wanted of every turn.")
    tries: int = Field(8, description="Iterations of a turn at most.")


def _replicas(network: str, overlap: bool) -> Iterator[TrainingConfiguration]:
    sizes = BUCKETS_MB[network]
    for least in sizes if overlap else sizes[: 2 * WITHOUT_OVERLAP : 2]:
        name = f"{network}-{'overlap' if overlap else 'after'}-{least:g}mb"
        yield TrainingConfiguration(
            name=name,
            family="overlapped" if overlap else "data parallel",
            network=network,
            batch=REPLICA_BATCHES[network],
            bucket_mb=least,
            overlap=overlap,
            fits_gamma=name in FITTING_GAMMA,
        )


def _pipelines(network: str) -> Iterator[TrainingConfiguration]:
    for schedule, micro_batches in PIPELINES:
        yield TrainingConfiguration(
            name=f"{network}-{schedule}-m{micro_batches}",
            family=schedule,
            network=network,
            batch=PIPELINE_BATCHES[network],
            micro_batches=micro_batches,
            cut=CUTS[network],
        )


def all_configurations(
    networks: Sequence[str] = tuple(REPLICA_BATCHES),
) -> list[TrainingConfiguration]:
    """All configurations, in the order of measuring."""
    found: list[TrainingConfiguration] = []
    for network in networks:
        found += [*_replicas(network, False), *_replicas(network, True), *_pipelines(network)]
    return found


def repeated(configurations: Sequence[TrainingConfiguration]) -> list[TrainingConfiguration]:
    """The configurations of each network that are measured again at the end: in one bucket, and 1F1B."""
    found = []
    for configuration in configurations:
        one_bucket = f"{BUCKETS_MB[configuration.network][0]:g}mb"
        ends = ("1f1b-m4", f"overlap-{one_bucket}", f"after-{one_bucket}")
        found += [configuration] if configuration.name.endswith(ends) else []
    return found
