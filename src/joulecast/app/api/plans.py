"""The public functions that need no runs: strategies in simulated time, pipeline stages, tuning.

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
"""Timed steps of a network of the user's own."""
_FUNCTION = re.compile(r"[\w.]+:\w+")


@takes_request(SimulateRequest)
def simulate_step(request: SimulateRequest) -> dict[str, Any]:
    """Simulate one training step of a parallel strategy: its time, memory and energy.

    Returns:
        ``batch`` of a replica and ``global_batch`` of all, ``sequence`` (``None``: the network has none),
        ``step_s``, ``samples_per_s``, ``computing_s``, ``exposed_communication_s``, ``bubble_s``,
        ``peak_memory_bytes``, ``state_bytes``, ``parameters``, ``out_of_memory``, ``step_j`` (``None`` with
        ``why_no_energy``) with its 90 % interval ``step_j_low`` and ``step_j_high``, ``power_w`` of all
        nodes, ``gpus_power_w`` of the GPUs in use (``None`` with powers of metered nodes), ``energy_source``,
        ``energy_rests_on``, ``sm_mhz`` (``None``: no limit nor clock asked for), ``network_from`` (``file``,
        ``shipped`` or ``numbers``), ...

    Raises:
        JoulecastError: an unknown network, platform or strategy, or a fact that the platform's file lacks.
    """
    from joulecast.energy.strategy_energy import fit_in, priced
    from joulecast.graphs.network_graphs import graph_origin
    from joulecast.simulate.answer import simulate_request
    from joulecast.simulate.trace import write_trace

    with naming(request.strategy, *_files(request)):
        simulation = simulate_request(request)
        result = simulation.as_json() | priced(simulation, fit_in(request.fits))
        result["network_from"] = graph_origin(request.network, request.attention)
    if request.trace is not None:
        write_trace(simulation, request.trace)
    return result


@takes_request(SearchRequest)
def search(request: SearchRequest) -> dict[str, Any]:
    """Rank the parallel strategies of some devices that fit in memory, by one objective.

    Returns:
        ``feasible``: the ``top`` best steps as of :func:`simulate_step`, the best first, with
        ``joules_per_sample``, ``energy_delay_js``, ``step_cost`` and ``step_co2_kg``, each ``None`` where it
        is not known; ``beaten``: by strategy that is not among them, the seconds that its step takes at
        least; ``out_of_memory`` and ``impossible``: by strategy, why not; ``objective``,
        ``precision``, ``prices``.

    Raises:
        JoulecastError: an unknown network or platform, no strategy divides this batch, or what the objective
            needs is not known.
    """
    from joulecast.energy.strategy_energy import fit_in
    from joulecast.report.advice.choice import check_objective
    from joulecast.report.advice.simulated import ranked, rising_value
    from joulecast.simulate.answer import search_request

    objective, top, paid = request.objective, request.top, prices_of(request)
    check_objective(objective, paid)
    with naming(*_files(request)):
        fit = fit_in(request.fits)
        ranking = search_request(
            request,
            lambda on: rising_value(objective, paid, on, request.precision, request.devices, fit),
        )
        rows = ranked(ranking.feasible, objective, paid, fit)
    beaten = {row["strategy"]: row["step_s"] for row in rows[top:]}
    return {
        "objective": objective,
        "precision": request.precision,
        "prices": paid.as_json(),
        "feasible": rows[:top],
        "beaten": ranking.beaten | beaten,
        "out_of_memory": ranking.out_of_memory,
        "impossible": ranking.impossible,
    }


def _files(request: OnSimulator) -> tuple[str | Path | None, ...]:
    """What may be files that an error has to name."""
    measured = (request.calibration, request.database, request.calibrate)
    return request.network, request.platform, *measured


@takes_request(PlanRequest)
def plan(request: PlanRequest) -> dict[str, Any]:
    """Choose platform, devices, strategy, batch, precision and power limit of a training, by simulation.

    Returns:
        As of :func:`advise`: ``best`` (``None`` with ``why_none``), ``verdict``, ``candidates`` (the best
        first; each with ``platform``, ``gpus``, ``strategy``, ``batch_size``, ``precision``,
        ``power_limit_w``, ``time_s``, ``energy_j``, ``cost`` and ``co2_kg`` of the whole training with their
        90 % intervals, ``energy_source``, and whether it is ``on_front``: none takes less of all),
        ``refused`` (what does not fit in memory, and by how much), ``rests_on``, ``warnings``,
        ``measure_next``, ...

    Raises:
        JoulecastError: an unknown network or platform, nothing that fits, or an objective or a budget whose
            price or intensity is not given.
    """
    from joulecast.report.advice.plan import plan as planned

    with naming(request.network, *request.platform, request.calibrate):
        found = planned(request, prices_of(request))
    if request.html is not None:
        # Charts load slowly.
        from joulecast.report.pages.plan import write_plan_page

        write_plan_page(found, request.html)
    return found


@takes_request(StartRequest)
def choose_start(request: StartRequest) -> dict[str, Any]:
    """Choose when to run a training, by prices or CO2 of the hour.

    Returns:
        ``objective``; ``now``, ``best`` without a pause, and ``paused`` (``None`` where no pause is allowed),
        each with ``start``, ``end``, ``runs`` (pairs of times in UTC), ``energy_kwh``, ``cost`` and
        ``co2_kg`` (``None`` where the file does not say it).

    Raises:
        JoulecastError: a file that is not sound, or that does not reach over the time that is asked for.
    """
    from joulecast.energy.start_time import choose_start as chosen

    return chosen(request)


@takes_request(PartitionRequest, "devices")
def partition_network(request: PartitionRequest) -> dict[str, Any]:
    """Cut a network into pipeline stages so that the slowest is as fast as can be, and prove it.

    Returns:
        ``bottleneck_us``, ``certified`` with its ``certificate``, ``speedup_bound``, ``stages`` with their
        nodes, times and bytes, ...

    Raises:
        JoulecastError: no such graph, an unsound one, a useless option, or nothing that fits.
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
    """The plan of what MODULE:FUNCTION gives, measured on one core."""
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
    """Tune batch size and power limit over recurrences of a training: replayed traces, or here and now.

    ``tell`` is a function that gets the notes of a live tuning.

    Returns:
        Live: ``by_recurrence`` with ``time_s``, ``advice``, ...; of a replay: ``ratio_to_default``,
        ``break_even_recurrence``, ...

    Raises:
        JoulecastError: an option that is for the other kind, or missing, or wrong; no GPU where one is
            asked for.
    """
    from joulecast.tune.live_job import LiveJob
    from joulecast.tune.policy_report import live_report
    from joulecast.tune.tune import tune_on_this_machine, tune_on_traces

    if request.live:
        chosen = request.model_fields_set & Goals.model_fields.keys()
        job = LiveJob(**{name: getattr(request, name) for name in chosen})
        here, done, trials = tune_on_this_machine(
            job, request.policy, request.options, request.recurrences, request.history, tell
        )
        return live_report(here.space, request.policy, done, trials, here.notes, request.history)
    with naming(request.traces):
        return tune_on_traces(recorded_folder(request.traces or ZEUS_TRACE), request)
