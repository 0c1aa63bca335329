"""Forecast the joules and seconds of distributed training from a few measured runs.

Twelve functions do what the commands do.
:func:`observe` measures a training of yours, and :func:`read_records` reads the records. :func:`fit`,
:func:`evaluate`, :func:`forecast` and :func:`advise` work on records. :func:`plan`, :func:`simulate_step` and
:func:`search` need no run. :func:`choose_start` chooses hours by their prices, :func:`partition_network` cuts
a network into stages, and :func:`tune_training` tunes a training that recurs. They return plain data, as the
commands print it with ``--json``, unless they say otherwise.

The parameters of most functions are the fields of a request (:class:`EvaluateRequest`, ...). You can give the
request in place of the parameters. A result has the question under ``request``:
``forecast(**result["request"])`` asks it again.

``records`` is a folder with run records in it or in its subfolders, a recorded campaign, or several of these.
A platform is a name (of a file in the user's ``config/platforms``, or shipped), or the path of a FILE.yaml.
Times are in s, energies in J, powers in W, memory and messages in bytes. If an argument is wrong, a
:class:`JoulecastError` names it and says how to correct it.
"""

from typing import TYPE_CHECKING

from joulecast.app.api.forecasts import (
    advise,
    evaluate,
    fit,
    forecast,
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
    "observe",
    "partition_network",
    "plan",
    "read_records",
    "search",
    "simulate_step",
    "tune_training",
]
