"""Forecast the joules and seconds of distributed training from a few measured runs.

Thirteen functions do what the commands do: :func:`measure_campaign` the runs of a configuration,
:func:`observe` a training of yours, :func:`read_records`; :func:`fit`, :func:`evaluate` and :func:`forecast`
from them, :func:`advise` on a setting; :func:`plan` what was not run, :func:`simulate_step` of a strategy,
and :func:`search` for the best; :func:`choose_start` by the hour's prices; :func:`partition_network` into
stages; :func:`tune_training` that recurs. What they return is plain data, the same that the command of that
verb prints with ``--json``, unless they say otherwise.

From :func:`evaluate` on, the parameters are the fields of a request (:class:`EvaluateRequest`, ...), which
may be given in their place. A result says under ``request`` what was asked:
``forecast(**result["request"])`` asks it again.

Records are a folder of run records, however deep they lie in it, a recorded campaign, or several of these.
A platform is a name, of the user's ``config/platforms`` or shipped, or the path of a FILE.yaml. Times are in
s, energies in J, powers in W, memory and messages in bytes. Whatever is wrong with what was given is a
:class:`JoulecastError` that names it and the way out.
"""

from typing import TYPE_CHECKING

from joulecast.app.api.forecasts import (
    advise,
    evaluate,
    fit,
    forecast,
    measure_campaign,
    read_records,
)
from joulecast.app.api.observing import observe
from joulecast.app.api.plans import (
    choose_start,
    partition_network,
    plan,
    search,
    simulate_step,
    tune_training,
)
from joulecast.energy.request import EvaluateRequest, ForecastRequest, StartRequest
from joulecast.errors import JoulecastError
from joulecast.partition.request import PartitionRequest
from joulecast.report.advice.request import AdviceRequest, PlanRequest
from joulecast.simulate.request import SearchRequest, SimulateRequest
from joulecast.tune.request import TuneRequest

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        if name == "__version__":
            from importlib.metadata import version

            return version("joulecast")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AdviceRequest",
    "EvaluateRequest",
    "ForecastRequest",
    "JoulecastError",
    "PartitionRequest",
    "PlanRequest",
    "SearchRequest",
    "SimulateRequest",
    "StartRequest",
    "TuneRequest",
    "__version__",
    "advise",
    "choose_start",
    "evaluate",
    "fit",
    "forecast",
    "measure_campaign",
    "observe",
    "partition_network",
    "plan",
    "read_records",
    "search",
    "simulate_step",
    "tune_training",
]
