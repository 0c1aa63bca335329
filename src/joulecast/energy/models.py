"""The energy models behind one face: fitted to the same evidence, asked for the same runs.

:class:`Staged` is MC2 on runs whose ranks timed their stages, :class:`Phased` MC2 on runs whose log
tells phases only, :class:`Proportional` one of the rivals. Each predicts with the time given or with
the time that its :class:`Clock` (MC2's time model) predicts, and gives 90 % intervals where it has them.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pandas as pd

from joulecast.energy.mc2 import MC2, SPLIT_POWERS
from joulecast.energy.proportional import MODELS, Context, Rival, Watts
from joulecast.energy.transfer import ABLATIONS, PhaseMC2, Terms

TIME = ("given", "predicted")
PREDICTION = ("predicted_j", "predicted_s", "lower_j", "upper_j", "lower_s", "upper_s")

_STRUCTURE = 0.05
"""Relative: what a time model that saw one node count only may be wrong by on others."""

_Z90 = 1.645


@dataclass(frozen=True)
class Evidence:
    """What a fit may see: training runs, calibration runs, single sums of the all-reduce loop, and the
    platform's watts (``idle_w``, ``full_w``, ``tdp_w``, each maybe ``None``)."""

    training: pd.DataFrame
    calibration: pd.DataFrame
    allreduce: pd.DataFrame
    watts: Watts

    def without(self, left_out: pd.Series) -> "Evidence":
        """The same without some training runs."""
        return Evidence(self.training[~left_out], self.calibration, self.allreduce, self.watts)


class EnergyModel(Protocol):
    """A model of energy; ``predict`` returns the columns of ``PREDICTION`` on the index of the runs."""

    name: str

    def fit(self, evidence: Evidence) -> "EnergyModel": ...

    def predict(self, runs: pd.DataFrame, time: str) -> pd.DataFrame: ...


def _prediction(joules: pd.Series, seconds: pd.Series) -> pd.DataFrame:
    table = pd.DataFrame({"predicted_j": joules, "predicted_s": seconds})
    return table.reindex(columns=list(PREDICTION)).astype(float)


@dataclass
class Staged:
    """MC2 fitted to stage times and energies."""

    name: str = "MC2"
    powers: str = "stages"
    overlap: bool = True
    intervals: bool = True
    bootstrap: int = 0
    mc2: MC2 = field(default_factory=MC2)

    def fit(self, evidence: Evidence) -> "Staged":
        """Fit to the evidence; the width of the intervals comes from node counts left out of it."""
        self.mc2 = MC2(self.powers, overlap=self.overlap).fit(
            evidence.training, evidence.allreduce, evidence.calibration, self.bootstrap
        )
        if self.intervals:
            self._widths = {time: self._width(evidence, time) for time in TIME}
        return self

    def _width(self, evidence: Evidence, time: str) -> tuple[float, float]:
        """Relative half widths of joules and seconds: what 90 % of runs at left-out counts miss by."""
        training = evidence.training
        counts = sorted(training["nodes"].unique())
        missed: list[pd.DataFrame] = []
        for count in counts if len(counts) > 1 else []:
            out = training["nodes"] == count
            inner = Staged(self.name, self.powers, self.overlap, intervals=False)
            told = inner.fit(evidence.without(out)).predict(training[out], time)
            missed.append(
                pd.DataFrame(
                    {
                        "j": told["predicted_j"] / training.loc[out, "energy_j"] - 1,
                        "s": told["predicted_s"] / training.loc[out, "total_s"] - 1,
                    }
                )
            )
        if not missed:
            told = self._told(training, time)
            spread_j = (told["predicted_j"] / training["energy_j"] - 1).std()
            spread_s = (told["predicted_s"] / training["total_s"] - 1).std()
            return (
                _Z90 * float(np.hypot(np.nan_to_num(spread_j), _STRUCTURE)),
                _Z90 * float(np.hypot(np.nan_to_num(spread_s), _STRUCTURE)),
            )
        sizes = pd.concat(missed).abs()
        return float(sizes["j"].quantile(0.9)), float(sizes["s"].quantile(0.9))

    def _told(self, runs: pd.DataFrame, time: str) -> pd.DataFrame:
        times = self.mc2.predict_times(runs)
        seconds = times["total_s"] if time == "predicted" else runs["total_s"]
        if self.mc2.power is None:
            return _prediction(pd.Series(np.nan, index=runs.index), seconds)
        known = runs[list(times.columns)] if time == "given" else times
        return _prediction(self.mc2.predict_energy(runs, known), seconds)

    def predict(self, runs: pd.DataFrame, time: str) -> pd.DataFrame:
        """Joules and seconds of ``runs`` with intervals."""
        told = self._told(runs, time)
        if self.intervals:
            joules, seconds = self._widths[time]
            told["lower_j"] = told["predicted_j"] * (1 - joules)
            told["upper_j"] = told["predicted_j"] * (1 + joules)
            if time == "predicted":
                told["lower_s"] = told["predicted_s"] * (1 - seconds)
                told["upper_s"] = told["predicted_s"] * (1 + seconds)
        return told


@dataclass
class Phased:
    """MC2 fitted to the phases of imported runs."""

    name: str = "MC2"
    terms: Terms = field(default_factory=Terms)
    intervals: bool = True
    mc2: PhaseMC2 = field(default_factory=PhaseMC2)

    def fit(self, evidence: Evidence) -> "Phased":
        """Fit to the training runs; imported campaigns have no calibration runs."""
        self.mc2 = PhaseMC2(self.terms).fit(evidence.training)
        return self

    def predict(self, runs: pd.DataFrame, time: str) -> pd.DataFrame:
        """Joules and seconds of ``runs`` with intervals."""
        known = runs
        if time == "predicted":
            times = self.mc2.predict_times(runs)
            known = runs.drop(columns=list(times.columns)).join(times)
        told = _prediction(self.mc2.predict_energy(known), known["total_s"])
        if self.intervals:
            bounds = self.mc2.intervals(runs, time)
            bounds = bounds[["lower_j", "upper_j"]] if time == "given" else bounds
            told[list(bounds.columns)] = bounds
        return told


@dataclass
class Proportional:
    """A rival; its time is the measured one, or that of ``clock``, MC2 fitted to the same evidence."""

    name: str
    rival: Rival
    clock: EnergyModel

    def fit(self, evidence: Evidence) -> "Proportional":
        """Remember what the rival may know; ``clock`` must be fitted to the same evidence."""
        self._context = Context.of(evidence.training, evidence.calibration, evidence.watts)
        return self

    def predict(self, runs: pd.DataFrame, time: str) -> pd.DataFrame:
        """Joules and seconds of ``runs``, without intervals."""
        seconds = self.clock.predict(runs, time)["predicted_s"]
        # With the time given everybody knows the run's own utilisation, else that of the fit's runs.
        known = self._context.with_utilisation(runs, seconds, own=time == "given")
        return _prediction(self.rival(self._context, known, seconds), seconds)


def mc2_for(imported: bool, bootstrap: int = 0) -> Staged | Phased:
    """The full model for runs of one kind."""
    return Phased() if imported else Staged(bootstrap=bootstrap)


def rivals(clock: EnergyModel) -> list[EnergyModel]:
    """All proportional rivals; they take predicted times from ``clock``."""
    return [Proportional(name, rival, clock) for name, rival in MODELS.items()]


def ablations(imported: bool) -> list[EnergyModel]:
    """MC2 with one thing taken away at a time, named by what is missing."""
    if imported:
        return [Phased(name, terms, intervals=False) for name, terms in ABLATIONS.items()]
    without = [Staged(name, powers, intervals=False) for name, powers in SPLIT_POWERS.items()]
    return [*without, Staged("no overlap", overlap=False, intervals=False)]
