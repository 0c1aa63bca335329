"""Finds suspicious runs: compares them with the repeats of their setting, with their platform, and with each
other.

It looks for four faults. The readings of a run differ from its repeats. All repeats of a setting read half or
double of what their platform reads in every other setting. A run occurs twice, metered before and behind the
power supplies. Two runs have the same readings.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from statistics import median

import numpy as np

from joulecast.logs.checked_meters import CheckedMeter
from joulecast.runs.integration import EnergyCurve

_OUTLIER_SHARE, _OUTLIER_SIGMAS = 0.05, 5
_TELLING = 20
"""If this number of readings in a row is the same in two runs, it is not by chance."""
_HALF, _FLOOR, _ALIKE = 1.6, 1.25, 1.45
_NO_LOAD = 1.4
_LEADING_COUNT = re.compile(r"^\d+x", re.IGNORECASE)


@dataclass(frozen=True)
class Repeat:
    """The facts of one run that are needed to compare runs.

    Attributes:
        setting: submitter, system, benchmark, nodes and batch.
        when: its start and stop, in ms since 1970 if ``dated`` is true, else on its own clock.
        watts: mean watts of a metered node during the run.
        joules_per_work: joules of all nodes for a unit of work.
        load_w: watts of a node during most of the run. ``floor_w`` has its lowest watts. NaN if unknown.
        supply: where it was metered (``AC`` or ``DC``).
        readings: a hash of each meter's readings.
    """

    run: str
    setting: tuple[str, ...]
    when: tuple[float, float]
    dated: bool
    watts: float
    joules_per_work: float
    load_w: float
    floor_w: float
    supply: str | None
    readings: frozenset[bytes]


def repeat_of(
    run: str,
    setting: tuple[str, ...],
    run_s: tuple[float, float],
    zero_s: float | None,
    meters: Iterable[CheckedMeter],
    work: int,
) -> Repeat:
    """The facts of one run. ``zero_s`` is the zero of its clock, in s since 1970, if this is known."""
    read = [m for m in meters if m.info.available and len(np.unique(m.t_s)) > 1]
    energies = [float(_curve(m).between(*map(np.array, run_s))) for m in read]
    inside = [m.watts[(m.t_s >= run_s[0]) & (m.t_s <= run_s[1])] for m in read]
    loads = [float(np.quantile(watts, 0.75)) for watts in inside if len(watts)]
    telling = [m.watts for m in read if len(m.watts) >= _TELLING and np.ptp(m.watts) > 0]
    return Repeat(
        run,
        setting,
        run_s
        if zero_s is None
        else (round(1000 * (zero_s + run_s[0])), round(1000 * (zero_s + run_s[1]))),
        zero_s is not None,
        sum(energies) / len(energies) / (run_s[1] - run_s[0]) if energies else math.nan,
        sum(energies) / work if energies and work else math.nan,
        sum(loads) / len(loads) if loads else math.nan,
        sum(float(m.watts.min()) for m in read) / len(read) if read else math.nan,
        next((m.info.supply for m in read), None),
        frozenset(blake2b(watts.tobytes(), digest_size=8).digest() for watts in telling),
    )


def _curve(meter: CheckedMeter) -> EnergyCurve:
    if meter.joules is not None:
        return EnergyCurve(meter.t_s, meter.joules, None)
    return EnergyCurve.of_power(meter.t_s, meter.watts)


def compared(repeats: Sequence[Repeat]) -> dict[str, list[str]]:
    """The reasons for which runs are left out, by the name of the run."""
    found: dict[str, list[str]] = defaultdict(list)
    for of in (_outliers, _unlike_platform, _there_twice, _copied):
        for run, reason in of(repeats).items():
            found[run].append(reason)
    return found


def _outliers(repeats: Sequence[Repeat]) -> dict[str, str]:
    """Runs that read unlike the other repeats of their setting, each with the reason.

    Such a run is more than 5 % off the median of at least three repeats. If there are five or more, it is
    also more than five robust standard deviations off. Only then is energy per work compared, too: a few
    repeats of a training to a target may differ by more, without any fault.
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


def _unlike_platform(repeats: Sequence[Repeat]) -> dict[str, str]:
    """Runs that read half or double of what their platform reads in other settings, or that read only its
    idle power under load. Each has the reason.

    A run with half or double the power differs from the median of at least two other settings, both under
    load and at its lowest power. A light workload differs only under load, because the idle power of a node
    stays the same.
    """
    platforms: dict[tuple[str, str], dict[tuple[str, ...], list[Repeat]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for repeat in repeats:
        if math.isfinite(repeat.load_w + repeat.floor_w):
            system = _LEADING_COUNT.sub("", repeat.setting[1])
            platforms[repeat.setting[0], system][repeat.setting].append(repeat)
    found = {}
    for (_, platform), settings in platforms.items():
        levels = {
            setting: np.median([(r.load_w, r.floor_w) for r in alike], axis=0)
            for setting, alike in settings.items()
        }
        for setting, (load_w, floor_w) in levels.items():
            others = [level for other, level in levels.items() if other != setting]
            if len(others) < 2:
                break
            usual_w, usual_floor_w = np.median(others, axis=0)
            load, floor = load_w / usual_w, floor_w / max(usual_floor_w, 1.0)
            idle = load_w < _NO_LOAD * usual_floor_w and load < 1 / _HALF
            low = load < 1 / _HALF and floor < 1 / _FLOOR
            high = load > _HALF and floor > _FLOOR
            scaled = (low or high) and 1 / _ALIKE <= floor / load <= _ALIKE
            for repeat in settings[setting] if scaled or idle else ():
                found[repeat.run] = (
                    f"unlike its platform: reads {load:.2f} times what {platform} reads in its "
                    f"{len(others)} other settings under load ({load_w:.4g} against {usual_w:.4g} W), "
                    f"and {f'{floor:.2f} times' if scaled else 'as much as they do'} at its lowest"
                )
    return found


def _same_runs(repeats: Sequence[Repeat]) -> list[list[Repeat]]:
    """Repeats that are the same run: of one benchmark, with the same start and stop to the millisecond,
    in two submissions.

    If there are no dates, or only one submission, the readings must be the same, too.
    """
    groups: dict[tuple[object, ...], list[Repeat]] = defaultdict(list)
    for repeat in repeats:
        if repeat.dated or repeat.readings:
            own = None if repeat.dated else repeat.readings
            groups[repeat.setting[2], repeat.when, own].append(repeat)
    found = []
    for alike in groups.values():
        if len({repeat.setting[:2] for repeat in alike}) == len(alike):
            found.append(alike)
            continue
        # One folder may have the same run twice. These are no repeats.
        by_readings: dict[frozenset[bytes], list[Repeat]] = defaultdict(list)
        for repeat in alike:
            by_readings[repeat.readings].append(repeat)
        found += [same for readings, same in by_readings.items() if readings]
    return [alike for alike in found if len(alike) > 1]


def _there_twice(repeats: Sequence[Repeat]) -> dict[str, str]:
    """Copies of other runs, each with the reason. Of each group of copies, one run is kept: a metered one, if
    possible in front of the power supplies (AC), and among equal ones the first by name."""
    found = {}
    for alike in _same_runs(repeats):
        first, *others = sorted(
            alike, key=lambda r: (not math.isfinite(r.watts), r.supply != "AC", r.run)
        )
        for other in others:
            kinds = [f" ({r.supply})" if r.supply else "" for r in (first, other)]
            found[other.run] = (
                f"there twice: the same run as {first.run}{kinds[0]}, read once more{kinds[1]}"
            )
    return found


def _copied(repeats: Sequence[Repeat]) -> dict[str, str]:
    """Runs with a meter's readings that another run has as well, each with the reason."""
    one_run = {r.run: n for n, alike in enumerate(_same_runs(repeats)) for r in alike}
    owners: dict[bytes, list[str]] = defaultdict(list)
    for repeat in repeats:
        for readings in repeat.readings:
            owners[readings].append(repeat.run)
    found: dict[str, str] = {}
    for runs in owners.values():
        if len({one_run.get(run, run) for run in runs}) > 1:
            for run in runs:
                other = next(r for r in runs if r != run)
                found.setdefault(run, f"readings of another run: {other} has the same, one by one")
    return found
