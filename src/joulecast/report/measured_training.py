"""The summary of a measured training, as lines for the terminal."""

from pathlib import Path
from typing import Any

from joulecast.graphs.network_graphs import graph_origin
from joulecast.measure.observer.observation import Result
from joulecast.quantities import amount, counted, digits, is_number, joules, percent, seconds
from joulecast.runs.observations import observe
from joulecast.runs.record import NETWORK, RunRecord

_STAGES = {
    "materials": "t_materials_s",
    "computing": "t_computing_s",
    "waiting for ranks": "t_communicating_wait_s",
    "exchange": "t_communicating_copy_s",
    "update": "t_update_s",
    "other": "t_other_s",
}


def _source(row: dict[str, Any]) -> str:
    """Source of an energy. If it is measured, also what it covers."""
    covers = row["energy_covers"]
    if row["energy_source"] != "measured" or covers is None:
        return str(row["energy_source"])
    return f"measured ({covers.replace('+', ', ')})"


def _summary(record: RunRecord, folder: Path) -> list[str]:
    """What was measured, in some lines."""
    info, row = record.info, observe(record)
    outcome = info.outcome
    lines = [f"joulecast: {folder}"]
    if outcome.steps:
        step_s = row["total_s"] / outcome.steps
        unit = outcome.work_unit
        batch = "samples unknown: give --samples-per-step"
        if unit == "samples":
            batch = amount(info.global_batch_size or 0, "samples")
        ranks = counted(info.spec.ranks, "rank")
        lines.append(f"  {counted(outcome.steps, 'step')} of {seconds(step_s)} ({batch}), {ranks}")
        shares = [
            f"{name} {percent(100 * row[column] / step_s)}"
            for name, column in _STAGES.items()
            if is_number(row[column]) and row[column] > 0
        ]
        lines.append(f"  a step is {', '.join(shares)}")
    energy = joules(row["energy_j"])
    if is_number(row["energy_j"]):
        watts = row["energy_j"] / row["total_s"]
        each = (
            f", {joules(row['energy_j'] / outcome.samples)} a sample"
            if outcome.samples and unit == "samples"
            else ""
        )
        lines.append(
            f"  {energy} in {seconds(row['total_s'])} ({digits(watts)} W{each}), {_source(row)}"
        )
    else:
        lines.append(f"  no energy: {row['why_no_energy']}")
    if (folder / NETWORK).is_file():
        # The name of a shipped network stays that network's.
        is_own = graph_origin(str(info.spec.network)) == "file"
        name = "the training's name" if is_own else folder / NETWORK
        lines.append(f"  network captured: plan, simulate and search know it by {name}")
        if info.observed_step is not None and info.observed_step.recomputes:
            lines.append("  its activations are recomputed: simulate it with `recompute`")
    lines += [f"  {stage} not seen: {why}" for stage, why in info.unseen.items()]
    lines += [f"  {remark}" for remark in info.remarks if not remark.startswith("observed")]
    lines += [f"  left out of forecasts: {why}" for why in info.left_out]
    lines += [f"  disturbed: {why}" for why in info.disturbed]
    return lines


def result_lines(result: Result) -> list[str]:
    """Lines about the new record, or why there is none. Empty if another process makes the record."""
    lines = [f"joulecast: no record: {result.why_not}"] if result.why_not else []
    if result.record is not None and result.folder is not None:
        lines = _summary(result.record, result.folder)
    return lines + [f"joulecast: {line}" for line in result.of_killed]
