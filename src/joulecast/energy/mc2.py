"""MC2: materials, computing, communicating, each with its time and its power.

Reconstructed from the abstract of Wei Jia et al. 2024 and from the field; the equations are not the
paper's. Per step of N nodes with b samples each and G bytes of gradients::

    T_materials = m b                      (what prefetching leaves exposed)
    T_computing = tau + c b                (eta(b) = eta_inf b/(b + b_half) gives the same line: its
                                            b_half and tau cannot be told apart in one network)
    T_wait      = w sigma_C sqrt(2 ln N)   (the slowest of N normal times)
    T_copy      = alpha A(N) + k B(N, G)   (form chosen on an all-reduce benchmark), of which
                                            max(0, T_copy - phi 2/3 T_C) is exposed with overlap
    T_update    = u_0 + a 20 Theta         (SGD with momentum touches 20 bytes a parameter)
    E           = P_0 T units + sum_x N T_x dP_x

All coefficients are non-negative and fitted jointly, relative errors weighing the rows.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar, nnls

from joulecast.energy.collectives import FORMS, choose_form
from joulecast.energy.observations import TIMED

Floats = NDArray[np.float64]

_BYTES_TOUCHED_PER_GRADIENT_BYTE = 5.0  # 20 bytes for each 4-byte parameter
_LEAST_SHARE = 0.01  # a stage below this share of its step weighs as if it had it


SPLIT_POWERS = {
    "one power": "one",
    "no wait/copy split": "communicating",
    "communication power of each workload": "workloads",
}
"""What may be taken from, or added to, the powers of the stages, by what it does to the model."""


@dataclass(frozen=True)
class Fitted:
    """Coefficients by name, with 90 % intervals from resampling runs, and the condition number of
    the scaled system (large: some of them cannot be told apart)."""

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    condition: float = float("nan")
    copy_form: str | None = None


def _expected_maximum(nodes: Floats) -> Floats:
    """Expected excess of the slowest of N standard normal times, in standard deviations."""
    excess: Floats = np.sqrt(2 * np.log(np.maximum(nodes, 1.0)))
    return excess


class _System:
    """A relative least-squares system that grows row by row over named columns."""

    def __init__(self) -> None:
        self._rows: list[tuple[dict[str, float], float, float]] = []

    def add(self, terms: dict[str, float], measured: float, scale: float) -> None:
        if scale > 0 and np.isfinite(measured):
            self._rows.append((terms, measured, scale))

    def solve(self) -> tuple[dict[str, float], float]:
        names = sorted({name for terms, _, _ in self._rows for name in terms})
        if not names:
            return {}, float("nan")
        place = {name: column for column, name in enumerate(names)}
        matrix = np.zeros((len(self._rows), len(names)))
        target = np.zeros(len(self._rows))
        for row, (terms, measured, scale) in enumerate(self._rows):
            for name, value in terms.items():
                matrix[row, place[name]] = value / scale
            target[row] = measured / scale
        norms = np.linalg.norm(matrix, axis=0)
        norms[norms == 0] = 1.0
        scaled = matrix / norms
        solution = nnls(scaled, target, maxiter=50 * len(names))[0]
        condition = float(np.linalg.cond(scaled))
        return {name: float(v) for name, v in zip(names, solution / norms, strict=True)}, condition


def _stage_terms(row: Any, form: str) -> dict[str, dict[str, float]]:
    """Terms of every timed stage of a setting; ``row`` has the columns of the observations."""
    network, nodes, size = row.network, float(row.nodes), float(row.gradient_bytes)
    ranks = np.array([float(row.ranks)])
    latency, moved = FORMS[form](ranks, np.array([size]))
    wait = float(row.sigma_fit_s) * float(_expected_maximum(np.array([nodes]))[0])
    return {
        "materials": {f"m:{network}": float(row.batch_per_rank)},
        "computing": {f"tau:{network}": 1.0, f"c:{network}": float(row.batch_per_rank)},
        "communicating_wait": {"w": wait},
        "communicating_copy": {"alpha": float(latency[0]), "k": float(moved[0])},
        "update": {"u0": 1.0, "a": _BYTES_TOUCHED_PER_GRADIENT_BYTE * size},
        "other": {f"o:{network}": 1.0},
    }


def _dot(terms: dict[str, float], values: dict[str, float]) -> float:
    return sum(values.get(name, 0.0) * amount for name, amount in terms.items())


class MC2:
    """The time and power model; :meth:`fit` it, then ask for settings as rows of observations.

    Attributes:
        time: fitted coefficients of the stage times.
        power: fitted idle power ``P0`` and excess powers ``dP:<stage>`` in W, or ``None`` when the
            runs carry no energy.
    """

    def __init__(self, powers: str = "stages", *, overlap: bool = True) -> None:
        """``powers``: ``stages``, one for each, or a value of :data:`SPLIT_POWERS`; without
        ``overlap`` all of the copy is taken to be exposed."""
        self._powers = powers
        self._overlap = overlap
        self.time = Fitted({})
        self.power: Fitted | None = None
        self._sigma: dict[str, float] = {}
        self._short: frozenset[str] = frozenset()

    def fit(
        self,
        training: pd.DataFrame,
        allreduce: pd.DataFrame,
        calibration: pd.DataFrame,
        bootstrap: int = 0,
        seed: int = 0,
    ) -> "MC2":
        """Fit times and powers.

        Args:
            training: observations of training runs (they hold every network to be predicted).
            allreduce: single sums of the all-reduce loop.
            calibration: observations of the runs of kind idle, allreduce and sleeping_rank.
            bootstrap: resamples of the runs behind the intervals; 0 for none.
        """
        self._sigma = training.groupby("network")["sigma_computing_s"].mean().to_dict()
        form = choose_form(allreduce)
        values, condition = self._fit_time(training, allreduce, form)
        self.time = Fitted(values, {}, condition, form)
        power, power_condition = self._fit_power(training, calibration)
        if power:
            self.power = Fitted(power, {}, power_condition)
        if bootstrap:
            self._add_intervals(training, allreduce, calibration, form, bootstrap, seed)
        return self

    def _fit_time(
        self, training: pd.DataFrame, allreduce: pd.DataFrame, form: str
    ) -> tuple[dict[str, float], float]:
        system = _System()
        overlapped = self._overlap and bool(training["overlap"].any())
        rows = self._with_sigma(training)
        for row in rows.itertuples():
            step_s = float(row.total_s) / float(row.steps)
            for stage, terms in _stage_terms(row, form).items():
                measured = float(getattr(row, f"t_{stage}_s"))
                alone = row.ranks == 1 and stage.startswith("communicating")
                hidden = overlapped and stage == "communicating_copy"
                if not alone and not hidden:
                    system.add(terms, measured, max(measured, _LEAST_SHARE * step_s))
        for point in allreduce.itertuples():
            latency, moved = FORMS[form](np.array([float(point.ranks)]), np.array([point.bytes]))
            terms = {"alpha": float(latency[0]), "k": float(moved[0])}
            system.add(terms, float(point.copy_s), float(point.copy_s))
        values, condition = system.solve()
        if overlapped:
            values["phi"] = self._fit_overlap(rows, values, form)
        return values, condition

    def _fit_overlap(self, rows: pd.DataFrame, values: dict[str, float], form: str) -> float:
        """Share of two thirds of computing (the backward pass) that hides copying."""
        several = [row for row in rows.itertuples() if row.ranks > 1 and row.overlap]

        def error(phi: float) -> float:
            total = 0.0
            for row in several:
                terms = _stage_terms(row, form)
                copy = _dot(terms["communicating_copy"], values)
                hidden = phi * 2 / 3 * _dot(terms["computing"], values)
                total += (max(0.0, copy - hidden) - float(row.t_communicating_copy_s)) ** 2
            return total

        # Flat where everything is hidden, so the valley is looked for before it is descended.
        grid = np.linspace(0, 1.5, 61)
        near = float(grid[np.argmin([error(phi) for phi in grid])])
        bounds = (max(0.0, near - 0.025), near + 0.025)
        return float(minimize_scalar(error, bounds=bounds, method="bounded").x)

    def _power_name(self, stage: str, network: str | None) -> str:
        if self._powers == "one":
            return "dP"
        if stage in self._short:
            return "dP:computing"
        if stage.startswith("communicating") and self._powers == "communicating":
            return "dP:communicating"
        if stage.startswith("communicating") and self._powers == "workloads":
            return f"dP:{stage}:{network}"
        return f"dP:{stage}"

    def _power_terms(self, row: Any) -> dict[str, float]:
        """Joules per watt of each power: ``P0`` counts meters, the excess powers count nodes.

        Stages that are too short for a power of their own draw that of computing.
        """
        steps = max(float(row.steps), 1.0)
        terms = {"P0": float(row.metered_units) * float(row.total_s)}
        for stage in TIMED:
            name = self._power_name(stage, row.network)
            node_seconds = float(row.nodes) * steps * float(getattr(row, f"t_{stage}_s"))
            terms[name] = terms.get(name, 0.0) + node_seconds
        return terms

    def _fit_power(
        self, training: pd.DataFrame, calibration: pd.DataFrame
    ) -> tuple[dict[str, float], float]:
        system = _System()
        runs = pd.concat([frame for frame in (training, calibration) if len(frame)])
        self._short = _too_short(runs)
        for row in runs[runs["energy_j"].notna()].itertuples():
            terms = self._power_terms(row)
            system.add(terms, float(row.energy_j), float(row.energy_j))
        return system.solve()

    def _add_intervals(
        self,
        training: pd.DataFrame,
        allreduce: pd.DataFrame,
        calibration: pd.DataFrame,
        form: str,
        bootstrap: int,
        seed: int,
    ) -> None:
        random = np.random.default_rng(seed)
        times: list[dict[str, float]] = []
        powers: list[dict[str, float]] = []
        cells = list(training.groupby(["network", "nodes", "batch"]).indices.values())
        for _ in range(bootstrap):
            # Within cells, so that every setting keeps its place in the fit.
            chosen = np.concatenate([random.choice(cell, len(cell)) for cell in cells])
            again = training.iloc[chosen]
            points = allreduce.iloc[random.integers(0, max(len(allreduce), 1), len(allreduce))]
            times.append(self._fit_time(again, points, form)[0])
            powers.append(self._fit_power(again, calibration)[0])
        self.time = Fitted(self.time.values, _intervals(times), self.time.condition, form)
        if self.power is not None:
            self.power = Fitted(self.power.values, _intervals(powers), self.power.condition)

    def _with_sigma(self, rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(sigma_fit_s=rows["network"].map(self._sigma).fillna(0.0))

    def _step_times(self, row: Any, values: dict[str, float]) -> dict[str, float]:
        terms = _stage_terms(row, self.time.copy_form or "ring")
        times = {stage: _dot(part, values) for stage, part in terms.items()}
        if row.ranks == 1:
            times["communicating_wait"] = times["communicating_copy"] = 0.0
        if row.overlap and self._overlap:
            hidden = values.get("phi", 0.0) * 2 / 3 * times["computing"]
            times["communicating_copy"] = max(0.0, times["communicating_copy"] - hidden)
        return times

    def predict_times(self, settings: pd.DataFrame) -> pd.DataFrame:
        """Stage times per step (``t_<stage>_s``) and ``total_s`` of the runs, index kept."""
        rows = self._with_sigma(settings)
        predicted = []
        for row in rows.itertuples():
            times = self._step_times(row, self.time.values)
            total = float(row.steps) * sum(times.values())
            predicted.append({f"t_{stage}_s": t for stage, t in times.items()} | {"total_s": total})
        return pd.DataFrame(predicted, index=settings.index)

    def predict_energy(self, settings: pd.DataFrame, times: pd.DataFrame) -> pd.Series:
        """Energy in J of runs whose stage times are given: measured ones or :meth:`predict_times`.

        Raises:
            ValueError: the fit had no energy.
        """
        if self.power is None:
            raise ValueError("the runs of the fit carry no energy")
        merged = settings.drop(columns=[c for c in times.columns if c in settings.columns])
        merged = merged.join(times)
        energy = [_dot(self._power_terms(row), self.power.values) for row in merged.itertuples()]
        return pd.Series(energy, index=settings.index)


def _too_short(runs: pd.DataFrame) -> frozenset[str]:
    """Stages that take up less than a hundredth of every run: no power can be read off them."""
    steps = runs["steps"].clip(lower=1)
    shares = {stage: (runs[f"t_{stage}_s"] * steps / runs["total_s"]).max() for stage in TIMED}
    return frozenset(stage for stage, share in shares.items() if share < _LEAST_SHARE)


def _intervals(samples: list[dict[str, float]]) -> dict[str, tuple[float, float]]:
    frame = pd.DataFrame(samples).fillna(0.0)
    bounds = frame.quantile([0.05, 0.95])
    return {str(n): (float(bounds[n].iloc[0]), float(bounds[n].iloc[1])) for n in frame.columns}
