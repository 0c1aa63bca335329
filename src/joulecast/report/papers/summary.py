"""Summaries of the papers' table: a row for each claim, and a line for each paper. They are computed from the
rows of the numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from joulecast.quantities import counted, digits
from joulecast.report.papers.rows import Verdict
from joulecast.report.tables.published import FromPaper

_OF_PRINTED = (Verdict.REPRODUCED, Verdict.BETTER, Verdict.WORSE)
_OF_CODE = (Verdict.SAME_AS_CODE, Verdict.BETTER_THAN_CODE, Verdict.WORSE_THAN_CODE)
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


@dataclass(frozen=True)
class Summary:
    """The line of one paper.

    Attributes:
        paper: the paper.
        in_short: how many of the printed numbers are reproduced, and separately how many numbers of the
            paper's code.
        regenerated: how many numbers were regenerated, and on which data.
        near: sentences that say how near our numbers are.
        why_not: reasons why the other numbers cannot be compared, the most frequent first.
    """

    paper: Paper
    in_short: str
    regenerated: str
    near: list[str]
    why_not: list[str]

    @property
    def why_not_what(self) -> str:
        """The numbers to which the reasons in ``why_not`` apply."""
        none = self.in_short == Verdict.NOT_COMPARABLE.value
        return "Why it is not comparable" if none else "Why not the rest"


def summaries(table: pd.DataFrame, papers: Sequence[Paper]) -> list[Summary]:
    """A line for each paper, in the order of the papers.

    Args:
        table: of :func:`joulecast.report.papers.rows.paper_table`.
        papers: those that have rows in it.
    """
    return [_summary(paper, table[table["paper"] == paper.name]) for paper in papers]


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


def _summary(paper: Paper, rows: pd.DataFrame) -> Summary:
    regenerated = rows["ours"].notna()
    sources = " and ".join(sorted(rows.loc[regenerated, "source"].unique())) or "none"
    return Summary(
        paper,
        _came_out(rows),
        f"{int(regenerated.sum())} of {len(rows)} rows ({sources}), on {paper.regenerated_on}.",
        [
            *_judged(rows),
            *([paper.rivals] if paper.rivals else []),
        ],
        _reasons(rows),
    )


def _came_out(rows: pd.DataFrame) -> str:
    printed = rows["published"].notna()
    parts = []
    for what, of_kind, verdicts in (
        ("printed numbers ", rows[printed], _OF_PRINTED),
        ("", rows[~printed], _OF_CODE),
    ):
        counts = of_kind["verdict"].value_counts()
        found = [(counts[v.value], v.value) for v in verdicts if v.value in counts]
        if found:
            (count, verdict), *others = found
            judged = [f"{count} of {len(of_kind)} {what}{verdict}"]
            parts.append(", ".join([*judged, *(f"{count} {verdict}" for count, verdict in others)]))
    return "; ".join(parts) or Verdict.NOT_COMPARABLE.value


def _judged(rows: pd.DataFrame) -> list[str]:
    """What came out if the setting is the same: for printed numbers, and for each reference."""
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
    missed = judged[judged["verdict"].isin([Verdict.WORSE, Verdict.WORSE_THAN_CODE])]
    names = [f"{row.quantity} ({row.setting})" for row in missed.head(_SHOWN).itertuples()]
    more = f" and {len(missed) - _SHOWN} more" if len(missed) > _SHOWN else ""
    return [*found, f"Not reproduced: {'; '.join(names)}{more}."] if names else found


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
    columns = ["paper", "claim", "printed", "here", "on", "verdict"]
    return pd.DataFrame(found, columns=columns)


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
        verdict += f"; ours is {_against(differences)}"
    return {
        "printed": printed,
        "here": _range(ours) + unit if len(ours) else "none",
        "verdict": verdict,
    }


def _against(differences: pd.Series) -> str:
    if (differences < 0).all():
        return "lower"
    return "higher" if (differences > 0).all() else "lower in some rows, higher in others"


def _range(numbers: pd.Series) -> str:
    least, most = digits(numbers.min()), digits(numbers.max())
    return least if least == most else f"{least} to {most}"


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
