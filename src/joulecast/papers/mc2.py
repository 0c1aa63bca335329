"""MC2's error table: errors of the model and its rivals, and what it gains on each."""

from pathlib import Path

import pandas as pd

from joulecast.papers.rows import Row
from joulecast.tables.published import PublishedErrors

_PAPER = "MC2"
_MODELS_OF_TRACES = ("AR", "SES", "ARIMA")


def mc2_rows(tables: Path | None, published: PublishedErrors, missing: str = "") -> list[Row]:
    """Rows of the energy tables of metered runs, one for each question that they were judged on.

    Args:
        tables: folder of ``energy_summary.csv`` and ``energy_improvement.csv``; ``None`` where metered
            runs are missing.
        published: the paper's errors.
        missing: why there are no tables.
    """
    if tables is None:
        return [
            *(
                _row(published, "error", model, error, None, None, "any", missing)
                for model, error in published.error_percent.items()
            ),
            *(
                _row(published, "gain", rival, gain, None, None, "any", missing)
                for rival, gain in published.percentage_points_over_mc2.items()
            ),
        ]
    summary = _held_out(pd.read_csv(tables / "energy_summary.csv"))
    gains = _held_out(pd.read_csv(tables / "energy_improvement.csv"))
    errors_of = summary[summary["published_percent"].notna()]
    gains_of = gains[gains["published_points"].notna()]
    return [
        *(
            _row(
                published,
                "error",
                row.model,
                row.published_percent,
                row.mape_percent,
                row.source,
                _question(row),
            )
            for row in errors_of.itertuples()
        ),
        *(
            _row(
                published,
                "gain",
                row.rival,
                row.published_points,
                row.better_by_points,
                row.source,
                _question(row),
            )
            for row in gains_of.itertuples()
        ),
    ]


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
    printed: float,
    ours: float | None,
    source: str | None,
    setting: str,
    missing: str = "",
) -> Row:
    error = kind == "error"
    own_trace = " (forecast of power)" if model in _MODELS_OF_TRACES else ""
    return Row(
        _PAPER,
        published.where,
        setting,
        f"{model}: MAPE of energy{own_trace}" if error else f"MC2 over {model}",
        "%" if error else "points",
        printed,
        ours,
        source,
        published.tolerances[kind],
        "down" if error else "up",
        "" if published.comparable else published.not_comparable_because,
        missing,
    )
