"""Watts of a GPU at a clock, and its clock under a power limit, from the GPU's description.

A GPU that computes draws the power of an awake GPU, and a dynamic power that grows with ``c V(c)^2``::

    P(c) = awake + (full - awake) c V(c)^2,      c: share of the boost clock

The voltage falls with the clock down to a knee. Below the knee it stays the same. ``full`` follows from the
joules of an operation, which were fitted to P4, T4 and L4 (:mod:`joulecast.graphs.kernel_costs`). At a lower
clock, products and fused attention are slower. Memory, links and host keep their rates. The shares and the
voltage are fitted to trainings under power limits on V100, A40, Quadro RTX 6000 and P100
(``recorded/zeus-trace``). ``benchmarks/power_limits.py`` fits them, and judges them with each GPU left out.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs
from joulecast.graphs.kernel_costs import JOULES_PER_FLOP_NM, KernelCosts, engine_of
from joulecast.runs.platforms import Device

Floats = NDArray[np.float64]

KNEE, FLOOR = 0.75, 0.74
"""Share of the boost clock below which the voltage stays, and the voltage there over the voltage at boost."""
MATRIX_SHARE = 0.92
"""Share of its power limit that a GPU draws for products on matrix units. It comes from metered nodes of
H100: 541 W a GPU above an idle node, plus the power of a GPU that is awake. It is an assumption for other
GPUs."""
CLOCK_WIDTH = 0.19
"""Half width of an interval on the logarithm of the factor by which a limit makes a step longer. The interval
contains 90 % of the held-out epochs, steps and passes. If the limit is below half of the highest limit, the
interval contains fewer."""
POWER_WIDTH = 0.35
"""Half width of an interval on the logarithm of the watts of a GPU that computes (Student's t). Joules of an
operation on P4, T4, L4, V100, A40, RTX 6000 and P100 differ by 0.17 (standard deviation of the logarithm)."""
LEAST_CLOCK = 0.1
"""Lowest clock of a GPU, as a share of boost (NVIDIA: 135 to 210 MHz). An assumption."""
_ROUNDING = 1.02
"""Tolerance of the boost clock, which is off by up to 2 %, because peak rates of data sheets are rounded."""
_GRID = np.linspace(LEAST_CLOCK, 1.0, 901)


@dataclass(frozen=True)
class GpuPower:
    """The power of a GPU. Clocks are shares of the boost clock.

    Attributes:
        awake_w: watts at high clocks, with nothing to compute.
        full_w: watts during matrix products at the boost clock, if nothing limited the power.
        limit_w: the highest power limit.
        boost_mhz: boost clock.
        knee, floor: the knee of the voltage and the voltage below it (:data:`KNEE`, :data:`FLOOR`).
    """

    awake_w: float
    full_w: float
    limit_w: float
    boost_mhz: float
    knee: float = KNEE
    floor: float = FLOOR

    def watts(self, clock: float | Floats) -> Floats | np.float64:
        """Watts of the GPU while it computes at a clock."""
        risen = np.maximum(0.0, (np.asarray(clock) - self.knee) / (1 - self.knee))
        voltage = self.floor + (1 - self.floor) * risen
        return self.awake_w + (self.full_w - self.awake_w) * clock * voltage**2

    def clock_at(self, limit_w: float | Floats) -> Floats | np.float64:
        """The clock under a power limit while the GPU computes."""
        return np.interp(limit_w, self.watts(_GRID), _GRID)


def gpu_power_of(device: Device, precision: str) -> GpuPower | None:
    """The power of a GPU at a precision; ``None`` if its description does not say it."""
    facts, fp32, limit_w = device.architecture, device.peak_flops.get("fp32"), device.power_limit_w
    if facts is None or facts.awake is None or facts.lanes is None:
        return None
    if fp32 is None or limit_w is None or device.units is None:
        return None
    full_w = MATRIX_SHARE * limit_w
    if facts.vector_power is not None and engine_of(precision) == "vector":
        full_w = facts.vector_power * limit_w
    elif engine_of(precision) == "vector" and facts.vendor == "nvidia":
        full_w = JOULES_PER_FLOP_NM * facts.nm * facts.vector * fp32
    boost_mhz = fp32 / (2 * facts.lanes * device.units) / 1e6
    return GpuPower(facts.awake * limit_w, full_w, limit_w, boost_mhz)


def set_clock(
    costs: Costs, limit_w: float | None, sm_mhz: float | None
) -> tuple[KernelCosts, float]:
    """Costs at a power limit, at a clock, or at both. Also the resulting clock in MHz.

    Args:
        costs: costs at the highest power limit.
        limit_w: power limit of each GPU; ``None``: the highest.
        sm_mhz: clock that the GPUs are set to; ``None``: boost.

    Raises:
        JoulecastError: the costs do not come from a GPU's description, or the GPU cannot have this limit or
            clock.
    """
    power = gpu_power_of(costs.device, costs.precision) if isinstance(costs, KernelCosts) else None
    if not isinstance(costs, KernelCosts) or power is None:
        raise JoulecastError(
            "power limit or clock: their effect is computed from the description of a GPU; name a GPU of "
            "the catalogue as platform, and leave out databases and the mode proteus; in a "
            "platform's file, cluster.device needs power_limit_w, units, and architecture with lanes and "
            "awake"
        )
    name, least_w = costs.device.name, float(power.watts(LEAST_CLOCK))
    if limit_w is not None and not least_w <= limit_w <= power.limit_w:
        raise JoulecastError(
            f"power limit of {limit_w:g} W: {name} can be set to {power.limit_w:g} W or less, and draws "
            f"{least_w:.0f} W while it computes at its lowest clock; take a limit between these"
        )
    least_mhz = LEAST_CLOCK * power.boost_mhz
    if sm_mhz is not None and not least_mhz <= sm_mhz <= _ROUNDING * power.boost_mhz:
        raise JoulecastError(
            f"clock of {sm_mhz:g} MHz: {name} runs at {least_mhz:.0f} to {power.boost_mhz:.0f} MHz (boost); "
            "take a clock between these"
        )
    held = float(power.clock_at(power.limit_w))
    left = held if limit_w is None else min(held, float(power.clock_at(limit_w)))
    clock = left if sm_mhz is None else min(left, sm_mhz / power.boost_mhz)
    return replace(costs, clock=clock / held), clock * power.boost_mhz
