"""The papers' table from the files of a campaign's results, written as Parquet, CSV, Markdown and HTML."""

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pandas as pd

from joulecast.quantities import counted, digits, span
from joulecast.report.papers.antichain import antichain
from joulecast.report.papers.mc2 import mc2
from joulecast.report.papers.proteus import proteus
from joulecast.report.papers.rows import OF_CODE, Paper, Verdict, paper_table, verdict_counts
from joulecast.report.papers.zeus import zeus
from joulecast.report.tables.output import markdown, write_numbers, write_text
from joulecast.report.tables.partition import PublishedPartitioning
from joulecast.report.tables.published import PublishedErrors, PublishedTuning
from joulecast.report.tables.simulator import PublishedSimulators
from joulecast.runs.provenance import source_state

_TITLE = "The papers' numbers, and ours"
_VERDICTS_EXPLAINED = """\
`reproduced`: the setting is the same, and the difference is within the tolerance. `better`, `worse`: the
setting is the same, and the difference is larger. `same as the code`, `better than the code`, `worse than
the code`: the same three verdicts, against the authors' public code, for a number that no paper prints.
`not comparable`: the setting is another one, or there is no number on one side; the row has the reason, and
no better or worse is claimed. `replayed`: computed from what the papers' authors measured. `reference`: a
number to compare with where no paper prints one, such as a number from the authors' public code. Mean
error: in percent, without sign (MAPE). Held out, so not seen by the fit: a node count
(`leave-one-node-count-out`), the larger node counts of one network (`leave-one-workload-out`), all larger
scales (`extrapolation`)."""
_SPELLED_OUT = ("reference_is", "why_not_comparable", "tolerance")
_SHOWN = 2
"""Most reasons, and most rows that are not reproduced, that the line of a paper names. The table has all of
them."""


def papers(
    *,
    simulator: Path,
    partition: Path,
    tuning: Path,
    metered: Path,
    published: Path,
    profile_experiments: Sequence[Path],
    own_experiments: Sequence[Path],
) -> list[Paper]:
    """All four papers.

    Args:
        simulator, partition, tuning, metered: folders of tables. ``metered`` has the energies of metered
            runs.
        profile_experiments, own_experiments: partitioning of PipeDream's profiles, and of the graphs that
            this project measured.

    Raises:
        JoulecastError: a file of published numbers is missing or has wrong keys.
    """
    partitioning = PublishedPartitioning.read(published / "antichain.yaml")
    return [
        zeus(PublishedTuning.read(published / "zeus.yaml"), tuning),
        mc2(PublishedErrors.read(published / "mc2.yaml"), metered),
        proteus(PublishedSimulators.read(published / "proteus.yaml"), simulator),
        antichain(partitioning, profile_experiments, own_experiments, partition),
    ]


def _commit_in_words() -> str:
    """The commit whose code made a table, in a sentence."""
    state = source_state()
    if state["git_commit"] is None:
        return f"Made by joulecast {metadata.version('joulecast')}, outside of a git checkout."
    changed = ", with changes that were not committed" if state["git_dirty"] else ""
    return f"Made by joulecast at commit {state['git_commit']}{changed}."


def write_papers(stem: Path, papers: Sequence[Paper]) -> pd.DataFrame:
    """Write ``stem`` as Parquet, CSV, Markdown and HTML: a line for each paper, then a section for each
    paper.

    Args:
        stem: path without its suffix.

    Returns:
        The table of all papers.
    """
    table = paper_table(papers, stem.parent)
    # Some numbers are printed as bounds (``>60``). So the column is text.
    as_printed = table["published"].map(
        lambda number: number if isinstance(number, str) else f"{number:.12g}", na_action="ignore"
    )
    rounded = write_numbers(stem, table.assign(published=as_printed))
    # Snakemake's report begins with the part of this text before the lines of the papers.
    of_papers = " ".join(
        f"{each.name}: {_came_out(table[table['paper'] == each.name])}." for each in papers
    )
    text = [
        *(f"# {_TITLE}", "", _in_all(table), "", of_papers, ""),
        *(markdown(_claims_table(table, papers)), ""),
        *(_in_short(table, paper) for paper in papers),
        *("", _VERDICTS_EXPLAINED, "", _commit_in_words(), ""),
        *(markdown(verdict_counts(table).reset_index()), ""),
    ]
    for paper in papers:
        notes: dict[str, str] = {}
        of_paper = rounded[rounded["paper"] == paper.name]
        shown = of_paper.drop(columns=["paper", "comparable", "ours_from", *_SPELLED_OUT])
        # A verdict links to the table from which our number comes.
        shown["verdict"] = [
            f"[{verdict}]({file})" if isinstance(file, str) else verdict
            for verdict, file in zip(of_paper["verdict"], of_paper["ours_from"], strict=True)
        ]
        for column in _SPELLED_OUT:
            numbers = [_number(reason, notes) for reason in of_paper[column]]
            shown.insert(len(shown.columns) - 1, column.replace("_", " "), numbers)
        text += [f"## {paper.name}", "", f"{paper.published.paper}.", "", markdown(shown), ""]
        text += [f"{number} {reason}  " for reason, number in notes.items()] + [""]
    write_text(stem, _TITLE, "\n".join(text))
    return table


def _number(reason: str | None, notes: dict[str, str]) -> str | None:
    """The number of the note with this reason, as ``[1]``. The notes are below the table. A reason that
    occurs again has the same number."""
    if not reason:
        return None
    return notes.setdefault(reason, f"[{len(notes) + 1}]")


def _in_short(table: pd.DataFrame, paper: Paper) -> str:
    """The line of one paper in Markdown: how many numbers are reproduced, and why the others are not."""
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
        what = "Why it is not comparable" if none else "Rows that are not comparable"
        parts.append(f"{what}: {'; '.join(why_not)}.")
    return f"* **{paper.name}: {came_out}.** {' '.join(parts)}"


def _in_all(table: pd.DataFrame) -> str:
    """One sentence about the numbers of all papers."""
    printed = table["published"].notna()
    return (
        f"{counted(len(table), 'comparison')} with {table['paper'].nunique()} papers. The papers print "
        f"{printed.sum()} of these numbers: {_counts(table[printed])}. The other "
        f"{(~printed).sum()} are not in the papers, such as results of their authors' code: "
        f"{_counts(table[~printed])}. "
        "Of a number that is not comparable, we do not say whether it is better or worse."
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
        ("other numbers ", rows[~printed], list(OF_CODE.values())),
    ):
        counts = of_kind["verdict"].value_counts()
        if found := [f"{counts[v.value]} {v.value}" for v in verdicts if v.value in counts]:
            count, _, verdict = found[0].partition(" ")
            first = f"{count} of {len(of_kind)} {what}{verdict}"
            parts.append(", ".join([first, *found[1:]]))
    return "; ".join(parts) or Verdict.NOT_COMPARABLE.value


def _claims_table(table: pd.DataFrame, papers: Sequence[Paper]) -> pd.DataFrame:
    """A row for each claim: the printed numbers, our numbers, the data behind ours, and the verdict."""
    found = [
        {"paper": paper.name, "claim": claim, **_of_claim(rows), "on": paper.regenerated_on}
        for paper in papers
        for claim, quantities in paper.headlines.items()
        for rows in [table[(table["paper"] == paper.name) & table["quantity"].isin(quantities)]]
        if len(rows)
    ]
    return pd.DataFrame(found, columns=["paper", "claim", "printed", "here", "on", "verdict"])


def _of_claim(rows: pd.DataFrame) -> dict[str, str]:
    """For the numbers of a claim: the printed numbers, our numbers, and the verdict, in words."""
    same = rows[rows["comparable"] == "yes"]
    rows = same if len(same) else rows
    unit = f" {rows['unit'].iloc[0]}".rstrip()
    theirs = pd.to_numeric(rows["published"].fillna(rows["reference"]), errors="coerce").dropna()
    ours = rows["ours"].dropna()
    printed = str(rows["published"].iloc[0])
    if len(theirs):
        printed = span(digits(theirs.min()), digits(theirs.max())) + unit
    if rows["published"].isna().all():
        printed += " (not printed; by its public code)"
    verdict = ", ".join(rows["verdict"].unique())
    differences = rows["difference"].dropna()
    if verdict == Verdict.NOT_COMPARABLE and len(differences):
        lies = "higher" if (differences > 0).all() else "lower in some rows, higher in others"
        verdict += f"; ours is {'lower' if (differences < 0).all() else lies}"
    return {
        "printed": printed,
        "here": span(digits(ours.min()), digits(ours.max())) + unit
        if len(ours)
        else "not compared here",
        "verdict": verdict,
    }


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
