"""What the runs of one platform or one workload show, without any other workload: idle powers, the ramp,
paces, excess powers, and how the time of a run divides into phases."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.energy.mc2_terms import duty
from joulecast.runs.phases import SHORTEST_BREAK_S

Floats = NDArray[np.float64]

TIMES = ("training_s", "evaluating_s", "both_s", "stalled_s", "starts")


@dataclass(frozen=True)
class TimeShares:
    """How the runs of a workload divide their time, at the node counts on which they ran.

    ``training``, ``evaluating`` and ``both`` (a part of the training) are shares of the time in which the run
    does not stand still. Two more values are the seconds in which it stands still, and the number of starts.
    """

    doublings: tuple[float, ...]
    shares: dict[str, tuple[float, ...]]
    stalled_s: tuple[float, ...]
    starts: tuple[float, ...]

    @classmethod
    def of(cls, runs: pd.DataFrame) -> "TimeShares":
        """The values for each node count: means over the runs that had this count."""
        means = runs.groupby("nodes")[list(TIMES)].mean().fillna(0.0).sort_index()
        works_s = means["training_s"] + means["evaluating_s"]
        names = ("training_s", "evaluating_s", "both_s")
        return cls(
            tuple(float(np.log2(n)) for n in means.index),
            {name: tuple(means[name] / works_s) for name in names},
            tuple(means["stalled_s"]),
            tuple(means["starts"]),
        )

    def at(self, nodes: float, total_s: Floats) -> dict[str, Floats]:
        """Seconds of each phase, and number of starts, for runs of ``total_s`` on ``nodes`` nodes. Between
        known node counts, the values are interpolated in the logarithm of the count. Beyond them, the values
        of the nearest count hold."""
        doublings = float(np.log2(nodes))

        def between(values: tuple[float, ...]) -> float:
            return float(np.interp(doublings, self.doublings, values))

        # A short run does not stand still for more than half of its time.
        stalled_s = np.minimum(between(self.stalled_s), 0.5 * total_s)
        phases = {
            name: between(share) * (total_s - stalled_s) for name, share in self.shares.items()
        }
        breaks = between(self.starts)
        # If evaluations are shorter than ``SHORTEST_BREAK_S``, the device stays warm.
        each_s = phases["evaluating_s"] / max(breaks - 1, 1.0)
        starts = np.where(each_s > SHORTEST_BREAK_S, breaks, min(breaks, 1.0))
        return {**phases, "stalled_s": stalled_s, "starts": starts, "total_s": total_s}


@dataclass(frozen=True)
class Calibrated:
    """What a workload showed at its smallest node count. Paces are in node-seconds per unit of work, excess
    powers in W of a node. ``computes`` is the computing share ``u`` at this node count. ``evaluators`` is the
    share of the nodes that only evaluate."""

    platform: str
    nodes: float
    pace: float
    evaluating_pace: float
    computes: float
    evaluators: float
    time_shares: TimeShares
    floor_w: float
    training_w: float
    evaluating_w: float


_ALL_DURING_TRAINING = 0.9
"""If training continues during at least this share of the evaluations' time, separate nodes evaluate. (If the
training waits during the first part of an evaluation, the same nodes do both.)"""


def evaluates_apart(run: Any) -> Any:
    """Whether the evaluations of a run are on separate nodes (columns ``nodes``, ``both_s``,
    ``evaluating_s``)."""
    both_s = np.asarray(run["both_s"], dtype=float)
    in_force_s = both_s + np.asarray(run["evaluating_s"], dtype=float)
    during = both_s >= _ALL_DURING_TRAINING * in_force_s
    return during & (both_s > 0) & (np.asarray(run["nodes"]) > 1)


def evaluators_of(runs: pd.DataFrame) -> pd.Series:
    """Number of nodes that only evaluate, for each run. The power of the nodes shows it. If it does not, the
    number is one if evaluations are on separate nodes."""
    nodes = runs["evaluators"].fillna(1.0).clip(1.0, runs["nodes"] - 1)
    return nodes.where(evaluates_apart(runs), 0.0)


def apart_seconds(nodes: Any, run: Any) -> Any:
    """Excess energy of ``nodes`` nodes that evaluate while others train, as node-seconds of full excess
    power. Between evaluations, these nodes wait at partial duty, with the power of Fan's curve."""
    training_s = np.maximum(np.asarray(run["training_s"], float), 1e-9)
    share = np.minimum(1.0, np.asarray(run["both_s"], float) / training_s)
    return nodes * training_s * duty(share, 1.0)


def calibrate(of_workload: pd.DataFrame, ramp_s: float, computes: float) -> Calibrated:
    """Calibrate on the smallest node count. The column ``floor_w`` has the idle power of each run's nodes."""
    base = of_workload[of_workload["nodes"] == of_workload["nodes"].min()]
    nodes, apart = base["nodes"], evaluators_of(base)
    steady_j = base["training_j"] - nodes * base["floor_w"] * base["stalled_training_s"]
    excess_j = steady_j - nodes * base["floor_w"] * base["training_s"]
    lit_s = (nodes - apart) * base["training_s"] + apart_seconds(apart, base)
    lit_s = lit_s - nodes * ramp_s * base["starts"]
    alone_s = nodes * base["evaluating_s"]
    evaluating_s = alone_s + apart * base["both_s"]
    evaluating_j = base["evaluating_j"] - alone_s * base["floor_w"]
    training_w = float((excess_j / lit_s)[lit_s > 0].mean()) if (lit_s > 0).any() else 0.0
    evaluates = alone_s.sum() > 0
    return Calibrated(
        platform=str(base["platform"].iloc[0]),
        nodes=float(nodes.iloc[0]),
        pace=float(((nodes - apart) * base["training_s"] / base["samples"]).mean()),
        evaluating_pace=float((evaluating_s / base["samples"]).mean()),
        computes=computes,
        evaluators=float((apart / nodes).mean()),
        time_shares=TimeShares.of(of_workload),
        floor_w=float(base["floor_w"].mean()),
        training_w=training_w,
        # If a workload never evaluates alone, its power during an evaluation is assumed to be that of
        # training.
        evaluating_w=float(evaluating_j.sum() / alone_s.sum()) if evaluates else training_w,
    )


def idle_floors(runs: pd.DataFrame) -> dict[str, float]:
    """Watts of an idle node with the job loaded, by platform: the mean over the nodes that were seen idle
    before a run. If there are no such nodes, the lowest readings of the runs are taken."""
    seen = runs[runs["idle_w"].notna()]
    settings = seen.groupby(["platform", "network", "nodes"], as_index=False)["idle_w"].mean()
    floors = {
        str(platform): float(np.average(of["idle_w"], weights=of["nodes"]))
        for platform, of in settings.groupby("platform")
    }
    for platform, of in runs.groupby("platform"):
        floors.setdefault(str(platform), float(np.nan_to_num(of["lowest_w"].mean())))
    return floors


def ramp_seconds(runs: pd.DataFrame) -> float:
    """Seconds of excess power that a start after a break loses: the median over the runs in which no separate
    nodes evaluate."""
    runs = runs[~evaluates_apart(runs)]
    nodes, steady_w = runs["nodes"], runs["steady_w"]
    steady_j = runs["training_j"] - nodes * runs["floor_w"] * runs["stalled_training_s"]
    missing_j = nodes * runs["training_s"] * steady_w - steady_j
    lost_s = missing_j / (nodes * (steady_w - runs["floor_w"]) * runs["starts"])
    lost_s = lost_s[np.isfinite(lost_s)]
    return max(0.0, float(lost_s.median())) if len(lost_s) else 0.0


def spread_between_runs(runs: pd.DataFrame) -> float:
    """Relative spread of mean node power between runs of one setting on the fewest nodes."""
    power = runs["energy_j"] / runs["total_s"] / runs["nodes"]
    few = runs["nodes"] == runs["nodes"].min()
    cells = power[few].groupby([runs.loc[few, "platform"], runs.loc[few, "network"]])
    spread = (cells.std() / cells.mean())[cells.count() > 1]
    return float(spread.mean()) if len(spread) else 0.01
