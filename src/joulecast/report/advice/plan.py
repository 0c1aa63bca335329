"""A plan: on which platform to train a network, and in which setting. All settings are simulated.

Every setting of platform, devices, batch and precision is simulated with its fastest strategy that fits in
memory, at every power limit. The setting with the smallest objective within the limits is chosen, as in
advice on runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from joulecast.energy.forecast import whole_steps
from joulecast.energy.prices import Prices, at_wall
from joulecast.energy.strategy_energy import energy_of_steps, node_count
from joulecast.errors import JoulecastError
from joulecast.graphs.network_graphs import network_for
from joulecast.graphs.opgraph import OpGraph
from joulecast.graphs.precision import FUSED, FUSED_PRECISIONS, TrainingSetup, training_of
from joulecast.quantities import counted, steady
from joulecast.report.advice.advise import Weighed, answer
from joulecast.report.advice.candidate import Candidate
from joulecast.report.advice.choice import check_prices_of
from joulecast.report.advice.request import PlanRequest
from joulecast.runs.platforms import Platform, simulated_platform
from joulecast.runs.processes import mapped
from joulecast.runs.provenance import usable_cores
from joulecast.simulate.answer import at_clock, platform_and_costs
from joulecast.simulate.cost_cache import CachedCosts, OpCache
from joulecast.simulate.inferred_splits import sequence_length
from joulecast.simulate.measured_step import usual_optimizer, usual_precisions
from joulecast.simulate.simulate import Assumptions, Simulation, no_cycles, simulate
from joulecast.simulate.strategy import text_of
from joulecast.simulate.strategy_search import search

Refused = dict[str, str]


def plan(request: PlanRequest, prices: Prices) -> dict[str, Any]:
    """Choose on which platform to train a network, and in which setting.

    Args:
        prices: prices of energy and nodes, and the CO2 of a kWh. Prices of GPUs are in the request.

    Returns:
        The same as :func:`joulecast.report.advice.advise.answer`.

    Raises:
        JoulecastError: there is no such network or platform, a platform's file lacks a fact, nothing fits, or
            a price is missing that a limit needs.
    """
    hours, (machines, refused) = request.price_gpu_hour, _machines(request)
    of_platform = {
        machine.name: prices.model_copy(
            update={
                "price_gpu_hour": hours.get(machine.given, hours.get("", prices.price_gpu_hour))
            }
        )
        for machine in machines
    }
    known = next((each for each in of_platform.values() if each.known), prices)
    if request.objective is None:
        request = request.model_copy(update={"objective": "cost" if known.known else "energy"})
    check_prices_of(request, known)
    found = _weighed(request, machines, of_platform)
    metered = any(candidate.supply == "DC" for candidate in found.candidates)
    if metered:
        found.warnings.append(f"powers of metered nodes: {at_wall(None)}")
    # The request has the prices that differ between platforms.
    differ = len({each.price_gpu_hour for each in of_platform.values()}) > 1
    shared = known.model_copy(update={"price_gpu_hour": None}) if differ else known
    return answer(replace(found, refused=[*refused, *found.refused]), request, shared)


@dataclass(frozen=True)
class Machine:
    """A platform at one precision."""

    given: str
    """Name of the platform in the request."""
    platform: Platform
    precision: str
    graph: OpGraph
    training: TrainingSetup
    costs: CachedCosts
    """Costs of ops. Results that all platforms share are computed only once."""

    @property
    def name(self) -> str:
        """Name of the platform, with what the request says of its nodes, as in ``l40s:gpus=4``."""
        return self.platform.name + "".join(self.given.partition(":")[1:])


def _machines(request: PlanRequest) -> tuple[list[Machine], list[Refused]]:
    """The platforms at the precisions that they have, and the precisions that they lack."""
    found, refused = [], []
    optimizer = request.optimizer or usual_optimizer(request.network)

    @cache
    def shared(precision: str) -> tuple[TrainingSetup, OpGraph, OpCache]:
        """What all platforms share at a precision: the setup of the training, the op graph, and the cache of
        op costs."""
        training = training_of(precision, optimizer, False, request.gradients)
        return training, network_for(request.network, training, request.attention), OpCache()

    asked = [
        (name, platform, precision)
        for name in request.platform
        for platform in [simulated_platform(name, request.platforms)]
        for precision in dict.fromkeys(
            request.precision or usual_precisions(request.network, request.calibrate, platform)
        )
    ]
    for name, platform, precision in asked:
        training, graph, op_cache = shared(precision)
        try:
            on, costs = platform_and_costs(
                platform, precision, measured_steps=request.calibrate, op_cache=op_cache
            )
        except JoulecastError as error:
            if len(asked) == 1:
                raise
            refused.append({"setting": f"{platform.name} at {precision}", "why": str(error)})
            continue
        found.append(Machine(name, on, precision, graph, training, costs))
    return found, refused


def find_fastest(machine: Machine, devices: int, batch: int) -> Simulation | str:
    """The fastest strategy that fits in memory; or the reason why none fits."""
    cluster = machine.platform.require_cluster()
    if cluster.nodes is not None and devices > cluster.nodes * cluster.devices_per_node:
        return f"{machine.name} has {cluster.nodes * cluster.devices_per_node} devices"
    assumed = Assumptions(training=machine.training)
    try:
        ranking = search(
            *(machine.graph, machine.platform, devices, batch, machine.costs, assumed),
            top=1,
            processes=1,
            others=False,
        )
    except JoulecastError as error:
        return str(error)
    if ranking.feasible:
        return ranking.feasible[0]
    return next(iter(ranking.out_of_memory.values()), "no strategy can be run")


def _at_limits(
    machine: Machine, fastest: Simulation, request: PlanRequest
) -> Iterator[tuple[float | None, Simulation]]:
    """The step at each power limit (in W) that is requested. ``None`` is the highest limit."""
    limit_w = machine.platform.require_cluster().device.power_limit_w
    if limit_w is None:
        yield None, fastest
        return
    for percent in sorted(request.power_limits, reverse=True):
        if percent == 100:
            yield None, fastest
            continue
        set_w = round(percent / 100 * limit_w, 3)
        costs, sm_mhz = at_clock(machine.costs, set_w, None)
        batch = round(fastest.batch) // fastest.strategy.replicas
        slower = simulate(
            machine.graph,
            machine.platform,
            fastest.strategy,
            batch,
            costs,
            Assumptions(training=machine.training),
        )
        yield set_w, replace(slower, sm_mhz=sm_mhz)


def _candidate(
    machine: Machine, step: Simulation, power_limit_w: float | None, samples: float
) -> Candidate:
    devices, batch = step.strategy.devices, round(step.batch)
    nodes = node_count(machine.platform, devices)
    return Candidate(
        nodes=nodes,
        hosts=nodes,
        gpus=devices,
        batch_size=batch,
        strategy=text_of(step.strategy),
        basis="simulated",
        platform=machine.name,
        precision=machine.precision,
        power_limit_w=power_limit_w,
        near_memory_limit=step.near_memory_limit,
        is_calibrated=machine.costs.evidence is not None,
        **energy_of_steps(step, whole_steps(samples, batch)),
    )


@no_cycles()
def _settings(
    request: PlanRequest, machines: list[Machine], devices: int
) -> tuple[list[Candidate], list[Refused]]:
    """All settings of a number of devices: the candidates, and the refused settings with their reasons."""
    found: list[Candidate] = []
    refused: list[Refused] = []
    for machine in machines:
        for batch in request.batch:
            fastest = find_fastest(machine, devices, batch)
            if isinstance(fastest, str):
                setting = f"{devices} x {machine.name}, batch {batch:,}, {machine.precision}"
                refused.append({"setting": setting, "why": fastest})
                continue
            takes = set()
            try:
                for limit_w, step in _at_limits(machine, fastest, request):
                    candidate = _candidate(machine, step, limit_w, request.samples)
                    joules = candidate.energy_j and steady(candidate.energy_j)
                    # If the GPUs never reach a limit, it makes no other setting.
                    if (steady(candidate.time_s), joules) not in takes:
                        found.append(candidate)
                    takes.add((steady(candidate.time_s), joules))
            except JoulecastError as error:
                setting = f"power limits on {machine.name}"
                refused.append({"setting": setting, "why": str(error)})
    return found, refused


def _weighed(
    request: PlanRequest, machines: list[Machine], of_platform: Mapping[str, Prices]
) -> Weighed:
    """The settings that a plan chooses from, simulated and priced."""
    # More devices have more strategies. So the work that takes longest begins first.
    counts = sorted(request.devices, reverse=True)
    weigh = partial(_settings, request, machines)
    each = mapped(weigh, counts, min(usable_cores(), len(counts)))
    candidates = [candidate for found, _ in each for candidate in found]
    refused = list({str(row): row for _, left_out in each for row in left_out}.values())
    warnings = ["nothing was run: times are simulated"]
    rates = "the rates of the platforms' descriptions"
    if request.calibrate is not None:
        rates += f", corrected by {request.calibrate}"
        evidence = [each.costs.evidence for each in machines]
        remarks = [steps.remark for steps in evidence if steps]
        warnings = ["times are simulated, as measured steps correct them", *filter(None, remarks)]
    if not request.precision and any(each.precision in FUSED_PRECISIONS for each in machines):
        warnings.append(FUSED)
    if len({machine.precision for machine in machines}) > 1:
        warnings.append(
            "settings differ in precision: whether a training reaches the same accuracy is not known here"
        )
    length = next((sequence_length(machine.graph) for machine in machines), None)
    of_length = "" if length is None else f", of {length:,} tokens or positions each"
    return Weighed(
        ", ".join(of_platform),
        "simulated",
        {"samples": request.samples, "unit": "samples", "why": f"as requested{of_length}"},
        [candidate.priced(of_platform[str(candidate.platform)]) for candidate in candidates],
        refused,
        [
            f"simulated: {counted(len(candidates), 'setting')}, each with its fastest strategy, by {rates}"
        ],
        warnings,
        [],
        None,
    )
