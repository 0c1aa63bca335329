"""How the host of plain PyTorch keeps pace with its device. A fast GPU waits for the host."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulecast.graphs.costs import Costs, Scaled
from joulecast.graphs.kernel_costs import KernelCosts, kernel_rates
from joulecast.graphs.opgraph import OpGraph
from joulecast.graphs.precision import PRECISIONS
from joulecast.simulate.cost_cache import CachedCosts
from joulecast.simulate.placement import PlacedOp, runs_again


@dataclass(frozen=True)
class HostPace:
    """How the host and the kernels of plain PyTorch keep a device busy. The defaults are for code that never
    waits for its host, because it fuses its kernels, or replays them as a graph."""

    share: float = 0.0
    """Seconds in which the host starts kernels, divided by the seconds in which the device runs them."""
    loaded: float = 1.0
    """Share of the device's seconds in which kernels work. In the rest they start, end, or have waiting
    threads."""


def host_pace(
    costs: Costs,
    graph: OpGraph,
    placed: Sequence[PlacedOp],
    mesh: Mapping[str, int],
    inference: bool,
) -> HostPace:
    """How the host keeps pace with the largest parts that a device has. Code for half precision is not
    held up by its host."""
    eager = costs
    while isinstance(eager, (CachedCosts, Scaled)):
        eager = eager.costs
    if not isinstance(eager, KernelCosts) or PRECISIONS[eager.precision].half:
        return HostPace()
    runs = Counter((item.split, way) for item in placed for way in item.split.directions(inference))
    for split, count in runs_again(graph, placed if not inference else ()).items():
        runs[split, "forward"] += count
    seconds, first = np.zeros(3), dict.fromkeys(mesh, 0)
    for (split, way), count in runs.items():
        seconds += count * eager.pace_s(graph, split.op, split.parts_at(first, mesh), way)
    busy_s, host_s, loaded_s = seconds.tolist()
    return HostPace(host_s / busy_s, loaded_s / busy_s) if busy_s else HostPace()


def host_paces() -> tuple[float, float]:
    """Time that a fast host and a slow host take to start a kernel, each divided by the assumed time."""
    rates = kernel_rates()
    return rates.fast_host_s / rates.host_s, rates.slow_host_s / rates.host_s
