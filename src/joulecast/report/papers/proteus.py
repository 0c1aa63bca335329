"""Proteus: error of the simulator, order of strategies, ablation, speed."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.report.papers.rows import Paper, Row
from joulecast.report.tables.simulator import PublishedSimulators
from joulecast.runs.files.columns import read_frame

_PAPER = "Proteus"
_ABLATED = {
    "full": "mean error, full model",
    "no overlap": "mean error without runtime behaviour (ours: without overlap)",
}
_RUNTIME_BEHAVIOUR = "there the sharing of links is left out too"
_TIMED = "the paper's public code, timed for this project on another machine with 2 cores"


def proteus(published: PublishedSimulators, tables: Path) -> Paper:
    """The paper, with the rows of the simulator's tables.

    Args:
        tables: folder of ``simulator_error``, ``simulator_order``, ``simulator_ablation`` and
            ``simulator_speed``.
    """
    errors, order, ablation, speed = (
        read_frame(tables / f"simulator_{name}.parquet", "table of a campaign")
        for name in ("error", "order", "ablation", "speed")
    )
    # All three judge the simulator on the same steps.
    sources = dict(zip(errors["experiment"], errors["source"], strict=True))
    order, ablation = (
        table.assign(source=table["experiment"].map(sources)) for table in (order, ablation)
    )
    rows = {
        "error": _errors(errors, published),
        "order": _order(order, published),
        "ablation": _ablation(ablation, published),
        "speed": _speed(speed, published),
    }
    return Paper(
        _PAPER,
        published,
        "steps that were measured on an emulated network and in real training. The simulator was not fitted "
        "to them. Times to compile and run a simulation are those of the simulator itself",
        {
            "mean error of a step's time": ["mean error of a step's time"],
            "largest error of a step's time": ["largest error of a step's time"],
            "order of strategies (Kendall's tau)": [
                "Kendall's tau of measured and predicted times"
            ],
            "mean error without overlap": [
                "mean error without runtime behaviour (ours: without overlap)"
            ],
            "time to compile and run": ["compile and run"],
        },
        [
            replace(row, ours_from=None if row.ours is None else tables / f"simulator_{name}.html")
            for name, of_table in rows.items()
            for row in of_table
        ],
    )


def _errors(table: pd.DataFrame, published: PublishedSimulators) -> list[Row]:
    row, tolerance = partial(Row, "error"), published.tolerances["error"]
    rows = []
    for one in table[table["published_percent"].notna()].itertuples():
        setting = f"{one.experiment}, {one.configuration.strip('()')}"
        kind = "largest" if one.configuration.startswith("(maximum") else "mean"
        what, ours = f"{kind} error of a step's time", one.predicted_error_percent
        theirs, unlike = one.published_percent, published.not_comparable_because
        rows.append(row(setting, what, "%", theirs, ours, one.source, tolerance, "down", unlike))
    unlike = "that simulator is not ours, and was not run"
    for name, error in published.error_percent.items():
        if not name.startswith(_PAPER):
            what = f"{name} error of a step's time"
            rows.append(row("the paper's", what, "%", error, None, None, tolerance, "down", unlike))
    return rows


def _order(table: pd.DataFrame, published: PublishedSimulators) -> list[Row]:
    return [
        Row(
            "order",
            f"{one['experiment']}, {one['count']} strategies",
            "Kendall's tau of measured and predicted times",
            "",
            published.order,
            one["kendall_tau"],
            one["source"],
            published.tolerances["order"],
            "up",
            f"{published.not_comparable_because}; the paper compares ranks, and prints no number",
        )
        for one in table[table["strategies"] == "all"].to_dict("records")
    ]


def _ablation(table: pd.DataFrame, published: PublishedSimulators) -> list[Row]:
    row, tolerance = partial(Row, "ablation"), published.tolerances["error"]
    rows = []
    for one in table[table["published_percent"].notna()].itertuples():
        unlike = published.not_comparable_because
        unlike += "" if one.model == "full" else f"; {_RUNTIME_BEHAVIOUR}"
        what, theirs, ours = _ABLATED[one.model], one.published_percent, one.mape_percent
        rows.append(
            row(one.experiment, what, "%", theirs, ours, one.source, tolerance, "down", unlike)
        )
    return rows


def _speed(table: pd.DataFrame, published: PublishedSimulators) -> list[Row]:
    row, tolerance = partial(Row, "speed"), published.tolerances["speed"]
    how = {True: "equal devices simulated once", False: "every device simulated"}
    rows = []
    for one in table[table["original_s"].notna()].itertuples():
        setting = f"ResNet-50, {one.devices} devices, {how[bool(one.folded)]}"
        same = "here, equal devices are simulated once; the public code simulates every device"
        unlike = same if one.folded else ""
        reference: dict[str, Any] = {"reference": one.original_s, "reference_is": _TIMED}
        rows.append(
            row(
                *(setting, "compile and run", "s", None, one.seconds, "measured", tolerance),
                *("down", unlike),
                **reference,
            )
        )
    return rows
