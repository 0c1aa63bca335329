"""Computes, from the trials of a history, the expected recurrence of configurations, and how sure it is.

The expected recurrence is the mean number of epochs to the target, times the cost of an epoch under the power
limit. A try that fails at the last epoch is repeated, and its epochs count. If a policy stopped a try because
of its cost, the try only shows that the target needs more epochs. The noise of the number of epochs is
log-normal. All batch sizes share one variance. So a size that was tried only once has an uncertainty, too.
The cost of an epoch is the mean so far.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log, sqrt
from statistics import fmean, variance

from joulecast.quantities import steady
from joulecast.tune.history import History
from joulecast.tune.trial import EpochAtLimit, SearchSpace

# Standard deviation of the log of epochs to the target: believed before (as two observations), and least.
# With these, and no size counting for more than so many differences, 90 to 97 % of the intervals hold the
# truth after 8 to 50 recurrences of Zeus or curve on the Zeus traces, which they were chosen on; by workload
# 85 (ImageNet) to 100 %. The cheapest of several looks cheaper than it is: savings are estimated 0 to
# 3 points too large.
_FIRST_SD, _LEAST_SD, _FIRST_WEIGHT, _MOST_WEIGHT = 0.1, 0.02, 2, 4


@dataclass(frozen=True)
class Configuration:
    """The expected recurrence of a batch size under a power limit.

    Attributes:
        power_limit_w: ``None`` if limits cannot be set.
        runs: number of runs with this batch size that reached the target.
        cost: in the unit of the cost model; ``None`` if energy counts and was not measured.
        energy_j: ``None`` if it was not measured.
    """

    batch_size: int
    power_limit_w: int | None
    runs: int
    cost: float | None
    time_s: float
    energy_j: float | None


@dataclass
class Size:
    """The findings of the trials with one batch size.

    Attributes:
        epochs, failed, stopped: epochs of three kinds of tries. ``epochs`` is for tries that reached the
            target. ``failed`` is for tries that came to the last epoch or broke off. ``stopped`` is for tries
            that were stopped because of their cost.
        at_limit: an epoch under every power limit for which it is known. If no limit can be set, the key is
            ``None``.
    """

    epochs: list[float] = field(default_factory=list)
    failed: list[float] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)
    at_limit: dict[int | None, EpochAtLimit] = field(default_factory=dict)

    @property
    def epochs_of_recurrence(self) -> float:
        """Expected number of epochs of a recurrence, with the epochs of failed tries.

        It is assumed that a stopped try would have taken the mean number of epochs, or its own number if this
        is larger.
        """
        mean = fmean(self.epochs)
        would = [*self.epochs, *(max(mean, epochs) for epochs in self.stopped)]
        return fmean(would) + sum(self.failed) / len(would)


def _whole_runs(history: History, space: SearchSpace) -> dict[int, dict[int | None, EpochAtLimit]]:
    """Mean epoch by batch size and power limit, of trials that ran under this limit throughout.

    Trials that ended before the first of several limits had been measured are among them.
    """
    sums: dict[tuple[int, int | None], list[tuple[float, float, float | None]]] = {}
    for trial in history.trials:
        size = trial.proposal.batch_size
        if trial.epochs and not trial.limits:
            watts = trial.power_limit_w
            if watts is None:
                watts = next(iter(space.highest_limit(size)), None)
            sums.setdefault((size, watts), []).append((trial.epochs, trial.time_s, trial.energy_j))
    found: dict[int, dict[int | None, EpochAtLimit]] = {}
    for (size, watts), trials in sums.items():
        time_s = sum(t for _, t, _ in trials) / sum(epochs for epochs, _, _ in trials)
        metered = [(epochs, joules) for epochs, _, joules in trials if joules is not None]
        energy_j = (
            sum(joules for _, joules in metered) / sum(epochs for epochs, _ in metered)
            if metered
            else None
        )
        found.setdefault(size, {})[watts] = EpochAtLimit(time_s, energy_j)
    return found


def _profiled(
    profile: Mapping[int, EpochAtLimit], whole: Mapping[int | None, EpochAtLimit]
) -> dict[int | None, EpochAtLimit]:
    """Epochs under the limits of a profile. They are scaled to whole runs if both are known.

    A profile does not see evaluations between epochs, nor what has changed since it was measured.
    """
    known = [watts for watts in profile if watts in whole]
    time, energy = 1.0, 1.0
    if known:
        time = fmean(whole[watts].time_s / profile[watts].time_s for watts in known)
        pairs = [(whole[watts].energy_j, profile[watts].energy_j) for watts in known]
        ratios = [ran / profiled for ran, profiled in pairs if ran is not None and profiled]
        energy = fmean(ratios) if ratios else time
    return {
        watts: EpochAtLimit(
            time * epoch.time_s, None if epoch.energy_j is None else energy * epoch.energy_j
        )
        for watts, epoch in profile.items()
    }


def sizes_of(history: History, space: SearchSpace) -> dict[int, Size]:
    """Findings on every batch size that was tried."""
    whole = _whole_runs(history, space)
    sizes = {batch: Size() for batch in history.arms}
    for trial in history.trials:
        size = sizes[trial.proposal.batch_size]
        if trial.reached:
            size.epochs.append(trial.epochs)
        elif trial.stopped_by in ("max_epochs", "interrupted"):
            size.failed.append(trial.epochs)
        elif trial.stopped_by == "cost_bound":
            size.stopped.append(trial.epochs)
    for batch, size in sizes.items():
        ran = whole.get(batch, {})
        size.at_limit = _profiled(history.arms[batch].limits, ran) | ran
    return sizes


def configuration_of(
    space: SearchSpace, batch_size: int, size: Size, watts: int | None
) -> Configuration:
    """The expected recurrence of a batch size that has reached the target, under a known limit."""
    epoch, epochs = size.at_limit[watts], size.epochs_of_recurrence
    time_s = epochs * epoch.time_s
    energy_j = None if epoch.energy_j is None else epochs * epoch.energy_j
    cost = space.cost.of(time_s, energy_j)
    return Configuration(batch_size, watts, len(size.epochs), cost, time_s, energy_j)


def cheapest_configuration(space: SearchSpace, sizes: Mapping[int, Size]) -> Configuration | None:
    """The cheapest configuration among batch sizes that have reached the target. Between equal ones, the
    smaller size is taken. ``None`` if no cost is known."""
    found = [
        configuration_of(space, batch, size, watts)
        for batch, size in sizes.items()
        if size.epochs
        for watts in size.at_limit
    ]
    known = [
        ((steady(each.cost), each.batch_size, each.power_limit_w or 0), each)
        for each in found
        if each.cost is not None
    ]
    return min(known, key=lambda each: each[0], default=(None, None))[1]


def default_configuration(
    space: SearchSpace, sizes: Mapping[int, Size]
) -> tuple[Configuration | None, str]:
    """The expected recurrence of the default; or the reason why it is not known."""
    batch, size = space.default, sizes.get(space.default)
    if size is None:
        return None, f"the default batch size {batch} was not tried"
    if not size.epochs:
        tries = len(size.failed) + len(size.stopped)
        return None, (
            f"the default batch size {batch} never reached the target in {tries} "
            f"{'try' if tries == 1 else 'tries'}, so there is nothing to compare with"
        )
    watts = next(iter(space.highest_limit(batch)), None)
    if watts not in size.at_limit:
        return None, f"the default batch size {batch} was never run at its highest limit, {watts} W"
    found = configuration_of(space, batch, size, watts)
    if found.cost is None:
        return None, "energy counts in the cost, and the default's was not measured"
    return found, ""


def log_sd_of_ratio(sizes: Mapping[int, Size], one: int, other: int) -> tuple[float, int]:
    """Standard deviation of the logarithm of the ratio of two batch sizes' mean epochs, and degrees of
    freedom.

    A policy runs its preferred size many times. These runs count only like a few runs, because they say
    little about the other sizes.
    """
    squares, freedom = _FIRST_WEIGHT * _FIRST_SD**2, _FIRST_WEIGHT
    for size in sizes.values():
        if len(size.epochs) > 1:
            weight = min(len(size.epochs) - 1, _MOST_WEIGHT)
            squares += weight * variance([log(epochs) for epochs in size.epochs])
            freedom += weight
    pooled = max(squares / freedom, _LEAST_SD**2)
    counts = (len(sizes[batch].epochs) for batch in (one, other))
    return sqrt(sum(pooled / count for count in counts)), freedom
