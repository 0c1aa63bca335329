"""A published number beside ours, and the verdict on the two."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isnan
from typing import Literal

import pandas as pd

from joulecast.report.tables.published import Tolerance

COLUMNS = (
    *("paper", "table", "setting", "quantity", "unit", "published", "ours", "difference"),
    *("source", "comparable", "why_not_comparable", "tolerance", "verdict"),
)


class Verdict(StrEnum):
    """What a published number and ours say of each other."""

    REPRODUCED = "reproduced"
    BETTER = "better"
    WORSE = "worse"
    NOT_COMPARABLE = "not comparable"
    MISSING = "missing"


@dataclass(frozen=True)
class Row:
    """A published number and ours.

    Attributes:
        published: as printed; text where the paper prints none (``>60``).
        ours: ``None`` where there is none, with the reason in ``why_not_comparable`` or ``missing``.
        source: of ours: measured, recorded, imported, simulated, replayed or estimated.
        improves: the direction in which ours is better beyond the tolerance; ``neither`` for a fact that
            is either met or missed.
        why_not_comparable: empty where the setting is the same.
        missing: what has to be there for ours, and how to get it; empty if it is there.
    """

    paper: str
    table: str
    setting: str
    quantity: str
    unit: str
    published: float | str
    ours: float | None
    source: str | None
    tolerance: Tolerance
    improves: Literal["down", "up", "neither"] = "neither"
    why_not_comparable: str = ""
    missing: str = ""

    @property
    def difference(self) -> float | None:
        """Ours less the published number."""
        if self.ours is None or isnan(self.ours) or isinstance(self.published, str):
            return None
        return self.ours - self.published

    @property
    def verdict(self) -> Verdict:
        """Judged by the tolerance, if there is anything to judge."""
        if self.missing:
            return Verdict.MISSING
        if self.why_not_comparable or self.difference is None or isinstance(self.published, str):
            return Verdict.NOT_COMPARABLE
        # Printed numbers are rounded, and so is their difference.
        if abs(self.difference) <= self.tolerance.around(self.published) * (1 + 1e-9):
            return Verdict.REPRODUCED
        better = {"down": self.difference < 0, "up": self.difference > 0, "neither": False}
        return Verdict.BETTER if better[self.improves] else Verdict.WORSE


def paper_table(rows: Sequence[Row]) -> pd.DataFrame:
    """The rows with their verdicts, in ``COLUMNS``."""
    described = [
        {
            **{name: getattr(row, name) for name in COLUMNS if hasattr(row, name)},
            "comparable": "no" if row.why_not_comparable else "yes",
            "why_not_comparable": row.missing or row.why_not_comparable,
            "tolerance": str(row.tolerance),
            "verdict": row.verdict.value,
        }
        for row in rows
    ]
    return pd.DataFrame(described, columns=list(COLUMNS))


def verdict_counts(table: pd.DataFrame) -> pd.DataFrame:
    """Number of rows of each paper with each verdict: papers by verdicts."""
    counts = pd.crosstab(table["paper"], table["verdict"])
    order = [verdict.value for verdict in Verdict]
    return counts.reindex(index=table["paper"].unique(), columns=order, fill_value=0)
