"""Writing one table as CSV for programs and as Markdown for people."""

from pathlib import Path

import pandas as pd

from joulecast.files import written_aside

_NOISE = 1e-12
"""What is smaller is left over from rounding."""


def write_table(
    stem: Path, title: str, notes: list[str], table: pd.DataFrame, sections: str | None = None
) -> None:
    """Write ``stem.csv`` and ``stem.md``, numbers rounded to what they can carry.

    Args:
        stem: path without its suffix.
        notes: sentences between title and table; what the reader must know before reading it.
        sections: a column; the Markdown has a table of its own for each of its values.
    """
    rounded = table.copy()
    for column in rounded.select_dtypes("number").columns:
        rounded[column] = rounded[column].map(significant, na_action="ignore")
    with written_aside(stem.with_suffix(".csv")) as partial:
        rounded.to_csv(partial, index=False)
    text = [f"# {title}", "", *[f"{note}\n" for note in notes]]
    same = [
        c
        for c in rounded.columns
        if c != sections and len(rounded) > 1 and _is_constant(rounded[c])
    ]
    if same:
        text.append(
            "In all rows: " + ", ".join(f"`{c}` {_shown(rounded[c].iloc[0])}" for c in same) + ".\n"
        )
        rounded = rounded.drop(columns=same)
    if rounded.empty:
        text.append("No rows.")
    elif sections is None:
        text.append(markdown(rounded))
    else:
        for value, section in rounded.groupby(sections, sort=False):
            text += [f"## {value}", "", markdown(section.drop(columns=sections)), ""]
    with written_aside(stem.with_suffix(".md")) as partial:
        partial.write_text("\n".join(text) + "\n")


def _is_constant(column: pd.Series) -> bool:
    return bool(column.nunique(dropna=False) == 1)


def _shown(value: object) -> object:
    return "—" if pd.isna(value) else value


def markdown(table: pd.DataFrame) -> str:
    """A Markdown table; what is not there is a dash."""
    shown = table.astype(object).where(table.notna(), "—")
    return str(shown.to_markdown(index=False, disable_numparse=True))


def significant(value: float) -> float:
    """Rounded to four digits; whole numbers stay."""
    if isinstance(value, int) or float(value).is_integer():
        return value
    if abs(value) < _NOISE:
        return 0.0
    return float(f"{value:.4g}")
