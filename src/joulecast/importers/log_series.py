"""Readings gathered part by part from a table with a reading a row, meter by meter."""

from collections import defaultdict

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.importers.log_times import Clock, TimeForm, Times
from joulecast.importers.traps import Floats

Key = tuple[str, ...]


class Gathered:
    """Times and values of each meter of one file, in the order of its lines.

    Args:
        clock: how times are read.
        where: the file, for errors.
    """

    def __init__(self, clock: Clock, where: str) -> None:
        self._clock, self._where = clock, where
        self._form: TimeForm | None = None
        self._parts: dict[Key, list[tuple[Floats, Floats]]] = defaultdict(list)

    def times(self, texts: pd.Series, column: str) -> Floats:
        """The times of a part.

        Raises:
            JoulecastError: one is no time, or of another form than those before.
        """
        times = self._clock.seconds(texts, f"{self._where}, column {column}")
        if self._form not in (None, times.form):
            raise JoulecastError(
                f"{self._where}, line {texts.index[0]}, column {column}: times are of another form from "
                "about here on; divide the file there"
            )
        self._form = times.form
        return times.t_s

    def same_form_as(self, other: "Gathered") -> None:
        """Take over the form of times that another column of the table has read."""
        self._form = other._form

    def add(self, names: list[pd.Series], t_s: Floats, values: Floats) -> None:
        """Take in a part: each row is a reading of the meter that ``names`` give together."""
        if not names:
            self._parts[()].append((t_s, values))
            return
        codes = np.zeros(len(t_s), dtype=np.int64)
        uniques = []
        for series in names:
            own, found = pd.factorize(series.fillna(""))
            codes = codes * max(1, len(found)) + own
            uniques.append(found)
        for code in np.unique(codes):
            rows = codes == code
            first = int(rows.argmax())
            key = tuple(str(series.iloc[first]) for series in names)
            self._parts[key].append((t_s[rows], values[rows]))

    def meters(self) -> list[tuple[Key, Times, Floats]]:
        """Each meter: what names it, its times as far as they can be placed, and its values.

        Raises:
            JoulecastError: a time lies in an hour that is there twice.
        """
        found = []
        for key, parts in self._parts.items():
            t_s = np.concatenate([t for t, _ in parts])
            values = np.concatenate([v for _, v in parts])
            times = self._clock.place(Times(t_s, self._form or "placed"), self._where)
            found.append((key, times, values))
        return found
