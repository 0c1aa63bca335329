"""Chooses among power limits under which an epoch was measured.

The best limit for a batch size does not depend on the number of epochs. So the limits can be measured during
a run (You et al., Zeus, section 4.2).
"""

from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Protocol

from joulecast.errors import JoulecastError
from joulecast.quantities import steady
from joulecast.tune.trial import CostModel, Criterion, EpochAtLimit, SearchSpace


class Selector(Protocol):
    """Chooses one of the measured limits. If several are equally good, it takes the lowest one."""

    def __call__(self, epochs: Mapping[int, EpochAtLimit]) -> int: ...


def _cheapest(cost: CostModel, epochs: Mapping[int, EpochAtLimit]) -> int:
    def of(watts: int) -> float:
        found = cost.of(epochs[watts].time_s, epochs[watts].energy_j)
        return inf if found is None else found

    best = min(epochs, key=lambda watts: (steady(of(watts)), watts))
    # Without energies, there is no reason for a lower limit.
    return max(epochs) if of(best) == inf else best


def _least_energy(epochs: Mapping[int, EpochAtLimit]) -> int:
    known = {
        watts: steady(epoch.energy_j)
        for watts, epoch in epochs.items()
        if epoch.energy_j is not None
    }
    return min(known, key=lambda watts: (known[watts], watts)) if known else max(epochs)


def _fastest(epochs: Mapping[int, EpochAtLimit]) -> int:
    return min(epochs, key=lambda watts: (steady(epochs[watts].time_s), watts))


def _lowest_within(factor: float, epochs: Mapping[int, EpochAtLimit]) -> int:
    allowed_s = factor * epochs[max(epochs)].time_s
    return min(watts for watts, epoch in epochs.items() if epoch.time_s <= allowed_s)


def selector(criterion: Criterion, cost: CostModel, max_slowdown: float = 1.1) -> Selector:
    """The function that chooses a power limit by a criterion.

    Args:
        criterion: least ``cost``, least ``energy``, least ``time``, or the lowest limit that takes no
            longer than ``max_slowdown`` times the time at the highest one.

    Raises:
        JoulecastError: ``max_slowdown`` is below 1.
    """
    if criterion == "cost":
        return partial(_cheapest, cost)
    if criterion == "energy":
        return _least_energy
    if criterion == "time":
        return _fastest
    if max_slowdown < 1:
        raise JoulecastError(f"a slowdown of {max_slowdown} is below 1, which no limit can meet")
    return partial(_lowest_within, max_slowdown)


def selector_of(space: SearchSpace) -> Selector:
    """The function that chooses power limits in a search space."""
    return selector(space.criterion, space.cost, space.max_slowdown)
