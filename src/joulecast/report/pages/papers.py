"""How many of the papers' numbers were reproduced, where ``paper_tables`` has made their table."""

import pandas as pd

from joulecast.report.grid import Table
from joulecast.report.results_folder import NothingToShow, Results, papers_table

_CONFIG = "config/paper.yaml"


def verdicts_by_paper(results: Results) -> Table:
    """Verdicts of the papers' table, counted by paper.

    Raises:
        NothingToShow: it is not there.
    """
    file = papers_table(results.folder)
    table = results.tables.get(file)
    if table is None:
        raise NothingToShow(f"{file}.parquet is not here", configfile=_CONFIG)
    kinds = list(table["verdict"].value_counts().index)
    counts = pd.crosstab(table["paper"], table["verdict"])[kinds]
    rows = [
        (str(p), *(str(n) for n in row))
        for p, row in zip(counts.index, counts.to_numpy(), strict=True)
    ]
    rows.append(("all", *(str(n) for n in counts.sum())))
    return Table("Verdicts by paper", ("paper", *kinds), rows, frozenset(kinds), file)
