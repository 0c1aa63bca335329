"""How many of the papers' numbers were reproduced, where ``paper_tables`` has made ``papers.csv``."""

import pandas as pd

from joulecast.report.grid import Table
from joulecast.report.results_folder import NothingToShow, Results, having, papers_file

_CONFIG = "config/paper.yaml"
_COLUMNS = ("paper", "verdict")


def verdicts_by_paper(results: Results) -> Table:
    """Verdicts of ``tables/papers.csv``, counted by paper.

    Raises:
        NothingToShow: it is not there, or lacks columns.
    """
    table, file = results.tables.get("papers"), papers_file(results.folder)
    if table is None:
        raise NothingToShow(f"{file}.csv is not here", configfile=_CONFIG)
    having(table, _COLUMNS, f"{file}.csv", "paper_tables")
    verdicts = table["verdict"].astype(object).fillna("none")
    kinds = list(verdicts.value_counts().index)
    counts = pd.crosstab(table["paper"].astype(object).fillna("unnamed"), verdicts)[kinds]
    rows = [
        (str(p), *(str(n) for n in row))
        for p, row in zip(counts.index, counts.to_numpy(), strict=True)
    ]
    rows.append(("all", *(str(n) for n in counts.sum())))
    return Table("Verdicts by paper", ("paper", *kinds), rows, frozenset(kinds), file)
