"""The configuration's sections for experiments without a campaign: simulator, partitioning, tuning."""

from collections.abc import ValuesView
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from joulecast.errors import JoulecastError
from joulecast.files.names import plain_path, simple_name
from joulecast.records.spec import Precision
from joulecast.workloads.networks import check_size, network_info

_LONGEST_NAME = 255
_LARGEST = 10**12
"""Largest number in a configuration, as needed for sizes in bytes."""


class Section(BaseModel):
    """A section of keys; others are refused."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _possible(cls, value: Any) -> Any:
        values = value.values() if isinstance(value, dict) else value
        for each in values if isinstance(values, list | tuple | ValuesView) else [values]:
            if isinstance(each, int | float) and abs(each) > _LARGEST:
                raise ValueError(f"{str(each)[:20]} is more than any campaign can have")
            if isinstance(each, str) and max(map(len, each.split("/"))) > _LONGEST_NAME:
                raise ValueError("is too long for the name of a file")
        return value


def known_networks(networks: list[str]) -> list[str]:
    """The given networks; raises a ``ValueError`` with the name of an unknown one."""
    for name in networks:
        try:
            network_info(name)
        except JoulecastError as error:
            raise ValueError(str(error)) from None
    return networks


class PricesSection(Section):
    """What energy, time and CO2 cost, for tables and page; all in one currency, none by default."""

    price: float | None = Field(None, ge=0, description="Price of a kWh at the building's meter.")
    price_node_hour: float | None = Field(
        None, ge=0, description="Price of an hour of a whole node."
    )
    price_gpu_hour: float | None = Field(
        None, ge=0, description="Price of an hour of a GPU in use."
    )
    co2: float | None = Field(None, ge=0, description="Grams of CO2 equivalent for a kWh.")
    pue: float = Field(1.0, ge=1, description="kWh of the building for each kWh of the nodes.")
    currency: str = Field(
        "EUR",
        min_length=1,
        max_length=12,
        description="Currency of all prices, as tables print it.",
    )
    source: str | None = Field(
        None,
        max_length=250,
        description="Where these numbers come from; tables and page print it with the money.",
    )


class SimulatorSection(Section):
    """Simulations, and the measurements that the simulator is judged on."""

    emulated_network: str = Field(
        "recorded/emulated-network",
        description="Measured steps on an emulated network, from the project's folder, to judge the "
        "simulator on; experiments/emulated-network measures them.",
    )
    real_training: str | None = Field(
        "recorded/two-core-training",
        description="Measured steps of real training on two ranks, to judge the simulator on too; "
        "experiments/two-core-training measures them. null: none.",
    )
    gpu_steps: str | None = Field(
        "recorded/training-steps",
        description="Steps of large networks that others measured on GPUs, to judge the simulator on too. "
        "null: none.",
    )
    profile_ops: bool = Field(
        True, description="Measure what every op of the networks costs on this machine."
    )
    platforms: list[str] = Field(
        ["hc1", "hc2", "hc3", "dgx-h100", "dgx-h200", "tianhe3-mt", "tianhe3-ft"],
        description="Platforms to forecast on, in addition to the campaign's own.",
    )
    nodes: list[int] = Field(
        [1, 2, 4, 8, 16, 32, 64],
        min_length=1,
        description="Node counts to forecast; by default up to 16 times those of the campaign's runs.",
    )
    batch_size: int = Field(
        32,
        ge=1,
        description="Samples of a device's step on those platforms (scale.batch_size here).",
    )
    precision: Precision = Field(
        "fp32", description="Precision of the peak rate of those platforms."
    )
    speed_devices: list[int] = Field(
        [8, 32, 64, 128, 1024, 10000],
        min_length=1,
        description="Device counts that the simulator is timed for.",
    )

    @field_validator("platforms")
    @classmethod
    def _names(cls, names: list[str]) -> list[str]:
        return [simple_name(name) for name in names]

    @field_validator("emulated_network", "real_training", "gpu_steps")
    @classmethod
    def _plain(cls, path: str | None) -> str | None:
        return path if path is None else plain_path(path)

    @field_validator("nodes", "speed_devices")
    @classmethod
    def _counts(cls, counts: list[int]) -> list[int]:
        for count in counts:
            if count < 1:
                raise ValueError(f"{count} is below 1")
        return sorted(set(counts))


class PipelineRun(Section):
    """A pipeline that is run with a rank for each stage."""

    network: str = Field("resnet18", description="A network of the campaign's list.")
    stages: int = Field(2, ge=1, description="Ranks, at most one for each core.")
    planner: Literal["exact", "uniform", "parameters", "cudasize", "hashrate"] = Field(
        "exact", description="Planner that cuts the network."
    )
    schedule: Literal["gpipe", "1f1b"] = Field("1f1b", description="Order of the micro-batches.")
    micro_batches: int = Field(4, ge=1, description="Parts of a batch.")
    batch_size: int = Field(16, ge=1, description="Samples of a step.")
    image_size: int = Field(32, ge=8, description="Pixels of a side; the images are synthetic.")

    @model_validator(mode="after")
    def _fits(self) -> "PipelineRun":
        try:
            check_size(self.network, self.image_size, 16)
        except JoulecastError as error:
            raise ValueError(str(error)) from None
        if self.batch_size % self.micro_batches:
            raise ValueError(
                f"batch_size {self.batch_size} does not divide into {self.micro_batches} micro-batches"
            )
        return self

    @property
    def name(self) -> str:
        """Name of its files."""
        return (
            f"{self.network}-s{self.stages}-{self.planner}-{self.schedule}-m{self.micro_batches}"
            f"-b{self.batch_size}-i{self.image_size}"
        )


class PartitionSection(Section):
    """Networks that are cut into pipeline stages, and pipelines that are run."""

    graphs: str | None = Field(
        "recorded/task-graphs",
        description="Measured task graphs (NETWORK.json) or PipeDream profiles (NETWORK.txt), from the "
        "project's folder; null: measure the networks here.",
    )
    networks: list[str] = Field(
        [
            *("vgg16", "resnet18", "resnet50", "resnet101", "alexnet", "resnext50", "resnext101"),
            *("inception_v3", "densenet121", "squeezenet1_0", "vit_s"),
        ],
        min_length=1,
        description="Networks to cut: those of the paper's Table 1, and the campaign's ViT.",
    )
    devices: list[int] = Field([4, 8], min_length=1, description="Numbers of stages.")
    micro_batches: int = Field(16, ge=1, description="Micro-batches of the predicted pipelines.")
    batch_size: int = Field(4, ge=1, description="Samples of a step where graphs are measured.")
    image_size: int | None = Field(
        None,
        description="Pixels of a side where graphs are measured; null: 224 (Inception 299), as in the paper.",
    )
    pipelines: list[PipelineRun] = Field(
        [
            PipelineRun(),
            PipelineRun(planner="parameters"),
            PipelineRun(network="vit_s", schedule="gpipe"),
        ],
        description="Pipelines to run on this machine.",
    )

    @field_validator("graphs")
    @classmethod
    def _plain(cls, path: str | None) -> str | None:
        return path if path is None else plain_path(path)

    @field_validator("networks")
    @classmethod
    def _known(cls, networks: list[str]) -> list[str]:
        return known_networks(networks)

    @field_validator("devices")
    @classmethod
    def _stage_counts(cls, counts: list[int]) -> list[int]:
        if min(counts) < 1:
            raise ValueError(f"{min(counts)} devices are below 1")
        return sorted(set(counts))


DEFAULT_POLICY: Literal["curve"] = "curve"
"""Policy of a tuning, live or replayed, when none is named."""
Criterion = Literal["cost", "energy", "time", "max-slowdown"]
"""Choice among the measured power limits: the one of least cost, energy or time, or the lowest under which a
training takes at most ``max_slowdown`` times as long as under the highest."""


class RecurringTraining(Section):
    """A training that recurs on this machine, and the choices of a tuner."""

    network: str = Field("lenet5", description="Network, trained on scikit-learn's digits.")
    image_size: int = Field(8, ge=8, description="Digits are enlarged to this side.")
    target_accuracy: float = Field(0.9, gt=0, le=1, description="Accuracy on the test split.")
    max_epochs: int = Field(
        100, ge=1, description="Most epochs; a training that needs more has failed."
    )
    batch_sizes: list[int] = Field(
        [8, 16, 32, 64, 128, 256, 512], min_length=1, description="Batch sizes to choose from."
    )
    default_batch_size: int = Field(256, ge=1, description="Batch size without tuning.")
    learning_rate: float = Field(
        0.05,
        gt=0,
        description="Learning rate at the default batch size; it is scaled linearly with the batch.",
    )
    max_learning_rate: float | None = Field(
        None, gt=0, description="Highest scaled learning rate; null: no limit."
    )
    seed: int = Field(1, description="Seeds the policy, the weights and the order of batches.")
    device: Literal["cpu", "cuda"] = Field("cpu", description="Device that it is trained on.")
    gpu: int | None = Field(
        None, ge=0, description="GPU, as nvidia-smi numbers it; null: the first that CUDA shows."
    )
    eta: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Weight of energy in the cost of a GPU; on a CPU the cost is seconds.",
    )
    allow_power_limit: bool = Field(
        False,
        description="Let the tuner set the GPU's power limit; it is put back after every training.",
    )
    criterion: Criterion = Field(
        "cost", description="How a power limit is chosen among those that were measured."
    )
    max_slowdown: float = Field(
        1.1, ge=1, description="With max-slowdown: most time, relative to the highest limit."
    )

    @field_validator("batch_sizes")
    @classmethod
    def _ascending(cls, sizes: list[int]) -> list[int]:
        if min(sizes) < 1:
            raise ValueError(f"batch size {min(sizes)} is below 1")
        return sorted(set(sizes))

    @model_validator(mode="after")
    def _fits(self) -> "RecurringTraining":
        try:
            check_size(self.network, self.image_size, 16)
        except JoulecastError as error:
            raise ValueError(str(error)) from None
        if self.default_batch_size not in self.batch_sizes:
            raise ValueError(
                f"default_batch_size {self.default_batch_size} is none of batch_sizes "
                f"{', '.join(map(str, self.batch_sizes))}"
            )
        return self


class LiveTuningSection(RecurringTraining):
    """A training that recurs on this machine, tuned from one recurrence to the next."""

    policy: Literal[
        "default", "power-limit-only", "zeus", "grid-search", "outward-walk", "curve"
    ] = Field(DEFAULT_POLICY, description="Policy that proposes batch sizes and power limits.")
    recurrences: int = Field(50, ge=1, le=10_000, description="Trainings to the target.")


class TuningSection(Section):
    """Replays of the Zeus authors' traces (recorded/zeus-trace), and a training tuned live."""

    eta: float = Field(0.5, ge=0, le=1, description="Weight of energy, against time, in the cost.")
    seeds: int = Field(20, ge=2, le=10_000, description="Replays of every policy in every setting.")
    recurrences: int = Field(50, ge=10, le=10_000, description="Trainings of every replay.")
    live: LiveTuningSection = LiveTuningSection()
