"""What the runs of a platform and of a workload show by themselves, before anything is transferred:
idle floors, the ramp, paces, excess powers, and how long runs stand still."""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Standstill:
    """Standstill of a workload: time without work, and starts, at the node counts it ran on."""

    doublings: tuple[float, ...]
    stalled_s: tuple[float, ...]
    starts: tuple[float, ...]

    @classmethod
    def of(cls, runs: pd.DataFrame) -> "Standstill":
        """Means over the runs of each node count."""
        means = runs.groupby("nodes")[["stalled_s", "starts"]].mean().sort_index()
        doublings = tuple(float(np.log2(n)) for n in means.index)
        return cls(doublings, tuple(means["stalled_s"]), tuple(means["starts"]))

    def at(self, nodes: float) -> tuple[float, float]:
        """Seconds and starts on ``nodes`` nodes: between known counts by their logarithm."""
        x = math.log2(nodes)
        stalled = np.interp(x, self.doublings, self.stalled_s)
        return float(stalled), float(np.interp(x, self.doublings, self.starts))


@dataclass(frozen=True)
class Calibrated:
    """What a workload showed at its smallest node count. Paces in node-seconds per unit of work,
    excess powers in W of a node."""

    platform: str
    nodes: float
    batch: float
    pace: float
    evaluating_pace: float
    standstill: Standstill
    floor_w: float
    training_w: float
    evaluating_w: float


def calibrate(of_workload: pd.DataFrame, ramp_s: float) -> Calibrated:
    """Calibrate on the smallest node count; ``floor_w`` is the idle floor of each run's nodes."""
    base = of_workload[of_workload["nodes"] == of_workload["nodes"].min()]
    nodes = base["nodes"]
    steady_j = base["training_j"] - nodes * base["floor_w"] * base["stalled_training_s"]
    excess_j = steady_j - nodes * base["floor_w"] * base["training_s"]
    lit_s = nodes * (base["training_s"] - ramp_s * base["starts"])
    evaluating_s = nodes * base["evaluating_s"]
    evaluating_j = base["evaluating_j"] - evaluating_s * base["floor_w"]
    evaluates = evaluating_s.sum() > 0
    training_w = float((excess_j / lit_s).mean())
    return Calibrated(
        platform=str(base["platform"].iloc[0]),
        nodes=float(nodes.iloc[0]),
        batch=float(base["batch"].mean()),
        pace=float((nodes * base["training_s"] / base["samples"]).mean()),
        evaluating_pace=float((evaluating_s / base["samples"]).mean()),
        standstill=Standstill.of(of_workload),
        floor_w=float(base["floor_w"].mean()),
        training_w=training_w,
        # A workload that evaluates on more nodes only is taken to draw what training does.
        evaluating_w=float(evaluating_j.sum() / evaluating_s.sum()) if evaluates else training_w,
    )


def idle_floors(runs: pd.DataFrame) -> dict[str, float]:
    """Watts of an idle loaded node by platform: the mean over its nodes, as far as they were seen idle
    before a run; else the lowest readings of its runs."""
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
    """Seconds of excess power that a start from a break loses: the median over the runs."""
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
