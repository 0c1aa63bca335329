"""The scaling forecast of a campaign: its own platform as measured, others by their files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.energy.fitting import CampaignFit
from joulecast.energy.observations import allreduce_points
from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Cost, Costs, Direction, Parts, roofline_of, roofline_or_refusal
from joulecast.graphs.database import MeasuredCosts, joined, read_database
from joulecast.graphs.opgraph import Op, OpGraph, read_graph
from joulecast.platforms import read_platform
from joulecast.simulator.calibration import (
    calibrate_network,
    calibrated,
    read_calibration,
    write_calibration,
)
from joulecast.tables.strategies import Setting, scaling_forecast


@dataclass(frozen=True)
class ForecastFiles:
    """What a forecast is made of; the first platform is the campaign's own."""

    fits: Path
    network: Path
    """Calibration of the network between the campaign's nodes."""
    graphs: list[Path]
    ops: list[Path]
    platforms: list[Path]


@dataclass(frozen=True)
class _Slower:
    """Costs of an emulated node, which computes so many times slower than the core that was measured."""

    costs: Costs
    times: float

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        known = self.costs.cost(graph, op, parts, direction)
        return Cost(known.seconds * self.times, known.source)

    def optimizer(self, parameter_bytes: float) -> Cost:
        known = self.costs.optimizer(parameter_bytes)
        return Cost(known.seconds * self.times, known.source)


def calibrate_campaign(records: list[Path], out: Path) -> None:
    """Calibrate the network between a campaign's nodes by its runs of the all-reduce alone.

    Raises:
        JoulecastError: the records hold none.
    """
    points = allreduce_points(records)
    points = points.rename(columns={"copy_s": "seconds"}).assign(kind="all_reduce")
    write_calibration(calibrate_network(points), out)


def _own(files: ForecastFiles, config: Mapping[str, Any]) -> Setting:
    """The campaign's platform: ops measured on it, its link from its own all-reduces."""
    platform = read_platform(files.platforms[0])
    batch = int(config["scale"]["batch_size"])
    if platform.cluster is None:
        why = f"platform {platform.name}: its file has no key `cluster`"
        return Setting(platform, None, batch, why)
    if not files.ops:
        why = "op costs were not measured here (configuration key simulator.profile_ops)"
        return Setting(platform, None, batch, why)
    database = joined([read_database(path) for path in files.ops])
    costs: Costs = MeasuredCosts(database, roofline_or_refusal(platform))
    emulation = config.get("emulation")
    if emulation:
        costs = _Slower(costs, float(emulation["nodes_per_core"]))
    return Setting(calibrated(platform, read_calibration(files.network)), costs, batch)


def _other(path: Path, config: Mapping[str, Any]) -> Setting:
    platform = read_platform(path)
    section = config["simulator"]
    try:
        costs = roofline_of(platform, section["precision"])
    except JoulecastError as error:
        return Setting(platform, None, int(section["batch_size"]), str(error))
    return Setting(platform, costs, int(section["batch_size"]))


def forecast_campaign(files: ForecastFiles, config: Mapping[str, Any]) -> pd.DataFrame:
    """Forecast a campaign's networks on its own platform and on others.

    Args:
        files: graphs, op databases, fits, network calibration and platform files.
        config: the sections ``simulator``, ``scale`` and ``emulation`` of the configuration.

    Returns:
        the rows of :func:`joulecast.tables.strategies.scaling_forecast`.
    """
    graphs = [read_graph(path) for path in files.graphs]
    own = _own(files, config)
    others = [_other(path, config) for path in files.platforms[1:]]
    fits = {own.platform.name: CampaignFit.load(files.fits)}
    return scaling_forecast(graphs, [own, *others], config["simulator"]["nodes"], fits)
