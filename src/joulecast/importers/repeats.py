"""Runs compared: with the repeats of their setting, with their platform, and with themselves.

A run may read unlike its repeats; all repeats may read half or double of what their platform reads in
every other setting; a run may be there twice, metered before and behind the supplies; and the same
readings may be given for two runs.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from statistics import median

import numpy as np

from joulecast.importers.readings import CheckedMeter
from joulecast.importers.traps import Floats
from joulecast.power.integration import EnergyCurve

_OUTLIER_SHARE = 0.05
_OUTLIER_SIGMAS = 5

_TELLING = 20
"""So many readings in a row are not the same by chance in two runs."""

_HALF, _FLOOR, _ALIKE = 1.6, 1.25, 1.45
_NO_LOAD = 1.4
_LEADING_COUNT = re.compile(r"^\d+x", re.IGNORECASE)


@dataclass(frozen=True)
class RunPlace:
    """Where and when a run was: its name, its setting (submitter, system, benchmark, nodes), start and
    stop on the run clock, and the zero of that clock in ms since the epoch (``None`` if unknown)."""

    run: str
    setting: tuple[str, ...]
    run_s: tuple[float, float]
    zero_ms: float | None = None


@dataclass(frozen=True)
class Repeat:
    """What the comparison of runs needs of one: over the run the mean watts of a metered node and
    joules of all of them per unit of work, a node's watts for most of it and at its lowest (NaN if
    unknown), what was metered, and a hash of each meter's readings."""

    place: RunPlace
    watts: float
    joules_per_work: float
    load_w: float
    floor_w: float
    supply: str | None
    readings: frozenset[int]


def repeat_of(place: RunPlace, meters: Iterable[CheckedMeter], work: int) -> Repeat:
    """Condense one run; the meters' readings are integrated as straight lines between them."""
    start_s, stop_s = place.run_s
    read = [m for m in meters if m.info.available and len(np.unique(m.t_s)) > 1]
    energies = [float(_curve(m).between(np.array(start_s), np.array(stop_s))) for m in read]
    inside = [m.watts[(m.t_s >= start_s) & (m.t_s <= stop_s)] for m in read]
    joules = sum(energies)
    return Repeat(
        place,
        joules / len(energies) / (stop_s - start_s) if energies else math.nan,
        joules / work if energies and work else math.nan,
        _mean(float(np.quantile(w, 0.75)) for w in inside if len(w)),
        _mean(float(m.watts.min()) for m in read),
        next((m.info.supply for m in read), None),
        frozenset(
            _digest(m.watts) for m in read if len(m.watts) >= _TELLING and np.ptp(m.watts) > 0
        ),
    )


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else math.nan


def _digest(watts: Floats) -> int:
    """The same in every process, as ``hash`` is not."""
    return int.from_bytes(blake2b(watts.tobytes(), digest_size=8).digest())


def _curve(meter: CheckedMeter) -> EnergyCurve:
    if meter.joules is not None:
        return EnergyCurve(meter.t_s, meter.joules, None)
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
        settings[repeat.place.setting].append(repeat)
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
                        repeat.place.run,
                        f"unlike its repeats: reads {abs(100 * off):.1f} % "
                        f"{'below' if off < 0 else 'above'} the median of its {len(known)} repeats "
                        f"({what}: {value:.4g} against {middle:.4g} {unit})",
                    )
    return found


def _moments(repeats: Iterable[Repeat]) -> list[list[Repeat]]:
    """Repeats that are one run: of one benchmark, from and to the same millisecond, in two
    submissions; without dates, or in one submission, also with the same readings."""
    groups: dict[tuple[object, ...], list[Repeat]] = defaultdict(list)
    for repeat in repeats:
        place = repeat.place
        start_s, stop_s = place.run_s
        if place.zero_ms is not None:
            when = (place.zero_ms + round(1000 * start_s), place.zero_ms + round(1000 * stop_s))
            groups[place.setting[2], *when].append(repeat)
        elif repeat.readings:
            groups[place.setting[2], start_s, stop_s, repeat.readings].append(repeat)
    twins = []
    for alike in groups.values():
        if len({repeat.place.setting[:2] for repeat in alike}) == len(alike):
            twins.append(alike)
            continue
        # One folder with one run twice, and not repeats whose dates mean nothing.
        by_readings: dict[frozenset[int], list[Repeat]] = defaultdict(list)
        for repeat in alike:
            by_readings[repeat.readings].append(repeat)
        twins += [same for readings, same in by_readings.items() if readings]
    return [alike for alike in twins if len(alike) > 1]


def there_twice(repeats: Iterable[Repeat]) -> dict[str, str]:
    """Runs that are another run once more, each with the reason; the metered one is kept, of several that of
    AC, else the first by name."""
    found = {}
    for alike in _moments(repeats):
        first, *others = sorted(
            alike, key=lambda r: (not math.isfinite(r.watts), r.supply != "AC", r.place.run)
        )
        for other in others:
            kinds = [f" ({r.supply})" if r.supply else "" for r in (first, other)]
            found[other.place.run] = (
                f"there twice: the same run as {first.place.run}{kinds[0]}, read once more{kinds[1]}"
            )
    return found


def copied(repeats: Sequence[Repeat]) -> dict[str, str]:
    """Runs with a meter's readings that another run has as well, each with the reason."""
    one_run = {r.place.run: n for n, alike in enumerate(_moments(repeats)) for r in alike}
    owners: dict[int, list[str]] = defaultdict(list)
    for repeat in repeats:
        for readings in repeat.readings:
            owners[readings].append(repeat.place.run)
    found: dict[str, str] = {}
    for runs in owners.values():
        if len({one_run.get(run, run) for run in runs}) > 1:
            for run in runs:
                other = next(r for r in runs if r != run)
                found.setdefault(run, f"readings of another run: {other} has the same, one by one")
    return found


def unlike_platform(repeats: Iterable[Repeat]) -> dict[str, str]:
    """Runs of settings that read half or double of what their platform reads, or its idle, each with
    the reason.

    Half or double both under load and at its lowest, against the median of at least two other
    settings: a light workload takes less under load, and the idle of a node stays what it is.
    """
    platforms: dict[tuple[str, str], dict[tuple[str, ...], list[Repeat]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for repeat in repeats:
        submitter, system = repeat.place.setting[:2]
        platforms[submitter, _LEADING_COUNT.sub("", system)][repeat.place.setting].append(repeat)
    found = {}
    for (_, platform), settings in platforms.items():
        levels = {
            setting: (median(r.load_w for r in alike), median(r.floor_w for r in alike))
            for setting, alike in settings.items()
            if all(math.isfinite(r.load_w + r.floor_w) for r in alike)
        }
        if len(levels) < 3:
            continue
        for setting, (load_w, floor_w) in levels.items():
            others = [level for other, level in levels.items() if other != setting]
            usual_w = median(level[0] for level in others)
            load = load_w / usual_w
            usual_floor_w = median(level[1] for level in others)
            floor = floor_w / max(usual_floor_w, 1.0)
            idle = load_w < _NO_LOAD * usual_floor_w and load < 1 / _HALF
            low = load < 1 / _HALF and floor < 1 / _FLOOR
            high = load > _HALF and floor > _FLOOR
            scaled = (low or high) and 1 / _ALIKE <= floor / load <= _ALIKE
            if not (scaled or idle):
                continue
            how = f"{floor:.2f} times" if scaled else "as much as they do"
            for repeat in settings[setting]:
                found[repeat.place.run] = (
                    f"unlike its platform: reads {load:.2f} times what {platform} reads in its "
                    f"{len(others)} other settings under load ({load_w:.4g} against {usual_w:.4g} W), "
                    f"and {how} at its lowest"
                )
    return found
