"""What a log of another tool holds, whichever tool wrote it: meters' readings, and runs if it knows any.

Each kind of log has a reader in a module of its own (:mod:`joulecast.importers.log_kinds`); all that is done
with what it reads is done once (:mod:`joulecast.importers.from_logs`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import JoulecastError
from joulecast.importers.log_times import Clock, TimeForm, in_words
from joulecast.importers.traps import Floats
from joulecast.records.covers import Covers
from joulecast.records.metering import EnergySource


@dataclass(frozen=True)
class LogOptions:
    """What the user says of a log.

    Attributes:
        clock: how its times are read.
        node: name of the node, for logs that name none.
        columns: names of the columns of a table without a header, in order.
        mapped: of a table of any form: the columns of ``time``, ``watts``, ``joules``, ``node``, ``device``.
        unit: of the readings, where the log does not name it or names another.
        covers: what the meters of a table of any form, or of metrics without a known name, cover.
        delimiter: between the columns; found by itself where it is ``None``.
        decimal: sign before the decimals.
        metric: of several metrics in one file, the one that is read.
        node_label: label that names the node of a metric.
    """

    clock: Clock = field(default_factory=Clock)
    node: str | None = None
    columns: tuple[str, ...] = ()
    mapped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unit: str | None = None
    covers: Covers | None = None
    delimiter: str | None = None
    decimal: str = "."
    metric: str | None = None
    node_label: str | None = None

    def node_of(self, file: Path) -> str:
        """Name of the node of a file that names none: what the user says, else the file's name."""
        name = file.name.removesuffix(".gz")
        return self.node or Path(name).stem or name


@dataclass(frozen=True)
class LoggedMeter:
    """One meter of a log: watts at moments, or the counts of a counter.

    Attributes:
        node: that it is read on.
        device: of the node, if it is a part of it; names the meter together with the kind of the log.
        covers: what draws its power.
        file: as a person finds it.
        t_s: s since the epoch, or on the log's own clock (:attr:`Log.form`); any order.
        watts: NaN for what is no number; ``None`` for a counter.
        joules: counts of a counter, which may begin anew; ``None`` for watts.
        source: ``imported`` if the other tool measured it, ``estimated`` if it used a formula.
        remark: what a reader of its figures should know.
        trace: whether it shows what happened when; ``False`` for one figure of a whole run.
    """

    node: str
    device: str | None
    covers: Covers
    file: str
    t_s: Floats
    watts: Floats | None = None
    joules: Floats | None = None
    source: EnergySource = "imported"
    remark: str | None = None
    trace: bool = True

    def only(self, chosen: NDArray[np.bool_]) -> "LoggedMeter":
        """The same meter with some of its readings."""
        watts = None if self.watts is None else self.watts[chosen]
        joules = None if self.joules is None else self.joules[chosen]
        return replace(self, t_s=self.t_s[chosen], watts=watts, joules=joules)


@dataclass(frozen=True)
class LoggedRun:
    """A run that a log knows by itself: its name, and its begin and end on the log's clock.

    ``nodes`` is how many it ran on, where the log says so; ``about`` is kept as the run's source. ``meters``
    are its own, of logs that keep them run by run; ``remarks`` what a reader should know of it.
    """

    name: str
    start_s: float
    stop_s: float
    nodes: int | None = None
    succeeded: bool | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    meters: tuple[LoggedMeter, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass
class Log:
    """All that a log holds: ``form`` is that of its times (:class:`~joulecast.importers.log_times.Times`),
    ``remarks`` hold for all of its runs."""

    meters: list[LoggedMeter] = field(default_factory=list)
    runs: list[LoggedRun] = field(default_factory=list)
    form: TimeForm = "placed"
    remarks: list[str] = field(default_factory=list)

    def add(self, other: "Log", file: Path) -> None:
        """Take in what another file of the same folder holds.

        Raises:
            JoulecastError: its times are of another form, or it reads a meter again at the same time.
        """
        if (self.meters or self.runs) and self.form != other.form:
            raise JoulecastError(
                f"{file}: its times are {in_words(other.form)}, those of the files before it "
                f"{in_words(self.form)}; import them one by one, or give --timezone"
            )
        self.form = other.form
        for meter in other.meters:
            place = next((n for n, m in enumerate(self.meters) if _same(m, meter)), None)
            if place is None:
                self.meters.append(meter)
            else:
                self.meters[place] = _joined(self.meters[place], meter)
        self.runs += other.runs
        self.remarks += [remark for remark in other.remarks if remark not in self.remarks]


def _same(one: LoggedMeter, other: LoggedMeter) -> bool:
    return (one.node, one.device) == (other.node, other.device)


def _joined(one: LoggedMeter, other: LoggedMeter) -> LoggedMeter:
    """The readings of a meter that one file begins and another continues."""
    if len(one.t_s) and len(other.t_s):
        apart = one.t_s.max() <= other.t_s.min() or other.t_s.max() <= one.t_s.min()
        if not apart or (one.watts is None) != (other.watts is None):
            named = one.node if one.device is None else f"{one.node}, {one.device}"
            raise JoulecastError(
                f"{other.file}: has readings of {named} at times of which {one.file} has some too; two nodes "
                "of one name? import the files one by one with --node NAME"
            )
    pair = sorted((one, other), key=lambda m: float(m.t_s.min()) if len(m.t_s) else 0.0)
    parts = [m.watts if m.joules is None else m.joules for m in pair]
    values = np.concatenate([part for part in parts if part is not None])
    t_s = np.concatenate([m.t_s for m in pair])
    if one.joules is None:
        return replace(one, t_s=t_s, watts=values)
    return replace(one, t_s=t_s, joules=values)


def counted_up(joules: Floats, what: str) -> tuple[Floats, str | None]:
    """Counts as they would be had the counter never begun anew, and a remark where it has.

    Raises:
        JoulecastError: it falls so often that it is no counter.
    """
    known = np.isfinite(joules)
    counts = joules[known]
    falls = np.flatnonzero(np.diff(counts) < 0) + 1
    if not len(falls):
        return joules, None
    if len(falls) > max(2, _MOST_RESTARTS * len(counts)):
        raise JoulecastError(
            f"{what}: falls {len(falls)} times in {len(counts)} readings, and a counter counts up; if "
            "these are watts, say so (watts= in --map, or --unit W)"
        )
    lost = np.zeros(len(counts))
    for fall in falls:
        lost[fall:] += counts[fall - 1]
    found = joules.copy()
    found[known] = counts + lost
    return (
        found,
        f"the counter began anew {len(falls)} times; what it counted in between is missing",
    )


_MOST_RESTARTS = 0.01
"""Share of a counter's readings at which it may begin anew."""
