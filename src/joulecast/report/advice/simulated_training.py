"""What a user says of a training that is simulated, next to its network and platform."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class SimulatedTraining:
    """How a training that is simulated computes, and what is known of its platform; as the parameters of
    :func:`joulecast.simulate` of these names."""

    precision: str = "fp32"
    optimizer: str = "momentum"
    attention: Literal["eager", "fused"] | None = None
    gradients: Literal["fp32"] | None = None
    links: Mapping[str, float] = field(default_factory=dict)
    calibrate: Path | None = None


USUAL = SimulatedTraining()
"""A training with the default options."""
