"""What a request to the simulator comes to: a simulated step, or the strategies that are best.

The command and the Python function of that name begin here; joules and prices come on top, in
``joulecast.energy``.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from joulecast.errors import JoulecastError
from joulecast.graphs.clocks import set_clock
from joulecast.graphs.costs import Costs, roofline_of, roofline_or_refusal
from joulecast.graphs.database import MeasuredCosts, read_database
from joulecast.graphs.kernel_costs import kernel_costs_of
from joulecast.graphs.network_graphs import network_for
from joulecast.graphs.precision import TrainingSetup, training_of
from joulecast.runs.platforms import Platform, simulated_platform
from joulecast.simulate.correction import Corrected
from joulecast.simulate.cost_cache import cached
from joulecast.simulate.measured_step import corrected, read_steps
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


def simulate_request(request: SimulateRequest) -> Simulation:
    """The step that is asked for."""
    platform, costs = _platform_and_costs_of(request, request.mode)
    training, sm_mhz = _training_of(request), None
    if request.power_limit is not None or request.sm_clock is not None:
        costs, sm_mhz = at_clock(costs, request.power_limit, request.sm_clock)
    simulation = simulate(
        network_for(request.network, training, request.attention),
        platform,
        parse_strategy(request.strategy).check(request.devices),
        request.batch,
        costs,
        Assumptions(
            mode=request.mode,
            stragglers=request.stragglers,
            training=training,
        ),
    )
    return replace(_with_remark(simulation, costs), sm_mhz=sm_mhz)


def search_request(request: SearchRequest, value_on: Callable[[Platform], Value | None]) -> Ranking:
    """The strategies that are asked for.

    Args:
        value_on: what strategies are ranked by on a platform; where it gives ``None``, all are simulated.
    """
    platform, costs = _platform_and_costs_of(request)
    training = _training_of(request)
    graph = network_for(request.network, training, request.attention)
    batch = request.global_batch or BATCH_PER_DEVICE * request.devices
    assumed = Assumptions(training=training)
    value = value_on(platform)
    best = () if value is None else (request.top, value)
    ranking = search(graph, platform, request.devices, batch, costs, assumed, *best)
    return replace(ranking, feasible=[_with_remark(each, costs) for each in ranking.feasible])


def at_clock(costs: Costs, limit_w: float | None, sm_mhz: float | None) -> tuple[Costs, float]:
    """As :func:`joulecast.graphs.clocks.set_clock`; what measured steps say of costs holds at any clock."""
    if not isinstance(costs, Corrected):
        return set_clock(costs, limit_w, sm_mhz)
    slower, mhz = set_clock(costs.costs.costs, limit_w, sm_mhz)
    return Corrected(cached(slower), costs.evidence, costs.remark), mhz


def _with_remark(simulation: Simulation, costs: Costs) -> Simulation:
    remark = costs.remark if isinstance(costs, Corrected) else None
    return replace(simulation, calibration_remark=remark)


def _training_of(request: OnSimulator) -> TrainingSetup:
    return training_of(request.precision, request.optimizer, request.inference, request.gradients)


def _platform_and_costs_of(
    request: OnSimulator, mode: Literal["default", "proteus"] = "default"
) -> tuple[Platform, Costs]:
    return platform_and_costs(
        request.platform,
        request.precision,
        links=request.links,
        calibration=request.calibration,
        database=request.database,
        measured_steps=request.calibrate,
        mode=mode,
    )


def platform_and_costs(
    platform: str | Platform,
    precision: str,
    *,
    links: Mapping[str, float] | None = None,
    calibration: Path | None = None,
    database: Path | None = None,
    measured_steps: Path | None = None,
    mode: Literal["default", "proteus"] = "default",
) -> tuple[Platform, Costs]:
    """A platform with the rates that are given in place of its file's, and what ops cost on it.

    Args:
        precision: peak rate to compute at.
        links: bytes per second of links by name.
        calibration: network calibration, for the outermost link.
        database: of ops that were measured on the platform; its file's rates by default.
        measured_steps: steps that were measured on the platform, to correct the costs by.
        mode: ``proteus``: costs as that paper takes them.

    Raises:
        JoulecastError: no such platform or link, a file that is not sound, or a rate that is not known.
    """
    found = platform if isinstance(platform, Platform) else simulated_platform(platform)
    if calibration is not None:
        found = calibrated(found, read_calibration(calibration))
    found = with_links(found, dict(links or {}))
    if mode == "proteus":
        return found, proteus_costs(found, precision)
    costs: Costs
    if database is None:
        costs = kernel_costs_of(found, precision) or roofline_of(found, precision)
    else:
        fallback = kernel_costs_of(found, precision) or roofline_or_refusal(found, precision)
        costs = MeasuredCosts(read_database(database), fallback, precision)
    if measured_steps is None:
        return found, costs
    steps = read_steps(measured_steps)
    for step in steps:
        if step.precision != precision:
            raise JoulecastError(
                f"{measured_steps}: a step at {step.precision} cannot correct costs at {precision}; "
                f"measure one at that precision, or ask with --precision {step.precision}"
            )
    return corrected(found, costs, steps)
