"""Fits the links of a cluster to collectives that ran alone on it.

The fit adapts the simulator's model of a collective. First it finds, within a node, the rate of a GPU's link,
the launch, the latency of a step, and whether the switches sum all-reduces (NVLink SHARP). Then it finds,
between nodes, the rate of a node's links and the latency of a step. A value that the collectives do not show
stays as it was. The fit uses no measured training step.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from scipy.optimize import least_squares

from joulecast.errors import JoulecastError
from joulecast.logs.nccl_tests import CollectiveTest
from joulecast.quantities import counted, percent
from joulecast.runs.files.writing import written_aside
from joulecast.runs.platforms import Cluster, Platform, find_platform, gpu_in, gpu_names
from joulecast.simulate.collectives import Kind
from joulecast.simulate.device_mesh import build_device_mesh
from joulecast.simulate.flows import Transfers
from joulecast.simulate.strategy import Strategy
from joulecast.simulate.topology import topology_of

Floats = NDArray[np.float64]

_KINDS: dict[str, Kind] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
"""Tests in which all GPUs of a node do the same. ``sendrecv_perf`` is left out: only one GPU of a node sends
to the next node, and no platform says which share of the network cards one GPU can use."""


def collective_seconds(
    platform: Platform, kind: Kind, devices: int, sizes: Sequence[float]
) -> list[float]:
    """Seconds of a collective among the first devices of a platform, for each size (bytes). Nothing else runs
    on the platform."""
    topology = topology_of(platform, devices)
    strategy = Strategy(mesh={"data": devices})
    device_mesh = build_device_mesh(strategy, [], topology, {}, folded=True)
    kinds: set[tuple[Kind, str]] = {(kind, "data")}
    transfers = Transfers(device_mesh, topology, platform.require_cluster(), kinds, set())
    flow = transfers.flow(kind, "data", 0)
    return [flow.seconds_alone(size) for size in sizes]


def _changed(platform: Platform, **facts: Any) -> Platform:
    cluster = platform.require_cluster().model_copy(update=facts)
    return platform.model_copy(update={"cluster": cluster})


def _on_gpus(platform: Platform, gpus: int) -> Platform:
    """A platform with some of the GPUs of each node, and their share of the network cards."""
    cluster = platform.require_cluster()
    outer = cluster.links[-1]
    rate = (outer.bytes_per_s or 0) * gpus / cluster.devices_per_node
    within = (cluster.links[0].model_copy(update={"joins": gpus}),) if gpus > 1 else ()
    links = (*within, outer.model_copy(update={"bytes_per_s": rate}))
    return _changed(platform, devices_per_node=gpus, links=links)


def simulated_seconds(platform: Platform, test: CollectiveTest) -> Floats:
    """Simulated seconds of each point of a test."""
    there = platform if test.nodes == 1 else _on_gpus(platform, test.gpus)
    sizes = [size for size, _ in test.points]
    found = collective_seconds(there, _KINDS[test.collective], test.nodes * test.gpus, sizes)
    return np.array(found)


_LARGE_BYTES, _SMALL_BYTES = 16 << 20, 64 << 10
"""Least bytes of a buffer that shows a rate (gradients and activations have such sizes), and most bytes of
one that shows a latency. In between, a library changes its protocol."""
_LEAST_S = 1e-6
"""Start value for the fit of an unknown latency."""
_TRIED = sorted(np.linspace(-5, 5, 41).tolist(), key=abs)
"""Logarithms of the factors that a fit starts from. The factors that change least come first."""
_SHARES = np.linspace(0.5, 1, 51).tolist()
"""Shares of a link's rate that an all-reduce may reach because the switches sum."""
_ODD = 0.1
"""Points with a larger error than this count less than the square of their error, because some points are off
tenfold."""


@dataclass(frozen=True)
class ClusterLinks:
    """A platform with fitted links, and the tests to which they were fitted."""

    platform: Platform
    within: list[CollectiveTest]
    """Tests within a node."""
    between: list[CollectiveTest]
    """Tests between nodes. All use the same number of GPUs of a node."""
    ratios: dict[tuple[str, bool], float]
    """Simulated over measured seconds of large buffers (median), by collective and whether it is between
    nodes."""

    def text(self) -> str:
        """The fitted links, as lines for a person."""
        cluster = self.platform.require_cluster()
        of_node = cluster.devices_per_node
        lines = [f"nodes of {of_node} {cluster.device.name}"]
        if (cluster.devices_per_host or of_node) < of_node:
            lines[0] += (
                f", on hosts of {cluster.devices_per_host} (up to {of_node} count as one node)"
            )
        groups = ((self.within, "GPU"), (self.between, "node"))[-len(cluster.links) :]
        for link, (tests, whose) in zip(cluster.links, groups, strict=True):
            rate = f"  {link.name}: {(link.bytes_per_s or 0) / 1e9:,.0f} GB/s of a {whose} and direction"
            lines.append(
                f"{rate}, from {counted(len(tests), 'test')}" if tests else f"{rate}, not tested"
            )
        for (collective, several), ratio in self.ratios.items():
            where = "between nodes" if several else "within a node"
            more = "longer" if ratio >= 1 else "shorter"
            lines.append(
                f"  {collective} {where}: simulated {percent(100 * abs(ratio - 1))} {more} than measured"
            )
        if cluster.links[0].switch_sums and {test.collective for test in self.within} == {
            "all_reduce"
        }:
            lines.append(
                "  all-reduces alone do not show whether the switches sum them, as is assumed; run "
                "all_gather_perf within a node, too"
            )
        most = max(test.gpus for test in (*self.within, *self.between))
        if most < of_node:
            lines.append(
                f"  tests took {most} of {of_node} GPUs of a node, and its links to others are taken to be "
                f"{of_node}/{most} of what they show; if a node has {most}: --platform NAME:gpus={most}"
            )
        return "\n".join(lines)


def _parts(tests: Iterable[CollectiveTest], large: bool) -> list[CollectiveTest]:
    """The tests, only with their points of large buffers (``large``) or of small ones. Tests of one
    collective on the same GPUs become one test."""
    alike: dict[tuple[str, int, int], CollectiveTest] = {}
    for test in tests:
        shape = (test.collective, test.nodes, test.gpus)
        before = alike[shape].points if shape in alike else ()
        points = [
            p for p in test.points if (p[0] >= _LARGE_BYTES if large else p[0] <= _SMALL_BYTES)
        ]
        alike[shape] = replace(test, points=(*before, *points))
    return [test for test in alike.values() if test.points]


def _ratios(platform: Platform, tests: Sequence[CollectiveTest]) -> Floats:
    """Simulated over measured seconds of all points."""
    measured = np.array([seconds for test in tests for _, seconds in test.points])
    simulated = np.concatenate([simulated_seconds(platform, test) for test in tests])
    ratios: Floats = simulated / measured
    return ratios


def _fitted(
    platform: Platform, tests: Sequence[CollectiveTest], level: int, large: bool
) -> Platform:
    """Fit the rate of a link to large buffers, or its latency to small ones: multiply it by the factor with
    the least error of the tests. If it is the first link, the launch is multiplied, too."""
    tests = _parts(tests, large)
    if not tests:
        return platform
    cluster = platform.require_cluster()
    link = cluster.links[level]

    def there(logarithm: float) -> Platform:
        factor, links = math.exp(logarithm), list(cluster.links)
        fact, known = ("bytes_per_s", link.bytes_per_s) if large else ("latency_s", link.latency_s)
        links[level] = link.model_copy(update={fact: factor * (known or _LEAST_S)})
        launch_s = cluster.collective_launch_s
        if not large and level == 0:
            launch_s = factor * (launch_s or _LEAST_S)
        return _changed(platform, links=tuple(links), collective_launch_s=launch_s)

    def off(logarithm: float) -> Floats:
        return np.log(_ratios(there(logarithm), tests))

    # If another link limits the speed, the rate of this link has no effect. A descent from such a point does
    # not move.
    first = min(_TRIED, key=lambda tried: np.log1p((off(tried) / _ODD) ** 2).sum())
    found = least_squares(lambda x: off(float(x[0])), [first], loss="cauchy", f_scale=_ODD)
    return there(float(found.x[0]))


def _with_sums(platform: Platform, all_reduces: Sequence[CollectiveTest]) -> Platform:
    """Fit the share of the link's rate that all-reduces within a node reach because the switches sum. It is
    ``None`` if a ring explains them as well."""
    tests = _parts(all_reduces, large=True)
    if not tests:
        return platform
    inner, *outer = platform.require_cluster().links

    def there(share: float | None) -> Platform:
        link = inner.model_copy(update={"switch_sums": share})
        return _changed(platform, links=(link, *outer))

    def off(share: float | None) -> float:
        errors = np.log(_ratios(there(share), tests)) / _ODD
        return float(np.log1p(errors**2).sum())

    return there(min((None, *_SHARES), key=off))


def _by_racks(test: CollectiveTest, cluster: Cluster) -> CollectiveTest:
    """The test, with a rack as a node if NVLink joins the hosts of a rack. The log names only the hosts."""
    ranks, of_rack = test.nodes * test.gpus, cluster.devices_per_node
    if (cluster.devices_per_host or of_rack) >= of_rack:
        return test
    if ranks > of_rack and ranks % of_rack:
        raise JoulecastError(
            f"{test.file}: {ranks} GPUs are no whole number of racks of {of_rack}; say how many GPUs of a "
            "rack took part, as --platform gb200:gpus=64"
        )
    racks = max(1, ranks // of_rack)
    return replace(test, nodes=racks, gpus=ranks // racks)


def fit_links(platform: Platform, tests: Sequence[CollectiveTest]) -> ClusterLinks:
    """Fit the links of a platform to collectives that were timed on it.

    Between nodes, only the tests with the most GPUs of a node are used. In the other tests, some network
    cards have no work.

    Raises:
        JoulecastError: the platform has other levels of links, or fewer GPUs in a node than a test used; or
            no test sends over one of the links.
    """
    cluster = platform.require_cluster()
    levels = 2 if cluster.devices_per_node > 1 else 1
    if len(cluster.links) != levels or None in [link.bytes_per_s for link in cluster.links]:
        raise JoulecastError(
            f"platform {platform.name}: one link within a node and one between nodes are needed, with rates; "
            "give a GPU by name, as --platform h100-sxm"
        )
    found = [
        test
        for test in (_by_racks(test, cluster) for test in tests)
        if test.collective in _KINDS
        and test.nodes * test.gpus > 1
        and max(test.points)[0] >= _LARGE_BYTES
    ]
    if not found:
        raise JoulecastError(
            f"{tests[0].file}: no test of several GPUs and of {_LARGE_BYTES >> 20} MiB or more; run "
            "all_reduce_perf, all_gather_perf, reduce_scatter_perf or alltoall_perf with "
            "`-b 8 -e 1G -f 2`"
        )
    largest = max(found, key=lambda test: test.gpus)
    if largest.gpus > cluster.devices_per_node:
        raise JoulecastError(
            f"{largest.file}: nodes of {largest.gpus} GPUs, but a node of platform {platform.name} has "
            f"{cluster.devices_per_node}; give --platform {platform.name}:gpus={largest.gpus}"
        )
    within = [test for test in found if test.nodes == 1]
    between = [test for test in found if test.nodes > 1]
    widest = max((test.gpus for test in between), default=0)
    between = [test for test in between if test.gpus == widest]
    others = [test for test in within if test.collective != "all_reduce"]
    platform = _fitted(platform, within, 0, large=False)
    if others and cluster.links[0].switch_sums is not None:
        platform = _fitted(platform, others, 0, large=True)
        platform = _with_sums(platform, [test for test in within if test not in others])
    else:
        platform = _fitted(platform, within, 0, large=True)
    for large in (False, True):
        platform = _fitted(platform, between, levels - 1, large)
    ratios: dict[tuple[str, bool], list[float]] = {}
    for test in _parts(within + between, large=True):
        of_kind = ratios.setdefault((test.collective, test.nodes > 1), [])
        of_kind += _ratios(platform, [test]).tolist()
    medians = {key: median(each) for key, each in ratios.items()}
    return ClusterLinks(platform, within, between, medians)


def platform_of(tests: Sequence[CollectiveTest]) -> Platform:
    """The platform, by the name of the GPU in the logs.

    Raises:
        JoulecastError: the GPU is not in the catalogue, or the logs name several GPUs.
    """
    names = sorted({test.gpu for test in tests})
    if len(names) > 1:
        raise JoulecastError(
            f"{tests[0].file} and other logs name several GPUs ({', '.join(names)}); import only the logs of "
            "one cluster"
        )
    gpu = gpu_in(names[0])
    if gpu is None:
        raise JoulecastError(
            f"{tests[0].file}: {names[0]} is not known by that name; say what a node is, as --platform "
            f"h100-sxm:gpus=8 (known: {', '.join(gpu_names())})"
        )
    return find_platform(gpu)


def write_platform(found: ClusterLinks, path: Path) -> None:
    """Write the platform file of a cluster with fitted links. The name of the platform is the name of the
    file."""
    cluster = found.platform.require_cluster()
    tests = {"within a node": found.within, "between nodes": found.between}
    counts = " and ".join(f"{len(of)} {where}" for where, of in tests.items() if of)
    links = f"fitted to collectives of nccl-tests, {counts}"
    if sum(map(bool, tests.values())) < len(cluster.links):
        links += f"; the others: {cluster.sources.get('links', 'not known')}"
    described = cluster.model_copy(update={"sources": {**cluster.sources, "links": links}})
    content = {
        **found.platform.model_dump(mode="json", exclude_defaults=True),
        "name": path.stem,
        "cluster": described.model_dump(mode="json", exclude_defaults=True),
    }
    with written_aside(path) as partial:
        partial.write_text(yaml.safe_dump(content, sort_keys=False))
