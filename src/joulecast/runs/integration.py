"""Energy of stages, from the exact overlap of readings and stage intervals on one clock.

A counter is interpolated between its readings. Watts are integrated as straight lines between their readings.
If the edge of a stage lies between two readings, the interpolation divides the energy between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EnergyCurve:
    """Energy of one meter since its first reading, as a function of time.

    ``t_s`` (readings,) increases strictly. ``joules`` has the shape (readings,), and so has ``watts``, which
    is ``None`` for a counter.
    """

    t_s: Floats
    joules: Floats
    watts: Floats | None

    @classmethod
    def of(cls, readings: pd.DataFrame) -> "EnergyCurve":
        """Curve of one meter's readings (columns ``t_s``, ``watts``, ``joules``). The counter is used if
        there is one.

        Raises:
            ValueError: there are fewer than two good readings.
        """
        t_s, joules, watts = (readings[c].to_numpy(float) for c in ("t_s", "joules", "watts"))
        counted, powered = ~np.isnan(joules), ~np.isnan(watts)
        moments, first = np.unique(t_s[counted], return_index=True)
        if len(moments) >= 2:
            return cls(moments, joules[counted][first], None)
        return cls.of_power(t_s[powered], watts[powered])

    @classmethod
    def of_power(cls, t_s: Floats, watts: Floats) -> "EnergyCurve":
        """Curve of power readings in any order. If several readings have the same time, the first one counts.

        Raises:
            ValueError: there are readings of fewer than two moments.
        """
        if np.any(np.diff(t_s) <= 0):
            t_s, first = np.unique(t_s, return_index=True)
            watts = watts[first]
        if len(t_s) < 2:
            raise ValueError(f"{len(t_s)} good readings; two are needed")
        steps = np.diff(t_s) * (watts[1:] + watts[:-1]) / 2
        return cls(t_s, np.concatenate([[0.0], np.cumsum(steps)]), watts)

    @property
    def power(self) -> Floats:
        """Watts at each reading. For a counter, they are the mean since the reading before."""
        if self.watts is not None:
            return self.watts
        steps = np.diff(self.joules) / np.diff(self.t_s)
        return np.append(steps[:1], steps)

    def at(self, times: Floats) -> Floats:
        """Joules at ``times`` (any shape). Before the first reading and after the last one, the power is
        assumed to stay the same."""
        times = np.asarray(times, dtype=float)
        index = np.clip(np.searchsorted(self.t_s, times, side="right") - 1, 0, len(self.t_s) - 2)
        t0, t1 = self.t_s[index], self.t_s[index + 1]
        if self.watts is None:
            slope = (self.joules[index + 1] - self.joules[index]) / (t1 - t0)
            energy: Floats = self.joules[index] + slope * (times - t0)
            return energy
        w0, w1 = self.watts[index], self.watts[index + 1]
        since = np.clip(times, t0, t1) - t0
        inside = self.joules[index] + w0 * since + (w1 - w0) / (t1 - t0) * since**2 / 2
        energy = inside + np.where(times > t1, (times - t1) * w1, 0.0)
        return np.where(times < t0, (times - t0) * w0 + energy, energy)

    def between(self, start_s: Floats, stop_s: Floats) -> Floats:
        """Joules from ``start_s`` to ``stop_s``."""
        return self.at(stop_s) - self.at(start_s)


def exposed_intervals(stages: pd.DataFrame) -> pd.DataFrame:
    """Cut communication down to its exposed part. The part that ran at the same time as computing or update
    is removed.

    ``stages`` has the form of ``stages.parquet``. In the result, no intervals of a rank overlap, as an energy
    split needs it, and they are in the order of their ranks and starts.
    """
    rank, begins, ends = (stages[name].to_numpy() for name in ("rank", "start_s", "stop_s"))
    communicates = stages["stage"].str.startswith("communicating").to_numpy(bool)
    busy = stages["stage"].isin(("computing", "update")).to_numpy()
    overlaps, rows, spans = np.zeros(len(stages), bool), list[int](), list[tuple[float, float]]()
    for one in pd.unique(rank):
        moved, hiding = (np.flatnonzero((rank == one) & each) for each in (communicates, busy))
        hiding = hiding[np.argsort(begins[hiding], kind="stable")]
        first = np.searchsorted(ends[hiding], begins[moved], side="right")
        last = np.searchsorted(begins[hiding], ends[moved], side="left")
        overlaps[moved] = first < last
        for row, lo, hi in zip(*(each[first < last] for each in (moved, first, last)), strict=True):
            edge = begins[row]
            for hidden in hiding[lo:hi]:
                if begins[hidden] > edge:
                    spans.append((edge, begins[hidden]))
                edge = max(edge, ends[hidden])
            if ends[row] > edge:
                spans.append((edge, ends[row]))
            rows += [int(row)] * (len(spans) - len(rows))
    exposed, communicates = stages[~overlaps], communicates[~overlaps]
    if rows:
        start_s, stop_s = np.array(spans).T
        cut = stages.iloc[rows].assign(start_s=start_s, stop_s=stop_s)
        exposed = pd.concat([exposed, cut])
        communicates = np.append(communicates, np.ones(len(rows), bool))
    order = np.lexsort((communicates, exposed["start_s"], exposed["rank"]))
    return exposed.iloc[order].reset_index(drop=True)


def energy_of_stages(
    power: pd.DataFrame,
    exposed: pd.DataFrame,
    node_of_rank: Sequence[str],
    start_s: float,
    stop_s: float,
) -> pd.DataFrame:
    """Split every node's energy over the stages of its ranks.

    Ranks that share a node share its power equally at every moment. Time between ``start_s`` and
    ``stop_s`` that no stage covers is ``other``, so that the stages add up to the meter.

    Args:
        power: readings of the meters to add up.
        exposed: stages. Within a rank, they must not overlap (:func:`exposed_intervals`).

    Returns:
        A row for each node and stage: ``node``, ``stage``, ``energy_j``. Nodes without a meter have no rows.
    """
    columns = (exposed[name].to_numpy(float) for name in ("start_s", "stop_s"))
    begins, ends = (times.clip(start_s, stop_s) for times in columns)
    lasts, rank = ends > begins, exposed["rank"].to_numpy()
    codes, stages = pd.factorize(exposed["stage"].to_numpy(object), sort=True)
    metered = set(power["node"])
    rows: list[tuple[str, str, float]] = []
    for node, readings in power.groupby("node", sort=True):
        # If the (emulated) nodes of a host have no meters, the meter of the host counts for all of them.
        own = [r for r, name in enumerate(node_of_rank) if name == node]
        ranks = own or [
            r
            for r, name in enumerate(node_of_rank)
            if name.startswith(f"{node}/") and name not in metered
        ]
        if not ranks:
            continue
        curves = [EnergyCurve.of(of_meter) for _, of_meter in readings.groupby("meter")]
        of_node, share = lasts & np.isin(rank, ranks), 1 / len(ranks)
        joules: dict[str, float] = {}
        for code, stage in enumerate(stages):
            chosen = of_node & (codes == code)
            if chosen.any():
                each_j = [curve.between(begins[chosen], ends[chosen]).sum() for curve in curves]
                joules[stage] = sum(float(j) * share for j in each_j)
        total = sum(float(curve.between(np.array(start_s), np.array(stop_s))) for curve in curves)
        joules["other"] = joules.get("other", 0.0) + (total - sum(joules.values()))
        rows += [(str(node), stage, j) for stage, j in joules.items()]
    return pd.DataFrame(rows, columns=["node", "stage", "energy_j"])


def reading_quality(
    t_s: Floats, start_s: float, stop_s: float, period_s: float
) -> tuple[float, float]:
    """Coverage and longest gap (s) of readings at ``t_s`` over a run from ``start_s`` to ``stop_s``.

    Coverage is the share of the run without gaps that are longer than three periods. The time before the
    first reading and the time after the last one count as gaps.
    """
    inside = np.sort(t_s[(t_s >= start_s) & (t_s <= stop_s)])
    before, after = t_s[t_s < start_s], t_s[t_s > stop_s]
    left = before.max() if len(before) else start_s
    right = after.min() if len(after) else stop_s
    edges = np.concatenate([[left], inside, [right]])
    gaps = np.diff(edges)
    lost = float(sum(np.diff(np.clip(edges, start_s, stop_s))[gaps > 3 * period_s]))
    return max(0.0, 1 - lost / (stop_s - start_s)), float(gaps.max())
