"""Write one table: unrounded as Parquet for programs, and rounded as CSV, Markdown and HTML for people."""

from html import escape
from numbers import Real
from pathlib import Path
from string import Template

import pandas as pd
from markdown_it import MarkdownIt

from joulecast.runs.files.writing import write_csv, written_aside

_PAGE = Template(
    """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="description" content="$title: a table of joulecast.">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --tint: #f2f2f2; }
:root { --line: #ccc; --link: #0b5cad; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --paper: #14171b; --tint: #23282e; --line: #444b54; --link: #8bbcf0; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
a { color: var(--link); }
main { margin: 1.5rem auto; max-width: 75rem; padding: 0 1rem; }
p, li, h1 { overflow-wrap: anywhere; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; margin: 1em 0; }
th, td { border-bottom: 1px solid var(--line); padding: .2em .6em; text-align: left; vertical-align: top; }
td { font-variant-numeric: tabular-nums; }
th { background: var(--tint); }
code { background: var(--tint); padding: 0 .2em; }
@media print { :root { --ink: #000; --paper: #fff; --tint: #f2f2f2; } }
@media print { .table { overflow: visible; } table { font-size: 7pt; } th, td { overflow-wrap: anywhere; } }
</style>
</head>
<body>
<main>
$body</main>
</body>
</html>
"""
)
_NOISE = 1e-12
"""Smaller numbers are errors of rounding."""


def write_table(
    stem: Path, title: str, notes: list[str], table: pd.DataFrame, sections: str | None = None
) -> None:
    """Write ``stem.parquet``, and for people ``stem.csv``, ``stem.md`` and ``stem.html``.

    Args:
        stem: path without its suffix.
        notes: sentences between title and table that a reader must know first.
        sections: name of a column. The Markdown has a separate table for each value of this column.
    """
    rounded = write_numbers(stem, table)
    text = [f"# {title}", "", *[f"{note}\n" for note in notes]]
    constant = rounded.columns[rounded.nunique(dropna=False) == 1] if len(rounded) > 1 else []
    if same := [column for column in constant if column != sections]:
        first = rounded[same].astype(object).fillna("—").iloc[0]
        text.append(f"In all rows: {', '.join(f'`{c}` {value}' for c, value in first.items())}.\n")
        rounded = rounded.drop(columns=same)
    if rounded.empty:
        text.append("No rows.")
    elif sections is None:
        text.append(markdown(rounded))
    else:
        for value, section in rounded.groupby(sections, sort=False):
            text += [f"## {value}", "", markdown(section.drop(columns=sections)), ""]
    write_text(stem, title, "\n".join(text) + "\n")


def write_numbers(stem: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Write ``stem.parquet`` for programs, and ``stem.csv`` with numbers rounded to meaningful digits.

    Returns:
        The rounded table.
    """
    with written_aside(stem.with_suffix(".parquet")) as partial:
        table.to_parquet(partial, index=False)
    rounded = table.copy()
    for column in rounded.select_dtypes("number").columns:
        rounded[column] = rounded[column].map(significant, na_action="ignore")
    with written_aside(stem.with_suffix(".csv")) as partial:
        write_csv(rounded, partial)
    return rounded


def write_text(stem: Path, title: str, text: str) -> None:
    """Write a text in Markdown as ``stem.md`` and, for a browser without network, as ``stem.html``."""
    with written_aside(stem.with_suffix(".md")) as partial:
        partial.write_text(text, encoding="utf-8")
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    # A wide table is scrolled, by keyboard too.
    before, *tables = body.split("<table>")
    scrolled = '<div class="table" role="region" tabindex="0" aria-label="table {}">\n<table>'
    body = before + "".join(scrolled.format(n) + table for n, table in enumerate(tables, 1))
    body = body.replace("</table>", "</table>\n</div>")
    with written_aside(stem.with_suffix(".html")) as partial:
        partial.write_text(_PAGE.substitute(title=escape(title), body=body), encoding="utf-8")


def markdown(table: pd.DataFrame) -> str:
    """A Markdown table. A missing value is shown as a dash."""
    shown = table.astype(object).where(table.notna(), "—").map(_in_a_cell)
    return str(shown.to_markdown(index=False, disable_numparse=True))


def _in_a_cell(value: object) -> object:
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        # Numbers of five or more digits are easier to read in groups of three digits.
        return (
            f"{number:,.0f}"
            if number.is_integer()
            else f"{number:,}"
            if abs(number) >= 1e4
            else value
        )
    return " ".join(value.replace("|", r"\|").split()) if isinstance(value, str) else value


def significant(value: float) -> float:
    """The number, rounded to four digits. Whole numbers are not changed."""
    if isinstance(value, int) or float(value).is_integer():
        return value
    if abs(value) < _NOISE:
        return 0.0
    return float(f"{value:.4g}")
