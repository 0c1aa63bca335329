"""Tables that other tools write, with any delimiter, packed or not. They are read in parts. An error names
the line.

This module also reads the units of the readings, and HDF5 files (if h5py is installed).
"""

import codecs
import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.logs.log import LogOptions
from joulecast.logs.log_times import Floats, Times
from joulecast.runs.files.columns import MAX_TABLE_BYTES, NOT_PACKED, unpacked
from joulecast.runs.files.reading import opened

MAX_LOG_BYTES = 4_000_000_000
MAX_LOG_ROWS = 20_000_000
"""The most rows of a table. (A reading a second for each of eight GPUs of sixteen nodes gives eleven million
rows in a day.)"""
_MOST_VALUES = MAX_TABLE_BYTES // 8
"""The most values of an HDF5 file. They have as many bytes as a table may have."""
_ROWS = 250_000
_NEAR = 100
_DELIMITERS = (",", ";", "\t", "|")
_SHOWN = 40
_HEAD_BYTES = 64_000
_NOTHING = (
    *("", "nan", "null", "none", "-", "n/a", "[n/a]", "[not supported]", "[unknown error]", "err!"),
    *("na", "#n/a", "unavailable", "unknown"),
)
_PREFIXES = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6}
_BASES = {"Wh": ("joules", 3600.0), "W": ("watts", 1.0), "J": ("joules", 1.0)}
_WORDS = {
    "watt": "W",
    "watts": "W",
    "joule": "J",
    "joules": "J",
    "kw": "kW",
    "wh": "Wh",
    "kwh": "kWh",
    "kj": "kJ",
    "uj": "uJ",
    "uw": "uW",
}
_UNITS = "W, mW, uW, kW, J, mJ, uJ, kJ, Wh, kWh"
_IN_BRACKETS = re.compile(r"[\[(]\s*([^\])]+?)\s*[\])]\s*$")
_UNIT_WORD = re.compile(r"(?<![^_ .-])([mku]?(?:W|Wh|J)|[mku]w|[mku]j|wh|kwh)(?![^_ .-])")
"""The unit in ``kW`` and in ``power_kw_avg``. In lower case, only the units that are not ambiguous are
found."""
_OWN_UNIT = r"\d\.?\s*([a-zA-Zµμ]{1,3})$"


def scale_of(unit: str, where: str) -> tuple[str, float]:
    """The quantity of a unit (``watts`` or ``joules``), and the factor to W or J.

    Raises:
        JoulecastError: the text is no unit of power or energy. The message begins with ``where``.
    """
    plain = _WORDS.get(unit.strip().lower(), unit.strip())
    # Loggers of NVML name columns `power_mw` and `energy_mj`. No node draws megawatts.
    plain = {"mw": "mW", "mj": "mJ"}.get(plain, plain)
    for base, (what, factor) in _BASES.items():
        if plain.endswith(base) and plain.removesuffix(base) in _PREFIXES:
            return what, _PREFIXES[plain.removesuffix(base)] * factor
    raise JoulecastError(
        f"{where}: `{unit[:20]}` is no unit of power or energy; there are {_UNITS}"
    )


class LogTable:
    """One delimited file.

    Args:
        path: the file. It is packed if its name ends with ``.gz``.
        options: delimiter and decimal sign, if the user gives them.
        columns: names of the columns, if the file has no header.

    Raises:
        JoulecastError: the file is missing, empty, or no text.
    """

    def __init__(
        self, path: Path, what: str, options: LogOptions, columns: Sequence[str] = ()
    ) -> None:
        self.path, self._what, self._options = path, what, options
        first = self._first_line()
        self.delimiter = options.delimiter or max(_DELIMITERS, key=first.count)
        self.first = [cell.strip() for cell in next(csv.reader([first], delimiter=self.delimiter))]
        self._has_header = not columns
        self.columns = list(columns) or self.first
        self.cut_short, self.left_out = False, 0
        if columns and len(columns) < len(self.first):
            raise JoulecastError(
                f"{path}, line 1: has {len(self.first)} columns, --columns names {len(columns)}"
            )

    def _first_line(self) -> str:
        with self._open() as file:
            head = file.read(_HEAD_BYTES)
        if not head.removeprefix(codecs.BOM_UTF8).strip():
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
            try:
                yield file
            except NOT_PACKED as error:
                raise JoulecastError(
                    f"{self.path}: cannot be unpacked ({error}); copy it again"
                ) from None

    def at(self, column: str, line: object, problem: str) -> JoulecastError:
        """The error for one cell."""
        return JoulecastError(f"{self.path}, line {line}, column {column}: {problem}")

    def require(self, names: Sequence[str], way_out: str) -> None:
        """Refuse a table without some columns.

        Raises:
            JoulecastError: columns are missing. The error names them, and the columns that the table has.
        """
        if twice := [name for name in names if self.columns.count(name) > 1]:
            raise JoulecastError(f"{self.path}, line 1: has the column {twice[0][:_SHOWN]} twice")
        if missing := [name for name in names if name not in self.columns]:
            there = ", ".join(name[:_SHOWN] for name in self.columns[:30])
            hint = "; is the delimiter another? say --delimiter" if len(self.columns) == 1 else ""
            raise JoulecastError(
                f"{self.path}, line 1: has no column {', '.join(missing)}; there are: {there}{hint}; "
                f"{way_out}"
            )

    def rows(self, names: Sequence[str]) -> pd.DataFrame:
        """All rows of a table that fits into memory, in the form of :meth:`parts`. Each may be a run, so the
        last one counts, too."""
        parts = self.parts(names, whole=True)
        return pd.concat([*parts, pd.DataFrame(columns=list(dict.fromkeys(names)))])

    def parts(self, names: Sequence[str], *, whole: bool = False) -> Iterator[pd.DataFrame]:
        """Some columns as texts, part by part. Spaces around the texts are removed. The index counts the
        lines of the file.

        Missing cells are NaN. A last line that was cut short is left out (:attr:`cut_short`), unless the file
        is ``whole``. If a tool appends to a file, it may write the header again. Such a line is left out,
        too.

        Raises:
            JoulecastError: a line has more cells than the first, or is no text; or there are more than
                :data:`MAX_LOG_ROWS`.
        """
        places = sorted(self.columns.index(name) for name in dict.fromkeys(names))
        whole = whole or self._ends_with_newline()
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
                    index_col=False,
                )
                before: pd.DataFrame | None = None
                for part in parts:
                    if part.index.stop > MAX_LOG_ROWS:
                        raise JoulecastError(
                            f"{self.path}: has more than {MAX_LOG_ROWS:,} rows; divide it by node or by "
                            "time, or keep fewer readings a second"
                        )
                    if before is not None:
                        yield before
                    before = self._clean(part, places)
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

    def _clean(self, part: pd.DataFrame, places: Sequence[int]) -> pd.DataFrame:
        part.index = part.index + (2 if self._has_header else 1)
        more = part.pop(len(self.columns)).fillna("").str.strip() != ""
        if more.any():
            raise JoulecastError(
                f"{self.path}, line {part.index[int(more.to_numpy().argmax())]}: has more cells than the "
                f"{len(self.columns)} columns; is `{self.delimiter}` the delimiter? say --delimiter"
            )
        part = part[places].apply(lambda texts: texts.str.strip())
        part.columns = pd.Index([self.columns[place] for place in places])
        # Blank lines, and headers that were written again.
        blank = part.isna() | (part == "")
        return part[~(blank.all(axis=1) | (part == list(part.columns)).all(axis=1)).to_numpy()]

    def _ends_with_newline(self) -> bool:
        if self.path.suffix == ".gz":
            return True
        with opened(self.path, self._what, MAX_LOG_BYTES) as file:
            file.seek(-1, io.SEEK_END)
            return file.read(1) in (b"\n", b"\r")

    def _without_last(self, part: pd.DataFrame) -> pd.DataFrame:
        """The rows, without a last line that was cut short because the writer was killed: its end and
        some cells are missing.

        A last line is cut short, too, if its last cell is shorter than all of those before it, as ``3``
        after ``312.40 W``.
        """
        if not len(part):
            return part
        lengths = part.iloc[-_NEAR:, -1].str.len()
        is_last = part.columns[-1] == self.columns[-1]
        shorter = is_last and len(part) > 1 and lengths.iloc[-1] < lengths.iloc[:-1].min()
        if shorter or (part.iloc[-1].isna() | (part.iloc[-1] == "")).any():
            self.cut_short = True
            return part.iloc[:-1]
        return part

    def numbers(self, texts: pd.Series, column: str) -> Floats:
        """A column as numbers. A text for a missing number, such as ``[N/A]``, becomes NaN.

        Raises:
            JoulecastError: a text is no number. The error names the line.
        """
        sign = self._options.decimal
        plain = texts.fillna("")
        if sign != ".":
            grouped = plain.str.contains(".", regex=False).to_numpy()
            if grouped.any():
                line = texts.index[int(grouped.argmax())]
                raise self.at(
                    column,
                    line,
                    f"`{texts[line][:_SHOWN]}` has a point, and `{sign}` is the decimal sign; write it "
                    "without signs between thousands",
                )
            plain = plain.str.replace(sign, ".", regex=False)
        found = pd.to_numeric(plain, errors="coerce")
        if found.isna().any():
            plain = plain.str.replace(r"(?<=[\d.])\s*[a-zA-Zµμ]{1,3}$", "", regex=True)
            found = pd.to_numeric(plain, errors="coerce")
            odd = (found.isna() & ~plain.str.lower().isin(_NOTHING)).to_numpy()
            if odd.any():
                line = texts.index[int(odd.argmax())]
                text = str(texts[line])[:_SHOWN]
                comma = re.fullmatch(r"-?\d+,\d+(\s*\w+)?", text) and sign == "."
                hint = "; if the comma is a decimal sign, say --decimal ," if comma else ""
                if re.match(r"-?\d{1,3}(,\d{3})+\b", text):
                    hint += "; if it stands between thousands, write the numbers without it"
                raise self.at(column, line, f"`{text}` is no number{hint}")
        values = found.to_numpy(float)
        return np.where(np.isfinite(values), values, np.nan)

    def readings(self, texts: pd.Series, column: str, what: str) -> Floats:
        """A column of power or energy in W or J. The unit comes from the user, or else from the cells, or
        else from the name of the column.

        Args:
            column: name of the column, which may give a unit.
            what: ``watts`` or ``joules``.

        Raises:
            JoulecastError: a cell is no number; or the unit is not known, belongs to the other quantity, or
                is not the same in all cells.
        """
        values = self.numbers(texts, column)
        where = f"{self.path}, column {column}"
        own = texts[np.isfinite(values)].str.extract(_OWN_UNIT, expand=False).fillna("")
        units = own.unique()
        if len(units) > 1:
            line = own.index[int((own != own.iloc[0]).to_numpy().argmax())]
            raise self.at(
                column,
                line,
                f"`{texts[line][:_SHOWN]}` is in another unit than those before it; write all in one unit",
            )
        in_name = _IN_BRACKETS.search(column) or _UNIT_WORD.search(column)
        of_column = next((unit for unit in units if unit), in_name and in_name[1])
        unit = self._options.unit or of_column
        if not unit:
            return values
        measures, factor = scale_of(unit, where)
        if measures != what:
            is_energy = measures == "joules"
            raise JoulecastError(
                f"{where}: its unit {unit} is one of {'energy' if is_energy else 'power'}; map it as "
                f"{measures}=, or give another --unit"
            )
        return values * factor

    def series(
        self,
        time: str,
        values: Sequence[str],
        names: Sequence[str] = (),
        what: str = "watts",
        only: re.Pattern[str] | None = None,
    ) -> Iterator[tuple[str, tuple[str, ...], Times, Floats]]:
        """The readings of each meter. A meter is a column of ``values`` together with the cells of ``names``.

        Each result has the column, the cells of ``names``, the times, and the readings in W or J. If the time
        zone is known, the times are since 1970. Lines whose time does not match the pattern ``only`` are
        left out (:attr:`left_out`).

        Raises:
            JoulecastError: a cell is no time or reading, or the times are of several forms.
        """
        clock = self._options.clock
        found: dict[tuple[str, tuple[str, ...]], list[tuple[Floats, Floats]]] = defaultdict(list)
        form = None
        for part in self.parts([time, *values, *names]):
            if only is not None:
                rows = len(part)
                part = part[part[time].str.match(only, na=False)]
                self.left_out += rows - len(part)
            if not len(part):
                continue
            texts = part[time]
            if self._options.decimal != ".":
                texts = texts.str.replace(self._options.decimal, ".", regex=False)
            times = clock.seconds(texts, f"{self.path}, column {time}", time)
            if form not in (None, times.form):
                raise JoulecastError(
                    f"{self.path}, line {part.index[0]}, column {time}: times are of another form from "
                    "about here on; divide the file there"
                )
            form = times.form
            read = {column: self.readings(part[column], column, what) for column in values}
            codes: Any = np.zeros(len(part))
            uniques: Any = [()]
            if names:
                codes, uniques = pd.MultiIndex.from_frame(part[list(names)].fillna("")).factorize()
            for code, key in enumerate(uniques):
                own = codes == code
                for column in values:
                    found[column, key].append((times.t_s[own], read[column][own]))
        for (column, key), parts in found.items():
            t_s, numbers = (np.concatenate(each) for each in zip(*parts, strict=True))
            placed = clock.place(Times(t_s, form or "placed"), str(self.path))
            yield column, key, placed, numbers


@contextmanager
def opened_hdf5(path: Path, what: str) -> Iterator[Any]:
    """An HDF5 file, open for reading, as :class:`h5py.File`.

    Raises:
        JoulecastError: h5py is not installed; or the file is missing, or no HDF5.
    """
    try:
        import h5py
    except ImportError:
        raise JoulecastError(
            f"{path}: HDF5 is read by h5py, which is not installed; pip install 'joulecast[hdf5]'"
        ) from None
    with opened(path, what, MAX_LOG_BYTES) as file:
        try:
            with h5py.File(file, "r") as found:
                _require_own_data(found)
                yield found
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())[:150]
            raise JoulecastError(f"{path}: cannot be read as {what}: {text}") from None


def _require_own_data(root: Any) -> None:
    """Refuse an HDF5 file that takes data from other files, has an item under several names, or unfolds to
    more than is read.

    Raises:
        ValueError: the file is refused. The error says why.
    """
    import h5py

    values = 0

    # A visit ends with the first answer that is not None. An exception may not pass h5py's visits.
    def look(name: str, item: Any) -> str | None:
        nonlocal values
        is_data = isinstance(item, h5py.Dataset)
        if is_data and (item.external or item.is_virtual):
            return f"{name} takes its numbers from another file"
        if h5py.h5o.get_info(item.id).rc > 1:
            return f"{name} is there by several names"
        values += item.size or 0 if is_data else 0
        return None

    def look_at_link(name: str, link: Any) -> str | None:
        return None if isinstance(link, h5py.HardLink) else f"{name} is a link to somewhere else"

    if fault := root.visititems_links(look_at_link) or root.visititems(look):
        raise ValueError(fault)
    if values > _MOST_VALUES:
        raise ValueError(f"it unfolds to {values:,} numbers, at most {_MOST_VALUES:,} are read")


def numbers_of(data: Any) -> Floats:
    """The numbers of an HDF5 data set.

    Raises:
        ValueError: it has no numbers.
    """
    if data.dtype.kind not in "iuf" or data.ndim > 2:
        raise ValueError(f"{data.name} holds no numbers")
    return np.asarray(data[:], dtype=float)


def attribute(group: Any, name: str) -> str:
    """An attribute as text; empty if there is no such attribute."""
    value = group.attrs.get(name, "")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
