"""The messages between policies and environments: a proposal, and the trial that is its result.

Costs follow You et al., Zeus (NSDI 2023), equation 2: C = eta E + (1 - eta) Pmax T.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Literal, Protocol

from pydantic import Field, Strict

from joulecast.errors import JoulecastError
from joulecast.quantities import steady

Phase = Literal["fixed", "prune", "sample", "walk", "sweep", "best", "unbounded"]
StoppedBy = Literal["target", "max_epochs", "cost_bound", "not_started", "interrupted"]


# Values in files must be finite, and no larger than any training needs. So sums and ratios are finite, too.
Watts = Annotated[int, Field(ge=1, le=1_000_000)]
BatchSize = Annotated[int, Field(ge=1, le=1_000_000_000)]
Spent = Annotated[float, Strict(), Field(ge=0, le=1e18, allow_inf_nan=False)]
_Measured = Annotated[float, Strict(), Field(ge=1e-9, le=1e18, allow_inf_nan=False)]

Criterion = Literal["cost", "energy", "time", "max-slowdown"]
"""The choice among measured power limits: the limit with the least cost, energy or time; or the lowest limit
under which a training takes at most ``max_slowdown`` times as long as under the highest one."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """The cost of a training.

    Attributes:
        eta: weight of energy, 0 to 1.
        max_power_w: highest power limit that can be set, times the number of devices. ``None`` if no limit
            can be set. Costs are then in seconds.
    """

    eta: Annotated[float, Field(allow_inf_nan=False)] = 0.5
    max_power_w: Annotated[float, Field(gt=0, le=1e9)] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.eta <= 1:
            raise JoulecastError(f"eta is {self.eta}; it has to be between 0 and 1")
        if self.eta > 0 and self.max_power_w is None:
            raise JoulecastError(
                f"eta is {self.eta}, and nothing limits power here: without a power limit the cost is time "
                "alone (eta 0)"
            )

    @property
    def unit(self) -> str:
        """Unit of costs."""
        return "s" if self.max_power_w is None else "J"

    def of(self, time_s: float, energy_j: float | None) -> float | None:
        """Cost of a time and an energy; ``None`` if energy counts, but was not measured."""
        if self.max_power_w is None:
            return time_s
        if self.eta == 0:
            return self.max_power_w * time_s
        # If a training never ends, its time is infinite. Then 0 times the time would be no number.
        if energy_j is None or self.eta == 1:
            return energy_j
        return self.eta * energy_j + (1 - self.eta) * self.max_power_w * time_s


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of tuning.

    Attributes:
        eta: weight of energy, against time, in the cost.
        criterion: how to choose among the power limits that were tried.
        max_slowdown: for the criterion ``max-slowdown``: the longest time that is allowed, relative to
            the time at the highest limit.
    """

    eta: float = 0.5
    criterion: Criterion = "cost"
    max_slowdown: float = 1.1


PLAIN = Goal()
"""The goal of the paper: energy and time count the same, and the power limit with the least cost is
chosen."""


@dataclass(frozen=True, slots=True)
class EpochAtLimit:
    """An epoch of one batch size under one power limit."""

    time_s: _Measured
    energy_j: _Measured | None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposal: what to try next.

    Attributes:
        batch_size: samples in one step.
        power_limits_w: if there are several, all are tried in the first epoch, and the cheapest is kept.
            A single one is set. Without any, the limit is not changed.
        cost_bound: the try is stopped before the epoch that would raise its cost above this.
        phase: phase of the policy. People and later proposals see by it what the trial was for.
    """

    batch_size: BatchSize
    power_limits_w: tuple[Watts, ...] = ()
    cost_bound: Annotated[float, Strict(), Field(ge=0)] = inf
    phase: Phase = "fixed"


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a proposal.

    Attributes:
        recurrence: number of the recurrence, from 0.
        power_limit_w: power limit after the first epoch; ``None`` if the limit was not changed.
        energy_j: ``None`` if it was not measured. ``why_no_energy`` says why.
        cost: ``None`` if it is not known (energy counts, and was not measured).
        limits: epochs by power limit, if limits were tried.
    """

    recurrence: Annotated[int, Field(ge=0, le=1_000_000_000)]
    proposal: Proposal
    reached: bool
    stopped_by: StoppedBy
    epochs: Annotated[float, Strict(), Field(ge=0, le=1e9, allow_inf_nan=False)]
    time_s: Spent
    energy_j: Spent | None
    energy_source: str | None
    cost: Spent | None
    power_limit_w: Watts | None = None
    limits: Mapping[Watts, EpochAtLimit] = field(default_factory=dict)
    why_no_energy: str | None = None
    accuracy: Annotated[float, Field(allow_inf_nan=False)] | None = None


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What a policy may choose.

    Attributes:
        batch_sizes: batch sizes, ascending.
        default: the batch size that is used without tuning.
        power_limits_w: power limits by batch size, descending; empty if limits cannot be set.
        cost: what to minimise.
        criterion: how to choose among the power limits that were tried.
        max_slowdown: for the criterion ``max-slowdown``: the longest time that is allowed, relative to
            the time at the highest limit.
    """

    batch_sizes: tuple[int, ...]
    default: int
    power_limits_w: Mapping[int, tuple[int, ...]]
    cost: CostModel
    criterion: Criterion = "cost"
    max_slowdown: float = 1.1

    def __post_init__(self) -> None:
        if self.max_slowdown < 1:
            raise JoulecastError(
                f"a slowdown of {self.max_slowdown} is below 1, which no limit can meet"
            )
        if list(self.batch_sizes) != sorted(set(self.batch_sizes)) or not self.batch_sizes:
            raise JoulecastError(f"batch sizes {self.batch_sizes} are not ascending")
        if self.default not in self.batch_sizes:
            raise JoulecastError(
                f"the default batch size {self.default} is none of {', '.join(map(str, self.batch_sizes))}"
            )

    def limits(self, batch_size: int) -> tuple[int, ...]:
        """Power limits of a batch size, descending; empty if no limit can be set."""
        return self.power_limits_w.get(batch_size, ())

    def highest_limit(self, batch_size: int) -> tuple[int, ...]:
        """The highest limit, as a tuple of one; empty if no limit can be set."""
        return self.limits(batch_size)[:1]

    def best_limit(self, epochs: Mapping[int, EpochAtLimit]) -> int:
        """The best of the power limits under which an epoch was measured, by the criterion. Of equally good
        limits, it is the lowest one.

        The best limit for a batch size does not depend on the number of epochs. So the limits can be measured
        during a run (You et al., Zeus, section 4.2).
        """
        if self.criterion == "max-slowdown":
            allowed_s = self.max_slowdown * epochs[max(epochs)].time_s
            return min(watts for watts, epoch in epochs.items() if epoch.time_s <= allowed_s)
        known = []
        for watts, epoch in epochs.items():
            least = epoch.time_s if self.criterion == "time" else epoch.energy_j
            if self.criterion == "cost":
                least = self.cost.of(epoch.time_s, epoch.energy_j)
            if least is not None:
                known.append((steady(least), watts))
        # Without energies, there is no reason for a lower limit.
        return min(known)[1] if known else max(epochs)


class Environment(Protocol):
    """An environment, in which proposals are tried."""

    space: SearchSpace

    def run(self, proposal: Proposal, recurrence: int) -> Trial:
        """Train once as proposed, to the target, the bound or the last epoch."""
        ...
