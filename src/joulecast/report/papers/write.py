"""Writing the papers' table as Parquet, CSV, Markdown, HTML and LaTeX."""

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pandas as pd

from joulecast.report.papers.page import page
from joulecast.report.papers.rows import COLUMNS, verdict_counts
from joulecast.report.papers.summary import Paper, Summary, in_all, summaries
from joulecast.report.tables.output import markdown, write_numbers
from joulecast.runs.files.writing import written_aside
from joulecast.runs.provenance import source_state

_TITLE = "The papers' numbers, and ours"
_SAID = """\
`reproduced`: the setting is the same, and the difference is within the tolerance. `better`, `worse`: the
setting is the same, and the difference is larger. `same as the code`, `better than the code`, `worse than
the code`: the same of a number that no paper prints, and that its authors' public code gives. `not
comparable`: the setting is another one, or there is no number on one side; the row has the reason, and no
better or worse is claimed. `missing`: what ours is made of is not here; the row has the reason. `replayed`:
computed from what the papers' authors measured. `reference`: a number to compare with that no paper prints,
as of the authors' public code. Mean error: in percent, without sign (MAPE). Held out, so not seen by the
fit: a node count (`leave-one-node-count-out`), a network (`leave-one-workload-out`), all larger scales
(`extrapolation`)."""
_SPELLED_OUT = ("reference_is", "why_not_comparable", "tolerance")
_NOT_IN_LATEX = ("paper", "reference_is", "ours_from", "comparable", *_SPELLED_OUT)
_IN_LATEX = [c for c in COLUMNS if c not in _NOT_IN_LATEX]


def _made_by() -> str:
    """The commit whose code made a table, in a sentence."""
    state = source_state()
    if state["git_commit"] is None:
        return f"Made by joulecast {metadata.version('joulecast')}, outside of a git checkout."
    changed = ", with changes that were not committed" if state["git_dirty"] else ""
    return f"Made by joulecast at commit {state['git_commit']}{changed}."


def write_papers(stem: Path, table: pd.DataFrame, papers: Sequence[Paper]) -> None:
    """Write ``stem`` as Parquet, CSV, Markdown, HTML and LaTeX: a line a paper, then a section a paper.

    Args:
        stem: path without its suffix.
        table: of :func:`joulecast.report.papers.rows.paper_table`.
        papers: those of the table, in its order.
    """
    lines = summaries(table, papers)
    # Some are printed as bounds (``>60``): the column is text.
    as_printed = table["published"].map(_as_printed, na_action="ignore")
    rounded = write_numbers(stem, table.assign(published=as_printed))
    with written_aside(stem.with_suffix(".md")) as partial:
        partial.write_text(_as_markdown(rounded, lines), encoding="utf-8")
    with written_aside(stem.with_suffix(".html")) as partial:
        text = page(_TITLE, stem.name, _SAID, _made_by(), rounded, lines)
        partial.write_text(text, encoding="utf-8")
    with written_aside(stem.with_suffix(".tex")) as partial:
        partial.write_text(_as_latex(rounded), encoding="utf-8")


def _as_printed(number: float | str) -> str:
    return number if isinstance(number, str) else f"{number:.12g}"


def _in_short(line: Summary) -> str:
    parts = [f"Claims: {line.paper.published.claim}", f"Computed here: {line.regenerated}"]
    parts.append(f"How near: {' '.join(line.near)}")
    if line.why_not:
        parts.append(f"{line.why_not_what}: {'; '.join(line.why_not)}.")
    return f"* **{line.paper.name}: {line.in_short}.** {' '.join(parts)}"


def _as_markdown(table: pd.DataFrame, lines: Sequence[Summary]) -> str:
    cited = {line.paper.name: line.paper.published.citation for line in lines}
    text = [
        f"# {_TITLE}",
        "",
        in_all(table),
        "",
        " ".join(f"{line.paper.name}: {line.in_short}." for line in lines),
        "",
        *map(_in_short, lines),
        "",
        _SAID,
        "",
        _made_by(),
        "",
        markdown(verdict_counts(table).reset_index()),
        "",
    ]
    for paper, of_paper in table.groupby("paper", sort=False):
        notes: dict[str, str] = {}
        shown = of_paper.drop(columns=["paper", "comparable", "ours_from", *_SPELLED_OUT])
        for column in _SPELLED_OUT:
            numbers = [_number(reason, notes) for reason in of_paper[column]]
            shown.insert(len(shown.columns) - 1, column.replace("_", " "), numbers)
        text += [f"## {paper}", "", f"{cited[str(paper)].text}.", "", markdown(shown), ""]
        text += [f"{number} {reason}  " for reason, number in notes.items()] + [""]
        text += ["```bibtex", cited[str(paper)].bibtex, "```", ""]
    return "\n".join(text)


def _number(reason: str | None, notes: dict[str, str]) -> str | None:
    """The number of a reason among the notes below its table, where it is given once."""
    if not reason:
        return None
    return notes.setdefault(reason, f"[{len(notes) + 1}]")


def _as_latex(table: pd.DataFrame) -> str:
    """Long tables for the packages ``booktabs`` and ``longtable``."""
    text = [f"% {_made_by()} Needs \\usepackage{{booktabs,longtable}}.", ""]
    for paper, of_paper in table.groupby("paper", sort=False):
        shown = of_paper[_IN_LATEX].astype(object).where(of_paper[_IN_LATEX].notna(), "--")
        shown = shown.map(lambda value: f"{value:g}" if isinstance(value, float) else str(value))
        shown = shown.map(_escaped).rename(columns=_escaped)
        text.append(
            shown.to_latex(
                index=False,
                longtable=True,
                escape=False,
                column_format="p{2cm}p{3cm}p{3cm}lrrrrll",
                caption=f"{paper}: published numbers and ours",
                label=f"tab:{paper.lower()}",
            )
        )
    return "\n".join(text)


_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    ">": r"$>$",
    "<": r"$<$",
}


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)
