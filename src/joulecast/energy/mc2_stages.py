"""MC2: materials, computing, communicating, each with its time and its power.

The model is a reconstruction from the abstract of Wei et al. 2024 and from the literature. The equations are
not the paper's. For a step of N nodes with b samples each, and G bytes of gradients::

    T_materials = m b                      (what prefetching leaves exposed)
    T_computing = tau + c b + s b          (eta(b) = eta_inf b/(b + b_half) gives the same line: its
                                            b_half and tau cannot be separated in one network; s is 0
                                            on one rank: several ranks share memory, and exchange
                                            while they compute)
    T_wait      = w sigma_C sqrt(2 ln N)   (the slowest of N normal times)
    T_copy      = alpha A(N) + k B(N, G)   (form chosen on an all-reduce benchmark), of which
                                            max(0, T_copy - phi 2/3 T_C) is exposed with overlap
    T_update    = u_0 + a 20 Theta         (SGD with momentum touches 20 bytes a parameter)
    E           = P_0 T units + sum_x N T_x dP_x + N b e

The joules ``e`` of a sample are each network's own: in the same stage, a GPU that multiplies large matrices
draws more than one that waits for the next kernel.
All coefficients are non-negative, and are fitted together to the smallest relative errors. The code works on
columns of all runs, never on one run after the other: a campaign may have ten thousand runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar, nnls

from joulecast.energy.allreduce_cost import FORMS, choose_form
from joulecast.runs.observations import TIMED

Floats = NDArray[np.float64]

_BYTES_TOUCHED_PER_GRADIENT_BYTE = 5.0  # 20 bytes for each 4-byte parameter
_TIE = 0.01
"""Relative weight of the assumption that two stages have the same power."""
_LEAST_SHARE = 0.01  # a stage below this share of its step weighs as if it had it


SPLIT_POWERS = {
    "one power": "one",
    "no wait/copy split": "communicating",
    "communication power of each workload": "workloads",
    "no joules of a sample": "time",
}
"""The ablations of the powers of the stages, by name, with the value of ``powers`` in :class:`StageMC2`. One
of them (``workloads``) adds powers."""


@dataclass(frozen=True)
class Fitted:
    """Coefficients by name, and the form of the all-reduce."""

    values: dict[str, float]
    copy_form: str | None = None


def _expected_maximum(nodes: Floats) -> Floats:
    """Expected excess of the slowest of N standard normal times, in standard deviations."""
    excess: Floats = np.sqrt(2 * np.log(np.maximum(nodes, 1.0)))
    return excess


Terms = dict[str, Floats]
"""Amounts (runs,), by the name of the coefficient that multiplies them. If a name ends with ``:``, each
network has its own coefficient, and the name of the network completes the name."""


class _System:
    """A relative least-squares system that grows block by block over named columns."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Terms, Any, Floats, Floats, Floats]] = []

    def add(
        self, terms: Terms, networks: Any, measured: Floats, scale: Floats, place: Floats
    ) -> None:
        """Add a row for each run whose value in ``measured`` is known. ``scale`` (runs,) is what errors are
        divided by. ``place`` (runs,) orders the rows of all blocks."""
        kept = (scale > 0) & np.isfinite(measured)
        if kept.any():
            amounts = {name: amount[kept] for name, amount in terms.items()}
            self._blocks.append((amounts, networks[kept], measured[kept], scale[kept], place[kept]))

    def _matrix(self) -> tuple[list[str], Floats, Floats]:
        """Names of the columns, the weighed matrix and its target."""
        parts, ends = [], np.cumsum([0, *(len(block[2]) for block in self._blocks)])
        for (terms, networks, _, scale, _), first in zip(self._blocks, ends[:-1], strict=True):
            for name, amount in terms.items():
                for column, rows in _columns(name, networks):
                    parts.append((column, first + rows, amount[rows] / scale[rows]))
        names = sorted({column for column, _, _ in parts})
        matrix = np.zeros((ends[-1], len(names)))
        for column, rows, values in parts:
            matrix[rows, names.index(column)] = values
        target = np.concatenate([block[2] / block[3] for block in self._blocks])
        order = np.argsort(np.concatenate([block[4] for block in self._blocks]), kind="stable")
        return names, matrix[order], target[order]

    def solve(self) -> dict[str, float]:
        """Coefficients by name."""
        if not self._blocks:
            return {}
        names, matrix, target = self._matrix()
        norms = np.linalg.norm(matrix, axis=0)
        norms[norms == 0] = 1.0
        solution = nnls(matrix / norms, target, maxiter=50 * len(names))[0]
        return {name: float(v) for name, v in zip(names, solution / norms, strict=True)}


def _columns(name: str, networks: Any) -> list[tuple[str, Any]]:
    """The coefficients that a term stands for, each with the rows to which it belongs."""
    if not name.endswith(":"):
        return [(name, np.arange(len(networks)))]
    codes, found = pd.factorize(networks)
    return [(f"{name}{network}", np.flatnonzero(codes == k)) for k, network in enumerate(found)]


def _the_only(exchanges: Sequence[Terms]) -> float | None:
    """The ratio of latency terms to byte terms, if all exchanges have the same one; otherwise ``None``.

    With one ratio, latency and bandwidth cannot be separated."""
    latency, moved = (
        np.concatenate([terms[name] for terms in exchanges]) for name in ("alpha", "k")
    )
    ratios = latency[moved > 0] / moved[moved > 0]
    alike = len(ratios) > 0 and bool(np.ptp(ratios) <= 1e-9 * ratios.max())
    return float(ratios[0]) if alike else None


def _dot(terms: Terms, networks: Any, values: dict[str, float]) -> Floats:
    """For each run, the sum of its terms, each multiplied by its fitted coefficient."""
    total = np.zeros(len(networks))
    for name, amount in terms.items():
        for column, rows in _columns(name, networks):
            total[rows] += values.get(column, 0.0) * amount[rows]
    return total


def _floats(runs: pd.DataFrame, column: str) -> Floats:
    values: Floats = runs[column].to_numpy(float)
    return values


def _networks(runs: pd.DataFrame) -> Any:
    # Calibrations have no network.
    return np.array([None if pd.isna(n) else str(n) for n in runs["network"]], dtype=object)


def _stage_terms(runs: pd.DataFrame, form: str) -> dict[str, Terms]:
    """Terms of every timed stage; ``runs`` has the columns of the observations."""
    size, batch = _floats(runs, "gradient_bytes"), _floats(runs, "batch_per_rank")
    latency, moved = FORMS[form](_floats(runs, "ranks"), size)
    wait = _floats(runs, "sigma_fit_s") * _expected_maximum(_floats(runs, "nodes"))
    each = np.ones(len(runs))
    return {
        "materials": {"m:": batch},
        "computing": {"tau:": each, "c:": batch, "s:": batch * (_floats(runs, "ranks") > 1)},
        "communicating_wait": {"w": wait},
        "communicating_copy": {"alpha": latency, "k": moved},
        "update": {"u0": each, "a": _BYTES_TOUCHED_PER_GRADIENT_BYTE * size},
        "other": {"o:": each},
    }


class StageMC2:
    """The model of time and power. :meth:`fit` it, then it predicts settings, which are rows of observations.

    Attributes:
        time: fitted coefficients of the stage times.
        power: fitted idle power ``P0`` and excess powers ``dP:<stage>`` in W; ``None`` if no training has an
            energy.
    """

    def __init__(self, powers: str = "stages", *, overlap: bool = True) -> None:
        """``powers`` is ``stages`` (one power for each stage), or a value of :data:`SPLIT_POWERS`.
        Without ``overlap``, the whole copy is assumed to be exposed."""
        self._powers = powers
        self._overlap = overlap
        self.time = Fitted({})
        self.power: Fitted | None = None
        self._sigma: dict[str, float] = {}
        self._short: frozenset[str] = frozenset()
        self._one_exchange: float | None = None
        self._several_batches: frozenset[str] = frozenset()

    def fit(
        self,
        training: pd.DataFrame,
        allreduce: pd.DataFrame,
        calibration: pd.DataFrame,
    ) -> "StageMC2":
        """Fit times and powers.

        Args:
            training: observations of training runs. Every network that is to be predicted must be among them.
            allreduce: single all-reduces of the all-reduce loop.
            calibration: observations of the runs of kind idle, allreduce and sleeping_rank.
        """
        self._sigma = training.groupby("network")["sigma_computing_s"].median().to_dict()
        form = choose_form(allreduce)
        values, self._one_exchange = self._fit_time(training, allreduce, form)
        self.time = Fitted(values, form)
        # What idle nodes draw does not show what a training draws.
        if training["energy_j"].notna().any():
            self.power = Fitted(self._fit_power(training, calibration))
        return self

    def _fit_time(
        self,
        training: pd.DataFrame,
        allreduce: pd.DataFrame,
        form: str,
    ) -> tuple[dict[str, float], float | None]:
        """The coefficients of the times, and the result of :func:`_the_only` for the exchanges."""
        system = _System()
        overlapped = self._overlap and bool(training["overlap"].any())
        rows = self._with_sigma(training)
        step_s = _floats(rows, "total_s") / _floats(rows, "steps")
        alone = _floats(rows, "ranks") == 1
        stages = _stage_terms(rows, form)
        copies = _floats(allreduce, "copy_s")
        latency, moved = FORMS[form](_floats(allreduce, "ranks"), _floats(allreduce, "bytes"))
        sums = {"alpha": latency, "k": moved}
        exchanges = [sums] if overlapped else [sums, stages["communicating_copy"]]
        only = _the_only(exchanges)
        if only is not None:
            # Gradients are long messages, so their time is assumed to grow with their bytes.
            for terms in exchanges:
                del terms["alpha"]
        # In the system, the rows of a run's stages follow each other. The rows of the all-reduce come last.
        place = np.arange(len(rows), dtype=float) * len(stages)
        for number, (stage, terms) in enumerate(stages.items()):
            measured = _floats(rows, f"t_{stage}_s")
            if overlapped and stage == "communicating_copy":
                continue
            seen_s = np.where(alone & stage.startswith("communicating"), np.nan, measured)
            scale = np.maximum(measured, _LEAST_SHARE * step_s)
            system.add(terms, _networks(rows), seen_s, scale, place + number)
        # Without a run on one rank, the slowdown of several ranks is not known, and is assumed to be zero.
        usual = rows.groupby("network")[["batch_per_rank", "t_computing_s"]].mean()
        pull = _TIE * usual["batch_per_rank"].to_numpy(float)
        usual_s = usual["t_computing_s"].to_numpy(float)
        last = np.full(len(usual), np.inf)
        system.add({"s:": pull}, usual.index.to_numpy(object), 0 * pull, usual_s, last)
        after = np.full(len(allreduce), np.inf)
        nowhere = np.empty(len(allreduce), dtype=object)
        system.add(sums, nowhere, copies, copies, after)
        values = system.solve()
        if overlapped:
            values["phi"] = self._fit_overlap(rows, values, form)
        return values, only

    def _fit_overlap(self, rows: pd.DataFrame, values: dict[str, float], form: str) -> float:
        """The share of the backward pass (two thirds of computing) that hides copying."""
        several = rows[(rows["ranks"] > 1) & rows["overlap"]]
        terms, networks = _stage_terms(several, form), _networks(several)
        copy = _dot(terms["communicating_copy"], networks, values)
        computing = _dot(terms["computing"], networks, values)
        exposed = _floats(several, "t_communicating_copy_s")

        def error(phi: float) -> float:
            return float(((np.maximum(0.0, copy - phi * 2 / 3 * computing) - exposed) ** 2).sum())

        # The error is flat where everything is hidden. So a grid finds the neighbourhood of the minimum
        # first.
        grid = np.linspace(0, 1.5, 61)
        near = float(grid[np.argmin([error(phi) for phi in grid])])
        bounds = (max(0.0, near - 0.025), near + 0.025)
        return float(minimize_scalar(error, bounds=bounds, method="bounded").x)

    def _power_name(self, stage: str) -> str:
        if self._powers == "one":
            return "dP"
        if stage in self._short:
            return "dP:computing"
        if stage.startswith("communicating") and self._powers == "communicating":
            return "dP:communicating"
        if stage.startswith("communicating") and self._powers == "workloads":
            return f"dP:{stage}:"
        return f"dP:{stage}"

    def _power_terms(self, runs: pd.DataFrame) -> Terms:
        """The terms of the energy of a run. A power is multiplied by its seconds, summed over the meters
        (``P0``) or the nodes (excess powers). The joules of a sample are multiplied by the number of samples.

        A stage that is too short to have its own power gets the power of computing.
        """
        node_steps = _floats(runs, "nodes") * np.maximum(_floats(runs, "steps"), 1.0)
        terms = {"P0": _floats(runs, "metered_units") * _floats(runs, "total_s")}
        for stage in TIMED:
            name = self._power_name(stage)
            # The time of a stage that was not seen is a part of another stage's time.
            seconds = np.nan_to_num(_floats(runs, f"t_{stage}_s"))
            terms[name] = terms.get(name, 0.0) + node_steps * seconds
        if self._powers not in ("one", "time"):
            ranks = _floats(runs, "ranks") * np.maximum(_floats(runs, "steps"), 1.0)
            samples = np.nan_to_num(ranks * _floats(runs, "batch_per_rank"))
            terms["e:"] = np.where(runs["network"].isin(self._several_batches), samples, 0.0)
        return terms

    def _fit_power(self, training: pd.DataFrame, calibration: pd.DataFrame) -> dict[str, float]:
        system = _System()
        runs = pd.concat([frame for frame in (training, calibration) if len(frame)])
        self._short = _too_short(runs)
        # With one batch, samples cannot be separated from the time of computing.
        batches = runs.groupby("network")["batch_per_rank"].nunique()
        self._several_batches = frozenset(batches.index[batches > 1])
        energy_j = _floats(runs, "energy_j")
        place = np.arange(len(runs), dtype=float)
        terms = self._power_terms(runs)
        networks = _networks(runs)
        system.add(terms, networks, energy_j, energy_j, place)
        self._tie_powers(system, terms, networks, energy_j)
        return system.solve()

    def _tie_powers(self, system: _System, terms: Terms, networks: Any, energy_j: Floats) -> None:
        """Pull powers that the runs do not determine. If the runs cannot separate the powers of two stages,
        or idle power from the power of computing (as on one node count), the powers become equal. If they
        cannot separate samples from the time of computing, the joules of a sample become 0. The pull is so
        weak that it changes nothing else."""
        usual_j = float(np.nanmean(energy_j)) if np.isfinite(energy_j).any() else 0.0
        for name in terms if self._powers == "stages" else ():
            if name == "dP:computing":
                continue
            pull = np.array([_TIE * float(terms[name].mean())])
            each = name.endswith(":")
            tied = {name: pull} if each else {name: pull, "dP:computing": -pull}
            for network in sorted({*networks} - {None}) if each else [""]:
                of = np.array([network], dtype=object)
                system.add(tied, of, np.zeros(1), np.array([usual_j]), np.array([np.inf]))

    def _with_sigma(self, rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(sigma_fit_s=rows["network"].map(self._sigma).fillna(0.0))

    def predict_times(self, settings: pd.DataFrame) -> pd.DataFrame:
        """Stage times per step (``t_<stage>_s``) and ``total_s`` of the runs, with their index."""
        rows = self._with_sigma(settings)
        networks, values = _networks(rows), self.time.values
        terms = _stage_terms(rows, self.time.copy_form or "ring")
        times = {stage: _dot(part, networks, values) for stage, part in terms.items()}
        alone = _floats(rows, "ranks") == 1
        for stage in ("communicating_wait", "communicating_copy"):
            times[stage] = np.where(alone, 0.0, times[stage])
        if self._overlap:
            copy = times["communicating_copy"]
            hidden = values.get("phi", 0.0) * 2 / 3 * times["computing"]
            overlapped = rows["overlap"].to_numpy(bool)
            times["communicating_copy"] = np.where(overlapped, np.maximum(0.0, copy - hidden), copy)
        predicted = {f"t_{stage}_s": seconds for stage, seconds in times.items()}
        predicted["total_s"] = _floats(rows, "steps") * sum(times.values())
        return pd.DataFrame(predicted, index=settings.index)

    def latency_s(self, settings: pd.DataFrame) -> pd.Series:
        """By how many seconds the exchange of a step would be longer if its whole time were latency. It is 0
        if the runs of the fit separate latency from bandwidth."""
        if self._one_exchange is None:
            return pd.Series(0.0, index=settings.index)
        ranks, size = _floats(settings, "ranks"), _floats(settings, "gradient_bytes")
        latency, moved = FORMS[self.time.copy_form or "ring"](ranks, size)
        longer = self.time.values.get("k", 0.0) * (latency / self._one_exchange - moved)
        return pd.Series(np.maximum(longer, 0.0), index=settings.index)

    def predict_energy(self, settings: pd.DataFrame, times: pd.DataFrame) -> pd.Series:
        """Energy in J of runs. Their stage times are given: measured, or from :meth:`predict_times`.

        Raises:
            ValueError: the fit had no energy.
        """
        if self.power is None:
            raise ValueError("the runs of the fit carry no energy")
        merged = settings.drop(columns=[c for c in times.columns if c in settings.columns])
        merged = merged.join(times)
        energy = _dot(self._power_terms(merged), _networks(merged), self.power.values)
        return pd.Series(energy, index=settings.index)


def _too_short(runs: pd.DataFrame) -> frozenset[str]:
    """Stages with less than a hundredth of every run's time. Their power cannot be fitted."""
    steps = runs["steps"].clip(lower=1)
    shares = {stage: (runs[f"t_{stage}_s"] * steps / runs["total_s"]).max() for stage in TIMED}
    return frozenset(stage for stage, share in shares.items() if share < _LEAST_SHARE)
