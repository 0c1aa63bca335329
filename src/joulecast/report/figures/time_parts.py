"""Figures of parts: what stages take of a run's time and energy, and of a simulated step."""

from collections.abc import Callable, Mapping
from pathlib import Path

import altair as alt
import pandas as pd

from joulecast.energy.scale import scale_in_words, unit_of
from joulecast.quantities import counted, digits, listed, percent
from joulecast.report import answers
from joulecast.report.figures.look import (
    INK,
    PARTS,
    PHASES,
    STEP,
    Chart,
    Figure,
    blocks,
    emulated,
    nothing,
    row_axis,
    save,
    titled,
    values,
)
from joulecast.report.grid import Table
from joulecast.report.results_folder import NothingToShow, Results, having

_MOST_BARS = 36
_ROW_HEIGHT, _LOW_ROW_HEIGHT = 30, 16
_LABELLED_PERCENT = 9.0
"""Share of the longest bar from which a part is wide enough for a number."""
STAGES = dict(
    zip(
        PARTS,
        ("materials", "computing", "communicating_wait", "communicating_copy", "update", "other"),
        strict=True,
    )
)
"""Names that people read, and those of records."""
_PHASES = {name: name for name in PHASES}
_STEP_COLUMNS = dict(zip(("computing_s", "exposed_communication_s", "bubble_s"), STEP, strict=True))


def stage_shares(results: Results) -> Figure:
    """Parts of the time of a run by network and node count, each bar 100 %.

    Raises:
        NothingToShow: no training was measured, or its parts are not known.
    """
    clean = answers.usual_batch(results.clean)
    imported = clean["kind"] == "imported"
    charts, tables = [], []
    for of_kind, parts in ((clean[~imported], STAGES), (clean[imported], _PHASES)):
        if len(of_kind):
            shares = _shares(of_kind, parts)
            unit = unit_of(of_kind["nodes_are"].iloc[0])
            charts.append(_share_bars(shares.head(_MOST_BARS), unit))
            tables.append(_share_table(shares, unit))
    shown = sum(len(table.rows) for table in tables)
    cut = f" The first {_MOST_BARS} bars of {shown}; all are in the table."
    return Figure(
        "stages",
        "Where does the time go?",
        charts,
        _share_finding(clean),
        "Each bar is a whole run. Loading is of samples; waiting is for slower nodes; exchanging is of "
        "gradients, over the network after every step; updating is of weights."
        + (cut if shown > _MOST_BARS else ""),
        tables,
        files=("tables/scaling",),
    )


def _shares(runs: pd.DataFrame, parts: Mapping[str, str]) -> pd.DataFrame:
    """Percent of the time by workload and node count (the index), a column a part."""
    is_phase = "training" in parts
    columns = [f"{column}_s" if is_phase else f"t_{column}_s" for column in parts.values()]
    having(runs, (*columns, "total_s", "steps"), "fits/observations.parquet", "fits")
    factor = 1 if is_phase else runs["steps"]
    percents = {
        name: 100 * runs[column] * factor / runs["total_s"]
        for name, column in zip(parts, columns, strict=True)
    }
    table = pd.DataFrame(percents).clip(lower=0)
    means = table.groupby([runs["workload"], runs["nodes"]]).mean().dropna(how="all")
    if means.empty:
        raise NothingToShow("the records tell no parts of the time", "measure")
    return means


def _share_bars(shares: pd.DataFrame, unit: str) -> Chart:
    # Nodes first: the end of a long name is cut off.
    names = [f"{counted(nodes, unit)}, {workload}" for workload, nodes in shares.index]
    return stacked(
        shares.set_axis(names),
        PARTS if set(shares.columns) == set(PARTS) else PHASES,
        "Parts of the time, percent",
        "percent of the run",
        whole=100,
        what="share of the time",
        in_words=percent,
        label=lambda share: f"{share:.0f}",
    )


def _share_table(shares: pd.DataFrame, unit: str) -> Table:
    columns = ("network", f"{unit}s", *(f"{part}, %" for part in shares.columns))
    rows = [
        (str(workload), str(nodes), *(digits(share, 2) for share in row))
        for (workload, nodes), row in zip(shares.index, shares.to_numpy(), strict=True)
    ]
    what = "stages" if set(shares.columns) == set(PARTS) else "phases of imported runs"
    return Table(f"Parts of the time in percent, {what}", columns, rows, frozenset(columns[1:]))


def _share_finding(clean: pd.DataFrame) -> str:
    """Time of communication on the most nodes, compared with that on the fewest."""
    own = clean[clean["kind"] != "imported"]
    if own.empty:
        return "All runs are imported: logs tell how long their phases took, not what nodes waited for."
    are = own["nodes_are"].iloc[0]
    if own["nodes"].nunique() < 2:
        where = listed([answers.nodes_in_words(n, are) for n in sorted(set(own["nodes"]))])
        which = "All runs" if len(own) == len(clean) else "All runs measured here"
        return f"{which} are {where}, so growth cannot be judged."
    shares = _shares(own, STAGES)
    together = shares["waiting"] + shares["exchanging"]
    parts = []
    for workload, of_workload in together.groupby(level=0):
        few, many = of_workload.index[0][1], of_workload.index[-1][1]
        if few != many:
            growth = f"{percent(of_workload.iloc[0])} on {few}"
            parts.append(
                f"{workload} {percent(of_workload.iloc[-1])} on {scale_in_words(many, are)} ({growth})"
            )
    return f"Share of waiting and exchanging: {listed(parts)}." if parts else ""


def stage_times(training: pd.DataFrame, stem: Path) -> None:
    """Write the time of a step by stage and node count, a chart a network; imported runs tell no stages."""
    staged = answers.usual_batch(training[training["kind"] == "training"])
    columns = {f"t_{column}_s": name for name, column in STAGES.items()}
    charts = [
        stacked(
            _by_nodes(of_network[list(columns)].rename(columns=columns), of_network["nodes"]),
            *(PARTS, str(network), "seconds of a step"),
        )
        for network, of_network in staged.groupby("network")
    ]
    below = f"Means over runs and ranks, measured by the clock of every rank{emulated(staged)}."
    save(
        charts or [nothing("no run tells its stages")],
        *(stem, "Time of a step", below),
        one_legend=True,
    )


def stage_energies(training: pd.DataFrame, stem: Path) -> None:
    """Write the energy of a unit of work by stage (of imported runs: by phase) and node count.

    There is a chart for each workload and source of energies.
    """
    metered = answers.usual_batch(training[training["energy_j"].notna()])
    charts, palettes = [], []
    for (_, source), cell in metered.groupby(["workload", "energy_source"]):
        parts, palette, work = _energies(cell)
        title = f"{cell['network'].iloc[0]} on {cell['platform'].iloc[0]}"
        per_work = _by_nodes(parts.div(cell["samples"], axis="index"), cell["nodes"])
        axis = f"joules per {work} ({source})"
        charts.append(stacked(per_work, palette, title, axis))
        palettes.append(palette)
    below = f"Means over runs{emulated(metered)}."
    save(
        charts or [nothing("no run has an energy")],
        *(stem, "Energy of a unit of work", below),
        one_legend=all(palette is PARTS for palette in palettes),
    )


def _energies(cell: pd.DataFrame) -> tuple[pd.DataFrame, Mapping[str, str], str]:
    """Joules of each part by run, the parts' palette, and what work is counted in."""
    if cell["kind"].iloc[0] != "imported":
        columns = {f"e_{column}_j": name for name, column in STAGES.items()}
        return cell[list(columns)].rename(columns=columns), PARTS, "sample"
    parts = cell[["training_j", "evaluating_j"]].set_axis(
        ["training", "evaluating"], axis="columns"
    )
    return (
        parts.assign(stalled=cell["energy_j"] - parts.sum(axis=1, skipna=False)),
        PHASES,
        "sample or epoch",
    )


def _by_nodes(parts: pd.DataFrame, nodes: pd.Series) -> pd.DataFrame:
    """Means by node count in words."""
    means = parts.astype(float).clip(lower=0).groupby(nodes).mean().dropna(how="all")
    return means.set_axis([counted(int(n), "node") for n in means.index])


def step_by_node_count(forecast: pd.DataFrame, stem: Path) -> None:
    """Write the parts of simulated steps by node count, a row of charts a platform.

    A dot is the step that was measured on as many nodes.
    """
    known = forecast[(forecast["rests_on"] == "simulated") & forecast["step_s"].notna()]
    ran = forecast[forecast["rests_on"] == "measured"]
    charts = [
        _simulated_steps(cell, ran[(ran["platform"] == platform) & (ran["network"] == network)])
        for platform, of_platform in known.groupby("platform", sort=False)
        for network, cell in of_platform.groupby("network", sort=False)
    ]
    save(
        charts or [nothing("no platform could be simulated")],
        *(stem, "Simulated steps by node count", "Bars are simulated; dots were measured."),
        columns=max(1, known["network"].nunique()),
        width=260,
        one_legend=True,
    )


def _simulated_steps(cell: pd.DataFrame, ran: pd.DataFrame) -> Chart:
    parts = 1e3 * cell[list(_STEP_COLUMNS)].rename(columns=_STEP_COLUMNS)
    measured = ran[ran["nodes"].isin(cell["nodes"])]
    title = f"{cell['network'].iloc[0]} on {cell['platform'].iloc[0]}"
    return stacked(
        _by_nodes(parts, cell["nodes"]),
        *(STEP, title, "milliseconds of a step"),
        label=lambda _: "",
        row_height=_LOW_ROW_HEIGHT,
        dots=_by_nodes(1e3 * measured[["step_s"]], measured["nodes"])["step_s"],
    )


def stacked(
    parts: pd.DataFrame,
    palette: Mapping[str, str],
    title: str,
    axis: str,
    *,
    whole: float | None = None,
    what: str = "takes",
    in_words: Callable[[float], str] = digits,
    label: Callable[[float], str] = lambda size: digits(size, 2),
    row_height: int = _ROW_HEIGHT,
    dots: pd.Series | None = None,
) -> Chart:
    """A bar for each row, its columns one after the other from left to right.

    Args:
        parts: rows by the name of their bar.
        whole: the end of the axis, if it is not behind the longest bar.
        what: name of a part's size on hovering, which ``in_words`` puts in words.
        label: the number in a part that is wide enough for one.
        dots: values drawn over the bars, by the name of the bar.
    """
    if parts.empty:
        return nothing("no part is known", title)
    sizes = _end_to_end(parts, what, in_words)
    longest = whole or sizes["stop"].max()
    wide = sizes["size"] >= _LABELLED_PERCENT / 100 * longest
    sizes["label"] = sizes["size"].map(label).where(wide, "")
    marked = pd.Series(dtype=float) if dots is None else dots
    end = whole or 1.03 * max([longest, *marked]) or 1.0
    scale = alt.Scale(domain=[0, end], nice=False)
    x = alt.X("start:Q", title=axis, scale=scale, axis=alt.Axis(tickCount=5))
    names = list(parts.index)
    y = alt.Y("run:N", sort=names, title=None, axis=row_axis(list(map(str, names))))
    gap = 1 if row_height == _ROW_HEIGHT else 0
    drawn = blocks(sizes, x, y, "part", palette, ("run", "part", what), gap)
    if len(marked):
        points = alt.Chart(values(pd.DataFrame({"run": marked.index, "start": marked.to_numpy()})))
        drawn += points.mark_point(filled=True, size=30, color=INK, opacity=1).encode(x=x, y=y)
    return titled(drawn, title, row_height * len(parts))


def _end_to_end(parts: pd.DataFrame, what: str, in_words: Callable[[float], str]) -> pd.DataFrame:
    """A row a part: where in its bar it starts and stops."""
    stops = parts.cumsum(axis=1)
    return pd.DataFrame(
        {
            "run": bar,
            "part": part,
            "size": size,
            "start": stop - size,
            "stop": stop,
            what: in_words(size),
        }
        for (bar, row), (_, until) in zip(parts.iterrows(), stops.iterrows(), strict=True)
        for (part, size), stop in zip(row.items(), until, strict=True)
    )
