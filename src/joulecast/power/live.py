"""Watts and joules of a host while it is sampled, from the file that its sampler appends to."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.files.blocks import BlockReader
from joulecast.power.meters import READING
from joulecast.power.sampled_hosts import meter_info
from joulecast.power.samples import Floats, Samples
from joulecast.records.metering import EnergySource, metered

_NOW_S = 10.0
"""Watts "now" are the mean over the last seconds."""


class _MeterSum:
    """Joules of one meter since its first reading, and its watts now; readings come in parts."""

    def __init__(self) -> None:
        self.joules = 0.0
        self._last = np.empty((3, 0))
        self._curve = np.empty((2, 0))

    def add(self, reading: Floats) -> None:
        """Add readings, :data:`~joulecast.power.samples.READING` by (readings,)."""
        t_s, watts, joules = known = np.concatenate([self._last, reading], axis=1)
        steps = np.diff(joules)
        by_watts = np.diff(t_s) * (watts[1:] + watts[:-1]) / 2
        steps = np.nan_to_num(np.where(np.isfinite(steps), steps, by_watts))
        totals = self.joules + np.cumsum(steps)
        if self._last.size == 0 and t_s.size:
            totals = np.concatenate([[0.0], totals])
        self.joules = float(totals[-1]) if totals.size else self.joules
        self._last = known[:, -1:]
        curve = np.concatenate(
            [self._curve, [t_s[-len(totals) :] if len(totals) else [], totals]], axis=1
        )
        recent = curve[0] >= curve[0, -1] - _NOW_S if curve.size else np.empty(0, bool)
        self._curve = curve[:, recent]

    @property
    def watts(self) -> float | None:
        """Mean over the last seconds; ``None`` before the second reading."""
        t_s, totals = self._curve
        if len(t_s) < 2 or t_s[-1] <= t_s[0]:
            return None
        return float((totals[-1] - totals[0]) / (t_s[-1] - t_s[0]))


@dataclass(frozen=True)
class Drawn:
    """What some nodes have drawn so far.

    Attributes:
        watts: mean over the last ten seconds; ``None`` if it is not known.
        joules: since the first reading; ``None`` if no meters cover the nodes, for the reason ``why_not``.
        source: of both, as of a record.
        lasted_s: time between the first and the last look.
        silent_s: time since the file last grew.
    """

    watts: float | None
    joules: float | None
    source: EnergySource | None
    why_not: str | None
    lasted_s: float
    silent_s: float


class LiveHost:
    """A host whose sampler runs; each look reads what is new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = BlockReader(path)
        self._facts: dict[str, Any] = {}
        self._sums: list[_MeterSum] = []
        self._span: list[float] = []

    def look(self) -> Drawn | None:
        """What the host has drawn so far; ``None`` before the first reading.

        Raises:
            JoulecastError: the file is gone, or holds something else.
        """
        for new, columns in self._reader.new():
            self._facts |= new
            meters = self._facts.get("meters", ())
            self._sums += [_MeterSum() for _ in meters[len(self._sums) :]]
            for index, summed in enumerate(self._sums):
                names = [f"power.{index}.{name}" for name in READING]
                summed.add(np.array([columns.get(name, np.empty(0)) for name in names]))
            looks = columns.get("work.t_s", np.empty(0))
            if len(looks):
                self._span = [*self._span[:1], float(looks[0]), float(looks[-1])]
        if not self._facts:
            return None
        infos = [meter_info(meter) for meter in Samples(self._facts).meters]
        choice = metered(self._facts["nodes"], infos)
        chosen = {(meter.node, meter.meter) for meter in choice.meters}
        sums = [
            summed
            for info, summed in zip(infos, self._sums, strict=True)
            if (info.node, info.meter) in chosen
        ]
        watts = [summed.watts for summed in sums]
        known = [value for value in watts if value is not None]
        silent_s = max(0.0, time.time() - self.path.stat().st_mtime)
        lasted_s = self._span[-1] - self._span[0] if self._span else 0.0
        if choice.source is None:
            return Drawn(None, None, None, choice.why_not, lasted_s, silent_s)
        if not lasted_s:
            return Drawn(None, None, None, "it has just begun", lasted_s, silent_s)
        now_w = sum(known) if len(known) == len(watts) else None
        total = sum(summed.joules for summed in sums)
        return Drawn(now_w, total, choice.source, None, lasted_s, silent_s)
