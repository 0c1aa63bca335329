"""Times of logs: numbers and texts of many forms to seconds, in a time zone that is known or is not.

A time without a zone is placed by ``--timezone``. Where the clock is put back in autumn an hour is there
twice: which of the two is meant shows in the order of the readings, or the log is refused.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.importers.traps import Floats

TimeUnit = Literal["auto", "s", "ms", "us", "ns", "relative"]
TimeForm = Literal["placed", "local", "relative"]
TIME_UNITS: tuple[TimeUnit, ...] = ("auto", "s", "ms", "us", "ns", "relative")

_PER_S = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_SMALLEST: tuple[tuple[TimeUnit, float], ...] = (
    ("ns", 1e17),
    ("us", 1e14),
    ("ms", 1e11),
    ("s", 1e8),
)
"""A number from here on is of that unit since the epoch: 1e8 s is in 1973, and less is since a start."""
_DAYS, _MOST_DAYS = (36526.0, 73050.0), 30.0
"""Days since 1900 from 2000 to 2100, and of how many a log may be."""
_ZONED = r"(?:Z|[+-]\d{2}:?\d{2})$"
_OFFSET = re.compile(r"([+-])(\d{1,2}):?(\d{2})")
_BACK_S, _NEAR_S = 1800.0, 600.0
_SHOWN = 40


def zone_named(name: str) -> tzinfo:
    """The time zone of a name (``Europe/Berlin``, ``UTC``) or an offset (``+02:00``).

    Raises:
        JoulecastError: there is none of that name.
    """
    if match := _OFFSET.fullmatch(name):
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(offset if match[1] == "+" else -offset)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise JoulecastError(
            f"--timezone {name[:_SHOWN]}: no such time zone; give a name as Europe/Berlin, UTC, or an "
            "offset as +02:00"
        ) from None


@dataclass(frozen=True)
class Clock:
    """How the times of a log are read.

    Attributes:
        zone: of times that name none; ``None``: not known.
        unit: of times that are numbers; ``auto``: by their size.
        form: of times that are texts, as ``strptime`` has it; ``None``: ISO 8601.
    """

    zone: tzinfo | None = None
    unit: TimeUnit = "auto"
    form: str | None = None

    def seconds(self, texts: pd.Series, where: str) -> "Times":
        """Times of a column.

        Args:
            texts: one text a reading; the index counts the lines of the file.
            where: file and column, for errors.

        Raises:
            JoulecastError: a text is no time; names its line.
        """
        if self.form is None:
            numbers = pd.to_numeric(texts, errors="coerce")
            if numbers.notna().all():
                return self._of_numbers(numbers.to_numpy(float), where)
            if self.unit != "auto" or numbers.notna().any():
                line = texts.index[int(numbers.isna().to_numpy().argmax())]
                mixed = (
                    "the times before it are numbers"
                    if self.unit == "auto"
                    else "expected a number"
                )
                raise _no_time(
                    where,
                    line,
                    texts[line],
                    f"{mixed}; leave out the line, or the option --time-unit",
                )
        return self._of_texts(texts, where)

    def _of_numbers(self, numbers: Floats, where: str) -> "Times":
        unit = self.unit
        if unit == "auto":
            if len(numbers) > 1 and _are_days(numbers):
                raise JoulecastError(
                    f"{where}: {numbers[0]:.10g} looks like days since 1900, as spreadsheets count; save the "
                    "times as texts, or say --time-unit relative if they are seconds since a start"
                )
            largest = float(np.abs(numbers).max(initial=0.0))
            unit = next((u for u, least in _SMALLEST if largest >= least), "relative")
        if unit == "relative":
            return Times(numbers, "relative")
        return Times(numbers / _PER_S[unit], "placed")

    def _of_texts(self, texts: pd.Series, where: str) -> "Times":
        zoned = texts.str.contains(_ZONED, regex=True, na=False).to_numpy()
        if self.form is not None:
            zoned = np.full(len(texts), "%z" in self.form)
        elif zoned.any() and not zoned.all():
            line = texts.index[int((zoned != zoned[0]).argmax())]
            other = "without a zone" if zoned[0] else "with one"
            raise _no_time(
                where,
                line,
                texts[line],
                f"it is {other}, the times before it are not; write all alike",
            )
        plain = texts if self.form is not None else texts.str.replace("/", "-", regex=False)
        moments = pd.to_datetime(
            plain, format=self.form or "ISO8601", errors="coerce", utc=bool(zoned.any())
        )
        wrong = moments.isna().to_numpy()
        if wrong.any():
            line = texts.index[int(wrong.argmax())]
            hint = "give its form with --time-format, as strptime has it (%d.%m.%Y %H:%M:%S)"
            if re.fullmatch(r"\d+,\d+", str(texts[line])):
                hint = "if the comma is a decimal sign, say --decimal ,"
            raise _no_time(where, line, texts[line], hint)
        index = pd.DatetimeIndex(moments).tz_localize(None).as_unit("ns")
        seconds = index.asi8 / 1e9
        if zoned.any():
            return Times(seconds, "placed")
        return Times(seconds, "local")

    def place(self, times: "Times", where: str) -> "Times":
        """Local times as seconds since the epoch, if their zone is known; all others as they are.

        Args:
            times: of one meter, in the order of its readings.
            where: file, for errors.

        Raises:
            JoulecastError: they lie in an hour that is there twice, or not at all.
        """
        if times.form != "local" or self.zone is None or not len(times.t_s):
            return times
        return Times(self._placed(times.t_s, where), "placed")

    def _placed(self, local_s: Floats, where: str) -> Floats:
        """Local seconds (as though they were UTC) to seconds since the epoch."""
        assert self.zone is not None
        index = pd.DatetimeIndex((local_s * 1e6).round().astype("int64").astype("datetime64[us]"))
        gone = index.tz_localize(self.zone, ambiguous=True, nonexistent="NaT").isna()
        if gone.any():
            raise JoulecastError(
                f"{where}: there is no {index[int(gone.argmax())]} in {self.zone} (the clock is put on); "
                "is it another --timezone?"
            )
        twice = np.asarray(index.tz_localize(self.zone, ambiguous="NaT").isna())
        first = (
            _first_pass(local_s, twice, where, self.zone)
            if twice.any()
            else np.ones(len(index), bool)
        )
        placed = index.tz_localize(self.zone, ambiguous=first).tz_convert("UTC").tz_localize(None)
        return np.asarray(placed.as_unit("ns").asi8) / 1e9

    def moment(self, text: str, where: str) -> "Times":
        """One time that a user gives, placed where its zone is known."""
        plain = Clock(self.zone)
        return plain.place(plain.seconds(pd.Series([text.strip()], index=[1]), where), where)


def _are_days(numbers: Floats) -> bool:
    """Whether numbers may be dates of a spreadsheet."""
    first, last = float(numbers.min()), float(numbers.max())
    return _DAYS[0] <= first and last < _DAYS[1] and last - first < _MOST_DAYS


def _first_pass(local_s: Floats, twice: np.ndarray, where: str, zone: tzinfo) -> np.ndarray:
    """Whether each reading is of the first of the two hours, by the order of the readings.

    Raises:
        JoulecastError: the order does not show it; names the hour.
    """
    first = np.ones(len(local_s), bool)
    back = np.flatnonzero((np.diff(local_s) < -_BACK_S) & twice[1:]) + 1
    if len(back):
        first[back[0] :] = False
        return first
    places = np.flatnonzero(twice)
    before = local_s[max(0, places[0] - 1)]
    after = local_s[min(len(local_s) - 1, places[-1] + 1)]
    begins = places[0] > 0 and local_s[places[0]] - before < _NEAR_S
    ends = places[-1] < len(local_s) - 1 and after - local_s[places[-1]] < _NEAR_S
    if begins == ends:
        hour = datetime.fromtimestamp(local_s[places[0]], tz=UTC).strftime("%Y-%m-%d %H:%M")
        raise JoulecastError(
            f"{where}: {hour} is there twice in {zone} (the clock is put back), and the "
            "readings do not show which is meant; give an offset instead, as --timezone +02:00 (the first) "
            "or +01:00 (the second)"
        )
    first[places] = begins
    return first


def _no_time(where: str, line: object, text: object, way_out: str) -> JoulecastError:
    return JoulecastError(
        f"{where}, line {line}: `{str(text)[:_SHOWN]}` is no time that is known here; {way_out}"
    )


@dataclass(frozen=True)
class Times:
    """Seconds: since the epoch (``placed``), of a clock whose zone is not known (``local``), or since a start
    that is not known (``relative``)."""

    t_s: Floats
    form: TimeForm


def in_words(form: TimeForm) -> str:
    """What times of a form are, for errors."""
    return {
        "placed": "of a known zone",
        "local": "of no known zone",
        "relative": "seconds since a start",
    }[form]
