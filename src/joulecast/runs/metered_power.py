"""The power readings of a record that make its energy."""

import numpy as np
import pandas as pd

from joulecast.runs.integration import Floats
from joulecast.runs.meter_choice import MeterInfo, Metering, metered
from joulecast.runs.record import RunRecord

_LEAST_COVERED = 0.9
"""Least share of a run that the readings of a meter have to cover. Its power at other times is not known."""
_STILL_S, _STILL_SHARE = 0.3, 0.03
"""The longest time, and the largest share of a run, for which the counter of a working device may stand
still."""
_COARSEST = 0.1
"""The largest step of a counter, as a share of a run's energy. The energy of the run may lack as much at each
end."""
_STILL_COUNTS = 3
"""A slow counter may stand still for this number of its renewals. A coarse counter may stand still for the
time of this number of its units."""


def _still_s(t_s: Floats, joules: Floats, start_s: float, stop_s: float) -> float:
    """The longest time of a run in which a counter did not move, though it was read."""
    moved = np.flatnonzero(np.diff(joules, prepend=-1.0) > 0)
    # From the first to the last of equal readings.
    until = np.append(moved[1:], len(joules)) - 1
    still = np.clip(t_s[until], start_s, stop_s) - np.clip(t_s[moved], start_s, stop_s)
    return float(still.max(initial=0.0))


def _may_stand_s(meter: MeterInfo, t_s: Floats, joules: Floats, lasts_s: float) -> float:
    """The longest time that a counter may stand still in a run of ``lasts_s``."""
    steps = np.diff(joules)
    moved, span_s = float(steps.sum()), float(t_s[-1] - t_s[0]) if len(t_s) else 0.0
    unit_s = float(steps[steps > 0].min()) * span_s / moved if moved > 0 else 0.0
    slow_s = max(meter.renewed_s or 0.0, unit_s if meter.renewed_s else 0.0)
    return max(_STILL_S, _STILL_SHARE * lasts_s, _STILL_COUNTS * slow_s)


def unusable(record: RunRecord) -> dict[tuple[str, str], str]:
    """Meters whose readings cannot be used, by node and meter, with their faults."""
    span = record.info.outcome.start_s, record.info.outcome.stop_s
    power = record.power
    good = power[power["watts"].notna() | power["joules"].notna()]
    rows_of = good.groupby(["node", "meter"], sort=False).indices
    good_s, good_j = good["t_s"].to_numpy(float), good["joules"].to_numpy(float)
    wrong = record.info.unusable_meters
    for meter in record.info.meters:
        key = (meter.node, meter.meter)
        if key in wrong or not meter.available:
            continue
        rows = rows_of.get(key, np.empty(0, int))
        t_s, joules = good_s[rows], good_j[rows]
        if len(t_s) < 2 or t_s.min() == t_s.max():
            wrong[key] = "gave fewer than two readings"
            continue
        inside = min(t_s.max(), span[1]) - max(t_s.min(), span[0])
        share = max(0.0, inside) / (span[1] - span[0])
        # A counter also counts between two readings. Watts are only known at the readings.
        if not meter.counter and meter.coverage is not None:
            share = min(share, meter.coverage)
        if meter.counter and meter.source in ("measured", "recorded"):
            order = np.argsort(t_s, kind="stable")
            order = order[~np.isnan(joules[order])]
            counted = t_s[order], joules[order]
            still_s = _still_s(*counted, *span)
            if still_s > _may_stand_s(meter, *counted, span[1] - span[0]):
                wrong[key] = f"stood still for {still_s:.2g} s of the run"
                continue
            took_j = float(np.diff(np.interp(span, *counted))[0])
            rises = np.diff(counted[1])
            unit_j = float(rises[rises > 0].min(initial=np.inf))
            if np.median(rises) == 0 and unit_j > _COARSEST * took_j:
                wrong[key] = (
                    f"counts by {unit_j:.3g} J, and the run took {took_j:.3g} J; measure for longer"
                )
                continue
        if share < _LEAST_COVERED:
            wrong[key] = (
                f"was read over {100 * share:.0f} % of the run, {100 * _LEAST_COVERED:.0f} are needed"
            )
    return wrong


def counted_power(record: RunRecord) -> tuple[Metering, pd.DataFrame]:
    """The meters that make a run's energy, and their readings (with the columns of ``power.parquet``). There
    are no readings if the run has no energy.

    If several containers of a machine read the same device, it counts once, and each container gets an equal
    share.
    """
    info = record.info
    if info.spec.kind == "imported":
        # The importer has checked these meters, and has divided the readings of shared ones among the nodes.
        metering = info.metering
        return metering, _of_meters(record.power, metering)
    metering = metered(info.nodes, info.meters, unusable(record))
    power = _of_meters(record.power, metering)
    sharers = {(m.node, m.meter): 1 + len(m.shared_with) for m in metering.meters if m.shared_with}
    if sharers:
        keys = zip(power["node"], power["meter"], strict=True)
        share = pd.Series([sharers.get(key, 1) for key in keys], index=power.index)
        power = power.assign(watts=power["watts"] / share, joules=power["joules"] / share)
    return metering, power


def _of_meters(power: pd.DataFrame, metering: Metering) -> pd.DataFrame:
    return power[power["meter"].isin({meter.meter for meter in metering.meters})]


def machines(metering: Metering) -> int:
    """Number of machines with a meter. Nodes that share a device count as one machine."""
    sharers: dict[str, set[str]] = {}
    for meter in metering.meters:
        sharers.setdefault(meter.node, {meter.node}).update(meter.shared_with)
    return len({min(names) for names in sharers.values()})
