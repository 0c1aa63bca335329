"""The figure of parts: what stages take of a run's time."""

from collections.abc import Mapping

import altair as alt
import pandas as pd

from joulecast.quantities import counted, digits, listed, percent
from joulecast.report import answers
from joulecast.report.figures.look import (
    PARTS,
    PHASES,
    Chart,
    Figure,
    blocks,
    row_axis,
    titled,
)
from joulecast.report.grid import Table
from joulecast.report.results_folder import NothingToShow, Results
from joulecast.runs.observations import of_usual_batch
from joulecast.runs.scale import scale_in_words, unit_of

_MOST_BARS = 36
_ROW_HEIGHT = 30
_LABELLED_PERCENT = 9.0
"""Share of a bar from which a part is wide enough for a number."""
STAGES = dict(
    zip(
        PARTS,
        ("materials", "computing", "communicating_wait", "communicating_copy", "update", "other"),
        strict=True,
    )
)
"""Names that people read, and those of records."""
_PHASES = {name: name for name in PHASES}


def stage_shares(results: Results) -> Figure:
    """Parts of the time of a run by network and node count, each bar 100 %.

    Raises:
        NothingToShow: no training was measured, or its parts are not known.
    """
    clean = of_usual_batch(results.clean)
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
        files=("tables/energy/scaling",),
    )


def _shares(runs: pd.DataFrame, parts: Mapping[str, str]) -> pd.DataFrame:
    """Percent of the time by workload and node count (the index), a column a part."""
    is_phase = "training" in parts
    columns = [f"{column}_s" if is_phase else f"t_{column}_s" for column in parts.values()]
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
    return _stacked(shares.set_axis(names), PARTS if set(shares.columns) == set(PARTS) else PHASES)


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


def _stacked(shares: pd.DataFrame, palette: Mapping[str, str]) -> Chart:
    """A bar for each row, its columns one after the other from left to right."""
    title, what = "Parts of the time, percent", "share of the time"
    sizes = _end_to_end(shares, what)
    sizes["label"] = sizes["size"].map(lambda share: f"{share:.0f}")
    sizes["label"] = sizes["label"].where(sizes["size"] >= _LABELLED_PERCENT, "")
    scale = alt.Scale(domain=[0, 100], nice=False)
    x = alt.X("start:Q", title="percent of the run", scale=scale, axis=alt.Axis(tickCount=5))
    names = list(map(str, shares.index))
    y = alt.Y("run:N", sort=names, title=None, axis=row_axis(names))
    drawn = blocks(sizes, x, y, "part", palette, ("run", "part", what))
    return titled(drawn, title, _ROW_HEIGHT * len(shares))


def _end_to_end(parts: pd.DataFrame, what: str) -> pd.DataFrame:
    """A row a part: where in its bar it starts and stops."""
    stops = parts.cumsum(axis=1)
    return pd.DataFrame(
        {
            "run": bar,
            "part": part,
            "size": size,
            "start": stop - size,
            "stop": stop,
            what: percent(size),
        }
        for (bar, row), (_, until) in zip(parts.iterrows(), stops.iterrows(), strict=True)
        for (part, size), stop in zip(row.items(), until, strict=True)
    )
