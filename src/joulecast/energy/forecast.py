"""Forecasting a campaign: energy and time of node counts that were not run yet.

MC2 is fitted to all records of a few small node counts. Then it predicts larger counts of the same
workloads. By default, the work is the work of the runs on the largest recorded scale. If all records have the
same batch of all nodes, the forecast keeps this batch. If they have the same batch of each node, it keeps
that one. Forecasts and advice use the same functions to find out which settings the records can answer, how
far a setting lies outside of them, and what the model predicts for it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from joulecast.energy.campaign_fit import KnownRuns
from joulecast.energy.intervals import (
    judged_widths,
    least_half_width,
    one_count_notes,
    outside_of,
    spreads_on,
    widen_intervals,
)
from joulecast.energy.measured_settings import notes_on, put_in_measured
from joulecast.energy.models import EnergyModel, MC2OnPhases, MC2OnStages, fit_groups, mc2_for
from joulecast.energy.prices import NO_PRICES, Prices, cost_columns
from joulecast.energy.request import Scales, Work
from joulecast.energy.whole_job import Term, in_words, job_terms, start_up
from joulecast.errors import JoulecastError
from joulecast.quantities import consumptions, counted, digits, listed, times
from joulecast.runs.json_values import json_rows
from joulecast.runs.judging import ANSWER
from joulecast.runs.observations import metered_units, most_frequent
from joulecast.runs.record import RunInfo, read_info
from joulecast.runs.request import Scale
from joulecast.runs.scale import (
    counts,
    gpus_per_node,
    hosts_and_gpus,
    is_observed,
    scale_in_words,
    scales_are,
    unit_of,
    usual_counts,
)

_SETTING = {
    "workload": "network",
    "platform": "platform",
    "nodes": "nodes",
    "nodes_are": "nodes_are",
    "hosts": "hosts",
    "gpus": "gpus",
    "batch_size": "batch",
    "work": "work",
    "work_unit": "work_unit",
    "work_is": "work_is",
    "supply": "supply",
    "conversion_eff": "conversion_eff",
}
"""The columns of a forecast that describe its setting, and the columns of the runs table from which they
come."""


class Note(NamedTuple):
    """A note on the forecast of a workload, or of all workloads if it names none. If it is ``first``, it
    should be read first."""

    workload: str | None
    text: str
    first: bool = False


def texts_of(notes: Iterable[Note]) -> list[str]:
    """The texts of notes. If a note is true for several workloads, it appears once for all of them."""
    workloads: dict[str, list[str]] = {}
    for workload, text, _ in notes:
        said = text.removeprefix(f"{workload}: ")
        workloads.setdefault(said, []).extend([str(workload)] if said != text else [])
    return [f"{listed(named)}: {said}" if named else said for said, named in workloads.items()]


_AMOUNTS = [name for name in ANSWER if name != "work"]
_BASIS = [
    *("basis", "runs", "runs_with_energy", "width_is_assumed"),
    *("fitted_time_s", "fitted_energy_j", "energy_source", "energy_covers"),
]

COLUMNS = [*_SETTING, *_AMOUNTS, *_BASIS, "extrapolation", "rests_on"]
"""The columns of a forecast, without those of its costs."""

_PER_WORK = {"samples": 1e6, "epochs": 1.0, "steps": 1e3}
"""The work for which costs are given if no amount is requested, by the unit of work. It has so many samples
that rounding to whole steps hardly changes the costs."""


def work_of(unit: str) -> float:
    """Amount of work, in its unit, for which costs are given."""
    return _PER_WORK.get(unit, 1.0)


def whole_steps(samples: float, batch: float) -> int:
    """Number of steps of a training. The last step counts in full."""
    return math.ceil(samples / batch - 1e-9)


def why_not_forecast(
    of_workload: pd.DataFrame, asked: Work, has_batch: bool, to_target: bool = False
) -> str | None:
    """Reason why the records of a workload cannot answer this question; ``None`` if they can.

    Args:
        has_batch: whether a batch is requested.
        to_target: whether the work is given as the quality to reach.
    """
    unit = of_workload["work_unit"].iloc[0]
    counts_samples = "; measure it with --samples-per-step" if unit == "steps" else ""
    why = None
    if has_batch and of_workload["batch"].isna().all():
        why = "its logs do not show their batch"
    elif has_batch and unit == "steps":
        why = f"its batch is not known{counts_samples}"
    elif to_target and not any(
        read_info(Path(folder)).outcome.reached_target for folder in of_workload["folder"]
    ):
        why = "its runs did not train to a target, or their logs do not say it"
    elif asked.samples is not None and unit != "samples":
        way_out = "; ask with --epochs" if unit == "epochs" else counts_samples
        why = f"its work is counted in {unit}, not in samples{way_out}"
    elif asked.epochs is not None and unit != "epochs":
        why = f"its work is counted in {unit}, not in epochs"
    return why and f"{of_workload['workload'].iloc[0]} is not forecast: {why}"


def _are_all_in_use(run: Mapping[str, Any], info: RunInfo) -> bool:
    """Whether the meters of a run covered GPUs alone, and all of these GPUs trained."""
    gpus = [meter for meter in info.meters if meter.available and meter.covers == "gpu"]
    own = info.spec.training if info.spec.observed is None else None
    is_on_cpus = own is not None and own.device == "cpu"
    return not is_on_cpus and run.get("energy_covers") == "gpu" and len(gpus) == run["ranks"]


def setting_of(
    of_workload: pd.DataFrame, nodes: int, batch: float, work: float, per_node: int | None = None
) -> dict[str, Any]:
    """A setting as a row of observations. What the arguments do not say is taken from a run on the same
    number of nodes, or else on the most nodes. A run with a known energy is preferred.

    Args:
        batch: batch of all nodes; NaN if the log of an imported run has none.
        work: amount of work, in the unit of the runs.
        per_node: number of GPUs of a node; by default as in the records.
    """
    metered = of_workload[of_workload["energy_j"].notna()]
    runs = metered if len(metered) else of_workload
    near = runs[runs["nodes"] == (nodes if (runs["nodes"] == nodes).any() else runs["nodes"].max())]
    example: dict[str, Any] = near.iloc[-1].to_dict()
    ranks = example["ranks"] * nodes / float(example["nodes"])
    column = "ranks_per_host" if is_observed(of_workload) else "accelerators_per_node"
    example[column] = gpus_per_node(of_workload, per_node)
    # The batch of an observed run is a rounded mean.
    unrounded = batch * example["samples"] / max(1, example["steps"]) / (example["batch"] or 1)
    info = read_info(Path(example["folder"]))
    units = metered_units(example, nodes, info.spec.platform.hosts)
    if _are_all_in_use(example, info):
        # More GPUs draw more power, even if they are in one host.
        units = max(units, example["metered_units"] * nodes / float(example["nodes"]))
    hosts, gpus = hosts_and_gpus(example | {"nodes": nodes})
    return {
        **example,
        "nodes": nodes,
        "ranks": ranks,
        "batch": batch,
        "batch_per_rank": math.nan if math.isnan(example["batch_per_rank"]) else batch / ranks,
        "samples": work,
        "steps": whole_steps(work, unrounded) if example["kind"] == "training" else 0,
        "metered_units": units,
        "hosts": hosts,
        "gpus": gpus,
    }


def _why_not_known(of_workload: pd.DataFrame, setting: Mapping[str, Any]) -> str | None:
    """Reason why the runs say nothing about a setting; ``None`` if they do. It is always ``None`` for
    imported runs, because it is not known how others divide a network over their devices."""
    if setting["kind"] == "imported":
        return None
    in_steps = setting["work_unit"] == "steps"
    if setting["batch"] < setting["ranks"] and not in_steps:
        return f"batch {setting['batch']:g} leaves less than one sample to a rank; --batch sets another"
    seen = set(of_workload["batch_per_rank"])
    if len(seen) > 1 or setting["batch_per_rank"] in seen:
        return None
    if in_steps:
        return (
            "all runs have one count of ranks, and the samples of a step are not known; measure another "
            "count, or with --samples-per-step"
        )
    return (
        f"all runs have {seen.pop():g} samples a rank, so how time grows with the batch is not known; "
        "measure a second batch: change it in the training (calibration.batch_sizes in a campaign)"
    )


def asked_counts(of_workload: pd.DataFrame, asked: Scale, knows_exchange: bool) -> list[int]:
    """Counts of nodes (or of GPUs, if the records count these) to forecast.

    If the request names no counts, the usual counts are taken. If nothing shows what an exchange costs, the
    counts that were run are taken instead.

    Raises:
        JoulecastError: the GPUs do not fill whole nodes, or the number of GPUs of a node is not known, or
            differs from the number in the records.
    """
    if asked.nodes or asked.gpus:
        return counts(of_workload, asked)
    # This refuses a number that contradicts the records, even if the user asks for no counts.
    gpus_per_node(of_workload, asked.gpus_per_node)
    ran = {int(count) for count in of_workload["nodes"]}
    return usual_counts(ran) if knows_exchange else sorted(ran)


def answer_settings(
    model: EnergyModel,
    fitted: pd.DataFrame,
    of_workload: pd.DataFrame,
    settings: Sequence[dict[str, Any]],
) -> tuple[pd.DataFrame, list[tuple[dict[str, Any], str]]]:
    """What is known about settings: if a setting was run, the mean of its runs; otherwise what a model
    predicts.

    Args:
        model: the model, which was fitted to ``fitted``.
        of_workload: the rows of ``fitted`` for the workload of the settings.

    Returns:
        Two things. The first is a row for each setting that can be answered. It has the columns of
        :data:`joulecast.runs.judging.ANSWER` and of
        :func:`joulecast.energy.measured_settings.put_in_measured`, and also ``extrapolation`` (the ways in
        which the setting lies outside of the runs; they widen its intervals), ``noted`` (the ways that a note
        of the forecast names), ``times_beyond`` and ``beyond_one_count``. The second is the settings that
        cannot be answered, with the reasons.
    """
    whys = [_why_not_known(of_workload, setting) for setting in settings]
    pairs = list(zip(settings, whys, strict=True))
    refused = [(setting, why) for setting, why in pairs if why is not None]
    rows = pd.DataFrame([setting for setting, why in pairs if why is None])
    if rows.empty:
        return rows, refused
    knows_exchange = model.knows_exchange if isinstance(model, MC2OnStages) else True
    outside = [outside_of(of_workload, row, knows_exchange) for row in rows.to_dict("records")]
    widens = pd.Series([each.widens for each in outside], index=rows.index)
    spreads = spreads_on(fitted, of_workload)
    at_least = {name: least_half_width(spread, of_workload) for name, spread in spreads.items()}
    answer = widen_intervals(model.predict(rows, "predicted"), widens, at_least)
    rows = rows.drop(columns=[*ANSWER], errors="ignore").join(answer)
    # The work that was requested, or that the law predicts.
    rows["work"] = rows["work"].fillna(rows["samples"])
    rows = put_in_measured(fitted, of_workload, rows)
    was_run = rows["basis"] == "measured"
    marks = {
        "extrapolation": [
            () if ran else each.all for each, ran in zip(outside, was_run, strict=True)
        ],
        "noted": [() if ran else each.noted for each, ran in zip(outside, was_run, strict=True)],
        "times_beyond": [each.times_beyond for each in outside],
        "beyond_one_count": [each.beyond_one_count for each in outside],
    }
    return rows.assign(**marks), refused


def _scales_weakly(of_workload: pd.DataFrame) -> bool:
    """Whether the recorded batch grew with the nodes. If only one node count was run, imported runs are
    assumed to divide one batch over their nodes, and other runs to have the same batch of each rank. It is
    false if steps are counted, because the batch is then not known."""
    if of_workload["work_unit"].iloc[0] == "steps":
        return False
    if of_workload["nodes"].nunique() < 2 or of_workload["batch"].isna().all():
        return bool(of_workload["batch_per_rank"].notna().all())
    if of_workload["batch_per_rank"].notna().all():
        # The largest number of node counts on which one batch of a rank was run, and the same for one batch
        # of all nodes. A sweep over batches on one node changes neither.
        of_rank, of_all = (
            of_workload.groupby(key)["nodes"].nunique().max() for key in ("batch_per_rank", "batch")
        )
        return bool(of_rank >= of_all)
    sizes = of_workload.groupby("nodes")["batch"].median()
    return bool(sizes.iloc[-1] > sizes.iloc[0])


def _usual(of_workload: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """The runs on the most nodes with their most frequent batch, and that batch (NaN if none is known)."""
    largest = of_workload[of_workload["nodes"] == of_workload["nodes"].max()]
    recorded = most_frequent(largest["batch"])
    return largest if math.isnan(recorded) else largest[largest["batch"] == recorded], recorded


def recorded_work(of_workload: pd.DataFrame) -> tuple[float, str]:
    """The work of the runs on the most nodes, and words that say where it comes from."""
    usual, _ = _usual(of_workload)
    one = usual.iloc[0]
    mean = " (mean)" if usual["samples"].nunique() > 1 else ""
    scale = scale_in_words(one["nodes"], one["nodes_are"])
    return float(usual["samples"].mean()), f"as recorded on {scale}{mean}"


def usual_batch(of_workload: pd.DataFrame, nodes: int, scaling: str = "recorded") -> float:
    """Batch of all nodes if none is requested; NaN if none is known.

    Args:
        scaling: as in :class:`joulecast.energy.request.Scales`.
    """
    usual, recorded = _usual(of_workload)
    weak = scaling == "weak" and of_workload["work_unit"].iloc[0] != "steps"
    if scaling == "recorded":
        weak = _scales_weakly(of_workload)
    return recorded * (nodes / float(usual["nodes"].iloc[0]) if weak else 1.0)


def _settings(
    of_workload: pd.DataFrame, scales: Sequence[int], asked: Scales
) -> list[dict[str, Any]]:
    """A row for each scale that is requested, all with the same amount of work.

    By default, the work is that of the largest recorded scale.
    """
    usual, recorded = _usual(of_workload)
    one = usual.iloc[0]
    as_recorded = asked.work is None and not asked.to_target
    if asked.to_target:
        work, work_is = math.nan, "to the target"
    elif asked.work is not None:
        work, work_is = asked.work, "requested"
    else:
        work, work_is = recorded_work(of_workload)
    settings = []
    for nodes in scales:
        batch = float(asked.batch or usual_batch(of_workload, nodes, asked.scaling))
        other = one["kind"] == "imported" and batch != recorded and not math.isnan(recorded)
        but = "; the batch is another one" if other and as_recorded else ""
        settings.append(
            setting_of(of_workload, nodes, batch, work, asked.gpus_per_node)
            | {"work_is": f"{work_is}{but}"}
        )
    return settings


def _on_scales(
    workload: str, said: str, settings: Sequence[tuple[Mapping[str, Any], str]]
) -> list[str]:
    """A note for each thing that a reader should know about some settings, with the scales for which it
    is true."""
    scales: dict[str, list[str]] = {}
    for setting, text in settings:
        scale = scale_in_words(setting["nodes"], setting["nodes_are"])
        scales.setdefault(text, []).append(scale)
    return [f"{workload}{said} on {listed(on)}: {text}" for text, on in scales.items()]


def outside_notes(predicted: pd.DataFrame) -> list[str]:
    """Notes that name the ways in which the settings of a workload lie outside of its runs."""
    rows = predicted.to_dict("records")
    noted = [(row, text) for row in rows for text in row["noted"]]
    return _on_scales(str(rows[0]["workload"]), "", noted)


def _on_kept_batch(
    model: EnergyModel,
    of_workload: pd.DataFrame,
    rows: pd.DataFrame,
    asked: Scales,
    others: pd.DataFrame,
) -> list[str]:
    """A note if the largest scale keeps the batch of smaller scales. It compares the time and energy with
    this batch to those with the batch that other submitters use."""
    largest = rows.loc[rows["nodes"].idxmax()]
    is_kept = asked.batch is None and asked.scaling == "recorded"
    is_larger = largest["nodes"] > of_workload["nodes"].max()
    has_batch = largest["work_unit"] != "steps" and pd.notna(largest["batch"])
    if not is_kept or not is_larger or not has_batch or _scales_weakly(of_workload):
        return []
    unit = unit_of(largest["nodes_are"])
    devices = largest["ranks"]
    scale = scale_in_words(largest["nodes"], largest["nodes_are"])
    if unit == "node" and pd.notna(largest["gpus"]):
        unit, devices = "GPU", largest["gpus"]
        scale += f" ({counted(int(devices), unit)})"
    kept = (
        f"{largest['workload']} keeps the recorded batch of {digits(largest['batch'])} on {scale}: "
        f"{digits(largest['batch'] / devices)} samples a {unit}"
    )
    usual = _batch_of_others(others, largest)
    has_target = why_not_forecast(of_workload, asked, True, to_target=True) is None
    if usual <= largest["batch"] or not has_target:
        return [f"{kept}; --batch sets another"]
    row = setting_of(of_workload, int(largest["nodes"]), usual, math.nan, asked.gpus_per_node)
    answer = model.predict(pd.DataFrame([row]), "predicted").iloc[0]
    took, took_kept = times(answer["time_s"], largest["time_s"])
    joules, joules_kept = consumptions(answer["energy_j"], largest["energy_j"])
    return [
        f"{kept}. This takes {took_kept} and {joules_kept}. Others on about as many nodes train with a "
        f"batch of {digits(usual)}. With this batch, a training to the target quality is forecast to take "
        f"{took} and {joules} (--batch {usual} --target)"
    ]


def _batch_of_others(others: pd.DataFrame, setting: pd.Series) -> int:
    """The most frequent batch of other submitters on the node count nearest to that of a setting; 0 if
    none is known."""
    if others.empty:
        return 0
    known = others[(others["network"] == setting["network"]) & others["batch"].notna()]
    if known.empty:
        return 0
    apart = np.abs(np.log(known["nodes"] / setting["nodes"]))
    return int(most_frequent(known.loc[apart == apart.min(), "batch"]))


def _law_in_words(model: MC2OnPhases, example: pd.Series) -> str:
    """Words that say where the predicted work to the target comes from."""
    points = model.mc2.times.law(example["network"], example["work_unit"]).points
    batches, submitters = points["batch"].nunique(), points["submitter"].nunique()
    if math.isnan(example["batch"]):
        return "to the target, as recorded: the batch is not known"
    if batches < 2:
        return "to the target, by a guess: no other batch is known"
    return f"to the target, fitted to {batches} batch sizes of {counted(submitters, 'submitter')}"


def _whole_jobs(
    of_workload: pd.DataFrame, forecasts: pd.DataFrame, checkpoint_s: float | None
) -> list[list[Term]]:
    """For each forecast: the terms that the whole job adds to it. If the energy or the hosts of the forecast
    are not known, there are none."""
    # The clock of an imported run begins with its log, that of a measured one with the training.
    is_imported = of_workload["kind"] == "imported"
    started_s = of_workload["folder"].map(lambda folder: read_info(Path(folder)).outcome.start_s)
    started_s = started_s.where(is_imported, 0.0)
    idle_w = of_workload["idle_w"].mean() if "idle_w" in of_workload else math.nan
    return [
        job_terms(
            row,
            start_up(of_workload, started_s, row["nodes"]),
            None if math.isnan(idle_w) else float(idle_w),
            checkpoint_s,
        )
        if pd.notna(row["energy_j"]) and pd.notna(row["hosts"])
        else []
        for row in forecasts.to_dict("records")
    ]


def _scales(fitted: pd.DataFrame) -> str:
    """The node counts of some runs, in words."""
    listed = ", ".join(f"{count:g}" for count in sorted(fitted["nodes"].unique()))
    units = scales_are(fitted["nodes_are"])
    return f"{listed} {units.removesuffix('s') if listed == '1' else units}"


def _rescaled(forecasts: pd.DataFrame, widths: Mapping[str, float]) -> pd.DataFrame:
    """Forecasts whose intervals are wider or narrower by the factors in ``widths`` (in logarithms). Settings
    that were run keep their intervals."""
    columns = {}
    for quantity, factor in widths.items():
        name = {"time": "time{}_s", "energy": "energy{}_j"}[quantity]
        value = forecasts[name.format("")].astype(float)
        for end in (name.format("_low"), name.format("_high")):
            scaled = value * (forecasts[end].astype(float) / value) ** factor
            columns[end] = forecasts[end].where(forecasts["basis"] == "measured", scaled)
    return forecasts.assign(**columns)


def _widths_in_words(widths: Mapping[str, float]) -> list[str]:
    return [
        f"the intervals of {quantity} are {digits(factor)} times as wide as the model's, because of the "
        "errors of the forecasts that were kept"
        for quantity, factor in widths.items()
    ]


def forecast_table(
    runs: KnownRuns,
    asked: Scales,
    prices: Prices = NO_PRICES,
    widths: Mapping[str, float] = MappingProxyType({}),
) -> tuple[pd.DataFrame, list[Note]]:
    """A table with a row for each workload, platform and node count: the columns of :func:`forecast`,
    unrounded. Also notes: why a workload was left out, or what its forecast does not know.

    Raises:
        JoulecastError: the question is impossible, or no workload can answer it.
    """
    parts, notes = [], list[Note]()
    for everything, imported in fit_groups(runs.clean, runs.allreduce, runs.watts):
        model: EnergyModel = mc2_for(imported).fit(everything)
        fitted = everything.training
        beyond = False
        rests_on = f"MC2, fitted to {counted(len(fitted), 'run')} on {_scales(fitted)}"
        if imported:
            judged = judged_widths()
            rests_on += (
                f"; intervals judged on {judged.times} times and {judged.energies} energies of recorded "
                "settings that no fit had seen"
            )
        for workload, of_workload in fitted.groupby("workload"):
            about = partial(Note, str(workload))
            why_not = why_not_forecast(of_workload, asked, asked.batch is not None, asked.to_target)
            if why_not:
                notes.append(about(why_not))
                continue
            try:
                wanted = asked_counts(of_workload, asked, imported or everything.shows_exchange)
            except JoulecastError as error:
                notes.append(about(f"{workload} is not forecast: {error}"))
                continue
            settings = _settings(of_workload, wanted, asked)
            predicted, refused = answer_settings(model, fitted, of_workload, settings)
            notes += map(about, _on_scales(workload, " is not forecast", refused))
            if predicted.empty:
                continue
            kept = _on_kept_batch(model, of_workload, predicted, asked, everything.times)
            notes += [about(text, first=True) for text in kept]
            beyond |= not predicted["nodes"].isin(fitted["nodes"]).all()
            if asked.to_target and isinstance(model, MC2OnPhases):
                predicted["work_is"] = _law_in_words(model, of_workload.iloc[0])
            notes += map(about, outside_notes(predicted))
            notes += map(about, notes_on(of_workload, predicted, model.remarks, everything.times))
            setting = {name: predicted.get(column) for name, column in _SETTING.items()}
            # If steps are counted, the samples of a step are not known.
            setting["batch_size"] = predicted["batch"].mask(predicted["work_unit"] == "steps")
            forecasts = (
                pd.DataFrame(setting)
                .join(predicted[[*_AMOUNTS, *_BASIS, "extrapolation"]])
                .assign(
                    rests_on=[
                        f"{counted(row['runs'], 'run')} of this setting"
                        if row["runs"]
                        else rests_on
                        for row in predicted.to_dict("records")
                    ]
                )
            )
            forecasts = _rescaled(forecasts, widths)
            if asked.whole_job:
                jobs = _whole_jobs(of_workload, forecasts, asked.checkpoint_s)
                forecasts["whole_job"] = [[term._asdict() for term in terms] for terms in jobs]
                notes += [
                    about(f"{workload}: {in_words(row, terms)}")
                    for row, terms in zip(forecasts.to_dict("records"), jobs, strict=True)
                    if terms
                ]
            paid = cost_columns(forecasts, prices, "energy_source")
            parts.append(pd.concat([forecasts, paid], axis=1))
        notes += [Note(None, text) for text in one_count_notes(fitted, imported) if beyond]
    if not parts:
        raise JoulecastError("; ".join(note.text for note in notes) or "nothing can be forecast")
    return pd.concat(parts, ignore_index=True), notes


def forecast(
    folders: Sequence[Path],
    asked: Scales,
    prices: Prices = NO_PRICES,
    widths: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Any]:
    """Forecast all workloads in the records.

    Args:
        folders: run records, imported or measured.
        widths: factors by which the intervals of ``time`` and ``energy`` become wider than the model's.
            :func:`joulecast.energy.ledger.widths_by_ledger` computes them.

    Returns:
        ``forecasts`` is a list of settings with these keys:

        * ``batch_size``, ``work``, its unit, and where it comes from (``work_is``); ``nodes``
          (``nodes_are`` says what they count), and the ``hosts`` and ``gpus`` in use;
        * ``time_s`` and ``energy_j`` with 90 % intervals. If the setting was run, they are means of its
          ``runs`` (``basis`` is ``measured``); otherwise they are MC2's (``fitted``). ``fitted_time_s``
          and ``fitted_energy_j`` are MC2's for all settings. Energies are ``None`` if the records have
          none;
        * ``width_is_assumed``: no repeats show how runs differ;
        * ``supply``: whether meters read before (``AC``) or behind (``DC``) the power supplies. If it is
          ``DC``, kWh, money and CO2 also contain the losses of the power supplies, by their efficiency
          ``conversion_eff``;
        * ``extrapolation``: the ways in which a setting lies outside of the runs; and ``rests_on``: the data
          behind it;
        * the columns of :func:`~joulecast.energy.prices.cost_columns`;
        * if the whole job is requested, the terms that it adds (``whole_job``: ``name``, ``time_s``,
          ``energy_j``, ``source``).

        Further keys are ``prices``; ``widths``, the factors by which intervals are wider than the model's;
        ``fitted_runs``, ``largest_fitted_nodes``, ``left_out`` and ``notes``. ``first`` has the notes that
        should be read first. If the batch stays as it was in the runs although the forecast has more nodes,
        such a note says how long the training would take with the larger batch of other submitters.

    Raises:
        JoulecastError: nothing is left to fit, or the question is impossible.
    """
    runs = KnownRuns.of_records(folders)
    table, notes = forecast_table(runs, asked, prices, widths)
    return {
        "forecasts": json_rows(table),
        "prices": prices.as_json(),
        "widths": dict(widths),
        "fitted_runs": len(runs.trained),
        "largest_fitted_nodes": int(runs.trained["nodes"].max()),
        "left_out": runs.left_out,
        "first": texts_of(note for note in notes if note.first),
        "notes": [
            *runs.notes,
            *texts_of(note for note in notes if not note.first),
            *_widths_in_words(widths),
        ],
    }
