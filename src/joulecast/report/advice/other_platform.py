"""A forecast for hardware on which no record was made. It uses simulated times, and powers from descriptions
of nodes.

The simulator says how long a step takes on any platform whose GPU is described. It knows neither the code of
a training, nor what happens between its steps. Both are in the times of the records. The time of a step in
the records, divided by the simulated time on the same platform, is a factor. The other platform gets this
factor, too. MLPerf submitters who trained one network on two platforms show how far such factors differ
(:func:`joulecast.energy.intervals.judged_widths`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from joulecast.energy.campaign_fit import KnownRuns
from joulecast.energy.forecast import (
    COLUMNS,
    Note,
    recorded_work,
    texts_of,
    usual_batch,
    why_not_forecast,
)
from joulecast.energy.intervals import Z90, judged_widths
from joulecast.energy.measured_settings import metered_parts
from joulecast.energy.models import Evidence, fit_groups
from joulecast.energy.prices import NO_PRICES, Prices, cost_columns
from joulecast.energy.request import ForecastRequest
from joulecast.energy.strategy_energy import node_count, power_widths, simulation_energy
from joulecast.errors import JoulecastError
from joulecast.graphs.network_graphs import network_for
from joulecast.graphs.precision import training_of
from joulecast.quantities import counted, digits
from joulecast.report.advice.plan import Machine, find_fastest
from joulecast.runs.json_values import json_rows
from joulecast.runs.observations import most_frequent
from joulecast.runs.platforms import gpu_in, same_hardware, simulated_platform
from joulecast.runs.record import NETWORK, read_info
from joulecast.runs.scale import gpus_per_node, hosts_and_gpus
from joulecast.simulate.answer import platform_and_costs
from joulecast.simulate.measured_step import precision_of
from joulecast.simulate.simulate import Assumptions, Simulation, simulate
from joulecast.simulate.strategy import text_of

_USUAL_PRECISION = "bf16"
_NORMAL = ndtri((np.arange(200) + 0.5) / 200)
"""Equally likely values of a standard normal variable, for the work until a target is reached."""


@cache
def _machine(platform: str, network: str, precision: str) -> Machine:
    training = training_of(precision, "adam", False, None)
    graph = network_for(network, training, None)
    found, costs = platform_and_costs(simulated_platform(platform), precision)
    return Machine(platform, found, precision, graph, training, costs)


def simulate_training(
    network: str, platform: str, precision: str, devices: int, batch: int, passes: int = 1
) -> Simulation:
    """The step of the fastest strategy that fits in memory.

    Args:
        batch: samples in one step, of all devices together.
        passes: number of backward passes in a step, whose gradients add up. Each pass has the same number of
            samples. If the batch does not divide, there is one pass.

    Raises:
        JoulecastError: there is no such network or platform, or no strategy fits.
    """
    machine = _machine(platform, network, precision)
    passes = passes if batch % passes == 0 else 1
    step = find_fastest(machine, devices, batch // passes)
    if isinstance(step, str):
        raise JoulecastError(f"{network} on {devices} x {platform}, batch {batch:,}: {step}")
    if passes == 1:
        return step
    each = step.strategy
    strategy = each.model_copy(update={"micro_batches": passes * each.micro_batches})
    assumed = Assumptions(training=machine.training)
    replica = batch // each.replicas
    step = simulate(machine.graph, machine.platform, strategy, replica, machine.costs, assumed)
    if step.out_of_memory:
        raise JoulecastError(
            f"{network} on {devices} x {platform}, batch {batch:,} in {passes} backward passes: no strategy "
            "that was tried fits in memory"
        )
    return step


@dataclass(frozen=True)
class _Known:
    """What the records of a workload say about the simulator: the network whose op graph is simulated, and
    the platform, the precision and the backward passes of a step with which they ran."""

    runs: pd.DataFrame
    """A row for each run. The column ``devices`` has its number of GPUs (or ranks)."""
    network: str
    platform: str
    ran_at: str
    passes: int

    def factor(self, devices: int) -> tuple[float, str]:
        """The time of a step, divided by its simulated time, on the nearest recorded scale; and this
        factor in words."""
        apart = np.abs(np.log2(self.runs["devices"] / devices))
        near = self.runs[(apart == apart.min()) & self.runs["batch"].notna()]
        batch, of = most_frequent(near["batch"]), int(near["devices"].max())
        near = near[(near["batch"] == batch) & (near["devices"] == of)]
        took_s = float((near["total_s"] / near["samples"]).mean()) * batch
        simulated = simulate_training(
            self.network, self.platform, self.ran_at, of, int(batch), self.passes
        )
        factor = took_s / simulated.step_s
        # If a log counts epochs, the factor also contains the samples of an epoch.
        times = f"times {digits(factor)}" if near["work_unit"].iloc[0] == "samples" else "corrected"
        return factor, f"{times}, from {counted(len(near), 'run')} on {of} x {self.platform}"


def _known(runs: pd.DataFrame, asked: ForecastRequest) -> _Known:
    first, per_node = runs.iloc[0], gpus_per_node(runs, asked.gpus_per_node)
    info = read_info(Path(first["folder"]))
    precision = precision_of(info) or asked.precision or _USUAL_PRECISION
    named = [str(first[name]) for name in ("platform", "accelerator") if name in runs]
    named += [name for host in info.hosts for name in host.get("gpus", [])]
    gpu = next(filter(None, map(gpu_in, named)), None)
    # A host of a rack (GB200) is not described alone: NVLink joins it to the other hosts.
    if gpu and per_node and per_node != simulated_platform(gpu).require_cluster().host_devices:
        gpu = f"{gpu}:gpus={per_node}"
    platform = asked.ran_on or gpu or named[0]
    network = asked.graph.get(str(first["network"]), str(first["network"]))
    try:
        network_for(network, training_of(precision, "adam", False, None), None)
    except JoulecastError:
        raise JoulecastError(
            f"the simulator has no network `{network}`; name one that it has with --graph "
            f"{first['network']}=NAME"
        ) from None
    try:
        machine = _machine(platform, network, precision)
    except JoulecastError as error:
        raise JoulecastError(
            f"{error}; --ran-on names the platform of the records for the simulator"
        ) from None
    each = machine.platform.require_cluster().host_devices
    gpus = [hosts_and_gpus(row)[1] for row in runs.to_dict("records")]
    else_are = runs["nodes"] * each if first["kind"] == "imported" else runs["ranks"]
    devices = pd.Series(gpus, runs.index, dtype=float).fillna(else_are)
    passes = info.observed_step.micro_batches if info.observed_step else 1
    return _Known(runs.assign(devices=devices), network, platform, precision, passes)


def _work(
    everything: Evidence, runs: pd.DataFrame, asked: ForecastRequest, batch: float
) -> tuple[float, float, str]:
    """The work of a training, the half width of its logarithm, and where it comes from."""
    first = runs.iloc[0]
    if asked.work is not None:
        return asked.work, 0.0, "requested"
    if not asked.to_target or first["kind"] != "imported":
        return recorded_work(runs)[0], 0.0, recorded_work(runs)[1]
    law = everything.run_times.law(first["network"], first["work_unit"])
    draws = np.log(law.draws(first["submitter"], batch, _NORMAL))
    return float(np.exp(np.median(draws))), Z90 * float(draws.std()), "to the target, by its law"


def _row(
    everything: Evidence, known: _Known, asked: ForecastRequest, devices: int
) -> dict[str, Any]:
    """A forecast for a number of devices of the requested platform."""
    runs, platform = known.runs, str(asked.platform)
    each = float((runs["devices"] / runs["nodes"]).iloc[-1])
    batch = float(asked.batch or usual_batch(runs, round(devices / each), asked.scaling))
    work, spread, work_is = _work(everything, runs, asked, batch)
    factor, said = known.factor(devices)
    precision = asked.precision or known.ran_at
    step = simulate_training(
        known.network, platform, precision, devices, round(batch), known.passes
    )
    time_s = work / batch * step.step_s * factor
    half = math.hypot(judged_widths().of_platforms, spread)
    energy = simulation_energy(step)
    widths = power_widths(energy, step)
    joules = None if energy.power_w is None else energy.power_w * time_s
    down, up = (None, None) if widths is None else (math.hypot(half, width) for width in widths)
    nodes = node_count(step.platform, devices)
    return {
        "workload": runs["workload"].iloc[0],
        "platform": step.platform.name,
        "nodes": nodes,
        "nodes_are": "hosts",
        "hosts": nodes,
        "gpus": devices,
        "batch_size": batch,
        "work": work,
        "work_unit": runs["work_unit"].iloc[0],
        "work_is": work_is,
        "time_s": time_s,
        "time_low_s": time_s * math.exp(-half),
        "time_high_s": time_s * math.exp(half),
        "energy_j": joules,
        "energy_low_j": None if joules is None or down is None else joules * math.exp(-down),
        "energy_high_j": None if joules is None or up is None else joules * math.exp(up),
        "basis": "simulated",
        "runs": 0,
        "runs_with_energy": 0,
        "energy_source": energy.label,
        "supply": energy.supply,
        "why_no_energy": energy.reason or None,
        "extrapolation": (),
        "rests_on": f"{known.network} at {precision} on {devices} x {step.platform.name}, "
        f"{text_of(step.strategy)}: {said}",
        "energy_rests_on": energy.rests_on or None,
    }


def _rows(
    everything: Evidence, runs: pd.DataFrame, asked: ForecastRequest, notes: list[Note]
) -> Iterator[dict[str, Any]]:
    """The forecasts of a workload. The reason why one is missing becomes a note."""
    name, platform = str(runs["workload"].iloc[0]), str(asked.platform)
    why = why_not_forecast(runs, asked, True, asked.to_target)
    if why is not None:
        notes.append(Note(name, why))
        return
    try:
        known = _known(runs, asked)
        if same_hardware(known.platform, platform):
            raise JoulecastError(f"its records are of {platform}; leave out --platform")
        per_node = simulated_platform(platform).require_cluster().host_devices
    except JoulecastError as error:
        notes.append(Note(name, f"{name}: not forecast on {platform}: {error}"))
        return
    counts = asked.gpus or [count * per_node for count in asked.nodes]
    for devices in counts or sorted({int(each) for each in known.runs["devices"]}):
        try:
            yield _row(everything, known, asked, devices)
        except JoulecastError as error:
            notes.append(Note(name, f"{name}: not forecast on {platform}: {error}"))


def forecast_other_platform(
    folders: Sequence[Path], asked: ForecastRequest, prices: Prices = NO_PRICES
) -> dict[str, Any]:
    """Forecast the trainings in some records on a platform on which they did not run.

    Args:
        folders: run records, imported or measured.
        asked: the request. It has a ``platform``.

    Returns:
        The same as :func:`joulecast.energy.forecast.forecast`. The ``basis`` of all rows is ``simulated``.

    Raises:
        JoulecastError: nothing can be forecast. The error gives the reasons.
    """
    # An error about the platform concerns all workloads.
    platform = simulated_platform(str(asked.platform))
    if asked.precision is not None:
        platform_and_costs(platform, asked.precision)
    runs, notes = KnownRuns.of_records(folders), list[Note]()
    files = [file for folder in folders for file in sorted(folder.rglob(NETWORK))]
    captured = {str(read_info(file.parent).spec.network): str(file) for file in files}
    asked = asked.model_copy(update={"graph": captured | asked.graph})
    rows = [
        row
        for everything, _ in fit_groups(runs.clean, runs.allreduce, runs.watts)
        for _, of_workload in everything.training.groupby("workload")
        for row in _rows(everything, of_workload, asked, notes)
    ]
    if not rows:
        raise JoulecastError("; ".join(texts_of(notes)))
    table = pd.DataFrame(rows).reindex(columns=[*COLUMNS, "why_no_energy", "energy_rests_on"])
    parts = metered_parts(runs.trained)
    if parts:
        text = f"the energies are of whole nodes; in the records only the {parts} of the nodes had meters"
        notes.append(Note(None, text))
    judged = judged_widths()
    notes.append(
        Note(
            None,
            f"nothing was run on {asked.platform}: the interval of a time comes from {judged.platforms} "
            "pairs of GPUs on which an MLPerf submitter trained the same network; watts of a node that come "
            "from its GPU's description were judged only on nodes of 8 H100",
        )
    )
    return {
        "forecasts": json_rows(pd.concat([table, cost_columns(table, prices)], axis=1)),
        "prices": prices.as_json(),
        "widths": {},
        "fitted_runs": len(runs.trained),
        "largest_fitted_nodes": int(runs.trained["nodes"].max()),
        "left_out": runs.left_out,
        "first": [],
        "notes": [*runs.notes, *texts_of(notes)],
    }
