"""Forecasting a campaign: energy and time of node counts that were not run yet.

MC2 is fitted to all records of a few small node counts and asked for larger ones of the same workloads:
the same work, with the batch that the records themselves keep (of all nodes, or of one), or what is asked
for.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.energy.evaluation import campaigns
from joulecast.energy.fitting import KnownRuns
from joulecast.energy.models import EnergyModel, Phased, Staged, mc2_for
from joulecast.energy.plain import plain_rows
from joulecast.energy.prices import NO_PRICES, Prices, cost_columns
from joulecast.energy.request import Scales
from joulecast.errors import JoulecastError
from joulecast.quantities import counted, digits, listed
from joulecast.runs.judging import ANSWER
from joulecast.runs.observations import metered_units, most_frequent
from joulecast.runs.record import read_info
from joulecast.runs.scale import (
    counts,
    gpus_per_node,
    is_observed,
    scale_in_words,
    scales_are,
    unit_of,
)

_SETTING = {
    "workload": "network",
    "platform": "platform",
    "nodes": "hosts",
    "gpus": "gpus",
    "batch_size": "batch",
    "work": "work",
    "work_unit": "work_unit",
    "work_is": "work_is",
}
"""What a forecast names of its setting, and the column of the runs table that has it."""

_AMOUNTS = [name for name in ANSWER if name != "work"]
_SCALE = ("nodes", "ranks_per_host", "accelerators_per_node")
"""What says how many hosts and GPUs a setting takes."""


def _scales_weakly(of_workload: pd.DataFrame) -> bool:
    """Whether the recorded batch grew with the nodes; imported runs divide one batch over them."""
    if of_workload["nodes"].nunique() < 2 or of_workload["batch"].isna().all():
        return bool(of_workload["batch_per_rank"].notna().all())
    if of_workload["batch_per_rank"].notna().all():
        # On how many node counts the most widespread batch was run: of a rank, or of all nodes. Batches that
        # were swept on one node belong to neither.
        of_rank, of_all = (
            of_workload.groupby(key)["nodes"].nunique().max() for key in ("batch_per_rank", "batch")
        )
        return bool(of_rank >= of_all)
    sizes = of_workload.groupby("nodes")["batch"].median()
    return bool(sizes.iloc[-1] > sizes.iloc[0])


def whole_steps(samples: float, batch: float) -> int:
    """Steps of a training: the last one counts in full."""
    return math.ceil(samples / batch - 1e-9)


def as_setting(
    example: Mapping[str, Any], nodes: int, batch: float, samples: float
) -> dict[str, Any]:
    """A setting as a row of observations, by the example of a run with another one.

    Args:
        example: observations of the run.
        batch: of all nodes; NaN where the log of an imported run has none.
        samples: the work, in the run's unit.
    """
    ranks = example["ranks"] * nodes / float(example["nodes"])
    hosts = read_info(Path(example["folder"])).spec.platform.hosts
    steps = whole_steps(samples, batch) if example["kind"] == "training" else 0
    return {
        **example,
        "nodes": nodes,
        "ranks": ranks,
        "batch": batch,
        "batch_per_rank": math.nan if math.isnan(example["batch_per_rank"]) else batch / ranks,
        "samples": samples,
        "steps": steps,
        "metered_units": metered_units(example, nodes, hosts),
    }


def _setting(of_workload: pd.DataFrame, nodes: int, asked: Scales) -> dict[str, Any]:
    """A run on ``nodes`` nodes, by the example of the largest recorded node count."""
    largest = of_workload[of_workload["nodes"] == of_workload["nodes"].max()]
    recorded = most_frequent(largest["batch"])
    usual = largest if math.isnan(recorded) else largest[largest["batch"] == recorded]
    example: dict[str, Any] = usual.iloc[0].to_dict()
    if "ranks_per_host" in example:
        example["ranks_per_host"] = of_workload["ranks_per_host"].max()
    growth = nodes / float(example["nodes"])
    scaling = asked.scaling
    weak = _scales_weakly(of_workload) if scaling == "recorded" else scaling == "weak"
    batch = float(asked.batch or example["batch"] * (growth if weak else 1.0))
    work = float(usual["samples"].mean())
    work_is = "as recorded"
    if asked.to_target:
        work, work_is = math.nan, "to the target"
    elif asked.samples is not None or asked.epochs is not None:
        work, work_is = float(asked.samples or asked.epochs or 0), "asked for"
    elif example["kind"] == "training":
        # Steps are as many on every node count, and do more where the batch is larger.
        work *= batch / float(example["batch"])
    elif batch != recorded and not math.isnan(recorded):
        work_is = "as recorded, though the batch is not"
    per_node = gpus_per_node(of_workload)
    observed = is_observed(of_workload)
    named = {
        "work_unit": example["work_unit"],
        "work_is": work_is,
        "hosts": math.ceil(nodes / per_node) if observed and per_node else nodes,
        "gpus": nodes if observed else nodes * per_node if per_node else math.nan,
    }
    return as_setting(example, nodes, batch, work) | named


def _can_be_asked(of_workload: pd.DataFrame, asked: Scales) -> str | None:
    """Reason why a workload's records cannot be asked for this work; ``None`` if they can."""
    first = of_workload.iloc[0]
    imported = first["kind"] == "imported"
    unit = first["work_unit"]
    if asked.batch is not None and of_workload["batch"].isna().all():
        return "its logs do not show their batch"
    if asked.to_target and not imported:
        return "its runs did not train to a target"
    if asked.samples is not None and unit != "samples":
        way_out = "; measure it with --samples-per-step" if unit == "steps" else ""
        return f"its work is counted in {unit}, not in samples{way_out}"
    if asked.epochs is not None and unit != "epochs":
        return f"its work is counted in {unit}, not in epochs"
    return None


def _is_too_small(setting: Mapping[str, Any]) -> bool:
    """Whether a rank of an own training would have less than one sample of a step; how others divide the
    network over their devices is not known."""
    return bool(setting["kind"] == "training" and setting["batch"] < setting["ranks"])


def _on_batches(
    of_workload: pd.DataFrame,
    small: Sequence[Mapping[str, Any]],
    left: Sequence[Mapping[str, Any]],
    asked: Scales,
) -> list[str]:
    """What a reader must know of the batches of some settings: the ``small`` ones cannot be; of those that
    are ``left``, whether the largest scale keeps the batch of the runs, or leaves less than one sample to a
    GPU."""
    workload, notes = of_workload["workload"].iloc[0], []
    if small:
        scales = listed([scale_in_words(each["nodes"], each["nodes_are"]) for each in small])
        notes.append(
            f"{workload} is not forecast on {scales}: batch {small[0]['batch']:g} leaves less than one "
            "sample to a rank; --batch asks for another"
        )
    if not left:
        return notes
    largest = max(left, key=lambda setting: setting["nodes"])
    unit = unit_of(largest["nodes_are"])
    devices = largest["ranks"]
    scale = scale_in_words(largest["nodes"], largest["nodes_are"])
    if unit == "node" and pd.notna(largest["gpus"]):
        unit, devices = "GPU", largest["gpus"]
        scale += f" ({counted(int(devices), unit)})"
    each = largest["batch"] / devices
    is_kept = (
        asked.batch is None
        and asked.scaling == "recorded"
        and largest["nodes"] > of_workload["nodes"].max()
        and not _scales_weakly(of_workload)
    )
    if is_kept or each < 1:
        verb, less = "keeps the recorded" if is_kept else "has", ", less than one" * (each < 1)
        notes.append(
            f"{workload} {verb} batch of {digits(largest['batch'])} on {scale}: {digits(each)} samples a "
            f"{unit}{less}; --batch asks for another"
        )
    return notes


def _as_run(of_workload: pd.DataFrame, setting: Mapping[str, Any]) -> dict[str, float]:
    """Mean time and energy of the runs of exactly a setting, for its work; NaN where it was not run."""
    same = of_workload["nodes"] == setting["nodes"]
    if pd.notna(setting["batch"]):
        same &= of_workload["batch"] == setting["batch"]
    own = of_workload[same]
    # What was measured pays whole steps as the forecast does.
    trained = setting["kind"] == "training"
    share = setting["steps"] / own["steps"] if trained else setting["work"] / own["samples"]
    return {
        "measured_time_s": float((own["total_s"] * share).mean()),
        "measured_energy_j": float((own["energy_j"] * share).mean()),
    }


def _law_in_words(model: Phased, example: pd.Series) -> str:
    """What the work to the target rests on."""
    points = model.mc2.times.law(example["network"], example["work_unit"]).points
    batches, submitters = points["batch"].nunique(), points["submitter"].nunique()
    if math.isnan(example["batch"]):
        return "to the target, as recorded: the batch is not known"
    if batches < 2:
        return "to the target, by a guess: no other batch is known"
    return f"to the target, by the law of {batches} batches of {counted(submitters, 'submitter')}"


def _scales(fitted: pd.DataFrame) -> str:
    """The node counts of some runs, in words."""
    listed = ", ".join(f"{count:g}" for count in sorted(fitted["nodes"].unique()))
    return f"{listed} {scales_are(fitted['nodes_are'])}"


def forecast_table(
    runs: KnownRuns, asked: Scales, prices: Prices = NO_PRICES
) -> tuple[pd.DataFrame, list[str]]:
    """A row a workload, platform and node count: the columns of :func:`forecast`, unrounded; and notes on
    workloads: why one was left out, or what its forecast does not know.

    Raises:
        JoulecastError: what is asked cannot be, or not of any workload.
    """
    parts, notes = [], []
    for everything, imported in campaigns(runs.clean, runs.allreduce, runs.watts):
        model: EnergyModel = mc2_for(imported).fit(everything)
        fitted = everything.training
        rests_on = f"MC2, fitted to {len(fitted)} runs on {_scales(fitted)}"
        for workload, of_workload in fitted.groupby("workload"):
            why_not = _can_be_asked(of_workload, asked)
            if why_not:
                notes.append(f"{workload} is not forecast: {why_not}")
                continue
            try:
                wanted = counts(of_workload, asked.nodes, asked.gpus)
            except JoulecastError as error:
                notes.append(f"{workload} is not forecast: {error}")
                continue
            settings = [_setting(of_workload, count, asked) for count in wanted]
            small = [setting for setting in settings if _is_too_small(setting)]
            settings = [setting for setting in settings if not _is_too_small(setting)]
            notes += _on_batches(of_workload, small, settings, asked)
            if not settings:
                continue
            rows = pd.DataFrame(settings)
            answer = model.predict(rows, "predicted")
            predicted = rows.drop(columns=[*ANSWER], errors="ignore").join(answer)
            # The work that was asked for, or that the law predicts.
            predicted["work"] = predicted["work"].fillna(predicted["samples"])
            if asked.to_target and isinstance(model, Phased):
                predicted["work_is"] = _law_in_words(model, of_workload.iloc[0])
            if isinstance(model, Staged) and not model.knows_exchange and (rows["ranks"] > 1).any():
                notes.append(
                    f"{workload}: no run exchanged gradients, so the forecasts have no exchange; the upper "
                    "ends allow for one over a link of 1 GB/s. Measure two ranks or more"
                )
            ran = [_as_run(of_workload, setting) for setting in predicted.to_dict("records")]
            setting = {name: predicted[column] for name, column in _SETTING.items()}
            forecasts = (
                pd.DataFrame(setting)
                .join(predicted[_AMOUNTS])
                .assign(
                    fitted_on=predicted["energy_source"],
                    nodes_are=predicted["nodes_are"],
                    rests_on=rests_on,
                )
            )
            # Prices are of hosts and GPUs, whichever of them the records count.
            scale = predicted[[c for c in _SCALE if c in predicted]]
            paid = cost_columns(forecasts.drop(columns="nodes").join(scale), prices, "fitted_on")
            parts.append(pd.concat([forecasts, paid, pd.DataFrame(ran)], axis=1))
    if notes and not parts:
        raise JoulecastError(f"nothing can be forecast: {'; '.join(notes)}")
    table = (
        pd.concat(parts, ignore_index=True)
        if parts
        else pd.DataFrame(columns=[*_SETTING, *_AMOUNTS])
    )
    return table, notes


def forecast(folders: Sequence[Path], asked: Scales, prices: Prices = NO_PRICES) -> dict[str, Any]:
    """Forecast all workloads in the records.

    Args:
        folders: run records, imported or measured.

    Returns:
        ``forecasts`` (a list of settings with ``batch_size``, ``work``, its unit and where it is from
        (``work_is``), ``time_s``, ``energy_j`` and their 90 % intervals, means of the
        runs of that very setting (``measured_``), what the forecasts rest on, and what the nodes are;
        energies are ``None`` where the records have none), with the columns of
        :func:`~joulecast.energy.prices.cost_columns`; ``prices``, ``fitted_runs``,
        ``largest_fitted_nodes``, ``left_out``, ``notes``.

    Raises:
        JoulecastError: nothing is left to fit, or what is asked cannot be.
    """
    runs = KnownRuns.of_records(folders)
    table, notes = forecast_table(runs, asked, prices)
    return {
        "forecasts": plain_rows(table),
        "prices": prices.as_json(),
        "fitted_runs": len(runs.trained),
        "largest_fitted_nodes": int(runs.trained["nodes"].max()),
        "left_out": runs.left_out,
        "notes": [*runs.notes, *notes],
    }
