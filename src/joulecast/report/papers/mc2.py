"""The rows of the MC2 paper: errors of the model and its rivals, and how much better MC2 is than each
rival."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.quantities import digits
from joulecast.report.papers.rows import Paper, Row
from joulecast.report.tables.published import PublishedErrors
from joulecast.runs.files.columns import read_frame

_MODELS_OF_TRACES = ("AR", "SES", "ARIMA")
_NOT_JUDGED = (
    "AR, SES and ARIMA are not compared with MC2 on these runs: they need the first part of a run, to "
    "forecast the rest. MC2 forecasts runs of which it has seen nothing"
)


def mc2(published: PublishedErrors, tables: Path) -> Paper:
    """The paper, with rows from the energy tables of metered runs: one row for each kind of judgement.

    Args:
        tables: folder of ``energy_summary`` and ``energy_improvement``.
    """
    summary, improvement = (
        _held_out(read_frame(tables / f"energy_{name}.parquet", "table of a campaign"))
        for name in ("summary", "improvement")
    )
    rivals = list(published.percentage_points_over_mc2)
    rows = []
    for kind, name, table, model, column, models in (
        ("error", "summary", summary, "model", "mape_percent", [*published.error_percent, *rivals]),
        ("gain", "improvement", improvement, "rival", "better_by_points", rivals),
    ):
        judged = table[table[model].isin(models)]
        for one in judged.to_dict("records"):
            row = _row(published, kind, one[model], one[column], one["source"], _question(one))
            rows.append(replace(row, ours_from=tables / f"energy_{name}.html"))
        others = [each for each in models if each not in set(judged[model])]
        rows += [_row(published, kind, each, None, None, "any") for each in others]
    return Paper(
        "MC2",
        published,
        "trainings on real clusters that others metered (MLPerf power submissions); every error is of "
        "what the fit had not seen",
        {
            "mean error of energy": ["MC2: mean error of energy"],
            "percentage points by which MC2's error is below that of LP1 to LP4": [
                f"MC2 over LP{number}" for number in (1, 2, 3, 4)
            ],
            "percentage points by which MC2's error is below that of AR, SES and ARIMA": [
                f"MC2 over {name}" for name in ("AR", "SES", "ARIMA")
            ],
        },
        rows,
        _rivals(summary),
    )


def _rivals(summary: pd.DataFrame) -> str:
    """A sentence that says where a rival is better than MC2 on the same settings. There are more rivals here
    than in the paper."""
    judged = summary[summary["best_rival"].notna()]
    better = [
        f"{row['best_rival']} is off by {digits(row['best_rival_percent'])} %, MC2 by "
        f"{digits(row['best_rival_percent'] - row['better_by_points'])} % ({row['split']}, "
        f"time {row['time']})"
        for row in judged[judged["better_by_points"] < 0].to_dict("records")
    ]
    if not better:
        return f"No rival is better in any of {len(judged)} judgements."
    return (
        f"On the settings that both predict, a rival is better in {len(better)} of {len(judged)} judgements: "
        f"{'; '.join(better)}."
    )


def _held_out(table: pd.DataFrame) -> pd.DataFrame:
    """Errors against metered energies, on runs (or rests of traces) that the fit had not seen."""
    return table[(table["split"] != "in-sample") & (table["judges"] == "models")]


def _question(row: Mapping[str, Any]) -> str:
    settings = f"{row['settings']:.0f} settings"
    if row.get("model") in _MODELS_OF_TRACES:
        settings = f"{row['settings']:.0f} points of its traces"
    return f"{row['split']}, time {row['time']}, {settings}"


def _row(
    published: PublishedErrors,
    kind: str,
    model: str,
    ours: float | None,
    source: str | None,
    setting: str,
) -> Row:
    error = kind == "error"
    own_trace = " (forecast of power)" if model in _MODELS_OF_TRACES else ""
    printed = published.error_percent if error else published.percentage_points_over_mc2
    reference, reference_is = (None, "") if model in printed else published.implied(model)
    return Row(
        published.where,
        setting,
        f"{model}: mean error of energy{own_trace}" if error else f"MC2 over {model}",
        "%" if error else "points",
        printed.get(model),
        ours,
        source,
        published.tolerances[kind],
        "down" if error else "up",
        _NOT_JUDGED if ours is None else published.not_comparable_because,
        reference=reference,
        reference_is=reference_is,
    )
