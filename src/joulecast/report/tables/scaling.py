"""The scaling forecast of a campaign: its own platform as measured, others by their files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.energy.fitting import CampaignFit, KnownRuns, disturbance_notes
from joulecast.energy.forecast import forecast_table
from joulecast.energy.prices import NO_PRICES, Prices
from joulecast.energy.request import Scales
from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs, Scaled, roofline_of, roofline_or_refusal
from joulecast.graphs.database import MeasuredCosts, joined, read_database
from joulecast.graphs.kernel_costs import kernel_costs_of
from joulecast.graphs.opgraph import read_graph
from joulecast.report.tables.errors import scaling
from joulecast.report.tables.output import write_table
from joulecast.report.tables.priced import price_notes, priced_forecast
from joulecast.report.tables.simulated_scaling import Setting, scaling_forecast
from joulecast.runs.observations import allreduce_points
from joulecast.runs.platforms import read_platform
from joulecast.runs.scale import is_observed
from joulecast.simulate.network_calibration import (
    calibrate_network,
    calibrated,
    read_calibration,
    write_calibration,
)
from joulecast.simulate.strategy import Strategy

_KEY = ["network", "platform", "nodes"]
_FIGURES = (
    "devices",
    "batch_per_device",
    "samples_per_s",
    "samples_per_s_low",
    "samples_per_s_high",
    "joules_per_sample",
    "joules_per_sample_low",
    "joules_per_sample_high",
    "energy_source",
    "step_s",
)


@dataclass(frozen=True)
class ForecastFiles:
    """What a forecast is made of; the first platform is the campaign's own."""

    fits: Path
    network: Path
    """Calibration of the network between the campaign's nodes."""
    graphs: list[Path]
    ops: list[Path]
    platforms: list[Path]


def calibrate_campaign(records: list[Path], out: Path) -> None:
    """Calibrate the network between a campaign's nodes by its runs of the all-reduce alone.

    Raises:
        JoulecastError: the records hold none.
    """
    points = allreduce_points(records)
    points = points.rename(columns={"copy_s": "seconds"}).assign(kind="all_reduce")
    write_calibration(calibrate_network(points), out)


def _own(files: ForecastFiles, config: Mapping[str, Any]) -> Setting:
    """The campaign's platform and settings: ops measured on it, its link from its own all-reduces."""
    platform = read_platform(files.platforms[0])
    scale, training = config["scale"], config["training"]
    weak, ranks = scale["scaling"] == "weak", int(scale["ranks_per_node"])
    batch = int(scale["batch_size"]) // (ranks if weak else 1)
    step = Strategy(overlap=training["overlap"], bucket_bytes=training["bucket_mb"] * 1e6)

    def not_simulated(why: str) -> Setting:
        return Setting(platform, None, batch, why, step, not weak)

    if platform.cluster is None:
        return not_simulated(f"platform {platform.name}: its file has no key `cluster`")
    if platform.cluster.devices_per_node != ranks:
        return not_simulated(
            f"the campaign has {ranks} ranks on a node (scale.ranks_per_node), the file of platform "
            f"{platform.name} {platform.cluster.devices_per_node} devices (cluster.devices_per_node)"
        )
    if not files.ops:
        return not_simulated(
            "op costs were not measured here (configuration key simulator.profile_ops)"
        )
    database = joined([read_database(path) for path in files.ops])
    costs: Costs = MeasuredCosts(database, roofline_or_refusal(platform))
    emulation = config.get("emulation")
    if emulation:
        costs = Scaled(costs, float(emulation["nodes_per_core"]))
    linked = calibrated(platform, read_calibration(files.network))
    return Setting(linked, costs, batch, step=step, is_strong=not weak)


def _other(path: Path, config: Mapping[str, Any]) -> Setting:
    platform = read_platform(path)
    section = config["simulator"]
    try:
        precision = section["precision"]
        costs = kernel_costs_of(platform, precision) or roofline_of(platform, precision)
    except JoulecastError as error:
        return Setting(platform, None, int(section["batch_size"]), str(error))
    return Setting(platform, costs, int(section["batch_size"]))


def fitted_forecast(fit: CampaignFit, nodes: Sequence[int]) -> pd.DataFrame:
    """What a campaign's own runs say of their platform: as they were measured, and as MC2 forecasts.

    Args:
        fit: of the campaign.
        nodes: node counts to forecast; those that were measured are added.

    Returns:
        rows as of :func:`~joulecast.report.tables.simulated_scaling.scaling_forecast`, with 90 % intervals
        (``_low``, ``_high``); ``rests_on`` is ``measured`` or ``fitted``.
    """
    runs = KnownRuns.of_fit(fit)
    trained = runs.trained
    trained = trained[trained["kind"] == "training"]
    if trained.empty:
        return pd.DataFrame()
    counts = sorted({*nodes, *(int(count) for count in trained["nodes"])})
    observed = is_observed(trained)
    asked = Scales(gpus=counts) if observed else Scales(nodes=counts)
    forecasts, _ = forecast_table(runs, asked)
    forecasts = forecasts[forecasts["platform"].isin(trained["platform"])]
    ranks = float((trained["ranks"] / trained["nodes"]).median())
    # The last step counts in full.
    steps = np.ceil(forecasts["work"] / forecasts["batch_size"] - 1e-9)
    done = steps * forecasts["batch_size"]
    scales = forecasts["gpus" if observed else "nodes"]
    fitted = pd.DataFrame(
        {
            "network": forecasts["workload"],
            "platform": forecasts["platform"],
            "nodes": scales,
            "batch_per_device": forecasts["batch_size"] / (scales * ranks),
            "step_s": forecasts["time_s"] / steps,
            "samples_per_s": done / forecasts["time_s"],
            "samples_per_s_low": done / forecasts["time_high_s"],
            "samples_per_s_high": done / forecasts["time_low_s"],
            "joules_per_sample": forecasts["energy_j"] / done,
            "joules_per_sample_low": forecasts["energy_low_j"] / done,
            "joules_per_sample_high": forecasts["energy_high_j"] / done,
            "energy_source": "fitted to " + forecasts["fitted_on"],
            "basis": forecasts["rests_on"],
        }
    ).assign(rests_on="fitted")
    ran = scaling(trained).rename(
        columns={
            "workload": "network",
            "batch_per_rank": "batch_per_device",
            "work_per_s": "samples_per_s",
            "joules_per_work": "joules_per_sample",
        }
    )
    ran = ran.assign(
        rests_on="measured",
        step_s=ran["batch_per_device"] * ranks * ran["nodes"] / ran["samples_per_s"],
    )
    # The batch that the forecast keeps; its rounding decides nothing.
    kept = fitted.set_index(_KEY)["batch_per_device"].reindex(pd.MultiIndex.from_frame(ran[_KEY]))
    ran = ran[np.isclose(ran["batch_per_device"], kept.to_numpy(float), rtol=1e-6)]
    columns = [column for column in fitted if column in ran]
    both = pd.concat([ran[columns], fitted], ignore_index=True)
    return both.assign(devices=both["nodes"] * ranks)


def checked_forecast(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with their efficiency, and how far they are off where the same setting was measured.

    ``efficiency_percent`` is the speed of a node over that on the fewest nodes in rows of the same kind.
    """
    per_node = rows["samples_per_s"] / rows["nodes"]
    of_kind = rows.sort_values("nodes", kind="stable").index
    alike = [rows[key] for key in ("network", "platform", "rests_on")]
    first = per_node.loc[of_kind].groupby(alike, sort=False).transform("first")
    table = rows.assign(efficiency_percent=100 * per_node / first)
    ran = table[table["rests_on"] == "measured"].set_index(_KEY)
    for column, name in (
        ("step_s", "time_off_percent"),
        ("joules_per_sample", "energy_off_percent"),
    ):
        there = ran[column].reindex(pd.MultiIndex.from_frame(table[_KEY])).to_numpy(float)
        off = 100 * (table[column].to_numpy(float) / there - 1)
        table[name] = np.where(table["rests_on"] == "measured", np.nan, off)
    return table


def forecast_campaign(files: ForecastFiles, config: Mapping[str, Any]) -> pd.DataFrame:
    """Forecast a campaign's networks on its own platform and on others.

    Args:
        files: graphs, op databases, fits, network calibration and platform files.
        config: the sections ``simulator``, ``scale``, ``training`` and ``emulation`` of the configuration.

    Returns:
        the rows of :func:`fitted_forecast` and of
        :func:`joulecast.report.tables.simulated_scaling.scaling_forecast`, as
        :func:`checked_forecast` has them.
    """
    graphs = [read_graph(path) for path in files.graphs]
    own = _own(files, config)
    others = [_other(path, config) for path in files.platforms[1:]]
    fit = CampaignFit.load(files.fits)
    nodes = config["simulator"]["nodes"]
    known = fitted_forecast(fit, nodes)
    ran = sorted({*nodes, *(int(count) for count in known.get("nodes", ()))})
    of_own = scaling_forecast(graphs, [own], ran, {own.platform.name: fit})
    rows = [known, of_own, scaling_forecast(graphs, others, nodes, {})]
    table = pd.concat([part for part in rows if len(part)], ignore_index=True)
    first = [*_KEY, "rests_on", *_FIGURES]
    checked = checked_forecast(
        table.reindex(columns=[*first, *table.columns.difference(first, sort=False)])
    )
    checked.attrs["notes"] = disturbance_notes(fit.observations)
    return checked


def write_scaling_forecast(
    folder: Path, forecast: pd.DataFrame, prices: Prices = NO_PRICES, on_gpus: bool = False
) -> None:
    """Write the table ``scaling_forecast``.

    Args:
        folder: of the tables.
        forecast: of :func:`forecast_campaign`.
        prices: for hours, kWh, money and CO2.
        on_gpus: whether the campaign's own ranks are GPUs.
    """
    write_table(
        folder / "scaling_forecast",
        "What the networks would take on many nodes",
        [
            *forecast.attrs.get("notes", []),
            *price_notes(prices),
            "Data parallel. `rests_on` says how a row is known. On the campaign's own platform the forecast "
            "is `fitted`: MC2, fitted to the campaign's runs, with 90 % intervals (`_low`, `_high`), as "
            "`joulecast forecast` gives it; `basis` says which runs. `measured` rows are means of runs.",
            "`simulated` rows are a second opinion there, with the campaign's own overlap, buckets and "
            "batches, and all that there is for other platforms, which are taken at their files' rates. "
            "Their joules have the powers that MC2 was fitted to.",
            "`time_off_percent` and `energy_off_percent` compare with the measured row of the same node "
            "count (`fitted` has seen it). `basis` also says why a row has no figures.",
        ],
        priced_forecast(forecast, prices, on_gpus),
        sections="platform",
    )
