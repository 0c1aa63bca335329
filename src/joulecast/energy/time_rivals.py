"""Rivals of the time model. They are rules that a user would try first, for how the time of a run falls with
more nodes.

All rivals see the mean times of a workload by scale, in seconds per unit of work. If the work of the
predicted run is not known, they see seconds of the whole run. A scale counts accelerators if these are known,
else nodes. If the fit saw a workload on only one scale, perfect scaling is assumed for all others.
"""

import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from joulecast.runs.observations import of_usual_batch

Floats = NDArray[np.float64]

Curve = Callable[[Floats, Floats, float], float]
"""A rival is a function: (scales that were seen, their seconds, requested scale) -> seconds at this scale."""


def perfect_scaling(scales: Floats, seconds: Floats, asked: float) -> float:
    """Time if every node added its full speed, starting from the nearest scale."""
    nearest = int(np.argmin(np.abs(np.log(scales / asked))))
    return float(seconds[nearest] * scales[nearest] / asked)


def power_law(scales: Floats, seconds: Floats, asked: float) -> float:
    """``a n^b`` by least squares of the logarithms."""
    if len(scales) < 2:
        return perfect_scaling(scales, seconds, asked)
    slope, origin = np.polyfit(np.log(scales), np.log(seconds), 1)
    return float(np.exp(origin + slope * np.log(asked)))


def _terms(columns: Callable[[Floats], Floats], *seen: Floats, asked: float) -> float:
    """The time at ``asked``, by a sum of terms with non-negative coefficients. The coefficients minimise the
    squares of the relative errors."""
    scales, seconds = seen
    weights, _ = nnls(columns(scales) / seconds[:, None], np.ones(len(seconds)))
    return float(columns(np.array([asked]))[0] @ weights)


def amdahl(scales: Floats, seconds: Floats, asked: float) -> float:
    """``a + b / n``: a part that does not divide, and one that does (Amdahl 1967)."""
    if len(scales) < 2:
        return perfect_scaling(scales, seconds, asked)
    return _terms(
        lambda n: np.stack([np.ones_like(n), 1 / n], axis=1), scales, seconds, asked=asked
    )


def ernest(scales: Floats, seconds: Floats, asked: float) -> float:
    """``a + b / n + c log n + d n``, none negative (Venkataraman et al., Ernest, NSDI 2016)."""
    if len(scales) < 2:
        return perfect_scaling(scales, seconds, asked)

    def columns(n: Floats) -> Floats:
        return np.stack([np.ones_like(n), 1 / n, np.log(n), n], axis=1)

    return _terms(columns, scales, seconds, asked=asked)


_GP_NOISE = 0.02
_GP_SLOPE = 0.3
"""Prior standard deviation of the exponent by which node-seconds grow with the scale."""


def gaussian_process(scales: Floats, seconds: Floats, asked: float) -> float:
    """Gaussian process of the logarithm of node-seconds over the logarithm of the scale: a line, and smooth
    departures from it. The size and the length scale of the departures are chosen by the likelihood."""
    # Loaded here: it takes a second, and only a judgement needs it.
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

    line = ConstantKernel(1.0, "fixed") + ConstantKernel(_GP_SLOPE**2, "fixed") * DotProduct(
        0.0, "fixed"
    )
    smooth = ConstantKernel(0.1**2, (0.03**2, 0.3**2)) * RBF(1.4, (0.7, 2.8))
    process = GaussianProcessRegressor(line + smooth, alpha=_GP_NOISE**2)
    values = np.log(seconds * scales)
    smallest = scales.min()
    with warnings.catch_warnings():
        # With few scales, the kernel's size and length end at their bounds, and scikit-learn warns of it.
        warnings.simplefilter("ignore")
        process.fit(np.log(scales / smallest)[:, None], values - values.mean())
    (found,) = process.predict(np.log([[asked / smallest]]))
    return float(np.exp(values.mean() + found) / asked)


CURVES: dict[str, Curve] = {
    "perfect-scaling": perfect_scaling,
    "power-law": power_law,
    "Amdahl": amdahl,
    "Ernest": ernest,
    "Gaussian-process": gaussian_process,
}


def predict_seconds(
    training: pd.DataFrame, runs: pd.DataFrame, key: str = "workload"
) -> dict[str, pd.Series]:
    """Seconds of ``runs`` by each rival, from the runs of the fit; NaN if the fit has no runs with the same
    ``key`` (the column that names a workload).

    Each scale is computed once, however often it was repeated.
    """
    usual = of_usual_batch(training[training[key].isin(set(runs[key]))])
    known_work = runs["samples"].notna().all()
    work = usual["samples"] if known_work else 1.0
    seen = usual.assign(seconds=usual["total_s"] / work, scale=_scale(usual))
    means = {
        name: of.groupby("scale")["seconds"].mean() for name, of in seen.groupby(key, sort=False)
    }
    settings = list(zip(runs[key], _scale(runs), strict=True))
    predicted = {}
    for rival, curve in CURVES.items():
        asked = {
            (name, scale): curve(means[name].index.to_numpy(float), means[name].to_numpy(), scale)
            for name, scale in dict.fromkeys(settings)
            if name in means
        }
        each = [asked.get(setting, np.nan) for setting in settings]
        seconds = pd.Series(each, index=runs.index, dtype=float)
        predicted[rival] = seconds * runs["samples"] if known_work else seconds
    return predicted


def _scale(runs: pd.DataFrame) -> pd.Series:
    imported = runs["kind"] == "imported"
    return runs["nodes"].where(~imported, runs["ranks"]).astype(float)
