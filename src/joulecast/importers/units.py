"""Readings in the wrong unit, and the watts that a node under load can draw.

Submissions give watts. One in kilowatts or milliwatts, or a count of joules in their place, is known by
bounds that hold for any node: an accelerator under load and its share of the node draw about 100 W to
2.5 kW. A factor of a thousand is undone where it is the only one that fits; all else leaves the run out.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from joulecast.importers.traps import Findings, Floats, MeterLog, without_odd_ones
from joulecast.records.covers import Covers

_PER_ACCELERATOR_W = (100.0, 2500.0)
_ANY_NODE_W, _USUAL_NODE_W = (50.0, 50e3), (400.0, 25e3)
"""Where the number of accelerators is not known: what is possible, and what is likely enough to say that a
unit is another because of it."""

_NAME_PLATES_W = (
    (r"GB200|GB300", 1200.0),
    (r"B200", 1000.0),
    (r"H100.*PCIe", 350.0),
    (r"H100.*NVL\b", 400.0),
    (r"H200.*NVL\b", 600.0),
    (r"[HG]H?[12]00|H20\b", 700.0),
    (r"A100.*PCIe", 250.0),
    (r"A100", 400.0),
    (r"MI325X", 1000.0),
    (r"MI300X", 750.0),
    (r"Gaudi ?3", 900.0),
    (r"Gaudi ?2", 600.0),
    (r"L40S", 350.0),
)
"""Largest power of an accelerator by its name, as its maker's data sheet has it; the first that fits."""

_LEAST_OF_PLATE, _MOST_OF_PLATE = 0.55, 2.6
"""A loaded node against the plates of its accelerators alone: 1.0 to 1.9 in systems of eight, whose idle
is 0.35 to 0.47 of it."""

_SCALES = {"kW": 1e3, "mW": 1e-3}
_COARSEST = 0.05
"""Of the load; readings rounded more coarsely than this have no energy to give."""

_LEAST_READINGS = 10
_STEADILY = 0.75
"""A third of a meter's steps go either way; of a counter's one in a hundred goes back."""

_ALIKE, _UNLIKE, _UNLIKE_OF_TWO = 1.2, 1.4, 1.6
_LOADED, _IDLE = 1.5, 1.15


@dataclass(frozen=True)
class Bounds:
    """Watts between which a node under load lies, whose bounds these are, and between which it has to
    lie for a unit to be believed."""

    least_w: float
    most_w: float
    of: str
    usual_w: tuple[float, float]

    def hold(self, watts: float) -> bool:
        """Whether a node may draw so much."""
        return self.least_w <= watts <= self.most_w

    def unit(self, watts: float) -> str | None:
        """The unit in which a node under load gives this number."""
        least_w, most_w = self.usual_w
        return next((u for u, f in _SCALES.items() if least_w <= f * watts <= most_w), None)


def bounds_of(accelerators_per_node: int | None, accelerator: str | None) -> Bounds:
    """The bounds of a node with so many accelerators of that name, as far as these are known."""
    if accelerators_per_node is None:
        return Bounds(*_ANY_NODE_W, "a node under load", _USUAL_NODE_W)
    count = accelerators_per_node
    least_w, most_w = (count * watts for watts in _PER_ACCELERATOR_W)
    of = f"a node of {count} accelerators under load"
    for pattern, plate_w in _NAME_PLATES_W:
        if accelerator and re.search(pattern, accelerator, re.IGNORECASE):
            least_w = max(least_w, _LEAST_OF_PLATE * count * plate_w)
            most_w = min(most_w, max(1000.0, _MOST_OF_PLATE * count * plate_w))
            of = f"a node of {count} accelerators of {plate_w:g} W under load"
            break
    return Bounds(least_w, most_w, of, (least_w, most_w))


_OF_PARTS_W: dict[Covers | None, tuple[float, float]] = {
    None: (5.0, 50e3),
    "node": (5.0, 50e3),
    "module": (5.0, 5e3),
    "gpu": (1.0, 3e3),
    "socket": (0.5, 2e3),
    "cpu": (0.5, 2e3),
    "memory": (0.05, 1e3),
}
"""What is possible where the log or the user names the unit: a unit is never changed there."""


def _stated(meter: MeterLog) -> Bounds:
    """The bounds of a meter whose unit is stated."""
    of = f"a {meter.covers or 'node'} under load"
    return Bounds(*_OF_PARTS_W[meter.covers], of, (inf, inf))


def load_w(meter: MeterLog, run_s: tuple[float, float] | None) -> float | None:
    """Watts that a meter gives for most of the run, or of all where none lie in it; ``None`` without."""
    watts = meter.watts
    if meter.joules is not None and len(meter.t_s) > 1:
        # A coarse counter stands still most of the time.
        ends = np.array(run_s) if run_s is not None else meter.t_s[[0, -1]]
        counted = np.diff(np.interp(ends, meter.t_s, meter.joules))[0] / np.ptp(ends)
        return float(counted) if np.isfinite(counted) else None
    if run_s is not None:
        inside = (meter.t_s >= run_s[0]) & (meter.t_s <= run_s[1])
        watts = watts[inside] if inside.any() else watts
    watts = watts[np.isfinite(watts)]
    return float(np.quantile(watts, 0.75)) if len(watts) else None


def _works_at_times(meter: MeterLog, bounds: Bounds) -> bool:
    """Whether a node that is not under load for most of the run is for some of it: it only evaluates."""
    low_w, _, high_w = _levels(meter)
    return bounds.hold(float(high_w)) and high_w > _LOADED * low_w


def _resolution(watts: Floats) -> float:
    steps = np.diff(np.unique(watts[np.isfinite(watts)]))
    return float(steps.min()) if len(steps) else 0.0


def _only(meter: MeterLog) -> str | None:
    """The way in which readings do little else than ``rise`` or ``fall``, as a counter's, wraps being
    few; else ``None``."""
    steps = np.diff(meter.watts[np.argsort(meter.t_s, kind="stable")])
    steps = steps[np.isfinite(steps)]
    if len(steps) < 2 * _LEAST_READINGS:
        return None
    up, down = float(np.mean(steps > 0)), float(np.mean(steps < 0))
    # Watts climb by little in all, a count by as much as it holds.
    climb = abs(float(steps[steps > 0].sum() if up > down else steps[steps < 0].sum()))
    if max(up, down) < _STEADILY or climb < abs(float(np.nanmedian(meter.watts))):
        return None
    return "rise" if up > down else "fall"


def in_watts(
    meters: Sequence[MeterLog],
    bounds: Bounds,
    run_s: tuple[float, float] | None,
    findings: Findings,
) -> list[MeterLog]:
    """The meters' readings in watts; what cannot be watts, nor be made so, pollutes."""
    found, right = [], []
    of_node = bounds
    for meter in meters:
        usual_w = load_w(meter, run_s)
        if usual_w is None or len(meter.watts) < _LEAST_READINGS or meter.source == "estimated":
            found.append(meter)
            continue
        bounds = _stated(meter) if meter.unit_known else of_node
        if meter.joules is None and (way := _only(meter)):
            findings.pollute("counter for watts", f"{meter.file}: its readings only {way}")
        elif bounds.hold(usual_w) or (len(meters) > 1 and _works_at_times(meter, bounds)):
            right.append(meter)
        else:
            unit = bounds.unit(usual_w)
            if unit is not None and _resolution(meter.watts) <= _COARSEST * usual_w:
                findings.remark(
                    f"readings in {unit}", f"{meter.file}: {usual_w:.4g} under load, taken as such"
                )
                meter = replace(meter, watts=_SCALES[unit] * meter.watts)
                right.append(meter)
            else:
                findings.pollute(
                    "implausible watts",
                    f"{meter.file}: {usual_w:.4g} W for most of the run, {bounds.of} draws "
                    f"{bounds.least_w:g} to {bounds.most_w:g} W"
                    + ("; if its unit is another, say --unit" if meter.unit_known else ""),
                )
        found.append(meter)
    _compare([meter for meter in right if meter.is_of_node], findings)
    return found


def _levels(meter: MeterLog) -> Floats:
    """Low, usual and high watts of a meter, single odd readings apart."""
    watts = without_odd_ones(meter.watts[np.isfinite(meter.watts)])
    levels: Floats = np.quantile(watts, (0.02, 0.5, 0.99))
    return levels


def _compare(meters: Sequence[MeterLog], findings: Findings) -> None:
    """Find nodes that read a multiple of the others, or stand idle next to them.

    A node that only evaluates draws less than the others for most of a run, and not in the same
    proportion always.
    """
    if len(meters) < 2:
        return
    levels = np.stack([_levels(meter) for meter in meters])
    usual = np.median(levels, axis=0) if len(meters) > 2 else levels.max(axis=0)
    unlike = _UNLIKE if len(meters) > 2 else _UNLIKE_OF_TWO
    for meter, own in zip(meters, levels, strict=True):
        ratios = own / np.maximum(usual, 1.0)
        low, high = float(ratios.min()), float(ratios.max())
        alike = high <= _ALIKE * low
        if alike and not 1 / unlike <= float(np.median(ratios)) <= unlike:
            findings.pollute(
                "unlike the other nodes",
                f"{meter.file} reads {float(np.median(ratios)):.2g} times what they do all along",
            )
        elif usual[2] > _LOADED * usual[0] and own[2] < _IDLE * own[0] and own[2] < usual[2] / 1.5:
            findings.pollute(
                "idle meter",
                f"{meter.file} stays at {own[1]:.4g} W; the other nodes rise to {usual[2]:.4g} W",
            )
