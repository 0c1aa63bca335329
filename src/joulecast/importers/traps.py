"""What is found wrong with a run, in the words of remarks and of reasons to leave it out.

Power logs from outside are full of traps: nodes that share a meter, half a minute without readings,
switches that were never measured, a meter that reads 10 W under a loaded node. A **remark** says what a
reader should know of a run that stays in fits; a run is **polluted** when its energy cannot be
believed. Both begin with the kind of the trap and a colon, so that they can be counted.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from joulecast.importers.run_files import printable
from joulecast.records.covers import Covers
from joulecast.records.metering import EnergySource, MeterInfo, Supply

Floats = NDArray[np.float64]

NODE_METER = "node_power"

_SHOWN_FILES = 3


@dataclass
class Findings:
    """Remarks and reasons of pollution of one run, by kind, with the files they are found in."""

    _details: dict[tuple[bool, str], list[str]] = field(default_factory=lambda: defaultdict(list))

    def remark(self, kind: str, detail: str) -> None:
        """Note what a reader should know."""
        self._details[False, kind].append(printable(detail))

    def pollute(self, kind: str, detail: str) -> None:
        """Note why the run is left out of fits."""
        self._details[True, kind].append(printable(detail))

    def _texts(self, polluting: bool) -> list[str]:
        texts = []
        for (is_polluting, kind), details in self._details.items():
            if is_polluting == polluting:
                shown = "; ".join(details[:_SHOWN_FILES])
                more = len(details) - _SHOWN_FILES
                texts.append(f"{kind}: {shown}" + (f"; and {more} more" if more > 0 else ""))
        return texts

    @property
    def remarks(self) -> list[str]:
        """One text a kind."""
        return self._texts(False)

    @property
    def polluted(self) -> list[str]:
        """One text a kind."""
        return self._texts(True)


@dataclass(frozen=True)
class MeterLog:
    """One meter's readings as logged: ``t_s`` in seconds of the run clock, ``watts`` NaN for what is
    no number, ``file`` as a person finds it; ``supply`` and ``conversion_eff`` as the log names them
    (:class:`~joulecast.records.metering.MeterInfo`), and likewise its other facts.

    ``joules`` are the counts of a counter; its ``watts`` are then the means since the reading before.
    ``unit_known`` is true where the log or the user names the unit of the readings.
    """

    node: str
    file: str
    t_s: Floats
    watts: Floats
    supply: Supply | None = None
    conversion_eff: float | None = None
    meter: str = NODE_METER
    covers: Covers | None = None
    source: EnergySource = "imported"
    joules: Floats | None = None
    trace: bool = True
    unit_known: bool = False
    remark: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What no other meter of a run has: node and name."""
        return self.node, self.meter

    @property
    def is_of_node(self) -> bool:
        """Whether it reads a whole node: what is true of a loaded node holds for it."""
        return self.covers in (None, "node") and self.source != "estimated"

    def only(self, chosen: NDArray[np.bool_]) -> "MeterLog":
        """The same meter with some of its readings."""
        joules = None if self.joules is None else self.joules[chosen]
        return replace(self, t_s=self.t_s[chosen], watts=self.watts[chosen], joules=joules)


def usual_spacing(t_s: Floats) -> float | None:
    """Median of the time between readings (s); ``None`` for fewer than two."""
    steps = np.diff(np.sort(t_s))
    steps = steps[steps > 0]
    return float(np.median(steps)) if len(steps) else None


def without_odd_ones(watts: Floats) -> Floats:
    """Each reading's median with its two neighbours: what a single odd one says is left out."""
    if len(watts) < 3:
        return watts
    # Without a fourth copy of the readings.
    low, high = np.minimum(watts[:-2], watts[1:-1]), np.maximum(watts[:-2], watts[1:-1])
    middle = np.maximum(low, np.minimum(high, watts[2:]))
    return np.concatenate([middle[:1], middle, middle[-1:]])


def mark_shared(meters: Sequence[MeterLog], infos: Sequence[MeterInfo], findings: Findings) -> None:
    """Note which nodes have the same readings: several supplies behind one meter.

    The meter's share was dealt out evenly, so sums over nodes are right where a single node is not.
    """
    groups: dict[bytes, list[int]] = defaultdict(list)
    for i, meter in enumerate(meters):
        if len(meter.watts) > 1 and (meter.is_of_node or not meter.trace):
            groups[meter.watts.tobytes()].append(i)
    shared = [group for group in groups.values() if len(group) > 1]
    for group in shared:
        names = [infos[i].node for i in group]
        for i in group:
            infos[i].shared_with = [name for name in names if name != infos[i].node]
    if shared:
        alike = " = ".join(infos[i].node for i in shared[0])
        findings.remark(
            "shared meters",
            f"{len(meters)} nodes have {len(groups)} distinct sequences of readings ({alike}"
            f"{' and others' if len(shared) > 1 else ''}); only their sum is meaningful",
        )


def switch_remark(
    file: str,
    watts: float,
    at_ms: float | None,
    run_ms: tuple[float, float] | None,
    findings: Findings,
) -> bool:
    """Say that a switch was estimated, and whether its date is wrong; ``True`` if it is right."""
    findings.remark("switch estimate", f"{file}: a constant {watts:g} W, not measured, not counted")
    if at_ms is None or run_ms is None:
        return False
    if run_ms[0] <= at_ms <= run_ms[1]:
        return True
    findings.remark(
        "wrong date", f"{file}: {utc(at_ms)[:10]}, the run was on {utc(run_ms[0])[:10]}"
    )
    return False


def utc(time_ms: float) -> str:
    """A time in ms since the epoch in ISO 8601; as it is where no calendar has it."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms:g} ms"
