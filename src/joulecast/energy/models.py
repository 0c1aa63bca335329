"""The energy models, with one interface. They are fitted to the same evidence, and predict the same runs.

:class:`MC2OnStages` is MC2 on runs whose ranks timed their stages. :class:`MC2OnPhases` is MC2 on runs whose
log has only phases. :class:`Rivals` are the proportional models. Each predicts with the time given, or with
the time that MC2 predicts. MC2 also gives 90 % intervals.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import pandas as pd

from joulecast.energy.intervals import (
    Predict,
    judged_widths,
    left_out_widths,
    own_errors,
    widen_intervals,
    width_of_counts,
)
from joulecast.energy.mc2_phases import PhaseMC2
from joulecast.energy.mc2_stages import SPLIT_POWERS, StageMC2
from joulecast.energy.mc2_terms import ABLATIONS, Terms
from joulecast.energy.proportional_models import MODELS, Context, Watts
from joulecast.energy.recorded_times import times_of_others
from joulecast.energy.run_time import RunTimes
from joulecast.runs.judging import ANSWER
from joulecast.runs.observations import is_training

_SLOW_LINK_BYTES_PER_S = 1e9
"""If no run exchanged gradients, the upper ends of intervals contain an exchange at this rate (10 Gbit/s
Ethernet)."""


@dataclass(frozen=True)
class Evidence:
    """What a fit may see: training runs, calibration runs, single all-reduces of the all-reduce loop, and the
    platform's watts (``idle_w``, ``full_w``, ``tdp_w``, each may be ``None``). For imported runs also
    the times of others."""

    training: pd.DataFrame
    calibration: pd.DataFrame
    allreduce: pd.DataFrame
    watts: Watts
    times: pd.DataFrame = field(default_factory=pd.DataFrame)

    def without(self, left_out: pd.Series) -> "Evidence":
        """The evidence without some training runs."""
        return replace(self, training=self.training[~left_out])

    @cached_property
    def run_times(self) -> RunTimes:
        """The time model of imported runs, which all models of the same evidence share."""
        return RunTimes().fit(pd.concat([self.training, self.times]))

    @property
    def shows_exchange(self) -> bool:
        """Whether the evidence shows how long an exchange takes: a run has several ranks, or the all-reduce
        loop was run."""
        return bool((self.training["ranks"] > 1).any()) or len(self.allreduce) > 0

    @property
    def metered(self) -> pd.DataFrame:
        """The training runs whose energy is known."""
        return self.training[self.training["energy_j"].notna()]


def fit_groups(
    observations: pd.DataFrame, allreduce: pd.DataFrame, watts: dict[str, Watts]
) -> Iterator[tuple[Evidence, bool]]:
    """Groups of runs that are fitted together, and whether each is imported.

    Staged runs are grouped by platform. All imported runs are one group, with the recorded times of
    others. If a platform also has metered energies, its estimated energies are left out, so that the two
    are never averaged. The watts of a platform are those of a node: they tell nothing of its GPUs alone.
    """
    observations = _without_mixed_estimates(observations)
    trained = is_training(observations)
    is_imported = observations["kind"] == "imported"
    of = observations["platform"].mask(is_imported, "")
    for (imported, name), of_campaign in observations.groupby([is_imported, of], sort=False):
        training = of_campaign[trained[of_campaign.index]]
        if imported:
            # Rounding, and with it the random draws, follows the order in which the folders were given.
            training = training.sort_values("run", kind="stable")
        training = training.reset_index(drop=True)
        if len(training):
            others = of_campaign[~trained[of_campaign.index]]
            points = allreduce[allreduce["platform"] == name] if len(allreduce) else allreduce
            times = times_of_others(training) if imported else pd.DataFrame()
            covers = training["energy_covers"].dropna() if "energy_covers" in training else []
            of_node = watts.get(str(name), {}) if {*covers} <= {"node"} else {}
            yield Evidence(training, others, points, of_node, times), imported


def _without_mixed_estimates(observations: pd.DataFrame) -> pd.DataFrame:
    """The runs, without estimated energies on a platform on which any training was metered."""
    has_energy = observations["energy_j"].notna()
    estimated = has_energy & (observations["energy_source"] == "estimated")
    metered = has_energy & ~estimated & is_training(observations)
    mixed = estimated & metered.groupby(observations["platform"]).transform("any")
    if not mixed.any():
        return observations
    return observations.assign(
        energy_j=observations["energy_j"].mask(mixed),
        energy_source=observations["energy_source"].mask(mixed),
        why_no_energy=observations["why_no_energy"].mask(
            mixed, "other runs on this platform are metered, and estimates are not mixed with them"
        ),
    )


class EnergyModel(Protocol):
    """A model of energy. ``predict`` returns a table with the columns of
    :data:`joulecast.runs.judging.ANSWER`, and with the index of the runs."""

    name: str

    @property
    def remarks(self) -> list[str]:
        """Remarks for a reader of the model's predictions. A remark begins with the name of a workload."""
        ...

    def fit(self, evidence: Evidence) -> "EnergyModel": ...

    def predict(self, runs: pd.DataFrame, time: str) -> pd.DataFrame: ...


def _prediction(joules: pd.Series | float, seconds: pd.Series) -> pd.DataFrame:
    table = pd.DataFrame({"energy_j": joules, "time_s": seconds})
    return table.reindex(columns=[*ANSWER]).astype(float)


@dataclass
class MC2OnStages:
    """MC2 fitted to stage times and energies."""

    name: str = "MC2"
    powers: str = "stages"
    overlap: bool = True
    intervals: bool = True
    mc2: StageMC2 = field(default_factory=StageMC2)
    remarks: list[str] = field(default_factory=list)

    def fit(self, evidence: Evidence) -> "MC2OnStages":
        """Fit to the evidence. For the width of the intervals, each node count is left out of the fit in
        turn."""
        self.mc2 = StageMC2(self.powers, overlap=self.overlap).fit(
            evidence.training, evidence.allreduce, evidence.calibration
        )
        self._networks = set(evidence.training["network"])
        self._counts = set(evidence.training["nodes"])
        self.knows_exchange = evidence.shows_exchange
        if self.intervals:
            self._widths = left_out_widths(
                evidence.training, self._predicted, partial(self._fitted_without, evidence)
            )
        return self

    def _fitted_without(self, evidence: Evidence, left_out: pd.Series) -> Predict:
        without = MC2OnStages(self.name, self.powers, self.overlap, intervals=False)
        return without.fit(evidence.without(left_out)).predict

    def _predicted(self, runs: pd.DataFrame, time: str) -> pd.DataFrame:
        times = self.mc2.predict_times(runs)
        seconds = times["total_s"] if time == "predicted" else runs["total_s"]
        if self.mc2.power is None:
            return _prediction(pd.Series(np.nan, index=runs.index), seconds)
        known = runs[list(times.columns)] if time == "given" else times
        return _prediction(self.mc2.predict_energy(runs, known), seconds)

    def predict(self, runs: pd.DataFrame, time: str) -> pd.DataFrame:
        """Joules and seconds of ``runs`` with intervals; NaN for networks that the fit did not see."""
        prediction = self._predicted(runs, time)
        prediction[~runs["network"].isin(self._networks)] = np.nan
        if self.intervals:
            joules, seconds = self._widths[time][["j", "s"]]
            beyond = width_of_counts(runs["nodes"], self._counts)
            joules, seconds = (np.hypot(w, beyond) for w in (joules, seconds))
            unseen = self._unseen_exchange(runs, prediction["time_s"], time)
            prediction["energy_low_j"] = prediction["energy_j"] * np.exp(-joules)
            prediction["energy_high_j"] = prediction["energy_j"] * np.exp(joules) * unseen
            if time == "predicted":
                prediction["time_low_s"] = prediction["time_s"] * np.exp(-seconds)
                prediction["time_high_s"] = prediction["time_s"] * np.exp(seconds) * unseen
        return prediction

    def _unseen_exchange(self, runs: pd.DataFrame, seconds: pd.Series, time: str) -> pd.Series:
        """Factor by which the upper ends of intervals grow, because the fit does not know the exchange well.

        If the fit saw no exchange, the exchange may go over a slow link, and nothing may hide it. If the fit
        saw exchanges but cannot separate latency from bandwidth, the whole exchange may be latency, which
        grows faster with the ranks.
        """
        if time == "given":
            return pd.Series(1.0, index=runs.index)
        slow_s = 2.0 * runs["gradient_bytes"] / _SLOW_LINK_BYTES_PER_S
        moved_s = runs["steps"] * (self.mc2.latency_s(runs) if self.knows_exchange else slow_s)
        return 1.0 + (moved_s / seconds).where(runs["ranks"] > 1, 0.0)


@dataclass
class MC2OnPhases:
    """MC2 fitted to the phases of imported runs."""

    name: str = "MC2"
    terms: Terms = field(default_factory=Terms)
    intervals: bool = True
    mc2: PhaseMC2 = field(default_factory=PhaseMC2)

    @property
    def remarks(self) -> list[str]:
        """Remarks on impossible values in the runs, and on the values that were taken in their place."""
        return self.mc2.bounded

    def fit(self, evidence: Evidence) -> "MC2OnPhases":
        """Fit to the training runs; imported campaigns have no calibration runs."""
        self.mc2 = PhaseMC2(self.terms).fit(evidence.training, evidence.run_times)
        self._training = evidence.training
        return self

    def predict(self, runs: pd.DataFrame, time: str) -> pd.DataFrame:
        """Joules and seconds of ``runs``, with intervals.

        The half width of an energy is at least MC2's error on settings that it had not seen. MC2's error on
        the workload's own runs is added in quadrature to all half widths. Beyond the largest node count of
        these runs, this error grows with each doubling.
        """
        prediction = self._predicted(runs, time)
        if self.intervals:
            bounds = self.mc2.intervals(runs, time)
            bounds = bounds[["energy_low_j", "energy_high_j"]] if time == "given" else bounds
            prediction[list(bounds.columns)] = bounds
            off = own_errors(runs, self._training, self._predicted, time)
            prediction = widen_intervals(prediction, off, {"energy_j": judged_widths().of_energies})
        return prediction

    def _predicted(self, runs: pd.DataFrame, time: str) -> pd.DataFrame:
        known = runs
        if time == "predicted":
            times = self.mc2.predict_times(runs)
            known = runs.drop(columns=list(times.columns), errors="ignore").join(times)
        prediction = _prediction(self.mc2.predict_energy(known), known["total_s"])
        prediction["work"] = known["samples"]
        return prediction


@dataclass(frozen=True)
class Rivals:
    """All proportional rivals. All of them may use the same data about a platform."""

    contexts: dict[str, Context]

    @classmethod
    def fit(cls, evidence: Evidence) -> "Rivals":
        """Keep for each platform the data that the rivals may use."""
        metered = evidence.metered.groupby("platform")
        return cls(
            {name: Context.of(of, evidence.calibration, evidence.watts) for name, of in metered}
        )

    def predict(self, runs: pd.DataFrame, time: str, mc2: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Joules and seconds of ``runs`` by each rival, without intervals. Joules are NaN on a platform that
        was not seen.

        Args:
            mc2: the answer of MC2, which was fitted to the same evidence. Predicted times are MC2's times.
        """
        seconds = runs["total_s"] if time == "given" else mc2["time_s"]
        runs = runs.assign(samples=runs["samples"].fillna(mc2["work"]))
        joules = pd.DataFrame(np.nan, index=runs.index, columns=[*MODELS])
        for platform, of in runs.groupby("platform"):
            context = self.contexts.get(platform)
            if context is None:
                continue
            # If the time is given, rivals get the run's own utilisation, otherwise the fit's mean.
            known = context.with_utilisation(of, seconds[of.index], own=time == "given")
            for name, rival in MODELS.items():
                joules.loc[of.index, name] = rival(context, known, seconds[of.index])
        return {name: _prediction(joules[name], seconds) for name in MODELS}


def mc2_for(imported: bool) -> MC2OnStages | MC2OnPhases:
    """MC2 for imported runs (on phases), or for runs with stages."""
    return MC2OnPhases() if imported else MC2OnStages()


def ablations(imported: bool) -> list[EnergyModel]:
    """MC2 with one part taken away at a time. The name says which part is missing."""
    if imported:
        return [MC2OnPhases(name, terms, intervals=False) for name, terms in ABLATIONS.items()]
    without = [MC2OnStages(name, powers, intervals=False) for name, powers in SPLIT_POWERS.items()]
    return [*without, MC2OnStages("no overlap", overlap=False, intervals=False)]
