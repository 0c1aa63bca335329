"""How wide 90 % intervals are, as half widths of the logarithm of a time or an energy.

A setting that was run has the interval of one more run. It follows from how repeats differ (:class:`Spread`).

A setting that was not run has the interval of its model. For MC2 on stages, this comes from its errors on
node counts that were left out of its fit (:func:`left_out_widths`). On phases, three things come together:
draws of what MC2 does not know, its errors on settings that it had not seen (:func:`judged_widths`), and its
errors on the workload's own runs (:func:`own_errors`). A setting outside of the runs has a wider interval, in
quadrature: for node counts beyond them (:func:`width_of_counts`), and for everything else
(:func:`outside_of`). No interval is narrower than the interval of one more run (:func:`least_half_width`).
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy.special import stdtrit

from joulecast.energy.splits import is_sweep
from joulecast.quantities import counted, digits
from joulecast.runs.judging import SETTING, TIME
from joulecast.runs.scale import BEYOND, hosts_and_gpus, scale_in_words, unit_of

REPEATS = 0.06
"""If no setting was repeated, it is assumed that 90 % of pairs of runs of one setting differ by at most this
share. The repeats in ``recorded/mlperf-times`` differ by as much, on machines without other jobs."""

_WORTH = 2.0
"""Weight of the assumption :data:`REPEATS`, in degrees of freedom of own repeats (a guess). With this weight,
a single odd repeat neither makes an interval uselessly wide, nor is it ignored."""

Z90 = 1.645
"""Half width of a normal distribution's 90 % interval, in standard deviations."""

DRIFT = 0.05
"""Relative half width for each doubling by which a setting is beyond the node counts of the fit, its batches,
or the work of its imported runs. It is added to the interval in quadrature."""

ONE_COUNT = 0.29
"""Half width (of logarithms) for each doubling of the node count, if all runs of the fit have one node count.
Such runs do not show how time changes with the count. For 90 % of pairs of scales of one series in
``recorded/mlperf-times``, the rate of a GPU differs by less, for each doubling between them (a test computes
it again)."""

_NO_EXCHANGE = (
    "no run exchanged gradients, so the forecast has no exchange. The upper end of the interval contains an "
    "exchange over a link of 1 GB/s. Measure two ranks or more"
)


@dataclass(frozen=True)
class JudgedWidths:
    """Half widths (of logarithms) of intervals. They come from the errors on settings of imported runs that a
    fit had not seen (:func:`conformal_width`).

    Attributes:
        times: number of settings that judged the times.
        of_times: what each doubling of the accelerators away from the nearest own scale adds to the
            interval of a time, in quadrature, with the work ``given`` or ``predicted``.
        energies: number of settings that judged the energies, with the time given.
        of_energies: the least half width of an energy.
        platforms: number of pairs of GPUs on which the simulator was judged: it predicts one GPU of a pair
            from the other.
        of_platforms: half width of a time on a platform without runs.
    """

    times: int
    of_times: Mapping[str, float]
    energies: int
    of_energies: float
    platforms: int
    of_platforms: float


@cache
def judged_widths() -> JudgedWidths:
    """The widths of intervals in joulecast's file ``judged_widths.yaml``."""
    text = (resources.files("joulecast.energy") / "judged_widths.yaml").read_text()
    return JudgedWidths(**yaml.safe_load(text))


def _span(low: float, high: float) -> str:
    return f"{low:,.10g}" if low == high else f"{low:,.10g} to {high:,.10g}"


def per_work(runs: pd.DataFrame) -> pd.DataFrame:
    """``time_s`` and ``energy_j`` of one step. For imported runs, they are for one unit of work."""
    units = runs["steps"].mask(runs["kind"] == "imported", runs["samples"]).astype(float)
    return pd.DataFrame({"time_s": runs["total_s"] / units, "energy_j": runs["energy_j"] / units})


@dataclass(frozen=True)
class Spread:
    """Standard deviation of the logarithm of a quantity between repeats, pooled over settings."""

    sd: float
    freedom: int

    @property
    def is_assumed(self) -> bool:
        """Whether no repeats show the spread: there are none, or they are equal because the log has
        coarse times."""
        return self.freedom < 1 or self.sd <= 0

    def half(self, runs: int) -> float:
        """Half width of the 90 % interval (of the logarithm) for one more run, around the mean
        of ``runs`` runs."""
        assumed = (REPEATS / (float(stdtrit(_WORTH, 0.95)) * math.sqrt(2))) ** 2
        seen = self.freedom * self.sd**2 if self.freedom else 0.0
        freedom = _WORTH + self.freedom
        sd = math.sqrt((_WORTH * assumed + seen) / freedom)
        return float(stdtrit(freedom, 0.95)) * sd * math.sqrt(1 + 1 / runs)


def spread_of(training: pd.DataFrame, quantity: str) -> Spread:
    """The spread between repeats of ``time_s`` or ``energy_j``, over all settings that were repeated."""
    values = np.log(per_work(training)[quantity].where(lambda v: v > 0))
    cells = values.groupby([training[key] for key in SETTING], dropna=False)
    counts, squares = cells.count(), cells.var(ddof=1) * (cells.count() - 1)
    freedom = int((counts - 1).clip(lower=0).sum())
    if freedom < 1:
        return Spread(float("nan"), 0)
    return Spread(float(np.sqrt(squares.sum() / freedom)), freedom)


def spreads_on(fitted: pd.DataFrame, of_workload: pd.DataFrame) -> dict[str, Spread]:
    """The spreads of ``time_s`` and ``energy_j`` between repeats on the platform of a workload."""
    on_platform = fitted[fitted["platform"] == of_workload["platform"].iloc[0]]
    return {name: spread_of(on_platform, name) for name in ("time_s", "energy_j")}


def least_half_width(spread: Spread, of_workload: pd.DataFrame) -> float:
    """Least half width (of logarithms) of an interval for a setting without runs: the half width of the
    setting that was run least often."""
    return spread.half(int(of_workload.groupby([*SETTING], dropna=False).size().min()))


def log_errors(prediction: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Logarithms of predicted over measured joules (``j``) and seconds (``s``)."""
    ratios = pd.DataFrame(
        {
            "j": prediction["energy_j"] / runs["energy_j"],
            "s": prediction["time_s"] / runs["total_s"],
        }
    )
    # Errors are limited to a factor of ten, because widths must be finite.
    return np.log(ratios.clip(0.1, 10.0))


Predict = Callable[[pd.DataFrame, str], pd.DataFrame]
"""A function that predicts runs: (runs, ``given`` or ``predicted`` time) -> ``time_s`` and ``energy_j``."""


def left_out_widths(
    training: pd.DataFrame, full: Predict, without: Callable[[pd.Series], Predict]
) -> dict[str, pd.Series]:
    """Half widths for joules (``j``) and seconds (``s``), with the time ``given`` and ``predicted``.

    They come from the errors on node counts that were left out of the fit (:func:`conformal_width`). If all
    runs have one node count, they come from the errors on the runs of the fit.

    Args:
        training: the runs of the fit.
        full: the model that was fitted to all of them.
        without: a function that fits the model without some of the runs.
    """
    missed: dict[str, list[pd.DataFrame]] = {time: [] for time in TIME}
    # If a sweep over batches is held out with its node count, the fit has not seen these batches. A forecast
    # has seen them. So runs of a sweep are not judged.
    usual = ~is_sweep(training)
    counts = sorted(training.loc[usual, "nodes"].unique())
    for count in counts if len(counts) > 1 else []:
        out = training["nodes"] == count
        predict, judged = without(out), training[out & usual]
        for time, of_time in missed.items():
            of_time.append(log_errors(predict(judged, time), judged))
    if len(counts) > 1:
        sizes = {time: pd.concat(m).abs() for time, m in missed.items()}
        return {t: of.apply(lambda each: conformal_width(each.dropna())) for t, of in sizes.items()}
    spreads = {time: log_errors(full(training, time), training).std() for time in TIME}
    # Half width of the difference between one run and the mean of many runs.
    repeats = REPEATS / math.sqrt(2)
    return {time: np.hypot(Z90 * s.fillna(0.0), repeats) for time, s in spreads.items()}


def conformal_width(sizes: Iterable[float]) -> float:
    """The least width that a new error of the same kind does not exceed, with a probability of 90 %
    (conformal). If there are fewer than nine errors, it is the largest of them; without errors, NaN."""
    found = sorted(sizes)
    place = min(len(found), math.ceil(0.9 * (len(found) + 1)))
    return found[place - 1] if found else math.nan


def own_errors(asked: pd.DataFrame, own: pd.DataFrame, predict: Predict, time: str) -> pd.Series:
    """The error of a model on a workload's own runs at the nearest node count. Beyond the largest count, it
    grows: it is multiplied by 2 after one doubling, by 3 after two, and so on. It is 0 for a workload without
    metered runs.

    Args:
        asked: settings with ``workload`` and ``nodes``.
        own: the runs of the fit.
    """
    own = own[own["workload"].isin(set(asked["workload"]))].dropna(subset=["energy_j"])
    # A few repeats of each node count are enough.
    own = own.groupby(["workload", "nodes"]).head(3)
    if own.empty:
        return pd.Series(0.0, index=asked.index)
    ratios = np.log(predict(own, time)["energy_j"] / own["energy_j"])
    found = ratios.groupby([own["workload"], own["nodes"]]).mean().abs().fillna(0.0)
    known = set(own["workload"])
    widths = []
    for workload, nodes in zip(asked["workload"], asked["nodes"], strict=True):
        if workload not in known:
            widths.append(0.0)
            continue
        of = found[workload]
        doublings = np.log2(nodes / of.index.to_numpy(float))
        nearest = float(of.iloc[np.abs(doublings).argmin()])
        widths.append(nearest * (1 + max(0.0, doublings.min())))
    return pd.Series(widths, index=asked.index)


@dataclass(frozen=True)
class Outside:
    """The ways in which a setting lies outside of what was run.

    Attributes:
        scale: says in words that the setting has another node count; empty if it has not.
        others: all other ways, in words.
        times_beyond: the setting's node count, divided by the largest that was run; at least 1.
        beyond_one_count: whether there was only one count, and the setting has another one.
        widens: half width that is added to the setting's intervals.
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
        """The ways in which the setting lies outside of the runs, as the note of the forecast names them.

        A forecast is for other node counts. So another node count is named only if it is far beyond the runs.
        """
        far = self.scale is not None and self.times_beyond > BEYOND
        return (str(self.scale).partition(": ")[2], *self.others) if far else self.others


def outside_of(
    of_workload: pd.DataFrame, setting: Mapping[str, Any], knows_exchange: bool
) -> Outside:
    """The ways in which a setting lies outside of the runs, and how much wider they make its intervals."""
    least, most = of_workload["nodes"].min(), of_workload["nodes"].max()
    times, scale = max(1.0, float(setting["nodes"]) / float(most)), None
    if not least <= setting["nodes"] <= most:
        scale = f"{scale_in_words(setting['nodes'], setting['nodes_are'])}: the runs had {_span(least, most)}"
    if times > BEYOND:
        scale = f"{scale}. This is {digits(times)} times as many"
    others, widens = _other_than_scale(of_workload, setting, knows_exchange)
    return Outside(scale, others, times, scale is not None and least == most, widens)


def _other_than_scale(
    of_workload: pd.DataFrame, setting: Mapping[str, Any], knows_exchange: bool
) -> tuple[tuple[str, ...], float]:
    reasons, widens = [], 0.0
    if setting["kind"] == "imported" and pd.notna(setting["samples"]):
        done = of_workload["samples"]
        nearest = min(max(setting["samples"], done.min()), done.max())
        widens = DRIFT * abs(math.log2(setting["samples"] / nearest))
    if setting["ranks"] > 1 and not knows_exchange:
        reasons.append(_NO_EXCHANGE)
    if setting["work_unit"] == "steps":
        return tuple(reasons), widens
    gpus = hosts_and_gpus(setting)[1]
    devices = gpus or setting["nodes"]
    if setting["batch"] < devices:
        each_of = counted(int(devices), "GPU" if gpus else unit_of(setting["nodes_are"]))
        reasons.append(f"batch {setting['batch']:g}: less than one sample for each of {each_of}")
    column, of = "batch_per_rank", " of a rank"
    if setting["kind"] == "imported":
        column, of = "batch", ""
    low, high = of_workload[column].min(), of_workload[column].max()
    if setting[column] > high or setting[column] < low:
        nearest = high if setting[column] > high else low
        widens = math.hypot(widens, DRIFT * abs(math.log2(setting[column] / nearest)))
        reasons.append(f"batch {setting[column]:,.10g}{of}: the runs had {_span(low, high)}")
    return tuple(reasons), widens


def width_of_counts(nodes: pd.Series, fitted: Collection[float]) -> pd.Series:
    """Half width (of logarithms) that is added for node counts that are not in the fit, for MC2 on stages.

    For the phases of imported runs, MC2 has random draws instead. They follow from how the runs of others
    scaled (``energy/mc2_phases.py``).
    """
    doublings = np.log2(nodes / max(fitted))
    return ONE_COUNT * doublings.abs() if len(fitted) == 1 else DRIFT * doublings.clip(lower=0)


def widen_intervals(
    answer: pd.DataFrame, by: pd.Series, at_least: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """The answer with wider intervals. ``by`` is added to the half widths in quadrature, in logarithms.

    Args:
        at_least: least half widths of ``time_s`` and ``energy_j``. Narrower intervals are widened to these.
    """
    wide = answer.copy()
    for quantity, unit in (("time", "s"), ("energy", "j")):
        value = answer[f"{quantity}_{unit}"]
        for end, sign in (("low", -1), ("high", 1)):
            name = f"{quantity}_{end}_{unit}"
            # All draws may lie on one side of the expected value. The other side then has the width
            # ``least``.
            least = (at_least or {}).get(f"{quantity}_{unit}", 0.0)
            side = (sign * np.log(answer[name] / value)).clip(lower=least)
            wide[name] = value * np.exp(sign * np.hypot(side, by))
    return wide


def one_count_notes(fitted: pd.DataFrame, imported: bool) -> list[str]:
    """If all runs have one node count, a note that says where the intervals of other counts come from."""
    if imported or fitted["nodes"].nunique() > 1:
        return []
    unit = unit_of(fitted["nodes_are"].iloc[-1])
    return [
        f"all runs have one {unit} count, so they do not show how time changes with it. For each doubling, "
        f"the interval widens by a factor of {math.exp(ONE_COUNT):.3g}: 90 % of recorded MLPerf runs differ "
        "by less. Measure a second count"
    ]
