"""What is wrong with the readings of a run, and how much of it a fit can live with.

Power logs from outside are full of traps: nodes that share a meter, half a minute without readings,
switches that were never measured, a meter that reads 10 W under a loaded node. A **remark** says what a
reader should know of a run that stays in fits; a run is **polluted** when its energy cannot be
believed. Both begin with the kind of the trap and a colon, so that they can be counted.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median

import numpy as np
from numpy.typing import NDArray

from joulecast.importers.run_files import printable
from joulecast.power.integration import EnergyCurve, reading_quality
from joulecast.records.metering import MeterInfo

Floats = NDArray[np.float64]

NODE_METER = "node_power"
SWITCH_METER = "interconnect_power_est"

_ABSURD_W = 100e3
"""No node draws more."""

_FAILED_SHARE = 0.25
"""A node in training does not fall below this share of its own median: idle with the job loaded is
0.3 to 0.45 of it on 8-GPU nodes. A meter that does has failed."""

_FAILED_ABOVE_W = 100.0
"""Below this median a small reading is not evidence of anything."""

_GAP_PERIODS = 3
_LARGEST_OUTAGE = 0.10
_LEAST_COVERAGE = 0.5

_JITTER_PERIODS = 0.5
"""After a gap meters catch up, and a reading may be stamped up to 0.24 s before the one in front of
it (2 s apart). What goes back further is a clock that was set."""

_OUTLIER_SHARE = 0.05
_OUTLIER_SIGMAS = 5
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
    no number, ``file`` as a person finds it."""

    node: str
    file: str
    t_s: Floats
    watts: Floats


@dataclass(frozen=True)
class CheckedMeter:
    """The readings that can be believed, in order of time, and what is known of the meter."""

    t_s: Floats
    watts: Floats
    info: MeterInfo


def usual_spacing(t_s: Floats) -> float | None:
    """Median of the time between readings (s); ``None`` for fewer than two."""
    steps = np.diff(np.sort(t_s))
    steps = steps[steps > 0]
    return float(np.median(steps)) if len(steps) else None


def checked(meter: MeterLog, run_s: tuple[float, float] | None, findings: Findings) -> CheckedMeter:
    """Judge one node's meter, over the run from ``run_s[0]`` to ``run_s[1]`` where both are known.

    What no meter of a node can read is dropped and counted as failed; the stamps stay as logged.
    """
    t_s, watts, name = meter.t_s, meter.watts, meter.file
    info = MeterInfo(node=meter.node, meter=NODE_METER, available=False, source="imported")
    if not len(t_s):
        findings.pollute("node without readings", f"{name} holds none")
        info.reason = f"{name} holds no reading"
        return CheckedMeter(t_s, watts, info)
    period_s = usual_spacing(t_s)
    _check_order(t_s, period_s or 0.0, name, findings)
    order = np.argsort(t_s, kind="stable")
    t_s, watts = t_s[order], watts[order]
    possible = (watts >= 0) & (watts <= _ABSURD_W)
    if not possible.all():
        wrong = watts[~possible]
        worst = wrong[np.argmax(np.abs(np.nan_to_num(wrong)))]
        example = f"such as {worst:g} W" if np.isfinite(worst) else "that are no number"
        findings.pollute("absurd watts", f"{name}: {len(wrong)} readings {example}")
    good = possible.copy()
    inside = np.zeros(len(t_s), dtype=bool)
    if run_s is not None:
        inside = (t_s >= run_s[0]) & (t_s <= run_s[1])
        loaded = inside & possible
        usual_w = float(np.median(watts[loaded])) if loaded.any() else 0.0
        if usual_w > _FAILED_ABOVE_W:
            good &= ~(inside & (watts < _FAILED_SHARE * usual_w))
    info.readings = int(good.sum())
    info.failed_reads = len(t_s) - info.readings
    if not info.readings:
        info.reason = f"{name} holds no reading that a node's meter can give"
        return CheckedMeter(t_s[good], watts[good], info)
    info.available = True
    if run_s is not None and period_s is not None:
        _check_coverage(info, t_s, inside, good, run_s, period_s, name, findings)
    elif run_s is not None:
        findings.pollute("coverage", f"{name} holds a single reading")
    return CheckedMeter(t_s[good], watts[good], info)


def _check_order(t_s: Floats, period_s: float, name: str, findings: Findings) -> None:
    steps = np.diff(t_s)
    if not (steps < 0).any():
        return
    back_s = -float(steps.min())
    text = f"{name}: {int((steps < 0).sum())} stamps go back, by up to {back_s:.3f} s"
    if back_s > _JITTER_PERIODS * period_s:
        findings.pollute("non-monotonic stamps", text)
    else:
        findings.remark("stamps out of order", text)


def _check_coverage(
    info: MeterInfo,
    t_s: Floats,
    inside: NDArray[np.bool_],
    good: NDArray[np.bool_],
    run_s: tuple[float, float],
    period_s: float,
    name: str,
    findings: Findings,
) -> None:
    if not inside.any():
        findings.pollute(
            "clocks do not overlap",
            f"{name}: its readings lie between {t_s[0]:.0f} and {t_s[-1]:.0f} s, the run between "
            f"{run_s[0]:.0f} and {run_s[1]:.0f} s",
        )
        info.coverage = 0.0
        return
    believed, _ = reading_quality(t_s, *run_s, period_s)
    info.coverage, info.longest_gap_s = reading_quality(t_s[good], *run_s, period_s)
    failed = inside & ~good
    if failed.any():
        # The gap around failed reads, not their number: what lies between them is unknown as well.
        text = (
            f"{name}: {int(failed.sum())} readings below {_FAILED_SHARE:g} of its median or "
            f"impossible, between {t_s[failed][0]:.0f} and {t_s[failed][-1]:.0f} s; "
            f"{100 * (1 - info.coverage):.0f} % of the run is without readings"
        )
        if 1 - info.coverage > _LARGEST_OUTAGE and info.coverage < believed:
            findings.pollute("meter outage", text)
        else:
            findings.remark("failed readings", text)
    gaps = np.diff(np.clip(t_s[good], *run_s))
    gaps = gaps[gaps > _GAP_PERIODS * period_s]
    if len(gaps):
        findings.remark(
            "gaps",
            f"{name}: {len(gaps)} longer than {_GAP_PERIODS} x {period_s:.2f} s in the run, the "
            f"longest {gaps.max():.1f} s, together {gaps.sum():.0f} s",
        )
    if info.coverage < _LEAST_COVERAGE:
        findings.pollute(
            "coverage", f"{name} covers {100 * info.coverage:.0f} % of the run, half is needed"
        )


def mark_shared(meters: Sequence[MeterLog], infos: Sequence[MeterInfo], findings: Findings) -> None:
    """Note which nodes have the same readings: several supplies behind one meter.

    The meter's share was dealt out evenly, so sums over nodes are right where a single node is not.
    """
    groups: dict[bytes, list[int]] = defaultdict(list)
    for i, meter in enumerate(meters):
        if len(meter.watts) > 1:
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


@dataclass(frozen=True)
class Repeat:
    """What the comparison of repeats needs of a run: its setting, and mean watts of a metered node
    and joules of all of them per unit of work over the run (NaN if unknown)."""

    run: str
    setting: tuple[str, ...]
    watts: float
    joules_per_work: float


def repeat_of(
    run: str,
    setting: tuple[str, ...],
    meters: Iterable[CheckedMeter],
    run_s: tuple[float, float],
    work: int,
) -> Repeat:
    """Condense one run; the meters' readings are integrated as straight lines between them."""
    energies = [
        float(_curve(meter).between(np.array(run_s[0]), np.array(run_s[1])))
        for meter in meters
        if meter.info.available and len(np.unique(meter.t_s)) > 1
    ]
    seconds = run_s[1] - run_s[0]
    joules = sum(energies)
    return Repeat(
        run,
        setting,
        joules / len(energies) / seconds if energies else math.nan,
        joules / work if energies and work else math.nan,
    )


def _curve(meter: CheckedMeter) -> EnergyCurve:
    t_s, first = np.unique(meter.t_s, return_index=True)
    watts = meter.watts[first]
    steps = np.diff(t_s) * (watts[1:] + watts[:-1]) / 2
    return EnergyCurve(t_s, np.concatenate([[0.0], np.cumsum(steps)]), watts)


def outliers(repeats: Iterable[Repeat]) -> dict[str, str]:
    """Runs that read unlike the other repeats of their setting, each with the reason.

    Off by more than 5 % from the median of at least three, and by more than five robust standard
    deviations where there are five. Energy per work is compared only there: few repeats of a
    training that stops at a target differ by more without anything being wrong.
    """
    settings: dict[tuple[str, ...], list[Repeat]] = defaultdict(list)
    for repeat in repeats:
        settings[repeat.setting].append(repeat)
    found: dict[str, str] = {}
    for alike in settings.values():
        for least, what, unit, values in (
            (3, "mean power of a node", "W", [r.watts for r in alike]),
            (5, "energy per unit of work", "J", [r.joules_per_work for r in alike]),
        ):
            known = [value for value in values if math.isfinite(value)]
            if len(known) < least or not median(known) > 0:
                continue
            middle = median(known)
            sigma = 1.4826 * median(abs(value - middle) for value in known)
            for repeat, value in zip(alike, values, strict=True):
                off = value / middle - 1
                surely = len(known) < 5 or abs(value - middle) > _OUTLIER_SIGMAS * sigma
                if abs(off) > _OUTLIER_SHARE and surely:
                    found.setdefault(
                        repeat.run,
                        f"unlike its repeats: reads {abs(100 * off):.1f} % "
                        f"{'below' if off < 0 else 'above'} the median of its {len(known)} repeats "
                        f"({what}: {value:.4g} against {middle:.4g} {unit})",
                    )
    return found
