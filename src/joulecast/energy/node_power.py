"""The power of a metered node type at any share of computing, for networks that did not run on it.

MC2 on phases (:mod:`joulecast.energy.mc2_phases`) says what a node draws::

    P = P_0 + dP f(u),    f(u) = u + kappa (u - u^1.4)

A simulated step has its own computing share ``u``. Its ``dP`` is the mean of the workloads that were metered
on the node type. Its ``kappa`` is the prior for a workload that no fit has seen. The rest of the step is
exposed communication and waiting. During this rest, a device copies and polls at full clocks. ``f`` says how
much power this takes.

Nodes of MLPerf's power submissions are shipped with their fit (``metered_nodes.yaml``, which
``benchmarks/node_power.py --write`` makes from ``recorded/mlperf-power``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import yaml

from joulecast.energy.mc2_terms import FAN_EXPONENT, duty
from joulecast.energy.priors import Gaussian, drawn_kappas, spread_of_unseen
from joulecast.quantities import listed
from joulecast.runs.platforms import gpu_in

_LEVEL, _DRAWS = 0.9, 2000

REST_SHARE = 0.42
"""Power of all other parts of a node (processors, memory, network, fans, losses), divided by the power limits
of its GPUs. It is for unmetered nodes: the geometric mean of two nodes of 8 H100. The metered node
has 0.32: its idle power, without the idle power of its GPUs (``graphs/clocks.py``). An air-cooled node of
another maker has 0.55: in MLPerf trainings it draws 7.1 kW where the metered one draws 5.8 (from a submission
that is not shipped)."""
REST_WIDTH = 0.93
"""Half width of the 90 % interval of the logarithm of :data:`REST_SHARE`, for a node type that was not
metered (Student's t). The standard deviation of the two logarithms behind that share is 0.39. For comparison:
the data sheets of DGX-1 (V100), DGX A100, H100 and B200 state at most 3.5, 6.5, 10.2 and 14.3 kW. The part of
this that is not for the GPUs, divided by the power limits of the GPUs, has a standard deviation of 0.34.
``benchmarks/node_power.py`` computes the share and this width again: 0.37 and 0.97, because it knows a later
measurement, in which waiting GPUs of the Hopper generation draw more. The older values stay, because with
them the two known nodes are 8 to 11 % off in either direction."""


@dataclass(frozen=True)
class Power:
    """Watts of some nodes together, with the ends of the 90 % interval, and the data behind them."""

    watts: float
    low_w: float
    high_w: float
    rests_on: str


@dataclass(frozen=True)
class MeteredNode:
    """Facts about a node type that its metered runs show. Powers are in W of a node.

    Attributes:
        platform: the node type, as the runs name it.
        gpus: accelerators of a node.
        idle_w: ``P_0``, the idle power of a node with the job loaded.
        excess_w: ``dP`` of training at full duty, by workload.
        kappa: the kappa for a workload that was not run.
        node_spread: relative spread of power between nodes.
        smallest_nodes, most_nodes: node counts of the calibrations, and the largest node count of the runs.
        least_share: the lowest computing share of the runs.
        runs: number of fitted runs.
        energy_source: source of their energies: imported, measured, ...
        supply: whether the meters read before (``AC``) or behind (``DC``) the power supplies.
    """

    platform: str
    gpus: int
    idle_w: float
    excess_w: Mapping[str, float]
    kappa: Gaussian
    node_spread: float
    smallest_nodes: float
    most_nodes: float
    least_share: float
    runs: int
    energy_source: str
    supply: str | None = None

    @property
    def full_w(self) -> float:
        """Watts of a node whose accelerators all compute, all the time."""
        return self.idle_w + float(np.mean(list(self.excess_w.values())))

    @property
    def rises(self) -> bool:
        """Whether a step takes at least as many joules if it takes longer, and also if it computes longer."""
        bent = 0 <= self.kappa.mean * (FAN_EXPONENT - 1) <= 1
        return self.idle_w >= 0 and self.full_w >= self.idle_w and bent

    def expected_w(self, used: Sequence[int], share: float, gpus: int) -> float:
        """Watts of nodes that train. The arguments are as for :meth:`power`."""
        excess_w = (self.full_w - self.idle_w) * sum(used) / gpus
        return len(used) * self.idle_w + excess_w * float(duty(np.asarray(share), self.kappa.mean))

    def power(self, used: Sequence[int], share: float, gpus: int) -> Power:
        """Power of nodes that train.

        A node in use draws all of its idle power. If some of its accelerators are not used, it draws only the
        used share of the excess power. No metered run had unused accelerators. So the interval reaches up to
        another assumption: ``f`` at the load of the whole node.

        Args:
            used: number of accelerators in use, in each node.
            share: share of the step in which the accelerators compute, 0 to 1.
            gpus: accelerators of a node.
        """
        nodes = len(used)
        parts = np.array(used, dtype=float) / gpus
        excess_w = self.full_w - self.idle_w
        spread = self.node_spread * math.sqrt(1 / self.smallest_nodes + 1 / nodes)
        unseen = spread_of_unseen(list(self.excess_w.values()), self.smallest_nodes, nodes)
        spread = math.hypot(spread, unseen)
        random = np.random.default_rng(0)
        kappas = drawn_kappas(self.kappa, random, _DRAWS)
        # Powers are positive, so their logarithms are drawn.
        rise = np.exp(random.normal(0.0, spread, _DRAWS))
        floor_w = nodes * self.idle_w * np.exp(random.normal(0.0, spread, _DRAWS))
        line_w = floor_w + excess_w * rise * parts.sum() * duty(np.asarray(share), kappas)
        curve_w = floor_w
        for part, count in zip(*np.unique(parts, return_counts=True), strict=True):
            curve_w = curve_w + count * excess_w * rise * duty(np.asarray(part * share), kappas)
        tail = (1 - _LEVEL) / 2
        return Power(
            self.expected_w(used, share, gpus),
            float(np.quantile(line_w, tail)),
            float(np.quantile(np.maximum(line_w, curve_w), 1 - tail)),
            self._rests_on(used, share, gpus),
        )

    def _rests_on(self, used: Sequence[int], share: float, gpus: int) -> str:
        names = listed(sorted(name.partition(" on ")[0] for name in self.excess_w))
        text = (
            f"powers fitted to {self.runs} metered runs ({names}) on up to {self.most_nodes:g} nodes of "
            f"{gpus} GPUs ({self.platform}): {self.idle_w:,.0f} W idle, {self.full_w:,.0f} W computing; the "
            f"step computes {100 * share:.0f} % of its time"
        )
        if share < self.least_share:
            text += f", less than any metered run ({100 * self.least_share:.0f} % or more)"
        if min(used) < gpus:
            text += f"; {gpus - min(used)} of the {gpus} GPUs of a node are idle, and their idle power counts"
        return text

    def as_plain(self) -> dict[str, Any]:
        """Plain data, as in ``metered_nodes.yaml``."""
        return asdict(self)

    @classmethod
    def of_plain(cls, facts: Mapping[str, Any]) -> "MeteredNode":
        """A node type from :meth:`as_plain`'s data."""
        return cls(**{**facts, "kappa": Gaussian(**facts["kappa"])})


@cache
def shipped_nodes() -> list[MeteredNode]:
    """The node types whose metered runs are shipped with joulecast."""
    text = (resources.files("joulecast.energy") / "metered_nodes.yaml").read_text()
    return [MeteredNode.of_plain(facts) for facts in yaml.safe_load(text)["nodes"]]


def known_nodes(nodes: Sequence[MeteredNode]) -> str:
    """The node types in words, with the names that people use."""
    return listed(
        [f"{gpu_in(node.platform) or node.platform} (nodes of {node.gpus} GPUs)" for node in nodes]
    )
