"""Summaries of the papers' table, from its rows: a row for each claim, and a line for each paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from joulecast.quantities import counted, digits
from joulecast.report.papers.rows import OF_CODE, Verdict
from joulecast.report.tables.published import FromPaper

_SHOWN = 2
"""Reasons, and rows that are not reproduced, that a line names; the table has all."""


@dataclass(frozen=True)
class Paper:
    """A paper whose numbers are regenerated.

    Attributes:
        name: as in the column ``paper`` of the table.
        published: the paper's numbers, citation and claims.
        regenerated_on: the data behind our numbers.
        headlines: the paper's claims in short. Each has the names of the quantities that support it.
        rivals: a sentence that says where a rival is better.
    """

    name: str
    published: FromPaper
    regenerated_on: str
    headlines: Mapping[str, Sequence[str]]
    rivals: str = ""


def in_short(table: pd.DataFrame, paper: Paper) -> str:
    """The line of one paper in Markdown: how many of the printed numbers are reproduced, and separately how
    many numbers of the paper's code; the claims; where ours come from; and why the others cannot be compared,
    the most frequent reason first.

    Args:
        table: of :func:`joulecast.report.papers.rows.paper_table`.
    """
    rows = table[table["paper"] == paper.name]
    came_out = _came_out(rows)
    regenerated = rows["ours"].notna()
    sources = " and ".join(sorted(rows.loc[regenerated, "source"].unique())) or "none"
    parts = [
        f"Claims: {paper.published.claim}",
        f"Computed here: {int(regenerated.sum())} of {len(rows)} rows ({sources}), on "
        f"{paper.regenerated_on}.",
    ]
    missed = rows[rows["verdict"].isin([Verdict.WORSE, Verdict.WORSE_THAN_CODE])]
    if len(missed):
        names = [f"{row.quantity} ({row.setting})" for row in missed.head(_SHOWN).itertuples()]
        more = f" and {len(missed) - _SHOWN} more" if len(missed) > _SHOWN else ""
        parts.append(f"Not reproduced: {'; '.join(names)}{more}.")
    parts += [paper.rivals] if paper.rivals else []
    if why_not := _reasons(rows):
        none = came_out == Verdict.NOT_COMPARABLE
        what = "Why it is not comparable" if none else "Why not the rest"
        parts.append(f"{what}: {'; '.join(why_not)}.")
    return f"* **{paper.name}: {came_out}.** {' '.join(parts)}"


def in_all(table: pd.DataFrame) -> str:
    """One sentence about the numbers of all papers."""
    printed = table["published"].notna()
    return (
        f"{counted(len(table), 'comparison')} with {table['paper'].nunique()} papers. The papers print "
        f"{printed.sum()} of these numbers: {_counts(table[printed])}. They do not print the other "
        f"{(~printed).sum()}, such as what their authors' code gives: {_counts(table[~printed])}. "
        "No better or worse is claimed of what is not comparable."
    )


def _counts(rows: pd.DataFrame) -> str:
    counts = rows["verdict"].value_counts()
    there = [f"{counts[v.value]} {v.value}" for v in Verdict if v.value in counts]
    return ", ".join(there) or "none"


def _came_out(rows: pd.DataFrame) -> str:
    printed = rows["published"].notna()
    parts = []
    for what, of_kind, verdicts in (
        ("printed numbers ", rows[printed], list(OF_CODE)),
        ("", rows[~printed], list(OF_CODE.values())),
    ):
        counts = of_kind["verdict"].value_counts()
        if found := [f"{counts[v.value]} {v.value}" for v in verdicts if v.value in counts]:
            count, _, verdict = found[0].partition(" ")
            first = f"{count} of {len(of_kind)} {what}{verdict}"
            parts.append(", ".join([first, *found[1:]]))
    return "; ".join(parts) or Verdict.NOT_COMPARABLE.value


def claims_table(table: pd.DataFrame, papers: Sequence[Paper]) -> pd.DataFrame:
    """A row for each claim: the printed numbers, our numbers, the data behind ours, and the verdict.

    Args:
        table: of :func:`joulecast.report.papers.rows.paper_table`.
        papers: those that have rows in it.
    """
    found = [
        {"paper": paper.name, "claim": claim, **_of_claim(rows), "on": paper.regenerated_on}
        for paper in papers
        for claim, quantities in paper.headlines.items()
        for rows in [table[(table["paper"] == paper.name) & table["quantity"].isin(quantities)]]
        if len(rows)
    ]
    return pd.DataFrame(found, columns=["paper", "claim", "printed", "here", "on", "verdict"])


def _of_claim(rows: pd.DataFrame) -> dict[str, str]:
    """For the numbers of a claim: what is printed, what came out here, and the verdict."""
    same = rows[rows["comparable"] == "yes"]
    rows = same if len(same) else rows
    unit = f" {rows['unit'].iloc[0]}".rstrip()
    theirs = pd.to_numeric(rows["published"].fillna(rows["reference"]), errors="coerce").dropna()
    ours = rows["ours"].dropna()
    printed = _range(theirs) + unit if len(theirs) else str(rows["published"].iloc[0])
    if rows["published"].isna().all():
        printed += " (its public code)"
    verdict = ", ".join(rows["verdict"].unique())
    differences = rows["difference"].dropna()
    if verdict == Verdict.NOT_COMPARABLE and len(differences):
        lies = "higher" if (differences > 0).all() else "lower in some rows, higher in others"
        verdict += f"; ours is {'lower' if (differences < 0).all() else lies}"
    return {
        "printed": printed,
        "here": _range(ours) + unit if len(ours) else "none",
        "verdict": verdict,
    }


def _range(numbers: pd.Series) -> str:
    least, most = digits(numbers.min()), digits(numbers.max())
    return least if least == most else f"{least} to {most}"


def _reasons(rows: pd.DataFrame) -> list[str]:
    left = rows[rows["verdict"] == Verdict.NOT_COMPARABLE]
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
