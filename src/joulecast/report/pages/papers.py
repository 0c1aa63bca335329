"""How many of the papers' numbers were reproduced, where ``paper_tables`` has made their table."""

import pandas as pd

from joulecast.report.grid import Table
from joulecast.report.results_folder import NothingToShow, Results, having, papers_table

_CONFIG = "config/paper.yaml"
_COLUMNS = ("paper", "verdict")


def verdicts_by_paper(results: Results) -> Table:
    """Verdicts of the papers' table, counted by paper.

    Raises:
        NothingToShow: it is not there, or lacks columns.
    """
    file = papers_table(results.folder)
    table = results.tables.get(file)
    if table is None:
        raise NothingToShow(f"{file}.parquet is not here", configfile=_CONFIG)
    having(table, _COLUMNS, f"{file}.parquet", "paper_tables")
    verdicts = table["verdict"].astype(object).fillna("none")
    kinds = list(verdicts.value_counts().index)
    counts = pd.crosstab(table["paper"].astype(object).fillna("unnamed"), verdicts)[kinds]
    rows = [
        (str(p), *(str(n) for n in row))
        for p, row in zip(counts.index, counts.to_numpy(), strict=True)
    ]
    rows.append(("all", *(str(n) for n in counts.sum())))
    return Table("Verdicts by paper", ("paper", *kinds), rows, frozenset(kinds), file)
