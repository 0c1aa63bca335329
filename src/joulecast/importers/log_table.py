"""Tables that other tools write: any delimiter, packed or not, read in parts; a fault names its line."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.files.columns import NOT_PACKED, unpacked
from joulecast.files.reading import opened
from joulecast.importers.log_units import scale_of, unit_in
from joulecast.importers.traps import Floats

MAX_LOG_BYTES = 20_000_000_000
_ROWS = 250_000
_NEAR = 100
_DELIMITERS = (",", ";", "\t", "|")
_SHOWN = 40
_HEAD_BYTES = 64_000
_NOTHING = frozenset(
    {
        "",
        "nan",
        "null",
        "none",
        "-",
        "n/a",
        "[n/a]",
        "[not supported]",
        "[unknown error]",
        "err!",
        "na",
        "#n/a",
        "unavailable",
        "unknown",
    }
)
_TRAILING_UNIT = re.compile(r"\s*[a-zA-Zµμ]{1,3}$")
_OWN_UNIT = r"\d\.?\s*([a-zA-Zµμ]{1,3})$"


class LogTable:
    """One delimited file.

    Args:
        path: of the file; packed if it ends with ``.gz``.
        what: it is to be, for errors.
        columns: its columns, if it has no header.
        delimiter: between them; the one that the first line has most of, if ``None``.
        decimal: sign before the decimals.

    Raises:
        JoulecastError: missing, empty, or no text.
    """

    def __init__(
        self,
        path: Path,
        what: str,
        columns: Sequence[str] = (),
        delimiter: str | None = None,
        decimal: str = ".",
    ) -> None:
        self.path, self._what, self._decimal = path, what, decimal
        first = self._first_line()
        self.delimiter = delimiter or max(_DELIMITERS, key=first.count)
        self.first = [cell.strip() for cell in next(csv.reader([first], delimiter=self.delimiter))]
        self._has_header = not columns
        self.columns = list(columns) or self.first
        self.cut_short = False
        if columns and len(columns) < len(self.first):
            raise JoulecastError(
                f"{path}, line 1: has {len(self.first)} columns, --columns names {len(columns)}"
            )

    def _first_line(self) -> str:
        with self._open() as file:
            try:
                head = file.read(_HEAD_BYTES)
            except NOT_PACKED as error:
                raise JoulecastError(
                    f"{self.path}: cannot be unpacked ({error}); copy it again"
                ) from None
        if not head.strip():
            raise JoulecastError(f"{self.path}: is empty; expected: {self._what}")
        if head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in head:
            raise JoulecastError(
                f"{self.path}: is no text in UTF-8 (UTF-16, as PowerShell writes it, or a binary file); "
                "save it as UTF-8"
            )
        lines = head.decode("utf-8-sig", "replace").splitlines()
        return next((line for line in lines if line.strip()), "")

    @contextmanager
    def _open(self) -> Iterator[Any]:
        with (
            opened(self.path, self._what, MAX_LOG_BYTES) as kept,
            unpacked(kept, self.path, MAX_LOG_BYTES) as file,
        ):
            yield file

    def at(self, column: str, line: object, problem: str) -> JoulecastError:
        """The error for one cell."""
        return JoulecastError(f"{self.path}, line {line}, column {column}: {problem}")

    def require(self, names: Sequence[str], way_out: str) -> None:
        """Refuse a table without some columns.

        Raises:
            JoulecastError: names those that are missing and those that there are.
        """
        if twice := [name for name in names if self.columns.count(name) > 1]:
            raise JoulecastError(f"{self.path}, line 1: has the column {twice[0][:_SHOWN]} twice")
        missing = [name for name in names if name not in self.columns]
        if not missing:
            return
        there = ", ".join(name[:_SHOWN] for name in self.columns[:30])
        hint = "; is the delimiter another? say --delimiter" if len(self.columns) == 1 else ""
        raise JoulecastError(
            f"{self.path}, line 1: has no column {', '.join(missing)}; there are: {there}{hint}; {way_out}"
        )

    def parts(self, names: Sequence[str]) -> Iterator[pd.DataFrame]:
        """Some columns as texts without spaces around them, part by part; the index counts the file's lines.

        Missing cells are NaN. A last line that was cut short is left out (:attr:`cut_short`); a header in
        mid-file, as appending leaves it, is left out too.

        Raises:
            JoulecastError: a line has more cells than the first, or is no text.
        """
        places = [self.columns.index(name) for name in dict.fromkeys(names)]
        whole = self._ends_with_newline()
        with self._open() as file:
            try:
                parts = pd.read_csv(
                    file,
                    sep=self.delimiter,
                    dtype=str,
                    header=None,
                    names=list(range(len(self.columns) + 1)),
                    skiprows=1 if self._has_header else 0,
                    chunksize=_ROWS,
                    skip_blank_lines=False,
                    keep_default_na=False,
                    na_values=[],
                    encoding="utf-8-sig",
                    engine="c",
                    index_col=False,
                )
                before: pd.DataFrame | None = None
                offset = 2 if self._has_header else 1
                for part in parts:
                    if before is not None:
                        yield before
                    before = self._clean(part, places, offset)
                if before is not None:
                    yield before if whole else self._without_last(before)
            except pd.errors.EmptyDataError:
                return
            except UnicodeDecodeError:
                raise JoulecastError(
                    f"{self.path}: has text that is not UTF-8; save it as UTF-8"
                ) from None
            except pd.errors.ParserError as error:
                text = str(error).removeprefix("Error tokenizing data. C error: ").strip()
                raise JoulecastError(
                    f"{self.path}: {text}; is the delimiter another? say --delimiter"
                ) from None
            except NOT_PACKED as error:
                raise JoulecastError(
                    f"{self.path}: cannot be unpacked ({error}); copy it again"
                ) from None

    def _clean(self, part: pd.DataFrame, places: Sequence[int], offset: int) -> pd.DataFrame:
        part.index = part.index + offset
        more = part.pop(len(self.columns)).fillna("").str.strip() != ""
        if more.any():
            raise JoulecastError(
                f"{self.path}, line {part.index[int(more.to_numpy().argmax())]}: has more cells than the "
                f"{len(self.columns)} columns; is `{self.delimiter}` the delimiter? say --delimiter"
            )
        part = part[sorted(places)]
        part.columns = pd.Index([self.columns[place] for place in sorted(places)])
        part = part.apply(lambda texts: texts.str.strip())
        # Blank lines, and headers that were written again.
        blank = part.isna() | (part == "")
        again = np.ones(len(part), bool)
        for name in part.columns:
            again &= (part[name] == name).to_numpy()
        return part[~(blank.all(axis=1).to_numpy() | again)]

    def _ends_with_newline(self) -> bool:
        if self.path.suffix == ".gz":
            return True
        with opened(self.path, self._what, MAX_LOG_BYTES) as file:
            file.seek(-1, io.SEEK_END)
            return file.read(1) in (b"\n", b"\r")

    def _without_last(self, part: pd.DataFrame) -> pd.DataFrame:
        """Without a last line that lacks its end and some of its cells: the writer was killed.

        Also where its last cell is shorter than all of those before it, as ``3`` after ``312.40 W``.
        """
        if not len(part):
            return part
        shorter = False
        if self.columns[-1] in part.columns and len(part) > 1:
            lengths = part[self.columns[-1]].str.len()
            shorter = bool(lengths.iloc[-1] < lengths.iloc[-_NEAR:-1].min())
        if shorter or (part.iloc[-1].isna() | (part.iloc[-1] == "")).any():
            self.cut_short = True
            return part.iloc[:-1]
        return part

    def with_point(self, texts: pd.Series) -> pd.Series:
        """A column with a point before its decimals."""
        return texts.str.replace(self._decimal, ".", regex=False) if self._decimal != "." else texts

    def numbers(self, texts: pd.Series, column: str) -> Floats:
        """A column as numbers; NaN for what says that there is none, as ``[N/A]``.

        Raises:
            JoulecastError: a text is no number; names its line.
        """
        if (
            self._decimal != "."
            and (grouped := texts.str.contains(".", regex=False, na=False)).any()
        ):
            line = texts.index[int(grouped.to_numpy().argmax())]
            raise self.at(
                column,
                line,
                f"`{texts[line][:_SHOWN]}` has a point, and `{self._decimal}` is the decimal sign; write it "
                "without signs between thousands",
            )
        plain = self.with_point(texts)
        found = pd.to_numeric(plain, errors="coerce")
        odd = found.isna()
        if odd.any():
            words = plain[odd].fillna("").str.lower()
            words = words[~words.isin(_NOTHING)]
            again = pd.to_numeric(
                words.str.replace(_TRAILING_UNIT, "", regex=True), errors="coerce"
            )
            if again.isna().any():
                line = again.index[int(again.isna().to_numpy().argmax())]
                text = str(texts[line])[:_SHOWN]
                comma = re.fullmatch(r"-?\d+,\d+(\s*\w+)?", text) and self._decimal == "."
                hint = "; if the comma is a decimal sign, say --decimal ," if comma else ""
                raise self.at(column, line, f"`{text}` is no number{hint}")
            found = found.copy()
            found[again.index] = again
        values = found.to_numpy(float)
        return np.where(np.isfinite(values), values, np.nan)

    def readings(self, texts: pd.Series, column: str, what: str, unit: str | None) -> Floats:
        """A column of power or energy in W or J: each cell in its own unit, else in that of the column.

        Args:
            texts: the cells.
            column: their column; its name may give a unit.
            what: ``watts`` or ``joules``.
            unit: what the user says, for all cells.

        Raises:
            JoulecastError: a cell is no number, or its unit is not known or one of the other quantity.
        """
        values = self.numbers(texts, column)
        where = f"{self.path}, column {column}"
        usual = unit or unit_in(column)
        factor = _factor(usual, what, where) if usual else 1.0
        own = pd.Series("", index=texts.index)
        worded = pd.to_numeric(texts, errors="coerce").isna() & np.isfinite(values)
        own[worded] = texts[worded].str.extract(_OWN_UNIT, expand=False).fillna("")
        units = [text for text in own.unique() if text]
        if unit is not None:
            if len(units) > 1:
                raise JoulecastError(
                    f"{where}: its cells are in {' and '.join(units)}; leave out --unit"
                )
            return factor * values
        factors = {text: _factor(text, what, where) for text in units}
        bare = (own == "").to_numpy() & (values != 0) & np.isfinite(values)
        if bare.any() and any(own_factor != factor for own_factor in factors.values()):
            line = texts.index[int(bare.argmax())]
            raise self.at(
                column, line, f"`{texts[line][:_SHOWN]}` has no unit, and others are in {units[0]}"
            )
        each: Floats = own.map({"": factor, **factors}).to_numpy(float)
        return values * each


def _factor(unit: str, what: str, where: str) -> float:
    """The factor from a unit to W or J.

    Raises:
        JoulecastError: it is no such unit, or one of the other quantity.
    """
    measures, factor = scale_of(unit, where)
    if measures != what:
        raise JoulecastError(
            f"{where}: its unit {unit} is one of {'energy' if measures == 'joules' else 'power'}; map it as "
            f"{measures}=, or give another --unit"
        )
    return factor
