"""Proteus: error of the simulator, order of strategies, ablation, speed."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from joulecast.report.papers.rows import Row
from joulecast.report.papers.summary import Paper
from joulecast.report.tables.simulator import PublishedSimulators
from joulecast.runs.files.columns import read_frame

_PAPER = "Proteus"
_ABLATED = {
    "full": "mean error, full model",
    "no overlap": "mean error without runtime behaviour (ours: without overlap)",
}
_RUNTIME_BEHAVIOUR = "there the sharing of links is left out too"
_TIMED = "the paper's public code, timed for this project on another machine with 2 cores"


def of_proteus(published: PublishedSimulators) -> Paper:
    """The paper, the data behind our numbers, and the quantities that the summary names for it."""
    return Paper(
        _PAPER,
        published,
        "steps that were measured on an emulated network and in real training, and predicted without them",
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
    )


def proteus_rows(tables: Path, published: PublishedSimulators) -> list[Row]:
    """Rows of the simulator's tables.

    Args:
        tables: folder of ``simulator_error``, ``simulator_order``, ``simulator_ablation`` and
            ``simulator_speed``.
        published: the paper's numbers.
    """
    errors, order, ablation, speed = (
        read_frame(tables / f"simulator_{name}.parquet", "table of a campaign")
        for name in ("error", "order", "ablation", "speed")
    )
    # All three judge the simulator on the same steps.
    sources = dict(zip(errors["experiment"], errors["source"], strict=True))
    rows = {
        "error": _errors(errors, published),
        "order": _order(order.assign(source=order["experiment"].map(sources)), published),
        "ablation": _ablation(
            ablation.assign(source=ablation["experiment"].map(sources)), published
        ),
        "speed": _speed(speed, published),
    }
    return [
        replace(row, ours_from=None if row.ours is None else tables / f"simulator_{name}.html")
        for name, of_table in rows.items()
        for row in of_table
    ]


def _unlike(published: PublishedSimulators) -> str:
    return "" if published.comparable else published.not_comparable_because


def _errors(table: pd.DataFrame, published: PublishedSimulators) -> list[Row]:
    averages = table[table["published_percent"].notna()]
    rows = [
        Row(
            _PAPER,
            "error",
            f"{row.experiment}, {row.configuration.strip('()')}",
            f"{'largest' if row.configuration.startswith('(maximum') else 'mean'} error of a step's time",
            "%",
            row.published_percent,
            row.predicted_error_percent,
            row.source,
            published.tolerances["error"],
            "down",
            _unlike(published),
        )
        for row in averages.itertuples()
    ]
    others = {n: e for n, e in published.error_percent.items() if not n.startswith(_PAPER)}
    return rows + [
        Row(
            _PAPER,
            "error",
            "the paper's",
            f"{name} error of a step's time",
            "%",
            error,
            None,
            None,
            published.tolerances["error"],
            "down",
            "that simulator is not ours, and was not run",
        )
        for name, error in others.items()
    ]


def _order(table: pd.DataFrame, published: PublishedSimulators) -> list[Row]:
    return [
        Row(
            _PAPER,
            "order",
            f"{row['experiment']}, {row['count']} strategies",
            "Kendall's tau of measured and predicted times",
            "",
            published.order,
            row["kendall_tau"],
            row["source"],
            published.tolerances["order"],
            "up",
            f"{_unlike(published)}; the paper compares ranks, and prints no number",
        )
        for row in table[table["strategies"] == "all"].to_dict("records")
    ]


def _ablation(table: pd.DataFrame, published: PublishedSimulators) -> list[Row]:
    return [
        Row(
            _PAPER,
            "ablation",
            row.experiment,
            _ABLATED.get(row.model, f"mean error, {row.model}"),
            "%",
            row.published_percent,
            row.mape_percent,
            row.source,
            published.tolerances["error"],
            "down",
            _unlike(published) + ("" if row.model == "full" else f"; {_RUNTIME_BEHAVIOUR}"),
        )
        for row in table[table["published_percent"].notna()].itertuples()
    ]


def _speed(table: pd.DataFrame, published: PublishedSimulators) -> list[Row]:
    how = {True: "equal devices simulated once", False: "every device simulated"}
    return [
        Row(
            _PAPER,
            "speed",
            f"ResNet-50, {row.devices} devices, {how[bool(row.folded)]}",
            "compile and run",
            "s",
            None,
            row.seconds,
            "measured",
            published.tolerances["speed"],
            "down",
            "the public code simulates every device" if row.folded else "",
            reference=row.original_s,
            reference_is=_TIMED,
        )
        for row in table[table["original_s"].notna()].itertuples()
    ]
