"""Chains: compute and collectives that strictly follow each other on one class of devices.

A tensor-parallel layer computes, sums, computes, sums: nothing else of the device's own comes between, so
that a whole pass through such layers is one activity of many links. It runs in one go while no other
activity uses its ports and no gradients are in flight. When another one arrives, the chain continues link by
link, as if its links were activities, until it is alone again.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from joulecast.simulator.network import Usage, alone


@dataclass(frozen=True)
class ChainLink:
    """Compute (without ``usage``), or a transfer; numbers as those of an activity."""

    label: str
    work: float
    usage: Usage | None = None
    latency: float = 0.0


class Chain:
    """Links one behind the other, and when each ends if nothing disturbs them."""

    def __init__(self, links: Sequence[ChainLink], capacity: Sequence[float]) -> None:
        self.links = tuple(links)
        self.rates = [1.0 if x.usage is None else alone(x.usage, capacity) for x in self.links]
        seconds = [
            link.latency + link.work / rate
            for link, rate in zip(self.links, self.rates, strict=True)
        ]
        self.ends = list(accumulate(seconds))
        """Seconds from its start."""
        self.begins = [0.0, *self.ends[:-1]]

    @cached_property
    def ports(self) -> frozenset[int]:
        """Ports that any of its links uses."""
        return frozenset(port for link in self.links if link.usage for port in link.usage)

    @cached_property
    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """When its links begin and end, and which of them compute."""
        computes = np.array([link.usage is None for link in self.links])
        return np.array(self.begins), np.array(self.ends), computes

    @property
    def computing_s(self) -> float:
        """Seconds of compute."""
        return sum(link.work for link in self.links if link.usage is None)

    def link_at(self, first: int, elapsed_s: float) -> int:
        """The link that is under way so long after the start of the first one."""
        found = bisect_right(self.ends, self.begins[first] + elapsed_s, lo=first)
        return min(found, len(self.links) - 1)


@dataclass(frozen=True)
class Passed:
    """Links of a chain that went through one behind the other, or one link that was slowed down."""

    first: int
    stop: int
    start_s: float
    end_s: float


def link_times(chain: Chain, passed: Sequence[Passed]) -> list[tuple[ChainLink, float, float]]:
    """Every link of a chain, with its start and end."""
    found: list[tuple[ChainLink, float, float]] = []
    for part in passed:
        if part.stop == part.first + 1:
            found.append((chain.links[part.first], part.start_s, part.end_s))
            continue
        shift = part.start_s - chain.begins[part.first]
        found += [
            (chain.links[i], chain.begins[i] + shift, chain.ends[i] + shift)
            for i in range(part.first, part.stop)
        ]
    return found
