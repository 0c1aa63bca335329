"""Time of a run: its work (:mod:`joulecast.energy.work_law`), divided by its rate
(:mod:`joulecast.energy.rate`)."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from joulecast.energy.rate import DRAWS, SCALE, Floats, Neighbours, Rate, rate_of
from joulecast.energy.work_law import DEPARTURE, WorkLaw
from joulecast.runs.observations import most_frequent


@dataclass
class RunTimes:
    """Times of imported runs. :meth:`fit` it to runs, then :meth:`predict` others.

    Runs have ``series`` (runs that can be compared: submitter, benchmark, accelerator), ``submitter``,
    ``network`` (the benchmark), ``accelerator``, ``work_unit``, ``nodes``, ``ranks``, ``batch``,
    ``samples`` (the work) and ``total_s``.

    Attributes:
        runs: all runs that are known, of all submitters.
    """

    runs: pd.DataFrame = field(default_factory=pd.DataFrame)

    def fit(self, runs: pd.DataFrame) -> "RunTimes":
        """Keep the runs whose time and work are known. A series is fitted when it is requested."""
        runs = runs[(runs["total_s"] > 0) & (runs["samples"] > 0)]
        if "has_phases" in runs:
            # A log without phases does not show how long the run stands still.
            known = runs["has_phases"].fillna(False).astype(bool)
            runs = runs.assign(stalled_s=runs["stalled_s"].where(known))
        self.runs = runs
        self._rates: dict[str, Rate] = {}
        self._laws: dict[tuple[str, str], WorkLaw] = {}
        return self

    def knows(self, series: str) -> bool:
        """Whether runs of the series were fitted."""
        return bool((self.runs["series"] == series).any())

    def rate(self, series: str) -> Rate:
        """The rate of a series that has runs of its own."""
        if series not in self._rates:
            own = self.runs[self.runs["series"] == series]
            self._rates[series] = rate_of(own, self._neighbours(own))
        return self._rates[series]

    def _neighbours(self, own: pd.DataFrame) -> Neighbours:
        first = own.iloc[0]
        known = not pd.isna(first["accelerator"])
        same = self.runs["network"] == first["network"]
        theirs = self.runs["submitter"] != first["submitter"]
        of_others = self.runs[same & theirs]
        if (own["ranks"] == own["nodes"]).all() and len(of_others):
            # The number of accelerators of a node is not known. The most frequent number of the others is
            # assumed.
            each = of_others["ranks"] / of_others["nodes"]
            of_others = of_others[each == most_frequent(each)]
            of_others = of_others.assign(ranks=of_others["nodes"])
        # Without batches, steps cannot be compared.
        of_others = of_others[of_others["batch"].notna() & own["batch"].notna().any()]
        alike: list[pd.DataFrame] = []
        unlike: list[pd.DataFrame] = []
        for _, runs in of_others.groupby("series"):
            if runs["ranks"].nunique() > 1:
                is_alike = known and runs["accelerator"].iloc[0] == first["accelerator"]
                (alike if is_alike else unlike).append(runs)
        of_submitter = self.runs[
            ~same & ~theirs & (self.runs["accelerator"] == first["accelerator"])
        ]
        if not known:
            of_submitter = self.runs[~same & ~theirs & (self.runs["platform"] == first["platform"])]
        tables = [of for _, of in of_submitter.groupby("series") if of["ranks"].nunique() > 1]
        return Neighbours(alike, unlike, tables)

    def law(self, network: str, unit: str) -> WorkLaw:
        """The work law of a benchmark, in one unit of work."""
        key = network, unit
        if key not in self._laws:
            same = (self.runs["network"] == network) & (self.runs["work_unit"] == unit)
            self._laws[key] = WorkLaw.of(self.runs[same])
        return self._laws[key]

    def draws(self, run: pd.Series, count: int = DRAWS) -> tuple[Floats, Floats]:
        """Draws of the seconds and the work of a run. If its ``samples`` are NaN, the law gives the work at
        its batch. If the series has no runs of its own, the seconds are NaN, and the work stays as it is."""
        if not self.knows(run["series"]):
            return np.full(count, np.nan), np.full(count, run["samples"])
        rate = self.rate(run["series"])
        # The same draws for every run: an answer does not depend on what else is asked.
        random = np.random.default_rng(0)
        normal, jitter = random.standard_normal((2, DRAWS))
        work = np.full(DRAWS, float(run["samples"]))
        work_is = "predicted" if np.isnan(work[0]) else "given"
        if work_is == "predicted":
            own = self.runs[self.runs["series"] == run["series"]]
            law = self.law(run["network"], own["work_unit"].iloc[0])
            work = law.draws(run["submitter"], run["batch"], normal)
            if np.isnan(run["batch"]):
                # The work depends on the batch, which is not known. It is assumed to vary by as much as the
                # work of a benchmark departs from the law.
                work = float(own["samples"].mean()) * np.exp(DEPARTURE * normal)
        seconds = rate.seconds(run, work)
        seconds = seconds * np.exp(rate.noise(float(run["ranks"]), work_is) * jitter)
        chosen = np.arange(count) % DRAWS
        return np.asarray(seconds[chosen]), np.asarray(work[chosen])

    def predict(self, runs: pd.DataFrame, level: float = 0.9) -> pd.DataFrame:
        """``time_s``, ``time_low_s`` and ``time_high_s`` of single runs, and ``work``, the work for which
        they hold. ``time_s`` is the median of the draws. A share ``level`` of the draws lies between
        ``time_low_s`` and ``time_high_s``."""
        tail = (1 - level) / 2
        asked = runs[["series", "network", "submitter", *SCALE, "samples"]]
        rows = []
        answers: dict[tuple[object, ...], list[float]] = {}
        for key, (_, run) in zip(asked.itertuples(index=False), asked.iterrows(), strict=True):
            if tuple(key) not in answers:
                seconds, work = self.draws(run)
                answers[tuple(key)] = [
                    float(q) for q in np.quantile(seconds, [0.5, tail, 1 - tail])
                ] + [float(np.median(work))]
            rows.append(answers[tuple(key)])
        columns = ["time_s", "time_low_s", "time_high_s", "work"]
        return pd.DataFrame(rows, index=runs.index, columns=columns, dtype=float)
