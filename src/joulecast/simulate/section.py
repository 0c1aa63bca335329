"""The configuration's section on the simulator."""

from pydantic import Field, field_validator

from joulecast.runs.files.names import plain_path, simple_name
from joulecast.runs.section import Section
from joulecast.simulate.request import PeakPrecision


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
    precision: PeakPrecision = Field(
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
