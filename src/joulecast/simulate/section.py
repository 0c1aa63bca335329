"""The configuration's section on the simulator."""

from pydantic import Field, field_validator

from joulecast.runs.files.names import plain_path
from joulecast.runs.section import Section


class SimulatorSection(Section):
    """The measurements that the simulator is judged on."""

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
    speed_devices: list[int] = Field(
        [8, 32, 64, 128, 1024, 10000],
        min_length=1,
        description="Device counts that the simulator is timed for.",
    )

    @field_validator("emulated_network", "real_training", "gpu_steps")
    @classmethod
    def _plain(cls, path: str | None) -> str | None:
        return path if path is None else plain_path(path)

    @field_validator("speed_devices")
    @classmethod
    def _counts(cls, counts: list[int]) -> list[int]:
        for count in counts:
            if count < 1:
                raise ValueError(f"{count} is below 1")
        return sorted(set(counts))
