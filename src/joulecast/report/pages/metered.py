"""Errors of energy on real clusters: MC2 and its rivals on runs that others metered."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from joulecast.quantities import NONE, counted, is_number, percent
from joulecast.report.grid import Table
from joulecast.report.results_folder import METERED, NothingToShow, Results, having

_FILE = f"{METERED}.csv"
_COLUMNS = (
    *("split", "time", "model", "settings", "mape_percent", "max_percent", "published_percent"),
    "judges",
)
_OWN_TRACE = "rest of its own trace"


@dataclass(frozen=True)
class Metered:
    """A sentence in short, one for each question, and the errors of all models."""

    in_short: str
    sentences: list[str]
    errors: Table


def metered_section(results: Results) -> Metered:
    """What MC2 and its rivals were off by on metered clusters, on what the fits had not seen.

    Raises:
        NothingToShow: the table is not there, lacks columns, or has nothing that was held out.
    """
    table = results.tables.get(METERED)
    if table is None:
        raise NothingToShow(f"{_FILE} is not here", "energy_tables")
    having(table, _COLUMNS, _FILE, "energy_tables")
    held_out = table[(table["split"] != "in-sample") & (table["judges"] == "models")]
    energies = held_out[held_out["split"] != _OWN_TRACE]
    ours = energies[energies["model"] == "MC2"]
    if ours.empty:
        raise NothingToShow(f"{_FILE} has no energy that MC2 had not seen", "energy_tables")
    errors = ours["mape_percent"]
    in_short = (
        f"Energy on real clusters that others metered: {percent(errors.min())} to {percent(errors.max())} "
        "off on average, by what was held out. The paper says "
        f"{_printed(ours['published_percent'].iloc[0])}, of another machine."
    )
    sentences = [_sentence(row, energies) for row in ours.to_dict("records")]
    return Metered(in_short, sentences, _grid(held_out))


def _printed(value: Any) -> str:
    """A published percentage, with all its digits."""
    return f"{value:g} %" if is_number(value) else NONE


def _question(row: dict[str, Any]) -> str:
    split = str(row["split"])
    return split if split == _OWN_TRACE else f"{split}, time {row['time']}"


def _sentence(row: dict[str, Any], energies: pd.DataFrame) -> str:
    alike = energies[(energies["split"] == row["split"]) & (energies["time"] == row["time"])]
    rivals = alike[alike["model"] != "MC2"].sort_values("mape_percent", kind="stable")
    text = (
        f"{_question(row)}: MC2 is {percent(row['mape_percent'])} off on average and "
        f"{percent(row['max_percent'])} at worst, over {counted(int(row['settings']), 'setting')}"
    )
    if len(rivals):
        best = rivals.iloc[0]
        text += f"; its best rival, {best['model']}, {percent(best['mape_percent'])}"
    return f"{text}."


def _grid(held_out: pd.DataFrame) -> Table:
    asked = held_out.assign(question=[_question(row) for row in held_out.to_dict("records")])
    questions = list(asked["question"].unique())
    rows = []
    for model, of_model in asked.groupby("model", sort=False):
        cells = dict(zip(of_model["question"], of_model["mape_percent"], strict=True))
        published = _printed(of_model["published_percent"].iloc[0])
        found = [percent(cells[q]) if q in cells else NONE for q in questions]
        rows.append((str(model), published, *found))
    columns = ("model", "published, of another machine", *questions)
    return Table("Mean absolute errors of energy", columns, rows, frozenset(columns[1:]))
