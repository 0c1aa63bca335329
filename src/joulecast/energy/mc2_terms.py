"""The terms of MC2 on phases: power at partial duty, and what an ablation takes away."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FAN_EXPONENT = 1.4


@dataclass(frozen=True)
class Terms:
    """Switches for the terms of the model. All are on, except in an ablation.

    ``duty`` says how the power falls with the computing share. ``partial``: as in :func:`duty`. ``linear``:
    in a straight line to idle. ``none``: it does not fall.
    """

    phases: bool = True
    duty: str = "partial"
    ramp: bool = True
    own_idle: bool = True


ABLATIONS = {
    "one power": Terms(phases=False, duty="none", ramp=False, own_idle=False),
    "no partial duty (kappa = 0)": Terms(duty="linear"),
    "no phases": Terms(phases=False, ramp=False),
    "no ramp": Terms(ramp=False),
    "one idle floor for all nodes": Terms(own_idle=False),
}
"""The terms of each ablation, by the name of the ablation."""


def duty(share: Floats, kappa: Floats | float) -> Floats:
    """``f(u)``: the excess power at computing share ``share``, divided by the excess power at share 1."""
    share = np.asarray(share, dtype=float)
    return np.asarray(share + kappa * (share - share**FAN_EXPONENT))
