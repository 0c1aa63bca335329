"""Figures of what was predicted against what was measured: of the campaign's models and of the simulator."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from joulecast.energy.evaluation import MEASURED, SETTING, settings
from joulecast.energy.fitting import CampaignFit
from joulecast.energy.scale import scale_in_words, scales_are
from joulecast.quantities import digits, joules, percent, seconds
from joulecast.report import held_out
from joulecast.report.figures.look import (
    GREY,
    INK,
    Chart,
    Figure,
    colours,
    emulated,
    nothing,
    save,
    shapes,
    titled,
    tooltips,
    value_axis,
    value_scale,
    values,
)
from joulecast.report.grid import Table
from joulecast.report.results_folder import Results

_MOST_NAMES = 7
_OTHERS = "others"
_SIMULATOR_BAND = 3.0
"""Percent, upwards and downwards, of the band about equality."""


def predicted_against_measured(results: Results) -> Figure:
    """MC2's predictions of settings that its fit had not seen, times and energies each on their own.

    Raises:
        NothingToShow: nothing was fitted.
    """
    time = held_out.unseen_times(results)
    charts = [_against_runs(_Panel("Predicted and measured time", "measured time", "s", time))]
    found = [time]
    for source, cells in held_out.unseen_energies(results):
        found.append(cells.assign(source=source))
        charts.append(
            _against_runs(_Panel(f"Predicted and {source} energy", f"{source} energy", "J", cells))
        )
    rows = [
        (
            str(row.network),
            str(row.nodes),
            digits(row.batch),
            _what(row),
            in_words(row.measured),
            in_words(row.predicted),
            percent(row.difference_percent, signed=True),
        )
        for cells, in_words in zip(found, [seconds, *[joules] * len(found)], strict=False)
        for row in cells.itertuples()
    ]
    scale = scales_are(pd.concat([cells["nodes_are"] for cells in found]))
    columns = ("network", scale, "batch", "quantity", "in the runs", "predicted", "off by")
    numeric = frozenset(columns) - {"network", "quantity"}
    table = Table("Predicted against measured", columns, rows, numeric, "tables/time_error")
    return Figure(
        "predicted",
        "Is the forecast right?",
        charts,
        " ".join([*held_out.error_sentences(results), *held_out.more_on_errors(results)]),
        "Each point is a setting: a network on so many nodes. On the line the forecast was right; above it, "
        f"too high. {held_out.split_sentence(time['split'].iloc[0])}",
        [table],
        files=("tables/time_error", "tables/energy_error"),
    )


def _what(row: Any) -> str:
    source = getattr(row, "source", None)
    return "time" if source is None else f"energy ({source})"


@dataclass(frozen=True)
class _Panel:
    """Settings of one chart, and the quantity that is compared in them."""

    title: str
    what: str
    unit: str
    cells: pd.DataFrame
    size: int = 90


def campaign_predictions(fit: CampaignFit, stem: Path, band_percent: float) -> None:
    """Write MC2's predictions of settings that its fit had not seen against the runs, by split.

    Args:
        band_percent: the error that the paper publishes, shaded.
    """
    panels = _held_out(fit)
    cells = pd.concat([panel.cells for panel in panels])
    charts = [
        nothing(f"no {panel.what} was predicted", panel.title)
        if panel.cells.empty
        else _against_runs(panel, cells, band_percent)
        for panel in panels
    ]
    below = f"Shaded: {band_percent:g} % either way{emulated(fit.times)}."
    title = "MC2's predictions of settings that its fit had not seen"
    save(charts, stem, title, below, columns=3, width=300, one_legend=True)


def _held_out(fit: CampaignFit) -> list[_Panel]:
    """Times and energies by what the fit had not seen."""
    times = fit.times[fit.times["model"] == "MC2"]
    energy = fit.energies[fit.energies["model"] == "MC2"]
    # Estimates are shown where there is nothing else, never among measurements.
    measured = energy["energy_source"].isin(MEASURED)
    energy = energy[measured] if measured.any() else energy
    what = f"{'/'.join(sorted(set(energy['energy_source'].dropna()))) or 'measured'} energy"
    counts, workloads = "leave-one-node-count-out", "leave-one-workload-out"
    of_counts = energy[(energy["split"] == counts) & (energy["time"] == "predicted")]
    of_workloads = energy[(energy["split"] == workloads) & (energy["time"] == "given")]
    return [
        _Panel(title, quantity, unit, settings(rows, SETTING))
        for title, quantity, unit, rows in (
            ("Node counts not seen", "measured time", "s", times[times["split"] == counts]),
            ("Node counts not seen, time predicted", what, "J", of_counts),
            ("Workloads not seen, time given", what, "J", of_workloads),
        )
    ]


def simulator_predictions(judged: pd.DataFrame, stem: Path) -> None:
    """Write every judged configuration's simulated step against its measured one, a chart an experiment."""
    charts = []
    for name, group in judged.groupby("experiment", sort=False):
        points = group.assign(measured=group["measured_s"], predicted=group["predicted_s"])
        title = f"{name} ({'/'.join(sorted(set(group['source'])))})"
        panel = _Panel(title, "measured step", "s", points, size=40)
        families = "family", list(dict.fromkeys(points["family"]))
        charts.append(
            _against(panel, families, families, ("configuration",), "simulated", _SIMULATOR_BAND)
        )
    below = f"Shaded: {_SIMULATOR_BAND:g} % either way."
    drawn = charts or [nothing("no configuration was judged")]
    save(drawn, stem, "Simulated steps against measured ones", below)


def _against_runs(
    panel: _Panel, of_figure: pd.DataFrame | None = None, band_percent: float | None = None
) -> Chart:
    """A chart of settings by network (colour) and node count (shape).

    Args:
        of_figure: settings of all charts that the legends are shared with.
    """
    cells, what = panel.cells, panel.what
    legends = cells if of_figure is None else of_figure
    names = sorted(set(_few(legends["network"].astype(str))))
    network = cells["network"].astype(str)
    in_words = seconds if panel.unit == "s" else joules
    shown = pd.DataFrame(
        {
            "measured": cells["measured"].astype(float),
            "predicted": cells["predicted"].astype(float),
            "network": network.where(network.isin(names), _OTHERS),
            "nodes": cells["nodes"].astype(int).astype(str),
            "setting": [
                f"{row.network}, {scale_in_words(row.nodes, row.nodes_are)}, batch {digits(row.batch)}"
                for row in cells.itertuples()
            ],
            what: cells["measured"].map(in_words),
            "predicted by MC2": cells["predicted"].map(in_words),
            "off by": [percent(d, signed=True) for d in cells["difference_percent"]],
        }
    )
    counts = [str(count) for count in sorted(set(legends["nodes"].astype(int)))]
    hover = ("setting", what, "predicted by MC2", "off by")
    drawn = replace(panel, cells=shown)
    return _against(drawn, ("network", names), ("nodes", counts), hover, "predicted", band_percent)


def _few(names: pd.Series) -> pd.Series:
    """The names that most rows have; the rest are ``others``, so that there are colours for all."""
    most = names.value_counts().index[:_MOST_NAMES]
    if names.nunique() <= len(most):
        return names
    return names.where(names.isin(most[:-1]), _OTHERS)


def _against(
    panel: _Panel,
    colour: tuple[str, Sequence[str]],
    shape: tuple[str, Sequence[str]],
    hover: Sequence[str],
    made: str,
    band_percent: float | None,
) -> Chart:
    """A point a row of ``measured`` and ``predicted``, around the line on which they are equal.

    Args:
        colour: column that colours tell apart, and its values in order; so ``shape``.
        made: how predictions were made, for their axis.
    """
    shown = panel.cells
    scale = value_scale(shown["measured"], shown["predicted"])
    ticks = value_axis(scale)
    x = alt.X("measured:Q", title=f"{panel.what}, {panel.unit}", scale=scale, axis=ticks)
    y = alt.Y("predicted:Q", title=f"{made}, {panel.unit}", scale=scale, axis=ticks)
    ends = pd.DataFrame({"measured": scale.domain, "predicted": scale.domain})
    line = alt.Chart(values(ends)).mark_line(color=INK, strokeWidth=1, clip=True)
    points = (
        alt.Chart(values(shown))
        .mark_point(filled=True, size=panel.size, opacity=0.9, stroke=INK, strokeWidth=0.6)
        .encode(
            x=x,
            y=y,
            color=alt.Color(f"{colour[0]}:N", scale=colours(colour[1])),
            shape=alt.Shape(f"{shape[0]}:N", scale=shapes(shape[1])),
            tooltip=tooltips(*hover),
        )
    )
    drawn = line.encode(x=x, y=y) + points
    if band_percent is None:
        return titled(drawn, panel.title)
    off = band_percent / 100 * ends["measured"]
    within = ends.assign(predicted=ends["measured"] - off, high=ends["measured"] + off)
    band = alt.Chart(values(within)).mark_area(color=GREY, opacity=0.25, clip=True)
    return titled(band.encode(x=x, y=y, y2="high:Q") + drawn, panel.title)
