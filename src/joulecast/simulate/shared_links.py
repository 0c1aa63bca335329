"""Divides the ports of links among transfers. The shares are max-min fair, and transfers flow like a fluid.

A flow takes ``usage`` times its rate from every port that it crosses. All rates grow together until a port is
full. The flows that cross this port then keep their rate, and the others grow on (progressive filling;
Bertsekas and Gallager 1992, section 6.5.2).
"""

from collections.abc import Iterable, Mapping, Sequence

Usage = Mapping[int, float]
"""Rate that a flow takes from each port, as a multiple of its own rate."""

UNLIMITED = 1e30
"""Rate of a flow that crosses no port. It is finite, because work is divided by it."""


def alone(usage: Usage, capacity: Sequence[float]) -> float:
    """Rate of a flow that shares its ports with no other flow, in bytes/s; :data:`UNLIMITED` if it crosses no
    port."""
    return min((capacity[port] / times for port, times in usage.items()), default=UNLIMITED)


def fair_rates(flows: Mapping[int, Usage], capacity: Sequence[float]) -> dict[int, float]:
    """Max-min fair rates.

    Args:
        flows: the usage of each flow, by port.
        capacity: bytes/s of each port.

    Returns:
        The rate of each flow in bytes/s; :data:`UNLIMITED` for a flow that crosses no port.
    """
    left: dict[int, float] = {}
    load: dict[int, float] = {}
    for usage in flows.values():
        for port, times in usage.items():
            load[port] = load.get(port, 0.0) + times
            left[port] = capacity[port]
    rates: dict[int, float] = {}
    growing = dict(flows)
    while growing and load:
        share = min(left[port] / total for port, total in load.items())
        full = {p for p, total in load.items() if left[p] / total <= share * (1 + 1e-12)}
        stopped = [f for f, usage in growing.items() if not full.isdisjoint(usage)]
        for flow in stopped:
            rates[flow] = share
            for port, times in growing.pop(flow).items():
                left[port] = max(0.0, left[port] - share * times)
                load[port] -= times
        load = {p: total for p, total in load.items() if p not in full and total > 1e-12}
    return rates | dict.fromkeys(growing, UNLIMITED)


class SharedLinks:
    """The running flows, and their rates.

    A flow changes the rate of another one only if they share a port, directly or through further flows. If a
    flow starts or ends, only the rates of the flows that share ports with it in this way are computed again.
    """

    def __init__(self, capacity: Sequence[float], sharing: bool = True) -> None:
        self.capacity = capacity
        self.sharing = sharing
        """Whether flows share the network. If not, every flow has it alone (an ablation)."""
        self._flows: dict[int, Usage] = {}
        self._on_port: dict[int, set[int]] = {}
        self._known: dict[tuple[int, ...], dict[int, float]] = {}
        """Rates that were computed before, by the usages that meet, because a step repeats itself."""

    def add(self, flow: int, usage: Usage) -> None:
        """A flow starts."""
        self._flows[flow] = usage
        for port in usage:
            self._on_port.setdefault(port, set()).add(flow)

    def remove(self, flow: int) -> set[int]:
        """A flow ends. Returns the flows that shared a port with it."""
        met: set[int] = set()
        for port in self._flows.pop(flow):
            others = self._on_port[port]
            others.discard(flow)
            met |= others
        return met

    def rates_around(self, changed: Iterable[int]) -> dict[int, float]:
        """New rates of the changed flows, and of all flows that share ports with them."""
        if not self.sharing:
            return {f: alone(self._flows[f], self.capacity) for f in changed if f in self._flows}
        reached: dict[int, Usage] = {}
        waiting = [flow for flow in changed if flow in self._flows]
        while waiting:
            flow = waiting.pop()
            if flow in reached:
                continue
            usage = reached[flow] = self._flows[flow]
            for port in usage:
                others = self._on_port[port]
                if len(others) > 1:
                    waiting += [other for other in others if other not in reached]
        # Flows with the same usage of the same ports have the same rate. A usage exists as long as its
        # activities.
        met = tuple(sorted(id(usage) for usage in reached.values()))
        if met not in self._known:
            rates = fair_rates(reached, self.capacity)
            self._known[met] = {id(reached[flow]): rate for flow, rate in rates.items()}
        known = self._known[met]
        return {flow: known[id(usage)] for flow, usage in reached.items()}
