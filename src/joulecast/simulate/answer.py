"""Answers requests to the simulator: with a simulated step, or with the best strategies.

The command and the Python function both begin here. ``joulecast.energy`` then adds joules and prices.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from joulecast.errors import JoulecastError
from joulecast.graphs.clocks import set_clock
from joulecast.graphs.costs import Costs, roofline_of
from joulecast.graphs.database import MeasuredCosts, read_database
from joulecast.graphs.kernel_costs import kernel_costs_of
from joulecast.graphs.network_graphs import network_for
from joulecast.graphs.opgraph import OpGraph
from joulecast.graphs.precision import TrainingSetup, training_of
from joulecast.runs.platforms import Platform, gpu_in, simulated_platform
from joulecast.simulate.cost_cache import CachedCosts, OpCache
from joulecast.simulate.measured_step import (
    corrected,
    read_steps,
    usual_optimizer,
    usual_precisions,
)
from joulecast.simulate.network_calibration import calibrated, read_calibration
from joulecast.simulate.proteus import proteus_costs
from joulecast.simulate.request import (
    BATCH_PER_DEVICE,
    OnSimulator,
    SearchRequest,
    SimulateRequest,
)
from joulecast.simulate.simulate import Assumptions, Simulation, simulate
from joulecast.simulate.strategy import parse_strategy
from joulecast.simulate.strategy_search import Ranking, Value, search
from joulecast.simulate.topology import with_links


def precision_asked(request: OnSimulator) -> str:
    """The precision of a request. If the request has none: fp32 if it names a database, because ops are
    measured at fp32, and otherwise the first of :func:`.usual_precisions`."""
    if request.precision or request.database is not None:
        return request.precision or "fp32"
    platform = simulated_platform(request.platform)
    return usual_precisions(request.network, request.calibrate, platform)[0]


def simulate_request(request: SimulateRequest) -> Simulation:
    """The step that is requested."""
    graph, training, platform, costs = _asked(request, request.mode)
    sm_mhz = None
    if request.power_limit is not None or request.sm_clock is not None:
        costs, sm_mhz = at_clock(costs, request.power_limit, request.sm_clock)
    strategy = parse_strategy(request.strategy).check(request.devices)
    assumed = Assumptions(
        request.mode,
        request.stragglers,
        training=training,
        # A trace shows all micro-batches.
        every_micro_batch=request.trace is not None,
    )
    simulation = simulate(graph, platform, strategy, request.batch, costs, assumed)
    return replace(simulation, sm_mhz=sm_mhz)


def search_request(request: SearchRequest, value_on: Callable[[Platform], Value | None]) -> Ranking:
    """The ranked strategies that are requested.

    Args:
        value_on: takes a platform, and returns the function that ranks strategies (a ``Value``). If it
            returns ``None``, all strategies are simulated, and ranked by time.
    """
    graph, training, platform, costs = _asked(request)
    batch = request.global_batch or BATCH_PER_DEVICE * request.devices
    assumed = Assumptions(training=training)
    value = value_on(platform)
    best = () if value is None else (request.top, value)
    return search(graph, platform, request.devices, batch, costs, assumed, *best)


def at_clock(
    costs: CachedCosts, limit_w: float | None, sm_mhz: float | None
) -> tuple[CachedCosts, float]:
    """Costs at a power limit, at a clock, or at both. Also the resulting clock in MHz (see
    :func:`joulecast.graphs.clocks.set_clock`). Measured steps correct the costs at every clock in the same
    way."""
    slower, mhz = set_clock(costs.costs, limit_w, sm_mhz)
    return CachedCosts(slower, costs.op_cache, costs.evidence), mhz


def _asked(
    request: OnSimulator, mode: Literal["default", "proteus"] = "default"
) -> tuple[OpGraph, TrainingSetup, Platform, CachedCosts]:
    """Network, training, platform and costs of a request."""
    precision = precision_asked(request)
    platform, costs = platform_and_costs(
        request.platform,
        precision,
        links=request.links,
        calibration=request.calibration,
        database=request.database,
        measured_steps=request.calibrate,
        mode=mode,
    )
    optimizer = request.optimizer or usual_optimizer(request.network)
    training = training_of(precision, optimizer, request.inference, request.gradients)
    graph = network_for(request.network, training, request.attention)
    return graph, training, platform, costs


def platform_and_costs(
    platform: str | Platform,
    precision: str,
    *,
    links: Mapping[str, float] | None = None,
    calibration: Path | None = None,
    database: Path | None = None,
    measured_steps: Path | None = None,
    mode: Literal["default", "proteus"] = "default",
    op_cache: OpCache | None = None,
) -> tuple[Platform, CachedCosts]:
    """A platform, and the costs of ops on it. Rates in the arguments replace those in the platform's file.

    Args:
        precision: precision that decides the peak rate.
        links: bytes per second of links, by the name of the link.
        calibration: file of a network calibration, for the outermost link.
        database: file of ops that were measured on the platform. By default, the rates of the platform's file
            are used.
        measured_steps: steps that were measured on the platform. They correct the costs.
        mode: ``proteus``: costs as in the Proteus paper.
        op_cache: results that several platforms share for a network.

    Raises:
        JoulecastError: there is no such platform or link, a file is not valid, or a rate is not known.
    """
    found = platform if isinstance(platform, Platform) else simulated_platform(platform)
    if calibration is not None:
        found = calibrated(found, read_calibration(calibration))
    found = with_links(found, dict(links or {}))
    if mode == "proteus":
        return found, CachedCosts(proteus_costs(found, precision), op_cache)
    costs: Costs | str
    try:
        costs = kernel_costs_of(found, precision) or roofline_of(found, precision)
    except JoulecastError as error:
        if database is None:
            raise
        costs = str(error)
    if database is not None:
        costs = MeasuredCosts(read_database(database), costs, precision)
    assert not isinstance(costs, str)
    known = CachedCosts(costs, op_cache)
    if measured_steps is None:
        return found, known
    steps = read_steps(measured_steps)
    device = found.require_cluster().device.name
    for step in steps:
        ran_on, asked = gpu_in(step.gpu or ""), gpu_in(device)
        if ran_on is not None and asked is not None and ran_on != asked:
            raise JoulecastError(
                f"{measured_steps}: a step on {step.gpu} cannot correct steps on {device}; measure one on "
                f"{found.name}, or ask with --platform {ran_on}"
            )
        if step.precision != precision:
            raise JoulecastError(
                f"{measured_steps}: a step at {step.precision} cannot correct costs at {precision}; "
                f"measure one at that precision, or ask with --precision {step.precision}"
            )
    return corrected(found, known, steps)
