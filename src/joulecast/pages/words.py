"""Numbers in words a reader takes in at a glance: three digits and a unit of fitting size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

NONE = "—"
"""What stands where there is no number; never 0."""

_TIMES = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_COUNTED = 1e7
_LONG = 120.0
"""Seconds below this are told in seconds."""
_JOULES = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))


def is_number(value: Any) -> bool:
    """Whether there is a finite number."""
    return isinstance(value, (int, float)) and not pd.isna(value) and math.isfinite(value)


def digits(value: Any, count: int = 3) -> str:
    """A number with so many significant digits, a whole one as it is counted; no exponent where people
    read it without."""
    if not is_number(value):
        return NONE
    if float(value).is_integer() and abs(value) < _COUNTED:
        return f"{int(value):,}"
    return _significant(value, count)


def _significant(value: float, count: int = 3) -> str:
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 7:
        return f"{value:.{count - 1}e}"
    rounded = round(float(value), count - 1 - size)
    return f"{rounded:,.{max(0, count - 1 - size)}f}"


def _scaled(value: Any, units: Sequence[tuple[float, str]]) -> str:
    if not is_number(value):
        return NONE
    size, unit = next(((s, u) for s, u in units if abs(value) >= s), units[-1])
    return f"{_significant(value / size)} {unit}"


def seconds(value: Any) -> str:
    """A time in seconds, as 1.23 s, 4.56 min or 7.89 h."""
    if is_number(value) and abs(value) < _LONG:
        return _scaled(value, _TIMES[2:])
    return _scaled(value, _TIMES)


def joules(value: Any) -> str:
    """An energy in joules, as 1.23 kJ."""
    return _scaled(value, _JOULES)


def percent(value: Any, signed: bool = False) -> str:
    """A percentage, with its sign where that matters."""
    if not is_number(value):
        return NONE
    places = 0 if abs(value) >= 10 or value == 0 else 1 if abs(value) >= 1 else 2
    return f"{value:{'+' if signed else ''},.{places}f} %"


def counted(count: int, one: str, many: str | None = None) -> str:
    """``1 run``, ``3 runs``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Sequence[Any], most: int = 6) -> str:
    """Names in a sentence; says how many are left unnamed."""
    shown = [str(name) for name in names[:most]]
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


@dataclass(frozen=True)
class Table:
    """A table of the page: ``rows`` are of text; ``numeric`` columns are set to the right."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numeric: frozenset[str] = frozenset()

    @property
    def aligned(self) -> list[tuple[str, bool]]:
        """Columns with whether they are numeric."""
        return [(column, column in self.numeric) for column in self.columns]
