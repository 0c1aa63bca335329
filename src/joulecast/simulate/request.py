"""Requests to the simulator: for a step of a strategy, or for the best strategies. A plan shares their
options. Also the configuration's section on the simulator."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from joulecast.quantities import MOST_NODES, MOST_SAMPLES
from joulecast.runs.files.names import plain_path
from joulecast.runs.request import Name, Priced, Rates, Request, Section, Slow


class SimulatorSection(Section):
    """The measurements that the simulator is judged on."""

    emulated_network: str = Field(
        "recorded/emulated-network",
        description="Measured steps on an emulated network.",
    )
    real_training: str | None = Field(
        "recorded/two-core-training",
        description="Folder with measured steps of real training on two ranks. null: none.",
    )
    gpu_steps: str | None = Field(
        "recorded/training-steps",
        description="Folder with steps that were measured on GPUs (steps.csv). null: none.",
    )
    speed_devices: list[Annotated[int, Field(ge=1)]] = Field(
        [8, 32, 64, 128, 1024, 10000],
        min_length=1,
        description="Device counts that the simulator is timed for.",
    )

    @field_validator("emulated_network", "real_training", "gpu_steps")
    @classmethod
    def _plain(cls, path: str | None) -> str | None:
        return path if path is None else plain_path(path)


PeakPrecision = Literal[
    "fp32", "tf32", "amp", "bf16-true", "bf16", "fp16", "fp64", "fp8", "mxfp8", "nvfp4"
]
"""Precision to simulate."""

Optimizer = Literal["none", "sgd", "momentum", "adam"]

Objective = Literal["time", "energy", "cost", "co2", "edp"]
"""Quantity that is minimised."""

BATCH_PER_DEVICE = 32
"""Samples that a device takes in a step, if no batch is given."""


class SimulatedTraining(Request):
    """How a simulated training computes, and what was measured on its platform."""

    optimizer: Optimizer | None = Field(
        default=None,
        description="Optimizer. By default that of the captured training, otherwise adam.",
    )
    attention: Literal["eager", "fused", "cudnn"] | None = Field(
        default=None,
        description="How attention is computed. fused (default): one kernel. cudnn (default at fp8, mxfp8 "
        "and nvfp4): the kernel of cuDNN or FlashAttention 3. eager: one kernel for each operation. It is "
        "the default for grouped queries at fp32 and tf32, because torch has no fused kernel for them.",
    )
    gradients: Literal["fp32"] | None = Field(
        default=None,
        description="fp32: gradients are added up and sent at fp32, as in Megatron. By default they have the "
        "precision of the weights.",
    )
    calibrate: Path | None = Field(
        default=None,
        description="Steps that were measured on the platform: a YAML file, a folder of records, or a "
        "recorded campaign. They correct the simulated times.",
    )


class OnSimulator(SimulatedTraining):
    """A network on a simulated platform."""

    network: Name = Field(
        description="Network: a name (gpt2-xl), a family with numbers (gpt:layers=36,hidden=1280,heads=20), "
        "hf:config.json (of the Hugging Face hub), a JSON file of `capture`, or the name of a training "
        "that `measure --capture` ran."
    )
    platform: Name = Field(description="A platform by name, or a FILE.yaml.")
    precision: PeakPrecision | None = Field(
        default=None,
        description="Precision. Plain PyTorch: fp32, tf32, amp (torch.autocast) or bf16-true (weights at "
        "bf16, too). Frameworks such as Megatron: bf16, fp16, or fp8, mxfp8, nvfp4 for the matrix products. "
        "By default the precision of the measured steps, or of the training that was captured on a GPU. "
        "If there is neither: amp for a captured network, bf16 for a named one (fp16 or fp32 if the GPU has "
        "no bf16).",
    )
    links: Rates = Field(
        default={},
        description="Rate of a link in bytes/s, such as nic=12.5e9.",
    )
    inference: bool = Field(default=False, description="Simulate only the forward pass.")
    calibration: Path | None = Field(
        default=None,
        description="Collectives that a campaign measured (network.json). They set the rate of the outermost "
        "link.",
    )
    database: Path | None = Field(
        default=None, description="Ops that were measured on this platform (a JSON file)."
    )


class SimulateRequest(OnSimulator):
    """Simulate one training step of a parallel strategy."""

    command: ClassVar[str] = "simulate"

    strategy: Name = Field(
        description="Parallel strategy, such as dp=8,tp=2,pp=4,micro=16,zero=1,recompute, or a YAML file."
    )
    batch: int = Field(
        default=32,
        ge=1,
        le=MOST_SAMPLES,
        description="Samples of one replica in a step. (Of `plan`, it is the batch of all devices.)",
    )
    devices: int | None = Field(
        default=None,
        ge=1,
        le=MOST_NODES,
        description="Number of devices that the strategy must have.",
    )
    mode: Literal["default", "proteus"] = Field(
        default="default", description="proteus: the communication model of the Proteus paper."
    )
    power_limit: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Power limit of each GPU in W. By default: the highest that it can have.",
    )
    sm_clock: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="Clock of the GPUs in MHz. By default: the boost clock.",
    )
    stragglers: Slow = Field(
        default={}, description="Slow device, such as 3=1.5: device 3 takes 1.5 times as long."
    )
    trace: Path | None = Field(default=None, description="File for a Chrome trace.")


class SearchRequest(Priced, OnSimulator):
    """Rank the parallel strategies that fit in the memory of some devices."""

    command: ClassVar[str] = "search"

    devices: int = Field(ge=1, le=MOST_NODES, description="Devices to use.")
    global_batch: int | None = Field(
        default=None,
        ge=1,
        le=MOST_SAMPLES,
        description="Samples of all devices together in a step, the same as `plan --batch`. (In "
        "`simulate`, --batch is the batch of one replica.) By default: 32 for each device.",
    )
    objective: Objective = Field(
        default="time",
        description="What to rank by: time, cost, co2 or edp (joules times seconds) of a step, or energy "
        "of a sample.",
    )
    top: int = Field(
        default=10,
        ge=1,
        le=MOST_SAMPLES,
        description="How many of the best to show.",
    )
