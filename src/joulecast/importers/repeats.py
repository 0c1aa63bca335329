"""Runs beside one another: a run that reads unlike the other repeats of its setting."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np

from joulecast.importers.readings import CheckedMeter
from joulecast.power.integration import EnergyCurve

_OUTLIER_SHARE = 0.05
_OUTLIER_SIGMAS = 5


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
