"""The average cost of a fixed configuration over the runs of a trace. It is exact: nothing is random."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from statistics import fmean

from joulecast.errors import JoulecastError
from joulecast.tune.traces import Trace
from joulecast.tune.trial import PLAIN, CostModel, EpochAtLimit, Goal


@dataclass(frozen=True)
class Expected:
    """The expected cost, energy and time of a recurrence: a training to its target, with its failed tries."""

    cost: float
    energy_j: float
    time_s: float


def _of_epochs(trace: Trace, eta: float, epochs: float, epoch: EpochAtLimit) -> Expected:
    energy_j = epochs * (epoch.energy_j or 0.0)
    time_s = epochs * epoch.time_s
    cost = CostModel(eta, trace.max_power_w).of(time_s, energy_j)
    assert cost is not None
    return Expected(cost, energy_j, time_s)


def expected(trace: Trace, batch_size: int, power_limit_w: int, eta: float = 0.5) -> Expected:
    """The expected recurrence with a batch size and a power limit. It is infinite if no run reaches the
    target.

    A try that fails runs to the last epoch, and is followed by another try.
    """
    runs = trace.epochs[batch_size]
    reached = [epochs for epochs in runs if epochs is not None and epochs <= trace.max_epochs]
    epochs = inf
    if reached:
        failures = len(runs) / len(reached) - 1
        epochs = fmean(reached) + failures * trace.max_epochs
    return _of_epochs(trace, eta, epochs, trace.at_limit[batch_size][power_limit_w])


def expected_default(trace: Trace, eta: float = 0.5) -> Expected:
    """The expected recurrence without tuning.

    Raises:
        JoulecastError: no run of the default batch size reaches the target.
    """
    found = expected(trace, trace.default, trace.max_power_w, eta)
    if found.cost == inf:
        raise JoulecastError(
            f"{trace.workload} on {trace.gpu}: no recorded run of the default batch size {trace.default} "
            f"reaches the target in {trace.max_epochs} epochs, so there is nothing to compare with"
        )
    return found


def configurations(trace: Trace) -> Iterator[tuple[int, int]]:
    """All batch sizes and power limits of a trace."""
    for batch, limits in trace.at_limit.items():
        for watts in limits:
            yield batch, watts


def best_configuration(trace: Trace, eta: float = 0.5) -> tuple[int, int]:
    """The batch size and power limit that cost least on average. An oracle would use them.

    Raises:
        JoulecastError: no batch size reaches the target.
    """
    best = min(configurations(trace), key=lambda c: expected(trace, c[0], c[1], eta).cost)
    if expected(trace, *best, eta).cost == inf:
        raise JoulecastError(
            f"{trace.workload} on {trace.gpu}: no batch size reaches the target in {trace.max_epochs} epochs"
        )
    return best


def expected_power_limit_only(trace: Trace, goal: Goal = PLAIN) -> tuple[Expected, Expected]:
    """Two expected recurrences with the default batch size: the first one, in which power limits are
    profiled, and a later one under the best limit."""
    at_limit = trace.at_limit[trace.default]
    kept, eta = trace.space(goal).best_limit(at_limit), goal.eta
    later = expected(trace, trace.default, kept, eta)
    profiled = EpochAtLimit(
        fmean(epoch.time_s for epoch in at_limit.values()),
        fmean(epoch.energy_j or 0.0 for epoch in at_limit.values()),
    )
    # In the first epoch, all limits are profiled. The other epochs run under the limit that is kept.
    instead = _of_epochs(trace, eta, 1, at_limit[kept])
    extra = _of_epochs(trace, eta, 1, profiled)
    first = Expected(
        later.cost + extra.cost - instead.cost,
        later.energy_j + extra.energy_j - instead.energy_j,
        later.time_s + extra.time_s - instead.time_s,
    )
    return first, later


def expected_recurrences(
    trace: Trace, policy: str, goal: Goal = PLAIN
) -> tuple[Expected, Expected] | None:
    """The expected cost, energy and time of the first recurrence, and of a later one, by a policy without
    random choices. ``None`` for other policies.

    Args:
        policy: name of the policy.
    """
    if policy == "default":
        return (expected_default(trace, goal.eta),) * 2
    if policy == "oracle":
        return (expected(trace, *best_configuration(trace, goal.eta), eta=goal.eta),) * 2
    return expected_power_limit_only(trace, goal) if policy == "power-limit-only" else None


@dataclass(frozen=True)
class Potential:
    """Least energy, divided by the energy of the default, as in figure 1 of the paper."""

    batch_size_only: float
    power_limit_only: float
    both: float
    batch_size: int
    power_limit_w: int


def energy_potential(trace: Trace) -> Potential:
    """The least energy that can be reached by tuning the batch size, the power limit, or both. It is divided
    by the energy of the default.

    A batch size counts only if all of its runs reached the target.
    """
    default = expected_default(trace)

    def relative(batch: int, watts: int) -> float:
        return expected(trace, batch, watts).energy_j / default.energy_j

    sure = [batch for batch in trace.epochs if trace.always_reached(batch)]
    at_highest = [batch for batch in sure if trace.max_power_w in trace.at_limit[batch]]
    if not at_highest:
        raise JoulecastError(
            f"{trace.workload} on {trace.gpu}: no batch size reached the target in all of its runs and has a "
            f"power limit of {trace.max_power_w} W, so there is no potential to tell"
        )
    both = min(
        ((batch, watts) for batch, watts in configurations(trace) if batch in sure),
        key=lambda c: relative(c[0], c[1]),
    )
    return Potential(
        min(relative(batch, trace.max_power_w) for batch in at_highest),
        min(relative(trace.default, watts) for watts in trace.at_limit[trace.default]),
        relative(*both),
        *both,
    )
