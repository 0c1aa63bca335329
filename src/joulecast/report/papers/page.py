"""The papers' table as one page: a line a paper, then the rows, those that compare nothing closed."""

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt

from joulecast.quantities import NONE, counted
from joulecast.report.papers.rows import Verdict
from joulecast.report.papers.summary import Summary, in_all
from joulecast.report.tables.output import significant

_COMMON = ("table", "setting", "quantity", "unit")
_PRINTED = (*_COMMON, "published", "ours", "difference", "source", "tolerance", "verdict")
_REFERENCE = (*_COMMON, "reference", "ours", "difference", "source", "tolerance", "verdict")
_UNLIKE = (*_COMMON, "published", "reference", "ours", "source", "verdict", "why not comparable")
_NUMERIC = frozenset({"published", "reference", "ours", "difference"})


def page(
    title: str,
    stem: str,
    how_to_read: str,
    made_by: str,
    table: pd.DataFrame,
    lines: Sequence[Summary],
) -> str:
    """HTML of the page, which asks for nothing outside of it.

    Args:
        title: of the page.
        stem: name of its other formats in the same folder, without suffix.
        how_to_read: what verdicts mean, in Markdown.
        made_by: a sentence on the code that made it.
        table: of :func:`joulecast.report.papers.rows.paper_table`.
        lines: of :func:`joulecast.report.papers.summary.summaries`.
    """
    environment = Environment(
        loader=PackageLoader("joulecast.report.papers"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    template = environment.get_template("papers.html.j2")
    return template.render(
        title=title,
        stem=stem,
        in_all=in_all(table),
        how_to_read=MarkdownIt("commonmark", {"html": False}).render(how_to_read),
        made_by=made_by,
        numeric=_NUMERIC,
        lines=[_line(line, table[table["paper"] == line.paper.name]) for line in lines],
    )


def _line(line: Summary, rows: pd.DataFrame) -> dict[str, Any]:
    citation = line.paper.published.citation
    return {
        "name": line.paper.name,
        "anchor": re.sub(r"\W+", "-", line.paper.name.lower()),
        "in_short": line.in_short,
        "verdict": _mark(line.verdict),
        "claim": line.paper.published.claim,
        "regenerated": line.regenerated,
        "near": line.near,
        "why_not": line.why_not,
        "why_not_what": line.why_not_what,
        "title": citation.title,
        "citation": citation.text,
        "left_out": citation.left_out,
        "bibtex": citation.bibtex,
        "parts": _parts(rows),
    }


def _parts(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Tables of one paper: printed numbers, each reference, and what is not comparable, closed."""
    left = rows["verdict"].isin([Verdict.NOT_COMPARABLE, Verdict.MISSING])
    printed = rows["published"].notna()
    parts = []
    if (printed & ~left).any():
        parts.append(_part("Printed by the paper, same setting", _PRINTED, rows[printed & ~left]))
    for kind, of_kind in rows[~printed & ~left].groupby("reference_is", sort=False):
        parts.append(_part(f"Not printed: {kind}", _REFERENCE, of_kind))
    if left.any():
        title = (
            f"Not comparable or missing: {counted(int(left.sum()), 'row')}, each with its reason"
        )
        parts.append(_part(title, _UNLIKE, rows[left], closed=True))
    return parts


def _part(
    title: str, columns: tuple[str, ...], rows: pd.DataFrame, *, closed: bool = False
) -> dict[str, Any]:
    return {
        "title": title,
        "columns": columns,
        "closed": closed,
        "rows": [_cells(row) for row in rows.to_dict("records")],
    }


def _cells(row: dict[Any, Any]) -> dict[str, Any]:
    cells = {str(name).replace("_", " "): _shown(value) for name, value in row.items()}
    if row["reference_is"]:
        cells["quantity"] += f" (reference: {row['reference_is']})" if _is_left(row) else ""
    missing = pd.isna(row["ours_from"])
    return cells | {
        "mark": _mark(row["verdict"]),
        "ours_from": None if missing else row["ours_from"],
    }


def _is_left(row: dict[Any, Any]) -> bool:
    return row["verdict"] in (Verdict.NOT_COMPARABLE, Verdict.MISSING)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value or NONE
    if pd.isna(value):
        return NONE
    number = significant(float(value))
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,}"


def _mark(verdict: str) -> str:
    return verdict.replace(" ", "-").removesuffix("-than-the-code")
