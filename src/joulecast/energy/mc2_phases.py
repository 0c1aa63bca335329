"""MC2 for runs that have a meter but no stages, also for workloads that it has not seen on many nodes.

A run is split by its log into training, evaluating and standing still (:mod:`joulecast.runs.phases`).
A node draws

    P = P_0 + dP_x f(u),    f(u) = u + kappa (u - u^1.4)

in phase x. ``P_0`` is the idle power of the loaded node. ``dP_x`` is the workload's power above idle at its
smallest node count (its calibration). ``u`` is the share of the step in which a node computes: node-seconds
per unit of work on one node, divided by node-seconds per unit of work on N nodes. The rest of the step is
exposed communication. In this rest, a device does not fall back to idle power: it waits and copies at full
clocks. ``kappa`` says how much power this takes. kappa = 0 is a straight line to idle. kappa = 1 is the curve
of Fan, Weber and Barroso (ISCA 2007), which is the mean of thousands of machines. So it is the prior.
Standing still costs ``P_0``. Each start after a break loses ``ramp_s`` seconds of excess power. Over a run::

    E = N [ P_0 T + dP_T f(u_T) (T_training - ramp_s starts) + dP_E f(u_E) T_evaluating ]

If evaluations run during training, on separate nodes, each term counts the nodes in its phase. The separate
nodes wait for the next evaluation at partial duty: ``u`` is the share of the training in which they evaluate.

``P_0`` and ``ramp_s`` are learnt from all workloads of the platform, and ``dP`` from the workload's own
smallest node count. ``kappa`` of a workload is learnt from the prior and from its own larger node counts, if
there are any, weighed by their precisions. If times have to be predicted, they come from
:mod:`joulecast.energy.run_time`, and are divided into phases in the same way as the workload's own runs.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.energy.mc2_terms import Terms, duty
from joulecast.energy.priors import (
    KAPPA_RANGE,
    UNSEEN,
    Gaussian,
    drawn_kappas,
    spread_of_unseen,
    weighed,
)
from joulecast.energy.run_time import RunTimes
from joulecast.energy.smallest_scale import (
    TIMES,
    Calibrated,
    apart_seconds,
    calibrate,
    evaluates_apart,
    idle_floors,
    ramp_seconds,
    spread_between_runs,
)

Floats = NDArray[np.float64]
Row = Mapping[str, Any]
"""One run: the columns of its observation. The values are numbers, or arrays of draws."""

KAPPA_PRIOR = 1.0
KAPPA_SPREAD = 0.3
"""How far the kappa of a workload may be from Fan's curve before any evidence: a guess."""

_LEAST_NODE_SPREAD = 0.005
"""Least relative spread of power between nodes of one type."""

_POWER_NOISE = 0.01
"""Relative standard deviation with which the mean power of a setting is known."""


@dataclass
class PhaseMC2:
    """The model. :meth:`fit` it to rows of imported runs, then it predicts others.

    Rows have the columns of :func:`joulecast.runs.observations.observe`: the setting (``workload``,
    ``platform``, ``nodes``, ``batch``; ``samples`` is the work done), the phases, and for the fit the
    energies.

    Attributes:
        times: the time model. It is fitted to the same runs, and to runs of others without power.
        idle_w: ``P_0`` by platform.
        ramp_s: seconds of excess power that a start loses.
        node_spread: relative spread of power between nodes.
        workloads: calibrations by workload.
        kappa: beliefs about kappa by workload, and the belief for a workload that was not seen.
        bounded: impossible values in the runs, and the values that were taken in their place.
    """

    terms: Terms = field(default_factory=Terms)
    times: RunTimes = field(default_factory=RunTimes)
    idle_w: dict[str, float] = field(default_factory=dict)
    ramp_s: float = 0.0
    node_spread: float = _LEAST_NODE_SPREAD
    workloads: dict[str, Calibrated] = field(default_factory=dict)
    kappa: dict[str, Gaussian] = field(default_factory=dict)
    bounded: list[str] = field(default_factory=list)

    def fit(self, runs: pd.DataFrame, times: RunTimes | None = None) -> "PhaseMC2":
        """Fit the powers to clean runs that have energy. There may be no such runs.

        Args:
            times: the time model; by default a model of these runs alone.
        """
        self.times = RunTimes().fit(runs) if times is None else times
        runs = runs[runs["energy_j"].notna()]
        if runs.empty:
            self._believe_kappas({})
            return self
        runs = self._seen(runs)
        self.bounded = []
        self.idle_w = idle_floors(runs)
        runs = runs.assign(floor_w=runs["platform"].map(self.idle_w))
        own = runs["idle_w"].where(runs["idle_w"].notna(), runs["floor_w"])
        if self.terms.own_idle:
            runs = runs.assign(floor_w=own)
        if self.terms.ramp:
            self.ramp_s = ramp_seconds(runs)
        self.node_spread = max(_LEAST_NODE_SPREAD, spread_between_runs(runs))
        by_workload = {str(name): of for name, of in runs.groupby("workload")}
        self.workloads = {name: self._calibrate(name, of) for name, of in by_workload.items()}
        larger = {
            name: of[of["nodes"] > self.workloads[name].nodes] for name, of in by_workload.items()
        }
        self._believe_kappas(
            {name: self._kappa_of(name, of) for name, of in larger.items() if len(of)}
        )
        return self

    def _calibrate(self, workload: str, runs: pd.DataFrame) -> Calibrated:
        smallest = runs.loc[runs["nodes"].idxmin()]
        computes = self.times.rate(smallest["series"]).computing_share(smallest)
        base = calibrate(runs, self.ramp_s, computes)
        for phase, excess_w in (
            ("training", base.training_w),
            ("evaluating", base.evaluating_w),
        ):
            if not excess_w >= 0:
                self.bounded.append(
                    f"{workload}: {phase} draws {-excess_w:.0f} W less than idling; taken as equal"
                )
        return replace(
            base,
            training_w=max(0.0, base.training_w),
            evaluating_w=max(0.0, base.evaluating_w),
        )

    def _seen(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The rows as a model without phases sees them: the whole run is training."""
        if self.terms.phases:
            return runs
        return runs.assign(
            training_s=runs["total_s"],
            training_j=runs.get("energy_j"),
            stalled_training_s=0.0,
            evaluating_s=0.0,
            evaluating_j=0.0,
            both_s=0.0,
            stalled_s=0.0,
        )

    def _joules(
        self, row: Row, kappa: Floats | float, floor_w: Floats | float, rise: Floats | float = 1.0
    ) -> Floats:
        """Energy of a run with known times; ``rise`` scales the calibrated excess powers."""
        base = self._calibration(row)
        evaluators = self._evaluators(base, row)
        trains = row["nodes"] - evaluators
        training_s = trains * np.asarray(row["training_s"])
        alone_s = row["nodes"] * np.asarray(row["evaluating_s"])
        evaluating_s = alone_s + evaluators * np.asarray(row["both_s"])
        powered_s = training_s - trains * self._lost_s(row)
        fall = evaluating_fall = self._fall(base.pace, base.computes, row, training_s, kappa)
        if base.evaluating_pace > 0:
            pace = base.evaluating_pace
            evaluating_fall = self._fall(pace, base.computes, row, evaluating_s, kappa)
        excess_j = base.training_w * powered_s * fall
        lit_s = alone_s + apart_seconds(evaluators, row)
        excess_j = excess_j + base.evaluating_w * lit_s * evaluating_fall
        floor_j = row["nodes"] * floor_w * np.asarray(row["total_s"])
        return np.asarray(floor_j + rise * excess_j)

    def _evaluators(self, base: Calibrated, row: Row) -> Floats:
        """Nodes that only evaluate while the others train: about as many as evaluations of their length
        need at the pace of the calibration."""
        in_force_s = np.asarray(row["evaluating_s"], float) + np.asarray(row["both_s"], float)
        needed = base.evaluators * row["nodes"]
        if base.evaluators == 0 and base.evaluating_pace > 0:
            needed = np.median(base.evaluating_pace * row["samples"] / np.maximum(in_force_s, 1e-9))
        evaluators = np.clip(np.round(needed), 1, np.maximum(row["nodes"] - 1, 1))
        return np.where(evaluates_apart(row), evaluators, 0.0)

    def _lost_s(self, row: Row) -> Floats:
        """Seconds of a node's excess power that are lost while the power climbs. They are at most as long
        as the training: if a training between two breaks is shorter than ``ramp_s``, the power climbs only
        a part of its way."""
        starts = np.maximum(np.asarray(row["starts"], dtype=float), 1.0)
        each_s = np.asarray(row["training_s"]) / starts
        ramp_s = max(self.ramp_s, 1e-9)
        return np.asarray(starts * ramp_s * (1 - np.exp(-each_s / ramp_s)))

    def _fall(
        self, pace: float, computes: float, row: Row, spent_s: Floats, kappa: Floats | float
    ) -> Floats:
        """Power above idle in a phase, divided by the power above idle of the calibration. It follows from
        the node-seconds of the phase (``spent_s``)."""
        share = np.minimum(1.0, computes * pace * row["samples"] / np.maximum(spent_s, 1e-9))
        # A single node waits for no other, however long its step takes.
        share = np.ones_like(share) if row["nodes"] == 1 else share
        return self._duty(share, kappa) / self._duty(np.asarray(computes), kappa)

    def _duty(self, share: Floats, kappa: Floats | float) -> Floats:
        if self.terms.duty == "none":
            return np.ones_like(share)
        return duty(share, kappa)

    def _kappa_of(self, workload: str, larger: pd.DataFrame) -> Gaussian:
        """The kappa in ``KAPPA_RANGE`` that fits the energies of a workload's larger node counts best (least
        squares)."""
        rows = larger.to_dict("records")
        measured = larger["energy_j"].to_numpy(float)
        without = np.array([self._joules(row, 0.0, row["floor_w"]) for row in rows], float)
        with_one = np.array([self._joules(row, 1.0, row["floor_w"]) for row in rows], float)
        slope, gap = (with_one - without) / measured, 1 - without / measured
        steep = float((slope**2).mean())
        if steep < 1e-8:
            return Gaussian(KAPPA_PRIOR, 10.0)
        # Runs of one setting share their calibration's error, so repeats do not narrow it.
        met = float((slope * gap).mean() / steep)
        kappa = float(np.clip(met, *KAPPA_RANGE))
        if kappa != met:
            self.bounded.append(
                f"{workload}: its larger runs draw {'more' if met > kappa else 'less'} power than MC2 allows "
                f"for devices that wait (kappa = {met:.2f}, taken as {kappa:g}). Settings that were not run "
                "may, too"
            )
        return Gaussian(kappa, _POWER_NOISE / steep**0.5)

    def _believe_kappas(self, kappas: dict[str, Gaussian]) -> None:
        if self.terms.duty == "linear":
            self.kappa = dict.fromkeys([*self.workloads, UNSEEN], Gaussian(0.0, 0.0))
        else:
            prior = Gaussian(KAPPA_PRIOR, KAPPA_SPREAD)
            self.kappa = {UNSEEN: prior} | {
                name: weighed(prior, kappas[name]) if name in kappas else prior
                for name in self.workloads
            }

    def coefficients(self) -> dict[str, Any]:
        """The fitted values as plain data: watts, seconds, node-seconds per unit of work."""
        return {
            "idle_w": self.idle_w,
            "ramp_s": self.ramp_s,
            "node_spread": self.node_spread,
            "workloads": {name: asdict(base) for name, base in self.workloads.items()},
            "kappa": {name: asdict(belief) for name, belief in self.kappa.items()},
            "bounded": self.bounded,
        }

    def knows(self, workload: str) -> bool:
        """Whether the fit saw the workload on its platform at all."""
        return workload in self.workloads

    def predict_times(self, rows: pd.DataFrame) -> pd.DataFrame:
        """``training_s, evaluating_s, both_s, stalled_s, starts, total_s`` and ``samples`` of runs, from
        their setting and work. If the ``samples`` of a run are NaN, its work is predicted, too. If no time of
        its series is known, all values are NaN. Phases are NaN for workloads without a metered run."""
        predicted = self.times.predict(rows)
        columns = [*TIMES, "total_s", "samples"]
        divided = []
        for (_, row), answer in zip(rows.iterrows(), predicted.to_dict("records"), strict=True):
            seconds = {"total_s": answer["time_s"], "samples": answer["work"]}
            if self.knows(row["workload"]):
                time_shares = self.workloads[row["workload"]].time_shares
                seconds |= time_shares.at(row["nodes"], np.asarray(answer["time_s"]))
            divided.append({name: float(value) for name, value in seconds.items()})
        return pd.DataFrame(divided, index=rows.index, columns=columns).astype(float)

    def predict_energy(self, rows: pd.DataFrame) -> pd.Series:
        """Joules of runs. Their rows have the times, measured or from :meth:`predict_times`. NaN on platforms
        that the fit did not see."""
        rows = self._seen(rows)
        energies = [
            float(self._joules(row, self._belief(self.kappa, row).mean, floor_w))
            if self.knows_platform(row["platform"])
            else math.nan
            for row, floor_w in self._with_floors(rows)
        ]
        return pd.Series(energies, index=rows.index, dtype=float)

    def knows_platform(self, platform: str) -> bool:
        """Whether the fit saw a metered run on the platform."""
        return platform in self.idle_w

    def _with_floors(self, rows: pd.DataFrame) -> Iterator[tuple[Row, float]]:
        """Each run with the idle watts of its nodes: those of the calibration if it ran on as many nodes,
        else those of the platform."""
        for row in rows.to_dict("records"):
            base = self.workloads.get(row["workload"])
            own = base is not None and row["nodes"] == base.nodes
            platform_w = self.idle_w.get(row["platform"], math.nan)
            yield row, base.floor_w if base is not None and own else platform_w

    def _belief(self, of: dict[str, Gaussian], row: Row) -> Gaussian:
        return of.get(row["workload"], of[UNSEEN])

    def _calibration(self, row: Row) -> Calibrated:
        """The workload's own calibration. A workload that was never run is assumed to draw what the
        others on its platform draw at their smallest counts, and not to get slower on more nodes than
        these."""
        if self.knows(row["workload"]):
            return self.workloads[row["workload"]]
        others = self._others(row)
        evaluating_w = [base.evaluating_w for base in others if base.evaluating_pace > 0]
        computes = float(np.mean([base.computes for base in others]))
        # On fewer nodes than the other runs, a node is assumed to wait for no other node.
        full = 1.0 if row["nodes"] < min(base.nodes for base in others) else computes
        per_work = row["nodes"] / row["samples"] * full / computes
        return Calibrated(
            platform=row["platform"],
            nodes=min(base.nodes for base in others),
            pace=row["training_s"] * per_work,
            evaluating_pace=row["evaluating_s"] * per_work,
            computes=computes,
            evaluators=0.0,
            time_shares=others[0].time_shares,
            floor_w=float(np.mean([base.floor_w for base in others])),
            training_w=float(np.mean([base.training_w for base in others])),
            evaluating_w=float(np.mean(evaluating_w or [base.training_w for base in others])),
        )

    def _others(self, row: Row) -> list[Calibrated]:
        """Calibrations of the row's platform."""
        return [base for base in self.workloads.values() if base.platform == row["platform"]]

    def intervals(
        self, rows: pd.DataFrame, times: str, level: float = 0.9, draws: int = 2000, seed: int = 0
    ) -> pd.DataFrame:
        """Intervals of single runs: ``energy_low_j``, ``energy_high_j``, ``time_low_s``,
        ``time_high_s``. They are NaN if there is no prediction.

        They come from random draws of the values that are not known: kappa, the idle power, and how the nodes
        differ from the nodes of the calibration. If ``times`` is ``predicted``, the work and the rate are
        drawn, too.
        """
        tail = (1 - level) / 2
        bounds = []
        for row, floor_w in self._with_floors(self._seen(rows)):
            # The same draws for every run: an interval does not depend on what else is asked.
            random = np.random.default_rng(seed)
            joules, seconds = self._draw(row, floor_w, times, random, draws)
            bounds.append(
                [
                    float(b)
                    for q in (joules, seconds)
                    for b in np.quantile(np.asarray(q), np.array([tail, 1 - tail]))
                ]
            )
        columns = ["energy_low_j", "energy_high_j", "time_low_s", "time_high_s"]
        return pd.DataFrame(bounds, index=rows.index, columns=columns)

    def _draw(
        self, row: Row, floor_w: float, times: str, random: np.random.Generator, draws: int
    ) -> tuple[Floats, Floats]:
        nothing = np.full(draws, np.nan)
        seconds = np.broadcast_to(np.asarray(row["total_s"], float), (draws,))
        if times == "predicted":
            seconds, work = self.times.draws(pd.Series(row), draws)
            if not self.knows(row["workload"]):
                return nothing, seconds
            time_shares = self.workloads[row["workload"]].time_shares.at(row["nodes"], seconds)
            row = {**row, **time_shares, "samples": work}
        if not self.knows_platform(row["platform"]):
            return nothing, seconds
        base, kappa = self._calibration(row), self._belief(self.kappa, row)
        # Nodes of the calibration and nodes of this run are draws from one population.
        spread = self.node_spread * math.sqrt(1 / base.nodes + 1 / row["nodes"])
        if not self.knows(row["workload"]):
            others = self._others(row)
            excess_w = [other.training_w for other in others]
            smallest = min(other.nodes for other in others)
            spread = math.hypot(spread, spread_of_unseen(excess_w, smallest, row["nodes"]))
        kappas = drawn_kappas(kappa, random, draws)
        # Powers are positive, so their logarithms are drawn.
        rise = np.exp(random.normal(0.0, spread, draws))
        floor = floor_w * np.exp(random.normal(0.0, spread, draws))
        return self._joules(row, kappas, floor, rise), seconds
