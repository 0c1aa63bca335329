"""What can be asked of the simulator: a step of a strategy, or the best ones. A plan shares its options.
And the configuration's section on the simulator."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from joulecast.quantities import MOST_NODES, MOST_SAMPLES
from joulecast.runs.files.names import plain_path
from joulecast.runs.request import Name, Priced, Rates, Request, Section, Slow


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


PeakPrecision = Literal["fp32", "tf32", "amp", "bf16", "fp16", "fp64", "fp8", "mxfp8", "nvfp4"]
"""Precision that is simulated, of whose peak rate a platform's file tells."""

Objective = Literal["time", "energy", "cost", "co2", "edp"]
"""What is to be least."""

BATCH_PER_DEVICE = 32
"""Samples of a device's step where no batch is asked for."""


class SimulatedTraining(Request):
    """How a training that is simulated computes, and what is known of its platform."""

    optimizer: Literal["none", "sgd", "momentum", "adam"] = Field(
        default="momentum", description="What updates the weights, and keeps its states in memory."
    )
    attention: Literal["eager", "fused", "cudnn"] | None = Field(
        default=None,
        description="fused (one kernel, the default), cudnn (the same in kernels of cuDNN or "
        "FlashAttention 3; the default at fp8 and narrower), or eager (written out), of a network by "
        "numbers.",
    )
    gradients: Literal["fp32"] | None = Field(
        default=None,
        description="fp32: add gradients up and send them at fp32, at any precision (Megatron).",
    )
    calibrate: Path | None = Field(
        default=None,
        description="YAML file of a step measured on this platform (network, strategy, batch, precision, "
        "step_s, ...), which corrects the ops' costs.",
    )


class OnSimulator(SimulatedTraining):
    """A network on a platform that is simulated."""

    network: Name = Field(
        description="By name (gpt2-xl), by numbers (gpt:layers=36,hidden=1280,heads=20), or a JSON file."
    )
    platform: Name = Field(description="A platform by name, or a FILE.yaml.")
    precision: PeakPrecision = Field(
        default="fp32",
        description="amp is plain PyTorch: torch.autocast (bf16) around weights at fp32. bf16 and fp16 "
        "are the mixed precision of frameworks: weights are also kept at fp32. fp8, mxfp8 and nvfp4 are bf16 "
        "with products at that precision.",
    )
    links: Rates = Field(
        default={},
        description="Rate of a link of the platform in place of its file's, as nic=12.5e9 (bytes/s).",
    )
    inference: bool = Field(default=False, description="Simulate a forward pass alone.")
    calibration: Path | None = Field(
        default=None, description="Network calibration, for the outermost link."
    )
    database: Path | None = Field(
        default=None, description="Op database measured on this platform."
    )
    fits: Path | None = Field(
        default=None,
        description="Fits of metered runs of this hardware, for the joules; shipped by default.",
    )


class SimulateRequest(OnSimulator):
    """Simulate one training step of a parallel strategy."""

    command: ClassVar[str] = "simulate"

    strategy: Name = Field(
        description="Strategy, as dp=8,tp=2,pp=4,micro=16,zero=1,recompute; or a YAML file."
    )
    batch: int = Field(
        default=32, ge=1, le=MOST_SAMPLES, description="Samples of one replica's step."
    )
    devices: int | None = Field(
        default=None, ge=1, le=MOST_NODES, description="Check that the strategy takes this many."
    )
    mode: Literal["default", "proteus"] = Field(
        default="default", description="proteus: the communication model of that paper."
    )
    power_limit: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Power limit of each GPU, in W (default: its highest).",
    )
    sm_clock: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Clock that the GPUs are set to, in MHz (default: boost).",
    )
    stragglers: Slow = Field(default={}, description="A slow device, as 3=1.5 (times as long).")
    trace: Path | None = Field(default=None, description="Write a Chrome trace here.")


class SearchRequest(Priced, OnSimulator):
    """Rank the parallel strategies of some devices that fit in memory."""

    command: ClassVar[str] = "search"

    devices: int = Field(ge=1, le=MOST_NODES, description="Devices to use.")
    global_batch: int | None = Field(
        default=None,
        ge=1,
        le=MOST_SAMPLES,
        description="Samples of a step of all replicas; by default 32 a device.",
    )
    objective: Objective = Field(
        default="time",
        description="time of a step, energy of a sample, cost or co2 of a step, or edp: joules times seconds "
        "of a step.",
    )
    top: int = Field(
        default=10,
        ge=1,
        le=MOST_SAMPLES,
        description="How many of the best to rank; strategies that cannot be among them are not simulated.",
    )
