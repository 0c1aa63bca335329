"""The summary of a measured training, as lines for the terminal."""

from joulecast.graphs.network_graphs import graph_origin
from joulecast.measure.observer.observation import Result
from joulecast.quantities import amount, counted, digits, is_number, joules, percent, seconds
from joulecast.runs.observations import observe
from joulecast.runs.record import NETWORK

_STAGES = {
    "materials": "t_materials_s",
    "computing": "t_computing_s",
    "waiting for ranks": "t_communicating_wait_s",
    "exchange": "t_communicating_copy_s",
    "update": "t_update_s",
    "other": "t_other_s",
}


def result_lines(result: Result) -> list[str]:
    """Lines about the new record, or why there is none. Empty if another process makes the record."""
    killed = [f"joulecast: {line}" for line in result.of_killed]
    record, folder = result.record, result.folder
    if record is None or folder is None:
        return [f"joulecast: no record: {result.why_not}"] * bool(result.why_not) + killed
    info, row = record.info, observe(record)
    outcome = info.outcome
    lines = [f"joulecast: {folder}"]
    if outcome.steps:
        step_s = row["total_s"] / outcome.steps
        batch = "samples unknown: give --samples-per-step"
        if outcome.work_unit == "samples":
            batch = amount(info.global_batch_size or 0, "samples")
        ranks = counted(info.spec.ranks, "rank")
        lines.append(f"  {counted(outcome.steps, 'step')} of {seconds(step_s)} ({batch}), {ranks}")
        shares = [
            f"{name} {percent(100 * row[column] / step_s)}"
            for name, column in _STAGES.items()
            if is_number(row[column]) and row[column] > 0
        ]
        lines.append(f"  a step is {', '.join(shares)}")
    energy = f"no energy: {row['why_no_energy']}"
    if is_number(row["energy_j"]):
        each, source = f"{digits(row['energy_j'] / row['total_s'])} W", row["energy_source"]
        if outcome.samples and outcome.work_unit == "samples":
            each += f", {joules(row['energy_j'] / outcome.samples)} a sample"
        if source == "measured" and row["energy_covers"] is not None:
            source = f"measured ({row['energy_covers'].replace('+', ', ')})"
        energy = f"{joules(row['energy_j'])} in {seconds(row['total_s'])} ({each}), {source}"
    lines.append(f"  {energy}")
    if (folder / NETWORK).is_file():
        # If a shipped network has the same name, the name means the shipped network.
        is_own = graph_origin(str(info.spec.network)) == "file"
        name = "the training's name" if is_own else folder / NETWORK
        lines.append(f"  network captured: plan, simulate and search know it by {name}")
        if info.observed_step is not None and info.observed_step.recomputes:
            lines.append("  its activations are recomputed: simulate it with `recompute`")
    lines += [f"  {stage} not seen: {why}" for stage, why in info.unseen.items()]
    lines += [f"  {remark}" for remark in info.remarks if not remark.startswith("observed")]
    lines += [f"  left out of forecasts: {why}" for why in info.left_out]
    lines += [f"  disturbed: {why}" for why in info.disturbed]
    return lines + killed
