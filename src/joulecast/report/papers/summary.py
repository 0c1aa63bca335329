"""One line a paper, computed from its rows: claimed, regenerated, how near, and why not the rest."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from joulecast.quantities import counted, digits
from joulecast.report.papers.rows import Verdict
from joulecast.report.tables.published import FromPaper

_SHOWN = 2
"""Reasons, and rows that are not reproduced, that a line names; the table has all."""


@dataclass(frozen=True)
class Paper:
    """A paper whose numbers are regenerated.

    Attributes:
        name: as in the column ``paper`` of the table.
        published: its numbers, citation and claims.
        regenerated_on: what ours are made of.
        headlines: quantities whose numbers its line gives.
    """

    name: str
    published: FromPaper
    regenerated_on: str
    headlines: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """The line of one paper.

    Attributes:
        paper: whose it is.
        in_short: how many of its numbers are reproduced.
        verdict: the verdict of most of its rows, for the colour of ``in_short``.
        regenerated: how many numbers, and on what.
        near: sentences on how near ours are.
        why_not: why the rest cannot be compared, the most frequent reason first.
    """

    paper: Paper
    in_short: str
    verdict: str
    regenerated: str
    near: list[str]
    why_not: list[str]

    @property
    def why_not_what(self) -> str:
        """What the reasons of ``why_not`` are given for."""
        none = self.in_short == Verdict.NOT_COMPARABLE.value
        return "Why it is not comparable" if none else "Why not the rest"


def summaries(table: pd.DataFrame, papers: Sequence[Paper]) -> list[Summary]:
    """The papers' lines, in their order.

    Args:
        table: of :func:`joulecast.report.papers.rows.paper_table`.
        papers: those that have rows in it.
    """
    return [_summary(paper, table[table["paper"] == paper.name]) for paper in papers]


def in_all(table: pd.DataFrame) -> str:
    """One sentence on the numbers of all papers."""
    counts = table["verdict"].value_counts()
    of = {verdict: int(counts.get(verdict.value, 0)) for verdict in Verdict}
    alike = table[table["verdict"].isin([Verdict.REPRODUCED, Verdict.BETTER, Verdict.WORSE])]
    printed = int(alike["published"].notna().sum())
    gone = f", {of[Verdict.MISSING]} missing" if of[Verdict.MISSING] else ""
    return (
        f"{counted(len(table), 'comparison')} with {table['paper'].nunique()} papers. {len(alike)} have "
        f"the same setting, {printed} with a printed number and {len(alike) - printed} with one that no "
        f"paper prints: {of[Verdict.REPRODUCED]} are reproduced, {of[Verdict.BETTER]} better, "
        f"{of[Verdict.WORSE]} worse. {of[Verdict.NOT_COMPARABLE]} are not comparable{gone}: "
        "no better or worse is claimed of these."
    )


def _summary(paper: Paper, rows: pd.DataFrame) -> Summary:
    regenerated = rows["ours"].notna()
    sources = " and ".join(sorted(rows.loc[regenerated, "source"].unique())) or "none"
    return Summary(
        paper,
        _came_out(rows),
        str(rows["verdict"].mode().iloc[0]) if len(rows) else Verdict.MISSING.value,
        f"{int(regenerated.sum())} of {len(rows)} rows ({sources}), on {paper.regenerated_on}.",
        [*_judged(rows), *(_headline(rows, quantity) for quantity in paper.headlines)],
        _reasons(rows),
    )


def _came_out(rows: pd.DataFrame) -> str:
    counts = rows["verdict"].value_counts()
    reproduced = counts.get(Verdict.REPRODUCED.value, 0)
    others = [v.value for v in (Verdict.BETTER, Verdict.WORSE) if v.value in counts]
    judged = [f"{counts[verdict]} {verdict}" for verdict in others]
    if reproduced:
        return ", ".join([f"{reproduced} of {len(rows)} reproduced", *judged])
    if judged:
        return f"{', '.join(judged)}, of {len(rows)}; the rest not comparable"
    return Verdict.NOT_COMPARABLE.value


def _judged(rows: pd.DataFrame) -> list[str]:
    """What came out where the setting is the same: of printed numbers, and of each reference."""
    judged = rows[rows["comparable"] == "yes"]
    judged = judged[judged["verdict"] != Verdict.NOT_COMPARABLE]
    if judged.empty:
        return ["The paper's settings cannot be repeated here."]
    found = []
    kinds = judged["reference_is"].where(judged["published"].isna(), "").fillna("")
    for kind, of_kind in judged.groupby(kinds, sort=False):
        verdicts = of_kind["verdict"].value_counts()
        what = "that it prints" if not kind else f"that it does not print ({kind})"
        came_out = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        found.append(f"Of {counted(len(of_kind), 'number')} {what}: {came_out}.")
    missed = judged[judged["verdict"] == Verdict.WORSE]
    names = [f"{row.quantity} ({row.setting})" for row in missed.head(_SHOWN).itertuples()]
    more = f" and {len(missed) - _SHOWN} more" if len(missed) > _SHOWN else ""
    return [*found, f"Not reproduced: {'; '.join(names)}{more}."] if names else found


def _headline(rows: pd.DataFrame, quantity: str) -> str:
    """The published number of a quantity, and ours from the smallest to the largest."""
    of_quantity = rows[rows["quantity"] == quantity]
    alike = of_quantity[of_quantity["comparable"] == "yes"]
    of_quantity = alike if len(alike) else of_quantity
    theirs = of_quantity["published"].fillna(of_quantity["reference"])
    unit = next(iter(of_quantity["unit"]), "")
    printed = "printed" if of_quantity["published"].notna().all() else "by the public code"
    head = f"{quantity[:1].upper()}{quantity[1:]}: {_range(theirs)} {unit} {printed}"
    ours = of_quantity.dropna(subset=["ours"])
    if ours.empty:
        return f"{head}, none here."
    least, most = ours.loc[ours["ours"].idxmin()], ours.loc[ours["ours"].idxmax()]
    here = f"{digits(least['ours'])} {unit} here"
    if len(ours) > 1:
        here = (
            f"{digits(least['ours'])} {unit} ({least['setting']}) to {digits(most['ours'])} {unit} "
        )
        here += f"({most['setting']}) here"
    return f"{head}; {here}."


def _range(numbers: pd.Series) -> str:
    values = pd.to_numeric(numbers, errors="coerce").dropna()
    if values.empty:
        return "none"
    least, most = values.min(), values.max()
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def _reasons(rows: pd.DataFrame) -> list[str]:
    left = rows[rows["verdict"].isin([Verdict.NOT_COMPARABLE, Verdict.MISSING])]
    counts = left["why_not_comparable"].fillna("").value_counts()
    found = [
        f"{counted(int(count), 'row')}: {why or 'no number on one side'}"
        for why, count in counts.items()
    ]
    if len(found) <= _SHOWN + 1:
        return found
    rest = int(counts.iloc[_SHOWN:].sum())
    others = f"{counted(rest, 'row')}: {len(found) - _SHOWN} other reasons, in the table"
    return [*found[:_SHOWN], others]
