"""A setting that could be run, with what it is expected to take and what that expectation rests on."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from joulecast.quantities import counted, steady

RestsOn = Literal["measured", "fitted", "simulated"]


@dataclass(frozen=True)
class Candidate:
    """One setting of a training; times in s, energies in J, both for the whole of the work.

    Attributes:
        batch_size: samples of a step of all nodes; ``None`` where a log does not tell it.
        time_low_s, time_high_s, energy_low_j, energy_high_j: 90 % interval of one run; ``None`` with
            ``why_no_interval``.
        energy_source: measured, estimated, recorded, imported, or what a simulation was priced with.
        runs: recorded runs of exactly this setting.
        extrapolation: in what the setting lies outside of what was measured.
    """

    nodes: int
    batch_size: int | None
    batch_per_rank: float | None
    strategy: str
    rests_on: RestsOn
    time_s: float
    time_low_s: float | None = None
    time_high_s: float | None = None
    energy_j: float | None = None
    energy_low_j: float | None = None
    energy_high_j: float | None = None
    energy_source: str | None = None
    why_no_energy: str | None = None
    why_no_interval: str | None = None
    runs: int = 0
    extrapolation: tuple[str, ...] = ()
    power_limit_w: int | None = None
    why_no_power_limit: str | None = None

    @property
    def time_bound_s(self) -> float:
        """What a deadline is held against: the interval's upper end, where there is an interval."""
        return self.time_s if self.time_high_s is None else self.time_high_s

    @property
    def energy_bound_j(self) -> float | None:
        """What an energy budget is held against."""
        return self.energy_j if self.energy_high_j is None else self.energy_high_j

    @property
    def setting(self) -> str:
        """The setting in words."""
        nodes = counted(self.nodes, "node")
        batch = "" if self.batch_size is None else f", batch {self.batch_size:,}"
        # "one node" and "8 nodes" say nothing beside the node count.
        strategy = "" if "node" in self.strategy else f", {self.strategy}"
        return f"{nodes}{batch}{strategy}"

    @property
    def simplicity(self) -> tuple[int, int, str]:
        """What settles a tie: fewer nodes, then the smaller batch, then the strategy's name."""
        return self.nodes, self.batch_size or 0, self.strategy

    @property
    def cost_order(self) -> tuple[float, float, int, int, str]:
        """The order of cost: the least energy (an unknown one last), then the least time, then simplicity."""
        joules = math.inf if self.energy_j is None else self.energy_j
        return steady(joules), steady(self.time_s), *self.simplicity

    def part(self, share: float) -> "Candidate":
        """The candidate for a share of the work."""

        def of(amount: float | None) -> float | None:
            return None if amount is None else amount * share

        return replace(
            self,
            time_s=self.time_s * share,
            time_low_s=of(self.time_low_s),
            time_high_s=of(self.time_high_s),
            energy_j=of(self.energy_j),
            energy_low_j=of(self.energy_low_j),
            energy_high_j=of(self.energy_high_j),
        )

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return asdict(self) | {"extrapolation": list(self.extrapolation), "setting": self.setting}


def dominates(one: Candidate, other: Candidate) -> bool:
    """Whether ``one`` is expected to take no more time and no more energy, and less of either."""
    if one.energy_j is None or other.energy_j is None:
        return False
    ours, theirs = one.cost_order[:2], other.cost_order[:2]
    return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))
