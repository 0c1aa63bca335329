"""The papers' numbers beside ours, where ``paper_tables`` has made ``papers.csv``."""

from dataclasses import dataclass

import pandas as pd

from joulecast.quantities import digits, is_number
from joulecast.report.grid import Table
from joulecast.report.results_folder import NothingToShow, Results, having

_COLUMNS = ("paper", "setting", "quantity", "published", "ours", "verdict")
_SHOWN = (
    *("paper", "table", "setting", "quantity", "unit", "published", "reference", "reference_is"),
    *("ours", "difference", "tolerance", "source", "verdict", "why_not_comparable"),
)


@dataclass(frozen=True)
class Papers:
    """Verdicts counted by paper, and all rows."""

    counts: Table
    rows: Table


def papers_section(results: Results) -> Papers:
    """Verdicts and rows of ``tables/papers.csv``.

    Raises:
        NothingToShow: it is not there, or lacks columns.
    """
    table = results.tables.get("papers")
    if table is None:
        raise NothingToShow("tables/papers.csv is not here", "paper_tables")
    having(table, _COLUMNS, "tables/papers.csv", "paper_tables")
    verdicts = table["verdict"].astype(object).fillna("none")
    kinds = list(verdicts.value_counts().index)
    counts = pd.crosstab(table["paper"].astype(object).fillna("unnamed"), verdicts)[kinds]
    rows = [
        (str(p), *(str(n) for n in row))
        for p, row in zip(counts.index, counts.to_numpy(), strict=True)
    ]
    rows.append(("all", *(str(n) for n in counts.sum())))
    columns = tuple(column for column in _SHOWN if column in table.columns)
    cells = [
        tuple(_told(value) for value in row) for row in table[list(columns)].itertuples(index=False)
    ]
    numeric = frozenset({"published", "reference", "ours", "difference", "tolerance"})
    return Papers(
        Table("Verdicts by paper", ("paper", *kinds), rows, frozenset(kinds)),
        Table("All published numbers", columns, cells, numeric),
    )


def _told(value: object) -> str:
    if is_number(value):
        return digits(value)
    return "" if pd.isna(value) else str(value)
