"""When to start a training. Price and CO2 of a kWh change by the hour, and a deadline leaves time to choose.

A training draws its mean power while it runs. Without pauses, the best start is found exactly. The value of a
kWh changes only at the edges of hours. Between two edges, the cost is linear in the start time. So it is
enough to compare the trainings that start or end at an edge. With pauses, time is cut into steps, and dynamic
programming finds the cheapest way to run and to pause.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.energy.request import StartRequest
from joulecast.errors import JoulecastError
from joulecast.runs.files.columns import Column, checked_table, csv_in_parts

_VALUES = {
    "price": Column("number", -1e6, 1e6, meaning="money a kWh"),
    "co2": Column("number", 0, 1e5, meaning="g CO2 equivalent a kWh"),
}
_STATES = 10_000_000
"""Largest number of states of the dynamic programming. A state is a time, and the work done until then."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Hours:
    """Price and CO2 of a kWh over time.

    Attributes:
        edges_s: begin of each value in s since 1970, and the end of the last.
        values: ``price`` and ``co2``, if they are known. Each value holds from its edge to the next.
    """

    edges_s: Floats
    values: dict[str, Floats]

    def kwh_cost(self, name: str, starts_s: Any, ends_s: Any) -> Floats:
        """For each span of time, the integral of a value over its seconds. The spans must lie within the time
        for which there are values."""
        summed = np.concatenate([[0.0], np.cumsum(np.diff(self.edges_s) * self.values[name])])
        ends, starts = (np.interp(each, self.edges_s, summed) for each in (ends_s, starts_s))
        return np.asarray(ends - starts)


def read_hours(path: Path) -> Hours:
    """Read a CSV file with a column ``time`` (ISO 8601; UTC if it has no zone), and a column ``price``
    (money per kWh), ``co2`` (g per kWh), or both. The last value lasts as long as the one before it.

    Raises:
        JoulecastError: the file or a column is missing, or times do not rise.
    """
    what = "prices or CO2 by the hour"
    table = next(csv_in_parts(path, what, {"time": Column("text")}))
    there = {name: column for name, column in _VALUES.items() if name in table}
    if not there:
        raise JoulecastError(
            f"{path}: has no column price or co2; {what} have one of them, or both"
        )
    table = checked_table(table, {"time": Column("text"), **there}, str(path))
    try:
        times = pd.to_datetime(table["time"], utc=True, format="ISO8601")
    except ValueError as error:
        first = str(error).partition(". You might")[0]
        raise JoulecastError(
            f"{path}: column time: {first}; give times as 2026-11-27T08:00"
        ) from None
    begins_s = times.dt.tz_convert(None).to_numpy().astype("datetime64[ns]").astype(np.int64) / 1e9
    if len(begins_s) < 2:
        raise JoulecastError(f"{path}: column time: give two times or more")
    back = np.flatnonzero(np.diff(begins_s) <= 0)
    if len(back):
        row = int(back[0]) + 1
        raise JoulecastError(
            f"{path}, row {row + 1}: time {table['time'].iloc[row]} is not after the one before; where "
            "clocks were set back, give the zone, as +02:00"
        )
    edges_s = np.append(begins_s, 2 * begins_s[-1] - begins_s[-2])
    return Hours(edges_s, {name: table[name].to_numpy(float) for name in there})


def best_start(hours: Hours, name: str, duration_s: float, after_s: float, by_s: float) -> float:
    """The start of the cheapest run without a pause. If several cost the same, the earliest."""
    edges = hours.edges_s
    tried = np.unique(
        np.clip(np.concatenate([[after_s], edges, edges - duration_s]), after_s, by_s - duration_s)
    )
    cost = hours.kwh_cost(name, tried, tried + duration_s)
    # Costs that differ only by rounding count as equal.
    return float(tried[cost <= cost.min() + 1e-9 * np.abs(cost).max()][0])


def best_spans(
    hours: Hours, name: str, duration_s: float, after_s: float, by_s: float, restart_s: float
) -> list[tuple[float, float]]:
    """The spans of the cheapest run that may pause. Pauses last a step of time or more.

    Each start but the first takes ``restart_s`` more. In this time the training draws power and does no work.
    """
    start_s = best_start(hours, name, duration_s, after_s, by_s)
    alone = [(start_s, start_s + duration_s)]
    # Whole minutes: restarts and the edges of hours are then edges of steps, too.
    step_s = 60 * float(np.ceil(np.sqrt((by_s - after_s) * duration_s / _STATES) / 60))
    count = int((by_s - after_s) / step_s)
    work, restart = int(np.ceil(duration_s / step_s)), int(np.ceil(restart_s / step_s))
    if work > count:
        return alone
    begins = after_s + step_s * np.arange(count)
    cost = hours.kwh_cost(name, begins, begins + step_s)
    # A restart earns nothing at a negative price. Otherwise the cheapest run would restart all the time.
    summed = np.concatenate([[0.0], np.cumsum(np.maximum(cost, 0.0))])
    # A pause has to save more than rounding.
    least = 1e-9 * np.abs(cost).max()
    # Least cost, by time and by steps of work done until then: if the training pauses then, and if it runs.
    stands, runs = np.full((count + 1, work + 1), np.inf), np.full((count + 1, work + 1), np.inf)
    stands[0, 0] = 0.0
    for at in range(count + 1):
        if at:
            runs[at, 1:] = np.minimum(runs[at, 1:], runs[at - 1, :-1] + cost[at - 1])
            stands[at] = np.minimum(stands[at - 1], runs[at])
        runs[at, 0] = stands[at, 0]
        if at and at + restart <= count:
            again = stands[at - 1, 1:] + summed[at + restart] - summed[at] + least
            runs[at + restart, 1:] = np.minimum(runs[at + restart, 1:], again)
    ended = int(np.argmin(stands[:, work]))
    spans = _walked_back(stands, runs, cost, ended, work, restart, after_s, step_s)
    # Work and restarts were counted in whole steps of time. The rest of a step is cut off here.
    starts, ends = np.transpose(spans)
    starts[1:] += step_s * restart - restart_s
    ends[-1] -= step_s * work - duration_s
    saved = hours.kwh_cost(name, *alone[0]) - hours.kwh_cost(name, starts, ends).sum()
    return list(zip(starts, ends, strict=True)) if saved > least else alone


def _walked_back(
    stands: Floats,
    runs: Floats,
    cost: Floats,
    at: int,
    done: int,
    restart: int,
    after_s: float,
    step_s: float,
) -> list[tuple[float, float]]:
    """The spans of the run that has the least cost. They are found from the end of the run backwards."""
    spans: list[tuple[float, float]] = []
    while done:
        while at and stands[at - 1, done] <= stands[at, done]:
            at -= 1
        ended = at
        while done and at and runs[at, done] == runs[at - 1, done - 1] + cost[at - 1]:
            at, done = at - 1, done - 1
        at -= restart if done else 0
        spans.append((after_s + step_s * at, after_s + step_s * ended))
        at -= 1 if done else 0
    return spans[::-1]


def _paid(hours: Hours, spans: Sequence[tuple[float, float]], power_w: float) -> dict[str, Any]:
    """Begin, end, spans, money and CO2 of a run."""
    starts, ends = np.transpose(spans)
    kw = power_w / 1e3
    amounts = {
        name: float(hours.kwh_cost(name, starts, ends).sum()) / 3600 * kw for name in hours.values
    }
    return {
        "start": _iso(starts[0]),
        "end": _iso(ends[-1]),
        "runs": [[_iso(start), _iso(end)] for start, end in spans],
        "energy_kwh": float((ends - starts).sum()) / 3600 * kw,
        "cost": amounts.get("price"),
        "co2_kg": None if "co2" not in amounts else amounts["co2"] / 1e3,
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(round(seconds), UTC).isoformat().replace("+00:00", "Z")


def choose_start(request: StartRequest) -> dict[str, Any]:
    """Choose when a training runs.

    Returns:
        ``objective``, and three ways to run: ``now``, ``best`` (without a pause) and ``paused`` (``None``
        if no pause is allowed). Each has ``start``, ``end``, ``runs`` (pairs of times in UTC),
        ``energy_kwh``, ``cost`` and ``co2_kg`` (``None`` if the file does not say it).

    Raises:
        JoulecastError: the file is wrong, or does not cover the time that is requested.
    """
    hours = read_hours(request.hours)
    objective = request.objective or ("cost" if "price" in hours.values else "co2")
    name = {"cost": "price", "co2": "co2"}[objective]
    if name not in hours.values:
        raise JoulecastError(
            f"{request.hours}: has no column {name}, which objective {objective} needs"
        )
    first_s, last_s = float(hours.edges_s[0]), float(hours.edges_s[-1])
    after_s = time() if request.after_s is None else request.after_s
    if not first_s <= after_s < last_s:
        raise JoulecastError(
            f"{request.hours}: its hours are from {_iso(first_s)} to {_iso(last_s)}, and do not contain "
            f"{_iso(after_s)}; give a file that has it, or another time with --after"
        )
    by_s = last_s if request.deadline_s is None else after_s + request.deadline_s
    if by_s > last_s:
        raise JoulecastError(
            f"{request.hours}: ends at {_iso(last_s)}, before the deadline of {_iso(by_s)}; give a file that "
            "reaches as far, or an earlier deadline"
        )
    if after_s + request.duration_s > by_s:
        raise JoulecastError(
            f"duration: if it starts at once, the training takes until {_iso(after_s + request.duration_s)}, "
            f"and must be done at {_iso(by_s)}; give a later deadline, or a file that reaches further"
        )
    power_w = request.energy_j / request.duration_s
    best_s = best_start(hours, name, request.duration_s, after_s, by_s)
    paused = None
    if request.restart_s is not None:
        spans = best_spans(hours, name, request.duration_s, after_s, by_s, request.restart_s)
        paused = _paid(hours, spans, power_w)
    return {
        "objective": objective,
        "now": _paid(hours, [(after_s, after_s + request.duration_s)], power_w),
        "best": _paid(hours, [(best_s, best_s + request.duration_s)], power_w),
        "paused": paused,
    }
