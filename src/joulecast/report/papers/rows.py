"""A published number next to ours, and the verdict on our number."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isnan
from pathlib import Path
from typing import Literal

import pandas as pd

from joulecast.report.tables.published import FromPaper, Tolerance

COLUMNS = (
    *("paper", "table", "setting", "quantity", "unit", "published", "reference", "reference_is"),
    *("ours", "difference", "source", "ours_from"),
    *("comparable", "why_not_comparable", "tolerance", "verdict"),
)


class Verdict(StrEnum):
    """The verdict on our number. It is compared with a number that a paper prints, or that comes from the
    paper's code."""

    REPRODUCED = "reproduced"
    BETTER = "better"
    WORSE = "worse"
    SAME_AS_CODE = "same as the code"
    BETTER_THAN_CODE = "better than the code"
    WORSE_THAN_CODE = "worse than the code"
    NOT_COMPARABLE = "not comparable"


OF_CODE = {
    Verdict.REPRODUCED: Verdict.SAME_AS_CODE,
    Verdict.BETTER: Verdict.BETTER_THAN_CODE,
    Verdict.WORSE: Verdict.WORSE_THAN_CODE,
}
"""For each verdict on a printed number: the same verdict on a number from the paper's code."""


@dataclass(frozen=True)
class Row:
    """A published number and ours.

    Attributes:
        published: the number as printed. It is a text if the paper prints no exact number (``>60``). It is
            ``None`` if the paper prints nothing. Then ``reference`` is used.
        ours: our number. It is ``None`` if there is none; ``why_not_comparable`` has the reason.
        source: source of our number: measured, recorded, imported, simulated, replayed or estimated.
        improves: the direction in which a number is better (``neither`` for a fact that can only be
            reproduced or not).
        why_not_comparable: empty if the setting is the same.
        reference: a number to compare with, if no paper prints one. ``reference_is`` says what it is.
        ours_from: the file from which our number was read, if possible a page.
    """

    table: str
    setting: str
    quantity: str
    unit: str
    published: float | str | None
    ours: float | None
    source: str | None
    tolerance: Tolerance
    improves: Literal["down", "up", "neither"] = "neither"
    why_not_comparable: str = ""
    reference: float | None = None
    reference_is: str = ""
    ours_from: Path | None = None

    @property
    def theirs(self) -> float | str | None:
        """The number that we compare ours with: the published number, or the reference."""
        return self.reference if self.published is None else self.published

    @property
    def difference(self) -> float | None:
        """Our number minus theirs."""
        if self.ours is None or isnan(self.ours) or not isinstance(self.theirs, int | float):
            return None
        return self.ours - self.theirs

    @property
    def verdict(self) -> Verdict:
        """The verdict, which follows from the tolerance. Only a number that a paper prints can be
        *reproduced*."""
        theirs = self.theirs
        if (
            self.why_not_comparable
            or self.difference is None
            or not isinstance(theirs, int | float)
        ):
            return Verdict.NOT_COMPARABLE
        better = {"down": self.difference < 0, "up": self.difference > 0, "neither": False}
        found = Verdict.BETTER if better[self.improves] else Verdict.WORSE
        # Printed numbers are rounded, and so is their difference.
        if abs(self.difference) <= self.tolerance.around(theirs) * (1 + 1e-9):
            found = Verdict.REPRODUCED
        return OF_CODE[found] if self.published is None else found


@dataclass(frozen=True)
class Paper:
    """A paper whose numbers are regenerated.

    Attributes:
        name: as in the column ``paper`` of the table.
        published: the paper's numbers, citation and claims.
        regenerated_on: the data behind our numbers.
        headlines: the paper's claims in short. Each has the names of the quantities that support it.
        rows: its numbers and ours.
        rivals: a sentence that says where a rival is better.
    """

    name: str
    published: FromPaper
    regenerated_on: str
    headlines: Mapping[str, Sequence[str]]
    rows: Sequence[Row]
    rivals: str = ""


def paper_table(papers: Sequence[Paper], folder: Path) -> pd.DataFrame:
    """The rows of the papers with their verdicts, in ``COLUMNS``.

    Args:
        folder: folder of the table. ``ours_from`` is relative to it.
    """
    described = [
        {
            "paper": paper.name,
            **{name: getattr(row, name) for name in COLUMNS if hasattr(row, name)},
            "comparable": "no" if row.why_not_comparable else "yes",
            "ours_from": row.ours_from and Path(os.path.relpath(row.ours_from, folder)).as_posix(),
            "tolerance": str(row.tolerance),
            "verdict": row.verdict.value,
        }
        for paper in papers
        for row in paper.rows
    ]
    return pd.DataFrame(described, columns=list(COLUMNS))


def verdict_counts(table: pd.DataFrame) -> pd.DataFrame:
    """For each paper, the number of rows with each verdict."""
    counts = pd.crosstab(table["paper"], table["verdict"])
    order = [verdict.value for verdict in Verdict]
    return counts.reindex(index=table["paper"].unique(), columns=order, fill_value=0)
