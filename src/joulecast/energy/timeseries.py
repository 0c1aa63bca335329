"""The time-series rivals: they forecast the rest of a run's power trace from its first part.

They need the first part of the same run, so they cannot predict a node count that was not run. Therefore they
have a table of their own. AR (by AIC with p <= 20, unstable roots rejected), SES, and ARIMA (by AIC with p <=
3, d <= 1, q <= 2) come from statsmodels. The papers do not have MEAN and LAST. A model that is worse than
these two is of no use.
"""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.runs.integration import EnergyCurve
from joulecast.runs.metered_power import counted_power
from joulecast.runs.record import RunRecord

Floats = NDArray[np.float64]

_SHORTEST_PREFIX = 8


def resampled_power(record: RunRecord, period_s: float) -> Floats:
    """Mean watts of all nodes in bins of ``period_s`` from start to stop, gaps interpolated.

    Empty if the run has no energy, or only one figure for the whole run.
    """
    info = record.info
    metering, power = counted_power(record)
    if power.empty or not metering.has_trace:
        return np.empty(0)
    edges = np.arange(info.outcome.start_s, info.outcome.stop_s, period_s)
    total = np.zeros(max(len(edges) - 1, 0))
    for _, of_meter in power.groupby(["node", "meter"]):
        total += np.diff(EnergyCurve.of(of_meter).at(edges)) / period_s
    return total


def _mean(prefix: Floats, steps: int) -> Floats:
    return np.full(steps, prefix.mean())


def _last(prefix: Floats, steps: int) -> Floats:
    return np.full(steps, prefix[-1])


def _ses(prefix: Floats, steps: int) -> Floats:
    from statsmodels.tsa.holtwinters import SimpleExpSmoothing

    return np.asarray(
        SimpleExpSmoothing(prefix, initialization_method="estimated").fit().forecast(steps)
    )


def _ar(prefix: Floats, steps: int) -> Floats:
    from statsmodels.tsa.ar_model import AutoReg, ar_select_order

    longest = min(20, (len(prefix) - 2) // 3)
    lags = ar_select_order(prefix, longest, ic="aic").ar_lags or [1]
    for p in range(max(lags), 0, -1):
        fitted = AutoReg(prefix, p).fit()
        if np.all(np.abs(fitted.roots) > 1):
            return np.asarray(fitted.forecast(steps))
    return _mean(prefix, steps)


class _Arima:
    """ARIMA. Its order is chosen by AIC on the first prefix of a trace, and kept for the longer
    prefixes. To choose it again would cost 24 fits each time, and would not see further ahead."""

    def __init__(self) -> None:
        self._order: tuple[int, int, int] | None = None

    def __call__(self, prefix: Floats, steps: int) -> Floats:
        orders = [self._order] if self._order else _ORDERS
        # The trace is divided by its spread. In watts, the optimiser fails on an almost constant trace.
        centre, spread = prefix.mean(), prefix.std()
        best = None
        for order in orders:
            fitted = _fit_arima((prefix - centre) / spread, order)
            if fitted is not None and (best is None or fitted.aic < best.aic):
                best, self._order = fitted, order
        if best is None:
            return _mean(prefix, steps)
        return np.asarray(centre + spread * best.forecast(steps))


_ORDERS = list(itertools.product(range(4), range(2), range(3)))


def _fit_arima(prefix: Floats, order: tuple[int, int, int]) -> Any:
    from statsmodels.tsa.arima.model import ARIMA

    try:
        fitted = ARIMA(prefix, order=order).fit(method_kwargs={"maxiter": 30})
    except (ValueError, np.linalg.LinAlgError):
        return None
    return fitted if np.isfinite(fitted.aic) else None


def series_models() -> dict[str, Callable[[Floats, int], Floats]]:
    """The models by name. Each is a function that continues a power trace: (first part of the trace, number
    of bins to forecast) -> watts."""
    return {"AR": _ar, "SES": _ses, "ARIMA": _Arima(), "MEAN": _mean, "LAST": _last}


def forecast_errors(watts: Floats, splits: int) -> pd.DataFrame:
    """Forecast the rest of a trace from several prefixes.

    Args:
        watts: equally spaced powers (n,).
        splits: number of split points. They lie evenly between 40 and 80 % of the trace.

    Returns:
        ``model, split, measured, predicted, difference_percent``: ``measured`` and ``predicted`` are sums of
        power over the rest. Empty for traces that are too short to split.
    """
    rows = []
    models = series_models()
    for at in np.linspace(0.4, 0.8, splits):
        cut = int(len(watts) * at)
        if cut < _SHORTEST_PREFIX or cut == len(watts):
            continue
        prefix, rest = watts[:cut], watts[cut:]
        for name, forecast in models.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                constant = np.ptp(prefix) == 0
                predicted = (_mean if constant else forecast)(prefix, len(rest))
            rows.append((name, float(at), rest.sum(), predicted.sum()))
    frame = pd.DataFrame(rows, columns=["model", "split", "measured", "predicted"])
    frame["difference_percent"] = 100 * (frame["predicted"] / frame["measured"] - 1)
    return frame
