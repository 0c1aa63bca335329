"""Times of logs: numbers and texts of many forms are converted to seconds, in a time zone that may be
unknown.

``--timezone`` gives the zone of a time without one. In autumn, when the clock is put back, an hour occurs
twice. The order of the readings shows which of the two is meant; otherwise the log is refused.
"""

import re
from dataclasses import dataclass
from datetime import timedelta, timezone, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.errors import JoulecastError

Floats = NDArray[np.float64]
TimeUnit = Literal["auto", "s", "ms", "us", "ns", "relative"]
TimeForm = Literal["placed", "local", "relative"]
TIME_UNITS: tuple[TimeUnit, ...] = ("auto", "s", "ms", "us", "ns", "relative")

_PER_S = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9, "min": 1 / 60, "h": 1 / 3600}
_SMALLEST: tuple[tuple[TimeUnit, float], ...] = (
    ("ns", 1e17),
    ("us", 1e14),
    ("ms", 1e11),
    ("s", 1e8),
)
"""The smallest number that counts as a time since 1970 in each unit. (1e8 s after 1970 is in 1973.) Smaller
numbers count from a start that is not known."""
_NAMED = re.compile(
    r"(?:(?<![a-zA-Z])|(?<=[a-z])(?=[A-Z]))"
    r"(?:(?P<ms>[mM]s|[mM]sec|[mM]illis\w*)|(?P<us>[uUµμ]s|[uU]sec|[mM]icros\w*)"
    r"|(?P<ns>[nN]s|[nN]sec|[nN]anos\w*)|(?P<min>[mM]in|[mM]inutes)|(?P<h>h|[hH]ours))(?![a-zA-Z0-9])"
)
"""The unit in the name of a column, as ``elapsed_ms``, ``timeMs`` or ``t [h]``."""
_DAYS, _MOST_DAYS = (36526.0, 73050.0), 30.0
"""The days from 2000 to 2100, as spreadsheets count them since 1900; and the most days in a log."""
_ZONED = r"(?:Z|[+-]\d{2}:?\d{2})$"
_OFFSET = re.compile(r"([+-])(\d{1,2}):?(\d{2})")
_SHOWN = 40


def zone_named(name: str) -> tzinfo:
    """The time zone of a name (``Europe/Berlin``, ``UTC``) or an offset (``+02:00``).

    Raises:
        JoulecastError: there is no time zone of that name.
    """
    try:
        if match := _OFFSET.fullmatch(name):
            offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
            return timezone(offset if match[1] == "+" else -offset)
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise JoulecastError(
            f"--timezone {name[:_SHOWN]}: no such time zone; give a name as Europe/Berlin, UTC, or an "
            "offset as +02:00"
        ) from None


@dataclass(frozen=True)
class Times:
    """Seconds: since 1970 (``placed``), on a clock whose zone is not known (``local``), or since a
    start that is not known (``relative``)."""

    t_s: Floats
    form: TimeForm


def in_words(form: TimeForm) -> str:
    """A description of times of this form, for errors."""
    return {
        "placed": "of a known zone",
        "local": "of no known zone",
        "relative": "seconds since a start",
    }[form]


@dataclass(frozen=True)
class Clock:
    """How the times of a log are read.

    Attributes:
        zone: time zone of times that name none; ``None``: not known.
        unit: unit of times that are numbers; ``auto``: it follows from their size.
        form: format of times that are texts, as for ``strptime``; ``None``: ISO 8601.
    """

    zone: tzinfo | None = None
    unit: TimeUnit = "auto"
    form: str | None = None

    def seconds(self, texts: pd.Series, where: str, column: str = "") -> Times:
        """Times of a column.

        Args:
            texts: one text a reading; the index counts the lines of the file.
            where: file and column, for errors.
            column: name of the column, which may give the unit of numbers.

        Raises:
            JoulecastError: a text is no time. The error names its line.
        """
        if self.form is None:
            numbers = pd.to_numeric(texts, errors="coerce")
            if numbers.notna().all():
                return self._of_numbers(numbers.to_numpy(float), where, column)
            if self.unit != "auto" or numbers.notna().any():
                way_out = (
                    "expected a number; leave out the line, or the option --time-unit"
                    if self.unit != "auto"
                    else "the times before it are numbers; leave out the line"
                )
                raise _no_time(where, texts, numbers.isna().to_numpy(), way_out)
        return self._of_texts(texts, where)

    def _of_numbers(self, numbers: Floats, where: str, column: str) -> Times:
        unit = self.unit
        if unit == "auto":
            largest = float(np.abs(numbers).max(initial=0.0))
            if (named := _NAMED.search(column)) and named.lastgroup:
                per_s = _PER_S[named.lastgroup]
                is_placed = largest / per_s >= dict(_SMALLEST)["s"]
                return Times(numbers / per_s, "placed" if is_placed else "relative")
            unit = next((u for u, least in _SMALLEST if largest >= least), "relative")
            first, last = float(numbers.min(initial=largest)), float(numbers.max(initial=0.0))
            if len(numbers) > 1 and _DAYS[0] <= first <= last < min(_DAYS[1], first + _MOST_DAYS):
                raise JoulecastError(
                    f"{where}: {first:.10g} looks like days since 1900, as spreadsheets count; save the "
                    "times as texts, or say --time-unit relative if they are seconds since a start"
                )
        if unit == "relative":
            return Times(numbers, "relative")
        return Times(numbers / _PER_S[unit], "placed")

    def _of_texts(self, texts: pd.Series, where: str) -> Times:
        zoned = texts.str.contains(_ZONED, regex=True, na=False).to_numpy()
        if self.form is not None:
            zoned = np.full(len(texts), "%z" in self.form)
        elif zoned.any() and not zoned.all():
            other = "without a zone" if zoned[0] else "with one"
            way_out = f"it is {other}, the times before it are not; write all alike"
            raise _no_time(where, texts, zoned != zoned[0], way_out)
        plain = texts if self.form is not None else texts.str.replace("/", "-", regex=False)
        moments = pd.to_datetime(
            plain, format=self.form or "ISO8601", errors="coerce", utc=bool(zoned.any())
        )
        wrong = moments.isna().to_numpy()
        if wrong.any():
            hint = "give its form with --time-format, as strptime has it (%d.%m.%Y %H:%M:%S)"
            if re.fullmatch(r"\d+,\d+", str(texts.iloc[int(wrong.argmax())])):
                hint = "if the comma is a decimal sign, say --decimal ,"
            raise _no_time(where, texts, wrong, hint)
        index = pd.DatetimeIndex(moments).tz_localize(None).as_unit("ns")
        return Times(index.asi8 / 1e9, "placed" if zoned.any() else "local")

    def place(self, times: Times, where: str, *, in_order: bool = True) -> Times:
        """Local times as seconds since 1970, if their zone is known. Other times are not changed.

        Args:
            in_order: whether the times are in the order of the clock, as the readings of one meter.

        Raises:
            JoulecastError: the times lie in an hour that occurs twice (in autumn) or never (in spring).
        """
        if times.form != "local" or self.zone is None or not len(times.t_s):
            return times
        local = pd.DatetimeIndex((times.t_s * 1e6).round().astype("int64").astype("datetime64[us]"))
        # If two lines have the same time, pandas would believe that the clock was put back.
        new = np.diff(times.t_s, prepend=np.nan) != 0
        try:
            placed = local[new].tz_localize(
                self.zone, ambiguous="infer" if in_order else "raise", nonexistent="raise"
            )
        except ValueError:
            raise JoulecastError(
                f"{where}: its times have an hour in {self.zone} that is there twice or not at all (the "
                "clock is put back or on); if all have one offset, give it, as --timezone +02:00; otherwise "
                "write them in UTC"
            ) from None
        return Times(placed.as_unit("ns").asi8[np.cumsum(new) - 1] / 1e9, "placed")

    def moment(self, text: str, where: str) -> Times:
        """One time that a user gives, in seconds since 1970 if its zone is known."""
        plain = Clock(self.zone)
        try:
            times = plain.seconds(pd.Series([text.strip()]), where)
        except JoulecastError:
            raise JoulecastError(
                f"{where}: `{text[:_SHOWN]}` is no time; write it as 2026-05-02T10:00:00+02:00"
            ) from None
        return plain.place(times, where)


def _no_time(
    where: str, texts: pd.Series, wrong: NDArray[np.bool_], way_out: str
) -> JoulecastError:
    place = int(wrong.argmax())
    return JoulecastError(
        f"{where}, line {texts.index[place]}: `{str(texts.iloc[place])[:_SHOWN]}` is no time that is known "
        f"here; {way_out}"
    )
