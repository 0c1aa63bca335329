"""The parts of the page that do not come from the campaign.

They are the errors of energy on clusters that others metered, and how many of the papers' numbers were
reproduced.
"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from joulecast.quantities import NONE, counted, is_number, percent, span, steady
from joulecast.report.page_table import Table
from joulecast.report.papers.rows import verdict_counts
from joulecast.report.results_folder import METERED, NothingToShow, Results, papers_table
from joulecast.runs.judging import OURS

_FILE = f"{METERED}.parquet"
_OWN_TRACE = "end of the run's own trace"
_SPLITS = {
    "leave-one-node-count-out": "node counts not seen",
    "extrapolation": "larger node counts not seen",
    "leave-one-workload-out": "larger node counts of one network not seen",
}


@dataclass(frozen=True)
class Metered:
    """The part about metered clusters: a line for the first screen, how to read the table, and the table."""

    in_short: str
    how_to_read: str
    table: Table


def metered_section(results: Results) -> Metered:
    """The part about the errors of MC2 and its rivals on metered clusters, for runs that the fits had not
    seen.

    Raises:
        NothingToShow: the table does not exist, or has no held-out runs.
    """
    if METERED not in results.tables:
        raise NothingToShow(f"{_FILE} is not here", "energy_tables")
    table = results.tables[METERED]
    held_out = table[(table["split"] != "in-sample") & (table["judges"] == "models")]
    asked = held_out.assign(question=[_question(row) for row in held_out.to_dict("records")])
    energies = asked[asked["split"] != _OWN_TRACE]
    ours = energies[energies["model"] == OURS]
    if ours.empty:
        raise NothingToShow(f"{_FILE} has no energy that MC2 had not seen", "energy_tables")
    return Metered(
        _in_short(ours),
        "No fit had seen the runs that it is judged on. “Time given” means that the run's own time is known. "
        "“Time forecast” means that it is not. Some rivals predict fewer settings than MC2: their errors are "
        "of these alone. The paper prints "
        f"{_printed(ours['published_percent'].iloc[0])} for MC2, for other networks on another machine.",
        _grid(asked),
    )


def _in_short(ours: pd.DataFrame) -> str:
    """The errors for all questions, in short. The best rival differs between questions, and so do the
    settings."""
    settings = ours["settings"].astype(int)
    fewest, most = int(settings.min()), counted(int(settings.max()), "setting")
    each = most if settings.nunique() == 1 else f"{fewest} to {most}"
    text = (
        f"On runs of MLPerf Training that others metered, in {counted(len(ours), 'test')} of {each} each, "
        f"the energy of MC2 was {_percents(ours['mape_percent'])} off on average"
    )
    rivalled = ours[ours["best_rival_percent"].notna()]
    if rivalled.empty:
        return f"{text}."
    better = int((rivalled["better_by_points"].map(steady) > 0).sum())
    return (
        f"{text}. The best rival of each test was {_percents(rivalled['best_rival_percent'])} off. On the "
        "settings that MC2 and this rival predict (some rivals predict only a part), MC2 is better in "
        f"{better} of the {counted(len(rivalled), 'test')}."
    )


def _percents(sizes: pd.Series) -> str:
    return span(percent(sizes.min()), percent(sizes.max()))


def _printed(value: Any) -> str:
    """A published percentage, with all its digits."""
    return f"{value:g} %" if is_number(value) else NONE


def _question(row: dict[str, Any]) -> str:
    split = str(row["split"])
    if split == _OWN_TRACE:
        return split
    time = "forecast" if row["time"] == "predicted" else row["time"]
    return f"{_SPLITS.get(split, split)}, time {time}"


def _grid(asked: pd.DataFrame) -> Table:
    questions = list(asked["question"].unique())
    rows = []
    for model, of_model in asked.groupby("model", sort=False):
        cells = dict(zip(of_model["question"], of_model["mape_percent"], strict=True))
        published = _printed(of_model["published_percent"].iloc[0])
        found = [percent(cells[q]) if q in cells else NONE for q in questions]
        rows.append((str(model), published, *found))
    columns = ("model", "published, on another machine", *questions)
    return Table("Mean absolute errors of energy", columns, rows, frozenset(columns[1:]), METERED)


def verdicts_by_paper(results: Results) -> Table:
    """The number of rows with each verdict in the papers' table, by paper.

    Raises:
        NothingToShow: the table does not exist.
    """
    file = papers_table(results.folder)
    table = results.tables.get(file)
    if table is None:
        raise NothingToShow(
            f"there is no {file}.parquet. `paper_tables: true` in the configuration adds it. Or make the "
            "papers' tables alone: `./run snakemake --cores all --configfile config/paper.yaml`"
        )
    counts = verdict_counts(table)
    counts.loc["all"] = counts.sum()
    counts = counts.loc[:, counts.loc["all"] > 0]
    rows = [(str(paper), *map(str, row)) for paper, *row in counts.itertuples()]
    kinds = tuple(counts.columns)
    return Table("Verdicts by paper", ("paper", *kinds), rows, frozenset(kinds), file)
