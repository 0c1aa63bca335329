"""MC2's error table: errors of the model and its rivals, and what it gains on each."""

from pathlib import Path

import pandas as pd

from joulecast.files.columns import read_csv
from joulecast.report.papers.rows import Row
from joulecast.report.tables.published import PublishedErrors

_PAPER = "MC2"
_MODELS_OF_TRACES = ("AR", "SES", "ARIMA")
_NOT_JUDGED = (
    "not judged on these runs; the models of traces forecast the rest of a run's own trace, which is not "
    "paired with MC2's settings"
)


def mc2_rows(tables: Path, published: PublishedErrors) -> list[Row]:
    """Rows of the energy tables of metered runs, one for each question that they were judged on.

    Args:
        tables: folder of ``energy_summary.csv`` and ``energy_improvement.csv``.
        published: the paper's errors.
    """
    known: dict[str, list[Row]] = {"error": [], "gain": []}
    summary = _held_out(read_csv(tables / "energy_summary.csv", "table of a campaign", {}))
    for row in summary[summary["published_percent"].notna()].itertuples():
        known["error"].append(
            _row(published, "error", row.model, row.mape_percent, row.source, _question(row))
        )
    gains = _held_out(read_csv(tables / "energy_improvement.csv", "table of a campaign", {}))
    for row in gains[gains["published_points"].notna()].itertuples():
        known["gain"].append(
            _row(published, "gain", row.rival, row.better_by_points, row.source, _question(row))
        )
    rows = []
    for kind, printed in _printed(published).items():
        there = {row.quantity for row in known[kind]}
        others = [_row(published, kind, model, None, None, "any") for model in printed]
        rows += [*known[kind], *(row for row in others if row.quantity not in there)]
    return rows


def _printed(published: PublishedErrors) -> dict[str, dict[str, float]]:
    return {"error": published.error_percent, "gain": published.percentage_points_over_mc2}


def _held_out(table: pd.DataFrame) -> pd.DataFrame:
    """What was judged on runs (or rests of traces) that the fit had not seen, and by a meter."""
    return table[(table["split"] != "in-sample") & (table["judges"] == "models")]


def _question(row: object) -> str:
    split, time = getattr(row, "split", ""), getattr(row, "time", "")
    return f"{split}, time {time}, {getattr(row, 'settings', 0):.0f} settings"


def _row(
    published: PublishedErrors,
    kind: str,
    model: str,
    ours: float | None,
    source: str | None,
    setting: str,
) -> Row:
    error = kind == "error"
    unlike = "" if published.comparable else published.not_comparable_because
    own_trace = " (forecast of power)" if model in _MODELS_OF_TRACES else ""
    return Row(
        _PAPER,
        published.where,
        setting,
        f"{model}: MAPE of energy{own_trace}" if error else f"MC2 over {model}",
        "%" if error else "points",
        _printed(published)[kind][model],
        ours,
        source,
        published.tolerances[kind],
        "down" if error else "up",
        _NOT_JUDGED if ours is None else unlike,
    )
