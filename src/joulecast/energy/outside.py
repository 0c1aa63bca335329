"""Settings outside of what was run: in what they lie outside, and how much that widens their intervals."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from joulecast.runs.scale import BEYOND, hosts_and_gpus, scale_in_words, unit_of

DRIFT = 0.05
"""Half width, relative, that each doubling beyond the node counts of the fit adds (in quadrature)."""

ONE_COUNT = 0.29
"""The same for a fit to runs of one node count, which shows no change of time with the count: 90 % of pairs
of scales of one series in ``recorded/mlperf-times`` differ by less in the rate of a GPU, for each doubling
between them (of logarithms; a test computes it again)."""

_NO_EXCHANGE = (
    "no run exchanged gradients, so the forecast has no exchange; the upper end allows for one over a link "
    "of 1 GB/s. Measure two ranks or more"
)


def _span(low: float, high: float) -> str:
    return f"{low:,.10g}" if low == high else f"{low:,.10g} to {high:,.10g}"


@dataclass(frozen=True)
class Outside:
    """In what a setting lies outside of what was run.

    Attributes:
        scale: that it has another node count, in words.
        others: all else, in words.
        times_beyond: how many times its count is the most that was run; 1 up to there.
        beyond_one_count: whether it has another count than the only one that was run.
        widens: half width that its intervals gain.
    """

    scale: str | None
    others: tuple[str, ...]
    times_beyond: float
    beyond_one_count: bool
    widens: float

    @property
    def all(self) -> tuple[str, ...]:
        return self.others if self.scale is None else (self.scale, *self.others)

    @property
    def noted(self) -> tuple[str, ...]:
        """What a forecast has a note for: other scales are what it is for, but not any."""
        return self.all if self.times_beyond > BEYOND else self.others


def outside_of(
    of_workload: pd.DataFrame, setting: Mapping[str, Any], knows_exchange: bool
) -> Outside:
    """In what a setting lies outside of what was run, and by how much that widens its intervals."""
    least, most = of_workload["nodes"].min(), of_workload["nodes"].max()
    times, scale = max(1.0, float(setting["nodes"]) / float(most)), None
    if not least <= setting["nodes"] <= most:
        scale = (
            f"{scale_in_words(setting['nodes'], setting['nodes_are'])}: run on {_span(least, most)}"
        )
    if times > BEYOND:
        scale = f"{scale}, {times:,.3g} times beyond"
    others, widens = _other_than_scale(of_workload, setting, knows_exchange)
    return Outside(scale, others, times, scale is not None and least == most, widens)


def _other_than_scale(
    of_workload: pd.DataFrame, setting: Mapping[str, Any], knows_exchange: bool
) -> tuple[tuple[str, ...], float]:
    reasons, widens = [], 0.0
    if setting["ranks"] > 1 and not knows_exchange:
        reasons.append(_NO_EXCHANGE)
    if setting["work_unit"] == "steps":
        return tuple(reasons), widens
    devices = hosts_and_gpus(setting)[1] or setting["nodes"]
    if setting["batch"] < devices:
        reasons.append(f"batch {setting['batch']:g}: less than one sample each of {devices:g}")
    column, of = "batch_per_rank", " of a rank"
    if setting["kind"] == "imported":
        column, of = "batch", ""
    low, high = of_workload[column].min(), of_workload[column].max()
    if setting[column] > high or setting[column] < low:
        nearest = high if setting[column] > high else low
        widens = DRIFT * abs(math.log2(setting[column] / nearest))
        reasons.append(f"batch {setting[column]:,.10g}{of}: run with {_span(low, high)}")
    return tuple(reasons), widens


def width_of_counts(nodes: pd.Series, fitted: Collection[float]) -> pd.Series:
    """Half width (of logarithms) that other node counts than those of a fit add to MC2 with stages. On the
    phases of imported runs, MC2 draws it instead, from how others scaled (``energy/mc2_phases.py``)."""
    doublings = np.log2(nodes / max(fitted))
    return ONE_COUNT * doublings.abs() if len(fitted) == 1 else DRIFT * doublings.clip(lower=0)


def widened(
    answer: pd.DataFrame, by: pd.Series, at_least: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """The answer with the half widths of its intervals (of logarithms) widened, in quadrature.

    Args:
        at_least: half widths of ``time_s`` and ``energy_j`` that are widened where they are smaller.
    """
    wide = answer.copy()
    for quantity, unit in (("time", "s"), ("energy", "j")):
        value = answer[f"{quantity}_{unit}"]
        for end, sign in (("low", -1), ("high", 1)):
            name = f"{quantity}_{end}_{unit}"
            # What is drawn may lie to one side of what is expected.
            least = (at_least or {}).get(f"{quantity}_{unit}", 0.0)
            side = (sign * np.log(answer[name] / value)).clip(lower=least)
            wide[name] = value * np.exp(sign * np.hypot(side, by))
    return wide


def on_one_count(fitted: pd.DataFrame, imported: bool) -> list[str]:
    """A note where all runs have one node count: what the intervals of others are made of."""
    if imported or fitted["nodes"].nunique() > 1:
        return []
    unit = unit_of(fitted["nodes_are"].iloc[-1])
    return [
        f"all runs have one {unit} count, which does not show how time changes with it: the intervals of "
        f"others widen by a factor of {math.exp(ONE_COUNT):.3g} for each doubling, as 90 % of recorded "
        "MLPerf runs do; measure a second count"
    ]
