"""MC2 for runs that were metered but not staged, and for workloads it has not seen on many nodes.

A run is split by its log into training, evaluating and standing still (:mod:`joulecast.energy.phases`).
A node draws

    P = P_0 + dP_x f(u),    f(u) = u + kappa (u - u^1.4)

in phase x: ``P_0`` the idle floor of the loaded node, ``dP_x`` the workload's excess at its smallest
node count (its calibration), ``u`` the share of the step that computes: the node-seconds per unit of
work on one node, over those on N. The rest of the step is exposed communication. A device at partial
duty does not fall back to idle in it: it waits and copies at its clocks, with the power that
``kappa`` says; kappa = 0 is a line to idle, kappa = 1 the curve of Fan, Weber and Barroso (ISCA 2007),
the mean of thousands of machines and hence the prior. Standing still costs ``P_0``, and each start
from a break loses ``ramp_s`` seconds of excess power. Over a run::

    E = N [ P_0 T + dP_T f(u_T) (T_training - ramp_s starts) + dP_E f(u_E) T_evaluating ]

What is learnt: ``P_0`` and ``ramp_s`` from all workloads of the platform, ``dP`` from the workload's
own smallest node count, ``kappa`` of a workload from its own larger node counts as far as it has any,
else from the other workloads and the prior, by their precisions. The times, where they are to be
predicted, are those of :mod:`joulecast.energy.pace`, whose ``rho`` too is the workload's own where it ran
on several counts, else that of the others.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.energy.calibrated import (
    Calibrated,
    calibrate,
    idle_floors,
    ramp_seconds,
    spread_between_runs,
)
from joulecast.energy.pace import RHO, RHO_SPREAD, batch_ratio, evaluating_rho_of, rho_of, slower
from joulecast.energy.phases import SHORTEST_BREAK_S
from joulecast.energy.priors import UNSEEN, Gaussian, beliefs_of
from joulecast.energy.terms import Terms, duty

Floats = NDArray[np.float64]
Row = Mapping[str, Any]
"""One run: the columns of its observation, numbers or arrays of draws."""

_KAPPA_PRIOR = 1.0
_KAPPA_PRIOR_SD = 0.1
"""How far the mean kappa of all workloads may be from Fan's curve before any evidence."""

_KAPPA_SPREAD = 0.3
"""Spread of kappa between workloads, a guess that the workloads seen correct."""

_RHO_DRIFT_PER_DOUBLING = 0.15
"""Of the logarithm of rho: what a constant exposed time may be wrong by beyond the largest count seen."""

_TIME_NOISE = 0.005
"""Relative: repeats of a run."""

_UNSEEN_TIME_NOISE = 0.02
"""Relative: what the form of the time model is worth where no run was."""

_UNSEEN_SPREAD = 0.03
"""Relative: excess power at full duty between workloads."""

_UNSEEN_DRIFT_PER_DOUBLING = 0.03
"""Relative half width added for a workload that was not run: it may not be at full duty on more nodes."""

_LEAST_NODE_SPREAD = 0.005
"""Relative: power between nodes of one type, at least."""

_POWER_NOISE = 0.01
"""Relative: how well the mean power of a setting is known."""

TIMES = ("training_s", "evaluating_s", "stalled_s", "starts")


@dataclass
class PhaseMC2:
    """The model; :meth:`fit` it to rows of imported runs, then ask for others.

    Rows have the columns of :func:`joulecast.energy.observations.observe`: the setting (``workload``,
    ``platform``, ``nodes``, ``batch``, ``samples`` the work done), the phases, and for the fit the
    energies.

    Attributes:
        idle_w: ``P_0`` by platform.
        ramp_s: seconds of excess power that a start loses.
        node_spread: relative spread of power between nodes.
        workloads: calibrations by workload.
        kappa: beliefs by workload, and of one that was not seen.
        rho: the same of the logarithm of rho.
        evaluating_rho: rho of a workload's evaluations over that of its training.
        most_nodes: the largest node count of the fit.
    """

    terms: Terms = field(default_factory=Terms)
    idle_w: dict[str, float] = field(default_factory=dict)
    ramp_s: float = 0.0
    node_spread: float = _LEAST_NODE_SPREAD
    workloads: dict[str, Calibrated] = field(default_factory=dict)
    kappa: dict[str, Gaussian] = field(default_factory=dict)
    rho: dict[str, Gaussian] = field(default_factory=dict)
    evaluating_rho: dict[str, float] = field(default_factory=dict)
    most_nodes: float = 1.0

    def fit(self, runs: pd.DataFrame) -> "PhaseMC2":
        """Fit to clean runs with energy.

        Raises:
            ValueError: there is none.
        """
        runs = self._seen(runs[runs["energy_j"].notna()])
        if runs.empty:
            raise ValueError("no run with energy to fit")
        self.most_nodes = float(runs["nodes"].max())
        self.idle_w = idle_floors(runs)
        runs = runs.assign(floor_w=self._floors(runs))
        own = runs["idle_w"].where(runs["idle_w"].notna(), runs["floor_w"])
        if self.terms.own_idle:
            runs = runs.assign(floor_w=own)
        if self.terms.ramp:
            self.ramp_s = ramp_seconds(runs)
        self.node_spread = max(_LEAST_NODE_SPREAD, spread_between_runs(runs))
        self.workloads = {str(n): calibrate(of, self.ramp_s) for n, of in runs.groupby("workload")}
        larger = {
            str(workload): of[of["nodes"] > self.workloads[str(workload)].nodes]
            for workload, of in runs.groupby("workload")
        }
        more = {workload: of for workload, of in larger.items() if len(of)}
        rhos = {workload: rho_of(of, self.workloads[workload]) for workload, of in more.items()}
        self.evaluating_rho = {
            workload: evaluating_rho_of(of, self.workloads[workload], math.exp(rhos[workload].mean))
            for workload, of in more.items()
        }
        self.rho = beliefs_of(RHO, RHO_SPREAD, rhos, self.workloads)
        # The shares that kappa acts on come from the paces, hence after them.
        self._pool_kappa({workload: self._kappa_of(of) for workload, of in more.items()})
        return self

    def _seen(self, runs: pd.DataFrame) -> pd.DataFrame:
        """The rows as a model without phases sees them: all of a run is training."""
        if self.terms.phases:
            return runs
        return runs.assign(
            training_s=runs["total_s"],
            training_j=runs.get("energy_j"),
            stalled_training_s=0.0,
            evaluating_s=0.0,
            evaluating_j=0.0,
            stalled_s=0.0,
        )

    def _floors(self, rows: pd.DataFrame) -> pd.Series:
        everywhere = float(np.mean(list(self.idle_w.values()))) if self.idle_w else 0.0
        return rows["platform"].map(self.idle_w).fillna(everywhere)

    def _joules(
        self, row: Row, kappa: Floats | float, floor_w: Floats | float, rise: Floats | float = 1.0
    ) -> Floats:
        """Energy of a run with known times; ``rise`` scales the calibrated excess powers."""
        base = self._calibration(row)
        computes = self._computing_share(base, row)
        training_s = row["nodes"] * np.asarray(row["training_s"])
        evaluating_s = row["nodes"] * np.asarray(row["evaluating_s"])
        lit_s = training_s - row["nodes"] * self._lost_s(row)
        fall = evaluating_fall = self._fall(base.pace, row, training_s, computes, kappa)
        if base.evaluating_pace > 0:
            evaluating_fall = self._fall(base.evaluating_pace, row, evaluating_s, computes, kappa)
        excess_j = base.training_w * lit_s * fall
        excess_j = excess_j + base.evaluating_w * evaluating_s * evaluating_fall
        floor_j = row["nodes"] * floor_w * np.asarray(row["total_s"])
        return np.asarray(floor_j + rise * excess_j)

    def _lost_s(self, row: Row) -> Floats:
        """Seconds of a node's excess power that the climbs take: no more than the training between two
        breaks lasts, since a power that climbs for ``ramp_s`` gets part of its way in less."""
        starts = np.maximum(np.asarray(row["starts"], dtype=float), 1.0)
        each_s = np.asarray(row["training_s"]) / starts
        ramp_s = max(self.ramp_s, 1e-9)
        return np.asarray(starts * ramp_s * (1 - np.exp(-each_s / ramp_s)))

    def _computing_share(self, base: Calibrated, row: Row) -> float:
        """Share of the calibration's own step that computes: 1 on one node, less on more."""
        return float(1 / slower(math.exp(self._belief(self.rho, row).mean), base.nodes - 1))

    def _fall(
        self, pace: float, row: Row, spent_s: Floats, computes: float, kappa: Floats | float
    ) -> Floats:
        """Excess power in a phase over the calibration's, from node-seconds spent on its work."""
        share = np.minimum(1.0, computes * pace * row["samples"] / np.maximum(spent_s, 1e-9))
        return self._duty(share, kappa) / self._duty(np.asarray(computes), kappa)

    def _duty(self, share: Floats, kappa: Floats | float) -> Floats:
        if self.terms.duty == "none":
            return np.ones_like(share)
        if self.terms.duty == "shared":
            return np.asarray(share + kappa * np.maximum(0.0, 1.0 - share))
        return duty(share, kappa)

    def _kappa_of(self, larger: pd.DataFrame) -> Gaussian:
        """kappa that meets the energies of a workload's larger node counts, by least squares."""
        rows = larger.to_dict("records")
        measured = larger["energy_j"].to_numpy(float)
        without = np.array([self._joules(row, 0.0, row["floor_w"]) for row in rows], float)
        with_one = np.array([self._joules(row, 1.0, row["floor_w"]) for row in rows], float)
        slope, gap = (with_one - without) / measured, 1 - without / measured
        steep = float((slope**2).mean())
        if steep < 1e-8:
            return Gaussian(_KAPPA_PRIOR, 10.0)
        # Runs of one setting share their calibration's error, so repeats do not narrow it.
        return Gaussian(float((slope * gap).mean() / steep), _POWER_NOISE / steep**0.5)

    def _pool_kappa(self, kappas: dict[str, Gaussian]) -> None:
        prior = Gaussian(_KAPPA_PRIOR, _KAPPA_PRIOR_SD)
        if self.terms.duty == "linear":
            self.kappa = dict.fromkeys([*self.workloads, UNSEEN], Gaussian(0.0, 0.0))
        elif self.terms.duty == "shared":
            values = [v.mean for v in kappas.values()]
            # Nothing to share where no workload ran on more nodes than its calibration.
            shared = Gaussian(float(np.mean(values)) if values else float("nan"), 0.1)
            self.kappa = dict.fromkeys([*self.workloads, UNSEEN], shared)
        else:
            self.kappa = beliefs_of(
                prior, _KAPPA_SPREAD, kappas, self.workloads, pooled=self.terms.pooled
            )

    def knows(self, workload: str) -> bool:
        """Whether the fit saw the workload on its platform at all."""
        return workload in self.workloads

    def predict_times(self, rows: pd.DataFrame) -> pd.DataFrame:
        """``training_s, evaluating_s, stalled_s, starts`` and ``total_s`` of runs by their setting
        and work; NaN for workloads that the fit did not see."""
        drawn = [
            self._times(row, np.exp(self.rho[row["workload"]].mean))
            if self.knows(row["workload"])
            else dict.fromkeys((*TIMES, "total_s"), np.nan)
            for row in rows.to_dict("records")
        ]
        return pd.DataFrame(drawn, index=rows.index, columns=[*TIMES, "total_s"]).astype(float)

    def _times(self, row: Row, rho: Floats | float) -> dict[str, Any]:
        base = self.workloads[row["workload"]]
        more = (row["nodes"] - 1) * batch_ratio(base.batch, row["batch"])
        slowdown = slower(rho, more) / slower(rho, base.nodes - 1)
        evaluating_rho = rho * self.evaluating_rho.get(row["workload"], 1.0)
        evaluates_slower = slower(evaluating_rho, row["nodes"] - 1)
        evaluates_slower = evaluates_slower / slower(evaluating_rho, base.nodes - 1)
        stalled_s, breaks = base.standstill.at(row["nodes"])
        training_s = base.pace * row["samples"] / row["nodes"] * slowdown
        evaluating_s = base.evaluating_pace * row["samples"] / row["nodes"] * evaluates_slower
        # Evaluations that have become shorter than a break leave the device warm.
        each_s = evaluating_s / max(breaks - 1, 1.0)
        starts = np.where(each_s > SHORTEST_BREAK_S, breaks, min(breaks, 1.0))
        return {
            "training_s": training_s,
            "evaluating_s": evaluating_s,
            "stalled_s": stalled_s,
            "starts": starts,
            "total_s": training_s + evaluating_s + stalled_s,
        }

    def predict_energy(self, rows: pd.DataFrame) -> pd.Series:
        """Joules of runs whose times are in their rows (measured, or of :meth:`predict_times`)."""
        rows = self._seen(rows)
        energies = [
            float(self._joules(row, self._belief(self.kappa, row).mean, floor_w))
            for row, floor_w in self._with_floors(rows)
        ]
        return pd.Series(energies, index=rows.index, dtype=float)

    def _with_floors(self, rows: pd.DataFrame) -> Iterator[tuple[Row, float]]:
        """Each run with the idle floor of its nodes: the calibration's own where it ran on as many,
        else the platform's."""
        for row, platform_w in zip(rows.to_dict("records"), self._floors(rows), strict=True):
            base = self.workloads.get(row["workload"])
            own = base is not None and row["nodes"] == base.nodes
            yield row, base.floor_w if base is not None and own else float(platform_w)

    def _belief(self, of: dict[str, Gaussian], row: Row) -> Gaussian:
        return of.get(row["workload"], of[UNSEEN])

    def _calibration(self, row: Row) -> Calibrated:
        """The workload's own calibration; one that was never run is taken to draw what the others do at
        their smallest counts, and not to be slower for running on more nodes than these."""
        if self.knows(row["workload"]):
            return self.workloads[row["workload"]]
        others = self._others(row)
        evaluating_w = [base.evaluating_w for base in others if base.evaluating_pace > 0]
        smallest = min(base.nodes for base in others)
        rho = math.exp(self.rho[UNSEEN].mean)
        slowdown = float(slower(rho, row["nodes"] - 1) / slower(rho, smallest - 1))
        per_work = row["nodes"] / row["samples"] / min(1.0, slowdown)
        return Calibrated(
            platform=row["platform"],
            nodes=smallest,
            batch=row["batch"],
            pace=row["training_s"] * per_work,
            evaluating_pace=row["evaluating_s"] * per_work,
            standstill=others[0].standstill,
            floor_w=float(np.mean([base.floor_w for base in others])),
            training_w=float(np.mean([base.training_w for base in others])),
            evaluating_w=float(np.mean(evaluating_w or [base.training_w for base in others])),
        )

    def _others(self, row: Row) -> list[Calibrated]:
        """What was calibrated on the row's platform, or anywhere when nothing was."""
        everything = list(self.workloads.values())
        return [base for base in everything if base.platform == row["platform"]] or everything

    def intervals(
        self, rows: pd.DataFrame, times: str, level: float = 0.9, draws: int = 2000, seed: int = 0
    ) -> pd.DataFrame:
        """Intervals of single runs: ``lower_j, upper_j, lower_s, upper_s``, NaN where the time of a
        workload that was not calibrated would have to be predicted.

        They come from draws of what is not known: kappa, the idle floor, how the nodes differ from
        the calibration's, and with ``times`` ``predicted`` the pace on more nodes.
        """
        tail = (1 - level) / 2
        bounds = []
        for row, floor_w in self._with_floors(self._seen(rows)):
            if times == "predicted" and not self.knows(row["workload"]):
                bounds.append([np.nan] * 4)
                continue
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
        columns = ["lower_j", "upper_j", "lower_s", "upper_s"]
        return pd.DataFrame(bounds, index=rows.index, columns=columns)

    def _draw(
        self, row: Row, floor_w: float, times: str, random: np.random.Generator, draws: int
    ) -> tuple[Floats, Floats]:
        base, kappa = self._calibration(row), self._belief(self.kappa, row)
        # Nodes of the calibration and nodes of this run are draws from one population.
        spread = self.node_spread * math.sqrt(1 / base.nodes + 1 / row["nodes"])
        if not self.knows(row["workload"]):
            excess_w = [other.training_w for other in self._others(row)]
            among = float(np.std(excess_w) / np.mean(excess_w))
            smallest = min(other.nodes for other in self._others(row))
            doublings = max(0.0, math.log2(row["nodes"] / smallest))
            spread = math.hypot(spread, max(among, _UNSEEN_SPREAD))
            spread = math.hypot(spread, _UNSEEN_DRIFT_PER_DOUBLING * doublings)
        kappas = random.normal(kappa.mean, kappa.sd, draws)
        rise = random.normal(1.0, spread, draws)
        floor = floor_w * random.normal(1.0, spread, draws)
        if times == "predicted":
            doublings = max(0.0, float(np.log2(row["nodes"] / self.most_nodes)))
            rho = self._belief(self.rho, row)
            drift = math.hypot(rho.sd, _RHO_DRIFT_PER_DOUBLING * doublings)
            drawn_s = self._times(row, np.exp(random.normal(rho.mean, drift, draws)))
            seen = math.log2(row["nodes"]) in base.standstill.doublings
            jitter = random.normal(1.0, _TIME_NOISE if seen else _UNSEEN_TIME_NOISE, draws)
            timed = ("training_s", "evaluating_s", "stalled_s", "total_s")
            row = {**row, **drawn_s, **{name: drawn_s[name] * jitter for name in timed}}
        seconds = np.broadcast_to(np.asarray(row["total_s"], float), (draws,))
        return self._joules(row, kappas, floor, rise), seconds
