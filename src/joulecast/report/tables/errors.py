"""Errors of predictions, as tables and as sentences: errors of time and energy, their summary, and how much
better MC2 is than its rivals. Also the table of scaling."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.energy.campaign_fit import CampaignFit, disturbance_notes
from joulecast.energy.splits import USUAL, usual_time
from joulecast.quantities import counted, is_number, percent
from joulecast.report.results_folder import NothingToShow
from joulecast.report.tables.output import write_table
from joulecast.report.tables.published import PublishedErrors
from joulecast.runs.judging import (
    MEASURED,
    OF_ENERGY,
    OURS,
    SETTING,
    best_rival,
    by_setting,
    compare,
    run_to_run_cv,
    summarise,
)
from joulecast.runs.left_out import used
from joulecast.runs.observations import TIMED, is_training

ESTIMATE_NOTE = (
    "**Energies whose source is `estimated`** come from a formula over utilisation, not from a meter. "
    "Differences from them are no errors of a model, so `error_percent` is empty."
)
EMULATED_NOTE = (
    "**Emulated** nodes are ranks of one machine that are slowed down to one speed. Their times are "
    "measured, but say nothing about the times of a real cluster."
)
WORKLOAD_NOTE = (
    "In `leave-one-workload-out`, every model knows a workload's runs on its smallest node count (its "
    "calibration). A workload with a single node count is predicted from the other workloads alone. A model "
    "that cannot do this has fewer settings."
)
INFORMATION_NOTE = (
    "With the time `given`, all models know the run's time. MC2 also knows its parts (stages, or the phases "
    "of the log). The rivals, as published, know one mean utilisation. With the time `predicted`, all models "
    "use MC2's time."
)
_QUESTION = ["energy_source", "split", "time"]
_SPLITS = (*USUAL, "in-sample")
EXTRAPOLATION = ("extrapolation",)
"""The split that judges forecasts for larger scales than the fitted runs."""
SPLIT_SENTENCES = {
    "leave-one-node-count-out": "Each forecast is for a node count that was left out of its fit.",
    "leave-one-batch-out": "Each forecast is for a batch of the network that was left out of its fit. "
    "No run shows how wrong forecasts of more nodes are.",
    "extrapolation": "The fit had seen runs on at most a quarter of the largest number of nodes.",
    "leave-one-workload-out": "The fit had seen other networks, and this network only on its smallest node "
    "count.",
    "in-sample": "The fit had seen the same runs, so the errors say nothing about new settings. To judge "
    "new settings, run more node counts, or three batches of a network.",
}
"""Words that say what the fit had seen, by split."""


def _judges(source: Any) -> str:
    return "models" if source in MEASURED else "no model"


def time_error(times: pd.DataFrame) -> pd.DataFrame:
    """Measured and predicted seconds by workload, node count, split and model."""
    table = by_setting(times, [*SETTING, "split", "model"]).drop(
        columns=["covered_percent", "bounded"]
    )
    return table.rename(
        columns={
            "network": "workload",
            "measured": "measured_s",
            "predicted": "predicted_s",
            "difference_percent": "error_percent",
            "mean_absolute_percent": "mape_percent",
        }
    )


def energy_error(energies: pd.DataFrame) -> pd.DataFrame:
    """Joules by workload, node count, split and model. There is an error only if the joules were measured.

    Errors of the time and of the mean power stand next to the error of the joules, because they can cancel in
    it.
    """
    by = [*OF_ENERGY, "split", "time", "model"]
    cells = by_setting(energies, by)
    seconds = energies.groupby(by, sort=False, dropna=False)[["measured_s", "predicted_s"]].mean()
    cells = cells.merge(seconds.reset_index(), on=by, how="left")
    slower = cells["predicted_s"] / cells["measured_s"]
    judged = cells["energy_source"].isin(MEASURED)
    power = (1 + cells["difference_percent"] / 100) / slower
    table = cells.assign(
        measured_j=cells["measured"].where(judged),
        error_percent=cells["difference_percent"].where(judged),
        time_error_percent=100 * (slower - 1),
        power_difference_percent=100 * (power - 1),
        judges=cells["energy_source"].map(_judges),
    ).drop(columns="bounded")
    names = {"energy_source": "source", "network": "workload"}
    return table.rename(columns=names | {"measured": "reference_j", "predicted": "predicted_j"})


def _best_rivals(cells: pd.DataFrame) -> pd.DataFrame:
    """For each question, a row of MC2. It has the best rival, the error of this rival, and by how much MC2 is
    better on the settings that both predict."""
    rows = []
    for question, of_question in cells.groupby(_QUESTION, sort=False):
        best = best_rival(of_question)
        if best is not None:
            found = (OURS, best.rival, best.rival_percent, best.better_by_points)
            rows.append([*question, *found])
    names = ["best_rival", "best_rival_percent", "better_by_points"]
    found = pd.DataFrame(rows, columns=[*_QUESTION, "model", *names])
    return found.astype(dict.fromkeys(names[1:], float))


def energy_summary(fit: CampaignFit, published: PublishedErrors) -> pd.DataFrame:
    """A row for each model, split and kind of time. The published error and MC2's best rival stand next to
    it.

    The time-series models forecast the rest of a run's own trace. This is another question, so it has its
    own split.
    """
    energies = fit.judged("energy")
    cells = by_setting(energies, [*OF_ENERGY, "split", "time", "model"])
    parts = [summarise(cells, [*_QUESTION, "model"])]
    if len(fit.series):
        own = fit.series.assign(
            split="end of the run's own trace",
            time="given",
            covered_percent=np.nan,
            runs=1,
            bounded=0,
        )
        parts.append(summarise(own, [*_QUESTION, "model"]))
    table = pd.concat([p for p in parts if len(p)] or parts[:1], ignore_index=True)
    runs = used(fit.observations[is_training(fit.observations)])
    noise = {
        source: run_to_run_cv(of_source, "energy_j")
        for source, of_source in runs.groupby("energy_source")
    }
    table["run_to_run_cv_percent"] = table["energy_source"].map(noise).astype(float)
    table["published_percent"] = table["model"].map(published.error_percent)
    table["judges"] = table["energy_source"].map(_judges)
    table = table.merge(_best_rivals(cells), how="left", on=[*_QUESTION, "model"])
    return table.rename(columns={"energy_source": "source"})


def energy_improvement(energies: pd.DataFrame, published: PublishedErrors) -> pd.DataFrame:
    """By how many percentage points of MAPE MC2 is better than each rival.

    Our number has a 90 % interval, from a paired bootstrap over the settings. The paper's number stands next
    to it. ``best_rival`` marks the best rival.
    """
    rows = []
    for question, of_question in energies.groupby(_QUESTION, sort=False):
        for comparison in compare(by_setting(of_question, [*OF_ENERGY, "model"])):
            rows.append(
                dict(zip(("source", *_QUESTION[1:]), question, strict=True))
                | asdict(comparison)
                | {
                    "published_points": published.percentage_points_over_mc2.get(comparison.rival),
                    "judges": _judges(question[0]),
                }
            )
    columns = ["source", *_QUESTION[1:], "rival", "settings", "better_by_points", "judges"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)


def scaling(training: pd.DataFrame) -> pd.DataFrame:
    """Speed, efficiency, shares of the time and joules per unit of work by workload and node count.

    Efficiency is the speed per node, divided by the speed per node on the smallest node count with the same
    batch of a node. If the log has no batch, the smallest node count of the workload is taken.
    """
    rows = []
    groups = training.groupby(["platform", "network", "batch_per_rank"], dropna=False)
    for (platform, network, per_rank), of_batch in groups:
        smallest = of_batch["nodes"].min()
        speed = of_batch["samples"] / of_batch["total_s"]
        alone = (speed / of_batch["nodes"])[of_batch["nodes"] == smallest].mean()
        for nodes, cell in of_batch.groupby("nodes"):
            own = speed[cell.index]
            row: dict[str, Any] = {
                "platform": platform,
                "workload": network,
                "nodes": nodes,
                "nodes_are": cell["nodes_are"].iloc[0],
                "batch_per_rank": per_rank,
                "runs": len(cell),
                "disturbed_runs": int((cell["disturbed"] != "").sum()),
                "work_per_s": own.mean(),
                "cv_percent": 100 * own.std() / own.mean() if len(cell) > 1 else np.nan,
                "efficiency_percent": 100 * own.mean() / nodes / alone,
                "total_s": cell["total_s"].mean(),
            }
            # The stages, or the phases if a log has no stages.
            if cell["kind"].iloc[0] == "imported":
                parts = {part: cell[f"{part}_s"] for part in ("training", "evaluating", "stalled")}
            else:
                parts = {part: cell[f"t_{part}_s"] * cell["steps"] for part in (*TIMED, "other")}
            for part, spent_s in parts.items():
                row[f"{part}_percent"] = 100 * float((spent_s / cell["total_s"]).mean())
            row["joules_per_work"] = (cell["energy_j"] / cell["samples"]).mean()
            row["energy_source"] = cell["energy_source"].iloc[0]
            row["why_no_energy"] = cell["why_no_energy"].iloc[0]
            rows.append(row)
    return pd.DataFrame(rows).sort_values(["platform", "workload", "batch_per_rank", "nodes"])


def _notes(observations: pd.DataFrame) -> list[str]:
    notes = [f"{note}." for note in disturbance_notes(observations)]
    if (observations["nodes_are"] == "emulated").any():
        notes.append(EMULATED_NOTE)
    marked = observations[observations["left_out"] != ""]
    if len(marked):
        reasons = [f"{row.run}: {row.left_out_for}" for row in marked.itertuples()]
        more = [f"and {len(reasons) - 10} more"] if len(reasons) > 10 else []
        count = counted(len(reasons), "run is", "runs are")
        notes.append(f"{count} left out ({'; '.join([*reasons[:10], *more])}).")
    return notes


def judged_times(fit: CampaignFit, splits: Sequence[str] = _SPLITS) -> pd.DataFrame:
    """A row for each setting and model, with its times in s. All rows are from one split: the first of
    ``splits`` on which MC2 was judged.

    Raises:
        NothingToShow: nothing was fitted, or judged on these splits.
    """
    cells = _first_split(fit.judged("time"), splits, [*SETTING, "split", "model"])
    if cells is None:
        raise NothingToShow(f"the fit has no prediction of {OURS}", "energy_tables")
    return cells


def judged_energies(
    fit: CampaignFit, splits: Sequence[str] = _SPLITS
) -> list[tuple[str, pd.DataFrame]]:
    """The same as :func:`judged_times` for measured energies in J, by energy source. Empty if no energy was
    measured."""
    energies = fit.judged("energy")
    energies = energies[energies["energy_source"].isin(MEASURED)]
    asked = energies[energies["time"] == energies["split"].map(usual_time)]
    cells = _first_split(asked, splits, [*OF_ENERGY, "split", "model"])
    if cells is None:
        return []
    return [
        (str(source), of_source)
        for source, of_source in cells.groupby("energy_source", sort=True)
        if (of_source["model"] == OURS).any()
    ]


def _first_split(frame: pd.DataFrame, splits: Sequence[str], by: list[str]) -> pd.DataFrame | None:
    known = frame[frame["measured"].notna() & frame["predicted"].notna()]
    for split in splits:
        rows = known[known["split"] == split]
        if (rows["model"] == OURS).any():
            return by_setting(rows, by)
    return None


def error_sentences(fit: CampaignFit, splits: Sequence[str] = _SPLITS) -> list[str]:
    """Sentences about the errors of MC2: for the time, and for each source of energies.

    Args:
        splits: names of splits. The first one that was judged counts. :data:`EXTRAPOLATION` is for forecasts
            beyond the runs.

    Raises:
        NothingToShow: nothing was fitted, or judged on these splits.
    """
    sentences = [f"Time: {_error(judged_times(fit, splits))}."]
    for source, cells in judged_energies(fit, splits):
        sentences.append(f"Energy ({source}): {_error(cells)}.")
    if "estimated" in set(fit.observations["energy_source"]):
        sentences.append("No model is judged by estimated energies.")
    return sentences


def errors_explained(fit: CampaignFit) -> list[str]:
    """A sentence about what the fit had seen, followed by :func:`error_sentences`.

    Raises:
        NothingToShow: nothing was fitted or judged.
    """
    return [SPLIT_SENTENCES[judged_times(fit)["split"].iloc[0]], *error_sentences(fit)]


def _error(cells: pd.DataFrame) -> str:
    """Sentences with the error of MC2, the best rival, and the share of the runs in MC2's interval. The last
    sentence has no full stop."""
    summary = summarise(cells, ["model"])
    ours = summary[summary["model"] == OURS].iloc[0]
    seen = cells["split"].iloc[0] == "in-sample"
    settings, bias = counted(int(ours["settings"]), "setting"), ours["bias_percent"]
    parts = [
        f"{percent(ours['mape_percent'])} off on average and {percent(ours['max_percent'])} at worst, over "
        f"{settings}{'' if seen else ' that the fit had not seen'}"
    ]
    # On the fitted runs, a model with more parameters always has smaller errors.
    if not seen:
        parts.append(
            f"On average the forecasts are {percent(abs(bias))} too {'high' if bias > 0 else 'low'}"
        )
        best = best_rival(cells)
        if best is not None:
            sentence = f"The best rival, {best.rival}, is {percent(best.rival_percent)} off"
            if best.settings < ours["settings"]:
                shared = counted(best.settings, "setting")
                sentence += f" on the {shared} that it predicts, MC2 {percent(best.mc2_percent)}"
            parts.append(f"{sentence} (better than MC2)" if best.better_by_points < 0 else sentence)
    if is_number(ours["covered_percent"]):
        parts.append(
            f"{ours['covered_percent']:.0f} % of the {'' if seen else 'held-out '}runs lie inside the 90 % "
            "interval"
        )
    return ". ".join(parts)


def write_tables(folder: Path, fit: CampaignFit, published: PublishedErrors) -> None:
    """Write ``time_error``, ``energy_error``, ``energy_summary``, ``energy_improvement`` and ``scaling`` to
    ``folder``."""
    runs, energies = fit.observations, fit.judged("energy")
    training, notes = used(runs[is_training(runs)]), _notes(runs)
    cv = run_to_run_cv(training, "total_s")
    repeats = f"Repeats of one setting vary by {cv:.2f} % (mean CV); no model can claim less."
    if np.isnan(cv):
        repeats = "No setting was repeated, so it is not known how much repeats vary."
    write_table(
        folder / "time_error",
        "Time: predicted against measured",
        [
            *notes,
            repeats,
            "`in-sample` was fitted to the runs it predicts; the other splits were not.",
        ],
        time_error(fit.judged("time")),
    )
    energy_notes = [*notes, WORKLOAD_NOTE, INFORMATION_NOTE]
    sources = set(training["energy_source"].dropna())
    if not sources:
        reasons = "; ".join(sorted(set(training["why_no_energy"].dropna())))
        energy_notes.append(f"No energy was measured or estimated: {reasons}.")
    elif "estimated" in sources:
        energy_notes.append(ESTIMATE_NOTE)
    source = f"Published: {published.paper}; {published.where}; {published.setting}."
    if not published.comparable:
        source += f" Not comparable with ours: {published.not_comparable_because}."
    tables = {
        "energy_error": ("Energy: predicted against the reference", energy_error(energies)),
        "energy_summary": ("Energy: MC2 and its rivals", energy_summary(fit, published)),
        "energy_improvement": (
            "Energy: what MC2 gains on each rival",
            energy_improvement(energies, published),
        ),
    }
    for name, (title, table) in tables.items():
        has_published = any("published" in column for column in table.columns)
        of_table = [*energy_notes, *[source] * has_published]
        # Measured energies come before estimated ones.
        table = table.sort_values("judges", key=lambda j: j != "models", kind="stable")
        write_table(folder / name, title, of_table, table, sections="split")
    write_table(
        folder / "scaling",
        "Scaling: speed, parts of the time and joules by node count",
        [*energy_notes, "Work is samples, or epochs where a log counts those."],
        scaling(training),
    )
