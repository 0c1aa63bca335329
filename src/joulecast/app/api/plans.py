"""The public functions that need no runs: they simulate strategies, cut networks into stages, and tune.

Each loads what it needs when it is called, so that ``import joulecast`` is quick.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joulecast.app.api.arguments import naming, prices_of, takes_request
from joulecast.energy.request import StartRequest
from joulecast.partition.request import PartitionRequest
from joulecast.report.advice.request import PlanRequest
from joulecast.runs.files.shipped import ZEUS_TRACE, recorded_folder
from joulecast.simulate.request import OnSimulator, SearchRequest, SimulateRequest
from joulecast.tune.request import Goals, TuneRequest

_PASSES = 3
"""Number of timed steps of a user's own network."""
_FUNCTION = re.compile(r"[\w.]+:\w+")


@takes_request(SimulateRequest)
def simulate_step(request: SimulateRequest) -> dict[str, Any]:
    """Simulate one training step under a parallel strategy: its time, memory and energy.

    Returns:
        ``batch`` is the batch of a replica, ``global_batch`` the batch of all replicas. Times are ``step_s``
        (with a 90 % interval ``step_low_s`` and ``step_high_s``), ``computing_s``,
        ``exposed_communication_s`` and ``bubble_s``. ``basis`` is ``description``, ``calibrated``, or
        ``other`` (the error of the simulator is not known). ``peak_memory_bytes`` has an interval, too;
        ``out_of_memory`` says whether the step does not fit. ``step_j`` has a 90 % interval ``step_j_low``
        and ``step_j_high``; if it is ``None``, ``why_no_energy`` says why. ``power_w`` is of all nodes,
        ``gpus_power_w`` of the GPUs in use (``None`` if the watts come from metered nodes).
        ``energy_source`` and ``energy_rests_on`` say where the energy comes from.

    Raises:
        JoulecastError: the network, platform or strategy is unknown, or the platform's file lacks a fact.
    """
    from joulecast.energy.strategy_energy import simulation_energy
    from joulecast.graphs.network_graphs import graph_origin
    from joulecast.simulate.answer import simulate_request
    from joulecast.simulate.trace import write_trace

    with naming(request.strategy, *_files(request)):
        simulation = simulate_request(request)
        result = simulation.as_json() | simulation_energy(simulation).as_json()
        result["network_from"] = graph_origin(request.network, request.attention)
    if request.trace is not None:
        write_trace(simulation, request.trace)
    return result


@takes_request(SearchRequest)
def search(request: SearchRequest) -> dict[str, Any]:
    """Find the best parallel strategies for a number of devices, among those that fit in memory.

    Returns:
        ``feasible`` has the ``top`` best steps, the best first. Each has the keys of :func:`simulate_step`,
        and also ``joules_per_sample``, ``energy_delay_js``, ``step_cost`` and ``step_co2_kg`` (``None`` if
        not known). ``beaten`` has the other strategies, each with the seconds that its step takes at least.
        ``out_of_memory`` and ``impossible`` say for each strategy why it cannot be used.

    Raises:
        JoulecastError: the network or platform is unknown, no strategy divides this batch, or what the
            objective needs is not known.
    """
    from joulecast.report.advice.choice import check_prices_of
    from joulecast.report.advice.request import Limit
    from joulecast.report.advice.simulated import ranked, rising_value
    from joulecast.simulate.answer import precision_asked, search_request

    objective, top, paid = request.objective, request.top, prices_of(request)
    check_prices_of(Limit(objective=objective), paid)
    with naming(*_files(request)):
        precision = precision_asked(request)
        ranking = search_request(
            request, lambda on: rising_value(objective, paid, on, precision, request.devices)
        )
        rows = ranked(ranking.feasible, objective, paid)
    beaten = {row["strategy"]: row["step_s"] for row in rows[top:]}
    return {
        "objective": objective,
        "precision": precision,
        "prices": paid.as_json(),
        "feasible": rows[:top],
        "beaten": ranking.beaten | beaten,
        "out_of_memory": ranking.out_of_memory,
        "impossible": ranking.impossible,
    }


def _files(request: OnSimulator) -> tuple[str | Path | None, ...]:
    """Arguments that may be files. An error has to name them."""
    measured = (request.calibration, request.database, request.calibrate)
    return request.network, request.platform, *measured


@takes_request(PlanRequest)
def plan(request: PlanRequest) -> dict[str, Any]:
    """Choose platform, devices, strategy, batch, precision and power limit of a training. Nothing is run.

    Returns:
        ``best`` (``None`` with ``why_none``) and ``verdict`` are the same as in :func:`advise`.
        ``candidates`` has the best setting first. Each has ``platform``, ``gpus``, ``strategy``,
        ``batch_size``, ``precision``, ``power_limit_w``; ``time_s``, ``energy_j``, ``cost`` and ``co2_kg`` of
        the whole training with their 90 % intervals; and ``energy_source``. ``on_front`` says that no other
        setting is better in time, energy and money together. ``refused`` has what does not fit in memory, and
        by how much.

    Raises:
        JoulecastError: the network or platform is unknown, nothing fits, or the objective or a budget needs a
            price or CO2 intensity that is missing.
    """
    from joulecast.report.advice.plan import plan as planned

    paid = prices_of(request)
    with naming(request.network, *request.platform, request.calibrate):
        found = planned(request, paid)
    if request.html is not None:
        # Charts load slowly.
        from joulecast.report.pages.plan import write_plan_page

        write_plan_page(found, request.html)
    return found


@takes_request(StartRequest)
def choose_start(request: StartRequest) -> dict[str, Any]:
    """Choose the hours to run a training in: the cheapest ones, or those with the least CO2.

    Returns:
        ``objective``, and three ways to run: ``now``, ``best`` (without a pause) and ``paused`` (``None`` if
        no pause is allowed). Each has ``start``, ``end``, ``runs`` (pairs of times in UTC), ``energy_kwh``,
        ``cost`` and ``co2_kg`` (``None`` if the file does not say it).

    Raises:
        JoulecastError: the file is wrong, or does not cover the time that is requested.
    """
    from joulecast.energy.start_time import choose_start as chosen

    return chosen(request)


@takes_request(PartitionRequest, "devices")
def partition_network(request: PartitionRequest) -> dict[str, Any]:
    """Cut a network into pipeline stages so that the slowest stage is as fast as possible, and prove it.

    Returns:
        ``bottleneck_us`` is the time of the slowest stage. ``certified`` says whether this is proven to be
        the shortest time, and ``certificate`` how. ``speedup_bound`` is the speedup over one device if
        the pipeline is always full. ``stages`` has the tasks (``nodes``), times and bytes of each stage.

    Raises:
        JoulecastError: there is no such graph, it is wrong, an option is useless, or nothing fits.
    """
    from joulecast.partition.plan_report import partition_report
    from joulecast.partition.stages_file import write_stages
    from joulecast.partition.task_graph_files import read_partitionable, task_graph_file

    if _FUNCTION.fullmatch(request.graph):
        return _own_network_in_stages(request)
    with naming(request.graph):
        found = read_partitionable(task_graph_file(request.graph))
        report = partition_report(found, request)
    if request.export is not None:
        write_stages(request.export, report, dict(getattr(found, "provenance", {})))
    return report


def _own_network_in_stages(request: PartitionRequest) -> dict[str, Any]:
    """The plan for the network that MODULE:FUNCTION returns. The network is measured on one core."""
    import torch

    from joulecast.graphs.network_graphs import module_of_function
    from joulecast.partition.measure_tasks import measure_module
    from joulecast.partition.plan_report import partition_report
    from joulecast.partition.stages_file import write_stages
    from joulecast.partition.tasks import left_as_it_was, tensors_of
    from joulecast.partition.torch_stages import cut_into_stages

    module, inputs = module_of_function(request.graph)
    report = partition_report(measure_module(request.graph, module, inputs, _PASSES), request)
    if request.export is not None:
        cut_into_stages(module, inputs, [stage["nodes"] for stage in report["stages"]])
        with left_as_it_was(module), torch.no_grad():
            output = tensors_of(module(*inputs))[0]
        write_stages(request.export, report, {"function": request.graph, "output": [*output.shape]})
    return report


@takes_request(TuneRequest)
def tune_training(request: TuneRequest, *, tell: Callable[[str], None] = print) -> dict[str, Any]:
    """Tune the batch size and power limit of a training that recurs, on recorded traces or live.

    ``tell`` is a function that gets the notes of a live tuning.

    Returns:
        A live tuning returns ``by_recurrence`` and ``cheapest``. A replay returns ``ratio_to_default`` and
        ``break_even_recurrence``.

    Raises:
        JoulecastError: an option is wrong, missing, or meant for the other kind of tuning; or there is no GPU
            although one is requested.
    """
    from joulecast.tune.policy_report import live_report, replay_report

    if request.live:
        from joulecast.tune.live import LiveJob, tune_on_this_machine

        chosen = request.model_fields_set & Goals.model_fields.keys()
        job = LiveJob(**{name: getattr(request, name) for name in chosen})
        here, done, trials = tune_on_this_machine(
            job, request.policy, request.options, request.recurrences, request.history, tell
        )
        return live_report(here.space, request.policy, done, trials, here.notes, request.history)
    with naming(request.traces):
        return replay_report(recorded_folder(request.traces or ZEUS_TRACE), request)
