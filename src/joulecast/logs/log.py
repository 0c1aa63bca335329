"""The content of a log, in the same form for all tools: the readings of meters, and the runs that the log
knows.

Each kind of log has a reader in a module of its own (:mod:`joulecast.logs.log_kinds`). All further work is
the same for all kinds (:mod:`joulecast.logs.import_log`).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.errors import JoulecastError
from joulecast.logs.log_times import Clock, Floats, TimeForm, in_words
from joulecast.runs.meter_choice import Covers, EnergySource, Supply

NODE_METER = "node_power"
_LONGEST_NAME = 150
MOST_HOSTS = 100_000
_MOST_RESTARTS = 0.01
"""Largest share of a counter's readings at which it may restart from 0."""
_SHOWN = 3


@dataclass(frozen=True)
class LogOptions:
    """What the user says about a log.

    Attributes:
        clock: how the times of the log are read.
        shift_s: seconds that are added to all times of the log.
        node: name of the node, for logs that name none.
        columns: names of the columns of a table without a header, in order.
        mapped: for a table of any form: the columns of ``time``, ``watts``, ``joules``, ``node``, ``device``.
        unit: unit of the readings. It takes precedence over a unit that the log names.
        covers: what the meters cover, for a table of any form, or for metrics whose name is not known.
        delimiter: character between the columns; ``None``: it is found from the file.
        metric: the metric to read, if a file has several.
        node_label: label that names the node of a metric.
        nodes: number of nodes that the training used, and ``gpus``, the number of GPUs of a node. They are
            for logs that know neither.
    """

    clock: Clock = field(default_factory=Clock)
    shift_s: float = 0.0
    node: str | None = None
    columns: tuple[str, ...] = ()
    mapped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unit: str | None = None
    covers: Covers | None = None
    delimiter: str | None = None
    decimal: str = "."
    metric: str | None = None
    node_label: str | None = None
    nodes: int | None = None
    gpus: int | None = None

    def node_of(self, file: Path) -> str:
        """The node of a log that names none: the user's name for it, otherwise the name of the file."""
        name = file.name.removesuffix(".gz")
        return self.node or Path(name).stem or name


@dataclass(frozen=True)
class LoggedMeter:
    """One meter of a log: watts at moments, or the counts of a counter.

    Attributes:
        node: the node on which it is read.
        device: the part of the node, if the meter reads only a part. It gives the meter its name, together
            with the kind of the log.
        covers: the part of the node whose power it counts; ``None``: the log does not say it. It is then
            judged like a meter of a whole node.
        file: the file, as a person finds it.
        t_s: times in s since 1970, or on the log's own clock (:attr:`Log.form`), in any order.
        watts: NaN if a reading is no number. For a counter: ``None``, or the mean watts since the reading
            before.
        joules: counts of a counter, which may start again from 0; ``None`` for a meter of watts.
        source: ``imported`` if the other tool measured it, ``estimated`` if it used a formula.
        remark: what a reader of its figures should know.
        trace: ``False`` if the meter gives only one figure for the whole run.
        supply: whether it reads before (AC) or behind (DC) the power supplies. ``conversion_eff`` is their
            efficiency.
        by_unit: whether a unit is stated. Then only readings that are impossible in this unit are refused.
        lost: spans in which a counter started again from 0. What it counted in these spans is not known.
    """

    node: str
    device: str | None
    covers: Covers | None
    file: str
    t_s: Floats
    watts: Floats | None = None
    joules: Floats | None = None
    source: EnergySource = "imported"
    remark: str | None = None
    trace: bool = True
    name: str = NODE_METER
    supply: Supply | None = None
    conversion_eff: float | None = None
    by_unit: bool = False
    lost: tuple[tuple[float, float], ...] = ()

    @property
    def power(self) -> Floats:
        """Watts at each reading; NaN if they are not known."""
        return np.full(len(self.t_s), np.nan) if self.watts is None else self.watts

    @property
    def is_of_node(self) -> bool:
        """Whether the meter measures a whole node. An estimate does not. Only a meter of a whole node gets
        the checks for loaded nodes."""
        return self.covers in (None, "node") and self.source != "estimated"

    def reading(self, what: str, values: Floats) -> "LoggedMeter":
        """The same meter with these values as its ``watts`` or ``joules``."""
        return replace(self, watts=values) if what == "watts" else replace(self, joules=values)

    def only(self, chosen: NDArray[np.bool_] | NDArray[np.intp] | slice) -> "LoggedMeter":
        """The same meter with some of its readings."""
        watts = None if self.watts is None else self.watts[chosen]
        joules = None if self.joules is None else self.joules[chosen]
        return replace(self, t_s=self.t_s[chosen], watts=watts, joules=joules)


@dataclass(frozen=True)
class LoggedRun:
    """A run that a log knows by itself: its name, and its begin and end on the log's clock.

    ``nodes`` is the number of its nodes and ``hosts`` are their names, if the log says it. ``about`` is kept
    as the source of the run. ``meters`` are its own meters, if the log keeps them for each run. ``remarks``
    are for a reader. The run trained on ``samples`` samples, with ``batch`` samples in each step.
    """

    name: str
    start_s: float
    stop_s: float
    nodes: int | None = None
    hosts: tuple[str, ...] = ()
    succeeded: bool | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    meters: tuple[LoggedMeter, ...] = ()
    remarks: tuple[str, ...] = ()
    samples: int | None = None
    batch: int | None = None


@dataclass
class Log:
    """The content of a log. ``form`` is the form of its times (:class:`~joulecast.logs.log_times.Times`).
    ``remarks`` are about all of its runs."""

    meters: list[LoggedMeter] = field(default_factory=list)
    runs: list[LoggedRun] = field(default_factory=list)
    form: TimeForm = "placed"
    remarks: list[str] = field(default_factory=list)

    def add(self, other: "Log", file: Path) -> None:
        """Add the content of another file in the same folder.

        Raises:
            JoulecastError: the times of the file have another form, or it has readings of the same meter at
                the same time.
        """
        if (self.meters or self.runs) and self.form != other.form:
            raise JoulecastError(
                f"{file}: its times are {in_words(other.form)}, but the files before it have times that are "
                f"{in_words(self.form)}; import the files one by one, or give --timezone"
            )
        self.form = other.form
        known = {(m.node, m.device): place for place, m in enumerate(self.meters)}
        for meter in other.meters:
            place = known.setdefault((meter.node, meter.device), len(self.meters))
            if place == len(self.meters):
                self.meters.append(meter)
            else:
                self.meters[place] = _joined(self.meters[place], meter)
        self.runs += other.runs
        self.remarks += [remark for remark in other.remarks if remark not in self.remarks]

    def shifted(self, by_s: float) -> "Log":
        """The same log with all of its times moved."""
        runs = [
            replace(
                run,
                start_s=run.start_s + by_s,
                stop_s=run.stop_s + by_s,
                meters=tuple(replace(m, t_s=m.t_s + by_s) for m in run.meters),
            )
            for run in self.runs
        ]
        meters = [replace(m, t_s=m.t_s + by_s) for m in self.meters]
        return replace(self, meters=meters, runs=runs)


def _joined(one: LoggedMeter, other: LoggedMeter) -> LoggedMeter:
    """The readings of a meter that several files have, the oldest first. The files may come in any order."""
    if not len(one.t_s) or not len(other.t_s):
        return one if len(one.t_s) else other
    known, more = (
        m if m.t_s[0] <= m.t_s[-1] else m.only(slice(None, None, -1)) for m in (one, other)
    )
    near = known.only((known.t_s >= more.t_s.min()) & (known.t_s <= more.t_s.max()))
    # Queries of Prometheus that follow each other have the reading between them twice.
    of_near, of_more = (
        pd.MultiIndex.from_arrays([m.t_s, m.power if m.joules is None else m.joules])
        for m in (near, more)
    )
    more = more.only(~of_more.isin(of_near))
    # The other readings lie between two of these, or outside. Only at one end may their times be the same.
    at_s = np.sort(near.t_s)
    places = [np.unique(np.searchsorted(at_s, more.t_s, side)) for side in ("left", "right")]
    if 1 not in map(len, places) or (one.watts is None) != (other.watts is None):
        named = one.node if one.device is None else f"{one.node}, {one.device}"
        raise JoulecastError(
            f"{other.file}: has readings of {named} at times of which {one.file} has some too; two nodes "
            "of one name? import the files one by one with --node NAME; one node? import one of the files"
        )
    earlier = known.t_s <= more.t_s.min()
    parts = known.only(earlier), more, known.only(~earlier)
    both: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("t_s", "watts", "joules")
        if getattr(one, name) is not None
    }
    return replace(one, **both)


def counted_up(joules: Floats, what: str) -> tuple[Floats, NDArray[np.intp]]:
    """Counts as if the counter had never restarted from 0, and the first reading after each restart.

    Raises:
        JoulecastError: the counts fall so often that they are no counter.
    """
    known = np.isfinite(joules)
    counts = joules[known]
    steps = np.diff(counts, prepend=counts[:1])
    falls = int((steps < 0).sum())
    if not falls:
        return joules, np.empty(0, np.intp)
    if falls > max(2, _MOST_RESTARTS * len(counts)):
        raise JoulecastError(
            f"{what}: falls {falls} times in {len(counts)} readings, and a counter counts up; if "
            "these are watts, say so (watts= in --map, or --unit W)"
        )
    found = joules.copy()
    found[known] = counts[0] + np.cumsum(np.where(steps < 0, counts, steps))
    return found, np.flatnonzero(known)[steps < 0]


@dataclass
class Findings:
    """Faults of a run, by kind, with the files in which they were found.

    A **remark** says what a reader should know about a run that stays in fits. A run is **left out** of fits
    if its energy cannot be believed. Both texts begin with the kind and a colon, so that kinds can be
    counted.
    """

    _details: dict[tuple[bool, str], list[str]] = field(default_factory=lambda: defaultdict(list))

    def remark(self, kind: str, detail: str) -> None:
        """Note what a reader should know."""
        self._details[False, kind].append(printable(detail))

    def leave_out(self, kind: str, detail: str) -> None:
        """Note why the run is left out of fits."""
        self._details[True, kind].append(printable(detail))

    def _texts(self, left_out: bool) -> list[str]:
        texts = []
        for (is_left_out, kind), details in self._details.items():
            if is_left_out == left_out:
                more = len(details) - _SHOWN
                shown = [*details[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
                texts.append(f"{kind}: {'; '.join(shown)}")
        return texts

    @property
    def remarks(self) -> list[str]:
        """The remarks, one text for each kind."""
        return self._texts(False)

    @property
    def left_out(self) -> list[str]:
        """The reasons to leave the run out, one text for each kind."""
        return self._texts(True)


def sanitised(name: str) -> str:
    """``name`` in lower case, not too long, never empty, with ``-`` for characters that a file name
    should not have."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")
    return plain[:_LONGEST_NAME].strip("-") or "unnamed"


def each_once(names: Sequence[str]) -> list[str]:
    """The names, all different: a name that occurred before gets a number behind it."""
    found: dict[str, None] = {}
    again = Counter[str]()
    for name in names:
        once = name
        while once in found:
            again[name] += 1
            once = f"{name}-{again[name] + 1}"
        found[once] = None
    return [*found]


def printable(text: str) -> str:
    """``text`` with a mark for each byte that is no text. Names of files may contain any bytes."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def utc(t_s: float) -> str:
    """A time (in s since 1970) as text in ISO 8601. If Python's calendar ends before it, the text is the
    number of seconds."""
    try:
        return datetime.fromtimestamp(t_s, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{t_s:g} s"


def usual_spacing(t_s: Floats) -> float | None:
    """Median of the time between readings (s); ``None`` for fewer than two."""
    steps = np.diff(np.sort(t_s))
    steps = steps[steps > 0]
    return float(np.median(steps)) if len(steps) else None


def expanded(text: str) -> tuple[str, ...]:
    """The hosts in a list as SLURM writes it, ``n[01-03,07],login1``. Spaces may separate them, too.

    Raises:
        JoulecastError: the list has more hosts than a cluster can have.
    """
    found: list[str] = []
    for word in re.findall(r"(?:[^\s,\[]+|\[[^\]]*\])+", text):
        names = [""]
        for part in re.findall(r"\[[^\]]*\]|[^\[\]]+", word):
            ends = _numbers(part[1:-1]) if part.startswith("[") else [part]
            names = [name + end for name in names for end in ends]
            if len(names) + len(found) > MOST_HOSTS:
                raise JoulecastError(f"hosts {text[:40]}: are more than {MOST_HOSTS:,}")
        found += names
    return tuple(found)


def _numbers(text: str) -> list[str]:
    numbers = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,15})-(\d{1,15})", part.strip())
        if match is None:
            numbers.append(part.strip())
        elif int(match[2]) - int(match[1]) > MOST_HOSTS:
            raise JoulecastError(f"hosts [{text[:40]}]: are more than {MOST_HOSTS:,}")
        else:
            width = len(match[1])
            numbers += [f"{n:0{width}d}" for n in range(int(match[1]), int(match[2]) + 1)]
    return numbers
