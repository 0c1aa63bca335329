"""The public functions that need no runs: strategies in simulated time, pipeline stages, tuning.

Each loads what it needs when it is called, so that ``import joulecast`` is quick.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

# Its name is that of a public function. Loaded first, it does not take that function's place afterwards.
from joulecast.app.api.given import AnyPath, check, given_prices, naming, path
from joulecast.errors import JoulecastError
from joulecast.quantities import MOST_NODES, MOST_SAMPLES, check_amounts, check_counts
from joulecast.runs.files.shipped import ZEUS_TRACE, recorded_folder

_BATCH_PER_DEVICE = 32
"""Default samples of a device's step."""
_PASSES = 3
"""Timed steps of a network of the user's own."""
_FUNCTION = re.compile(r"[\w.]+:\w+")


def simulate(
    network: AnyPath,
    platform: AnyPath,
    strategy: AnyPath,
    *,
    batch: int = _BATCH_PER_DEVICE,
    devices: int | None = None,
    precision: str = "fp32",
    optimizer: str = "momentum",
    attention: Literal["eager", "fused"] | None = None,
    inference: bool = False,
    gradients: Literal["fp32"] | None = None,
    mode: Literal["default", "proteus"] = "default",
    stragglers: Mapping[int, float] | None = None,
    gamma: float | None = None,
    links: Mapping[str, float] | None = None,
    calibration: AnyPath | None = None,
    database: AnyPath | None = None,
    calibrate: AnyPath | None = None,
    fits: AnyPath | None = None,
    trace: AnyPath | None = None,
    explain: bool = False,
) -> dict[str, Any]:
    """Simulate one training step of a parallel strategy: its time, memory and energy.

    Args:
        network: by name (``gpt2-xl``), by numbers (``gpt:layers=36,hidden=1280,heads=20``), or the JSON
            file of an op graph.
        strategy: as ``dp=8,tp=2,pp=4,micro=16,zero=1,recompute``, or a YAML file.
        batch: samples of one replica's step.
        devices: number of devices, to check the strategy by.
        precision: fp32, tf32, bf16, fp16 or fp64. ``bf16`` and ``fp16`` are mixed precision: tensors of 2
            bytes, a copy of the weights at fp32.
        optimizer: none, sgd, momentum or adam.
        attention: ``fused`` (one kernel, the default) or ``eager`` (written out), of a network by numbers.
        inference: whether to simulate a forward pass alone.
        gradients: ``fp32`` adds gradients up and sends them at fp32, at any precision (Megatron).
        mode: ``proteus`` uses the communication model of that paper.
        stragglers: slow devices, each with how many times as long it takes, as ``{3: 1.5}``.
        gamma: overlap slowdown in place of the platform's.
        links: bytes/s of the platform's links in place of its file's, as ``{"nic": 12.5e9}``.
        calibration, database: files that were measured on the platform: its network, its op costs.
        calibrate: YAML file of a step that was measured on the platform (``network``, ``strategy``,
            ``batch``, ``precision``, ``step_s``, ...); it corrects what ops cost there.
        fits: folder of fits to metered runs on the same hardware, for the joules; by default the metered runs
            that are shipped.
        trace: file to write a Chrome trace to.
        explain: also return ``explanation``, a text that says where the time goes.

    Returns:
        ``step_s``, ``samples_per_s``, ``computing_s``, ``exposed_communication_s``, ``bubble_s``,
        ``peak_memory_bytes``, ``state_bytes``, ``parameters``, ``out_of_memory``, ``step_j`` (``None`` with
        ``why_no_energy``) with its 90 % interval ``step_j_low`` and ``step_j_high``, ``power_w`` of all
        nodes, ``energy_source``, ``energy_rests_on``, ``network_from`` (``file``, ``shipped`` or
        ``numbers``), ...

    Raises:
        JoulecastError: an unknown network, platform or strategy, or a fact that the platform's file lacks.
    """
    from joulecast.energy.strategy_energy import fit_in, priced
    from joulecast.graphs.precision import training_of
    from joulecast.graphs.shipped_graphs import graph_origin, network_for
    from joulecast.report.advice.simulator_inputs import platform_and_costs
    from joulecast.simulate.explain import explain as in_words
    from joulecast.simulate.simulate import Assumptions, simulate
    from joulecast.simulate.strategy import parse_strategy
    from joulecast.simulate.trace import write_trace

    check("mode", mode, ("default", "proteus"))
    check_counts("batch", [batch], MOST_SAMPLES)
    check_amounts("gamma", [gamma])
    check_amounts("stragglers", (stragglers or {}).values())
    training = training_of(precision, optimizer, inference, gradients)
    with naming(network, platform, strategy, calibration, database, calibrate):
        on, costs = platform_and_costs(
            str(platform),
            precision,
            links=links,
            calibration=path(calibration),
            database=path(database),
            measured_steps=path(calibrate),
            mode=mode,
        )
        simulation = simulate(
            network_for(str(network), training, attention),
            on,
            parse_strategy(str(strategy)).check(devices),
            batch,
            costs,
            Assumptions(
                mode=mode,
                overlap_slowdown=gamma,
                stragglers=dict(stragglers or {}),
                training=training,
            ),
        )
        result = simulation.as_json() | priced(simulation, fit_in(path(fits)))
        result["network_from"] = graph_origin(str(network), attention)
    if trace is not None:
        write_trace(simulation, Path(trace))
    return result | {"explanation": in_words(simulation)} if explain else result


def search(
    network: AnyPath,
    platform: AnyPath,
    devices: int,
    *,
    global_batch: int | None = None,
    precision: str = "fp32",
    optimizer: str = "momentum",
    attention: Literal["eager", "fused"] | None = None,
    inference: bool = False,
    gradients: Literal["fp32"] | None = None,
    links: Mapping[str, float] | None = None,
    calibration: AnyPath | None = None,
    database: AnyPath | None = None,
    calibrate: AnyPath | None = None,
    fits: AnyPath | None = None,
    objective: Literal["time", "energy", "cost", "co2", "edp"] = "time",
    price: float | None = None,
    price_node_hour: float | None = None,
    price_gpu_hour: float | None = None,
    co2: float | None = None,
    pue: float | None = None,
    prices: AnyPath | None = None,
    top: int = 20,
) -> dict[str, Any]:
    """Rank the parallel strategies of some devices that fit in memory, by one objective.

    Args:
        devices: number of devices to use.
        global_batch: samples of a step over all devices; 32 of each by default.
        objective: ``time`` of a step, ``energy`` of a sample, ``cost`` or ``co2`` of a step by the
            prices, or ``edp``: joules times seconds of a step.
        price, price_node_hour, price_gpu_hour: price of a kWh at the building's meter, and of an hour of a
            whole node and of a GPU in use, all in one currency.
        co2: grams of CO2 equivalent for a kWh.
        pue: kWh of the building for each kWh of the nodes, 1 by default.
        prices: a configuration's file; its section ``prices`` counts for what is not given here.
        top: number of the best to rank; strategies that cannot be among them are not simulated.
        network, platform, precision, optimizer, attention, inference, gradients, links, calibration,
            database, calibrate, fits: as in :func:`simulate`.

    Returns:
        ``feasible``: the ``top`` best steps as of :func:`simulate`, the best first, with
        ``joules_per_sample``, ``energy_delay_js``, ``step_cost`` and ``step_co2_kg``, each ``None`` where it
        is not known; ``beaten``: by strategy that fits and is not among them, the seconds that its step
        takes at least; ``out_of_memory`` and ``impossible``: by strategy, why not; ``objective``.

    Raises:
        JoulecastError: an unknown network or platform, no strategy divides this batch, or what the objective
            needs is not known.
    """
    from joulecast.energy.strategy_energy import fit_in
    from joulecast.graphs.precision import training_of
    from joulecast.graphs.shipped_graphs import network_for
    from joulecast.report.advice.objective import OBJECTIVES, check_objective
    from joulecast.report.advice.ranking import ranked, rising_value
    from joulecast.report.advice.simulator_inputs import platform_and_costs
    from joulecast.simulate.simulate import Assumptions
    from joulecast.simulate.strategy_search import search

    check_counts("devices", [devices], MOST_NODES)
    check_counts("global_batch", [global_batch], MOST_SAMPLES)
    check_counts("top", [top], MOST_SAMPLES)
    check("objective", objective, OBJECTIVES)
    paid = given_prices(prices, price, price_node_hour, price_gpu_hour, co2, pue)
    check_objective(objective, paid)
    training = training_of(precision, optimizer, inference, gradients)
    with naming(network, platform, calibration, database, calibrate):
        on, costs = platform_and_costs(
            str(platform),
            precision,
            links=links,
            calibration=path(calibration),
            database=path(database),
            measured_steps=path(calibrate),
        )
        batch = _BATCH_PER_DEVICE * devices if global_batch is None else global_batch
        graph = network_for(str(network), training, attention)
        assumed = Assumptions(training=training)
        fit = fit_in(path(fits))
        value = rising_value(objective, paid, on, devices, fit)
        if value is None:
            ranking = search(graph, on, devices, batch, costs, assumed)
        else:
            ranking = search(graph, on, devices, batch, costs, assumed, top, value)
        rows = ranked(ranking.feasible, objective, paid, fit)
    beaten = {row["strategy"]: row["step_s"] for row in rows[top:]}
    return {
        "objective": objective,
        "feasible": rows[:top],
        "beaten": ranking.beaten | beaten,
        "out_of_memory": ranking.out_of_memory,
        "impossible": ranking.impossible,
    }


def partition(
    graph: AnyPath,
    devices: int | None = None,
    *,
    cost: Literal["compute", "max", "sum"] | None = None,
    bandwidth_bytes_per_s: float | None = None,
    replicate: bool = False,
    memory_bytes: float | None = None,
    mode: Literal["exact", "compat"] = "exact",
    ideals: int | None = None,
    export: AnyPath | None = None,
) -> dict[str, Any]:
    """Cut a network into pipeline stages so that the slowest is as fast as can be, and prove it.

    Args:
        graph: a network whose measured task graph is shipped; ``MODULE:FUNCTION`` of your own, which is
            measured now on one core (see ``joulecast capture``); or the file of a task graph, a PipeDream
            profile or a device-placement graph.
        devices: number of stages; a device-placement graph has it itself.
        cost: a stage's time: its work (the default), the larger of work and transfers, or their sum.
        bandwidth_bytes_per_s: rate of a device's link, each way.
        replicate: whether a stage may be on several devices.
        memory_bytes: memory of a device.
        mode: ``compat`` answers as PipeDream's optimizer does.
        ideals: limit of the ideals to list; a graph with more gets no certificate.
        export: Python file to write, which trains the network in these stages under torchrun.

    Returns:
        ``bottleneck_us``, ``certified`` with its ``certificate``, ``speedup_bound``, ``stages`` with their
        nodes, times and bytes, ...

    Raises:
        JoulecastError: no such graph, an unsound one, a useless option, or nothing that fits.
    """
    from joulecast.graphs.readers import read_partitionable
    from joulecast.graphs.shipped_graphs import task_graph_file
    from joulecast.partition.plan_report import partition_report
    from joulecast.partition.stages_file import write_stages

    check("cost", cost, ("compute", "max", "sum"))
    check("mode", mode, ("exact", "compat"))
    options = (devices, cost, bandwidth_bytes_per_s, replicate, memory_bytes, mode, ideals)
    if _FUNCTION.fullmatch(str(graph)):
        return _own_network_in_stages(str(graph), options, path(export))
    with naming(graph):
        found = read_partitionable(task_graph_file(str(graph)))
        report = partition_report(found, *options)
    if export is not None:
        write_stages(Path(export), report, dict(getattr(found, "provenance", {})))
    return report


def _own_network_in_stages(
    function: str, options: tuple[Any, ...], export: Path | None
) -> dict[str, Any]:
    """The plan of what MODULE:FUNCTION gives, measured on one core; ``options`` as of partition_report."""
    import torch

    from joulecast.graphs.capture_function import module_of_function
    from joulecast.graphs.measure_tasks import measure_module
    from joulecast.graphs.tasks import left_as_it_was, tensors_of
    from joulecast.partition.plan_report import partition_report
    from joulecast.partition.stages_file import write_stages
    from joulecast.partition.torch_stages import cut_into_stages

    module, inputs = module_of_function(function)
    report = partition_report(measure_module(function, module, inputs, _PASSES), *options)
    if export is not None:
        cut_into_stages(module, inputs, [stage["nodes"] for stage in report["stages"]])
        with left_as_it_was(module), torch.no_grad():
            output = tensors_of(module(*inputs))[0]
        write_stages(export, report, {"function": function, "output": [*output.shape]})
    return report


def tune(
    *,
    live: bool = False,
    traces: AnyPath | None = None,
    workload: str | None = None,
    gpu: str | None = None,
    policy: str = "curve",
    recurrences: int = 50,
    seeds: int | None = None,
    target: float | None = None,
    eta: float = 0.5,
    beta: float | None = None,
    window: int | None = None,
    criterion: Literal["cost", "energy", "time", "max-slowdown"] = "cost",
    max_slowdown: float = 1.1,
    history: AnyPath | None = None,
    target_accuracy: float | None = None,
    device: Literal["cpu", "cuda"] | None = None,
    allow_power_limit: bool = False,
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Tune batch size and power limit over recurrences of a training: replayed traces, or here and now.

    Args:
        live: train LeNet-5 on digits on this machine, to ``target_accuracy`` (0 to 1; 0.9 by default) on
            ``device`` (cpu), whose power limit may be set with ``allow_power_limit``.
        traces: folder of Zeus' traces, for a replay; the shipped ones by default.
        workload, gpu: names in the traces, as cifar100 and v100.
        policy: name of the policy; a wrong name lists all.
        recurrences: trainings to the target.
        seeds: replays to take the mean of; 20 by default.
        target: metric to reach in a replay; the paper's by default.
        eta: weight of energy in the cost, 0 to 1.
        beta: a try is stopped at this many times the best cost.
        window: number of last costs of a batch size that count.
        criterion, max_slowdown: how a power limit is chosen among those that were tried.
        history: file of the trials; a live tuning continues after the last one.
        tell: function that gets the notes of a live tuning.

    Returns:
        Live: ``by_recurrence`` with ``time_s``, ``advice``, ...; of a replay: ``ratio_to_default``,
        ``break_even_recurrence``, ...

    Raises:
        JoulecastError: an option that is for the other kind, or missing, or wrong; no GPU where one is
            asked for.
    """
    from joulecast.tune.policy_report import Asked
    from joulecast.tune.trial import Goal
    from joulecast.tune.tune import tuned_on_traces

    check("criterion", criterion, ("cost", "energy", "time", "max-slowdown"))
    check("device", device, ("cpu", "cuda"))
    options = {"beta": beta, "window": window}
    options = {name: value for name, value in options.items() if value is not None}
    if live:
        replayed = {"--traces": traces, "--workload": workload, "--gpu": gpu, "--target": target}
        _refuse(replayed | {"--seeds": seeds}, "is for replays; leave it out with --live")
        keys = {
            "device": device,
            "target_accuracy": target_accuracy,
            "eta": eta,
            "allow_power_limit": allow_power_limit,
            "criterion": criterion,
            "max_slowdown": max_slowdown,
        }
        return _tuned_here(keys, policy, options, recurrences, path(history), tell)
    lived = {
        "--target-accuracy": target_accuracy,
        "--device": device,
        "--allow-power-limit": allow_power_limit or None,
    }
    _refuse(lived, "is for trainings on this machine; give --live too")
    if workload is None or gpu is None:
        raise JoulecastError(
            "a replay needs --workload and --gpu; --live trains on this machine instead"
        )
    with naming(traces):
        return tuned_on_traces(
            recorded_folder(Path(traces or ZEUS_TRACE)),
            workload,
            gpu,
            policy,
            recurrences,
            seeds,
            Asked(target, Goal(eta, criterion, max_slowdown), options),
            path(history),
        )


def _tuned_here(
    keys: Mapping[str, Any],
    policy: str,
    options: Mapping[str, Any],
    recurrences: int,
    history: Path | None,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Report of a live tuning; a key that is ``None`` has its default."""
    from joulecast.tune.live_job import live_job
    from joulecast.tune.policy_report import live_report
    from joulecast.tune.tune import tuned_here

    job = live_job(**{name: value for name, value in keys.items() if value is not None})
    here, done, trials = tuned_here(job, policy, dict(options), recurrences, history, tell)
    return live_report(here.space, policy, done, trials, here.notes, history)


def _refuse(options: Mapping[str, Any], why: str) -> None:
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise JoulecastError(f"{given[0]} {why}")
