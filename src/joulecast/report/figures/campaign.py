"""Figures of a campaign: stage times and energies, a power trace, predicted against measured."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joulecast.energy.evaluation import MEASURED
from joulecast.energy.observations import TIMED
from joulecast.files.writing import written_aside
from joulecast.records.record import RunRecord

# Okabe and Ito's colours, which colour-blind people can tell apart.
_COLOURS = {
    "materials": "#E69F00",
    "computing": "#0072B2",
    "communicating_wait": "#CC79A7",
    "communicating_copy": "#D55E00",
    "update": "#009E73",
    "other": "#BBBBBB",
    "training": "#0072B2",
    "evaluating": "#E69F00",
    "stalled": "#BBBBBB",
}
_MARKS = {1: "o", 2: "s", 4: "^", 8: "D", 16: "P", 32: "X", 64: "*"}


def save(figure: Figure, stem: Path) -> None:
    """Write a figure as SVG and PDF."""
    for suffix in ("svg", "pdf"):
        with written_aside(stem.with_suffix(f".{suffix}")) as partial:
            figure.savefig(partial, format=suffix, bbox_inches="tight")
    plt.close(figure)


def _emulated(observations: pd.DataFrame) -> str:
    return " (emulated nodes)" if (observations["nodes_are"] == "emulated").any() else ""


def _stacked(means: dict[str, pd.DataFrame], what: str, stem: Path, suffix: str) -> None:
    """One panel a workload, one bar a node count, one colour a part; ``means`` by workload."""
    if not means:
        figure, axes = plt.subplots(figsize=(5, 3))
        axes.text(0.5, 0.5, f"no {what} to show", ha="center", transform=axes.transAxes)
        save(figure, stem)
        return
    figure, panels = plt.subplots(
        1, len(means), figsize=(1 + 3 * len(means), 3.6), squeeze=False, layout="constrained"
    )
    handles: dict[str, Any] = {}
    for axes, (workload, parts) in zip(panels[0], means.items(), strict=True):
        bottom = np.zeros(len(parts))
        for part in parts:
            height = parts[part].to_numpy()
            bars = axes.bar(
                [str(n) for n in parts.index], height, bottom=bottom, color=_COLOURS[part]
            )
            handles[part.replace("_", ", ")] = bars
            bottom += height
        axes.set_title(workload, fontsize=9)
        axes.set_xlabel("nodes" + suffix)
    panels[0][0].set_ylabel(what)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncol=len(handles),
        frameon=False,
    )
    save(figure, stem)


def _usual_batch(training: pd.DataFrame) -> pd.DataFrame:
    """The runs of each workload with the batch of a rank that most of them have."""
    usual = training.groupby("workload")["batch_per_rank"].transform(
        lambda b: b.mode().iloc[0] if b.notna().any() else np.nan
    )
    return training[(training["batch_per_rank"] == usual) | usual.isna()]


def stage_times(training: pd.DataFrame, stem: Path) -> None:
    """Stacked stage times of a step by node count, one panel a network; imported runs have none."""
    staged = training[training["kind"] == "training"]
    means = {}
    for network, of_network in _usual_batch(staged).groupby("network"):
        columns = {f"t_{stage}_s": stage for stage in (*TIMED, "other")}
        means[str(network)] = (
            of_network.groupby("nodes")[list(columns)].mean().rename(columns=columns)
        )
    _stacked(means, "time of a step in s", stem, _emulated(staged))


def stage_energies(training: pd.DataFrame, stem: Path) -> None:
    """Stacked energy by node count, joules per unit of work: of the stages, or of the phases of runs
    whose log tells no stages."""
    metered = _usual_batch(training[training["energy_j"].notna()])
    means = {}
    for _, cell in metered.groupby("workload"):
        if cell["kind"].iloc[0] == "imported":
            parts = {"training": cell["training_j"], "evaluating": cell["evaluating_j"]}
            parts["stalled"] = cell["energy_j"] - cell["training_j"] - cell["evaluating_j"]
        else:
            parts = {stage: cell[f"e_{stage}_j"] for stage in (*TIMED, "other")}
        per_work = pd.DataFrame(parts).div(cell["samples"], axis="index").clip(lower=0)
        first = cell.iloc[0]
        title = f"{first['network']}\n{first['platform']}, {first['energy_source']}"
        means[title] = per_work.groupby(cell["nodes"]).mean()
    _stacked(means, "energy in J per sample (or epoch)", stem, _emulated(metered))


def _shades(record: RunRecord) -> pd.DataFrame:
    """What is shaded behind a trace: stages of rank 0, or the phases that the log tells."""
    if record.info.spec.kind == "imported":
        shown = {
            "epoch": "training",
            "block": "training",
            "evaluation": "evaluating",
            "init": "other",
        }
        phases = record.phases[record.phases["phase"].isin(shown)]
        return phases.assign(stage=phases["phase"].map(shown))
    return record.stages[record.stages["rank"] == 0]


def power_trace(record: RunRecord, stem: Path) -> None:
    """Power of every node of one run, its stages shaded; says why where there is none."""
    info = record.info
    figure, axes = plt.subplots(figsize=(8, 3.4))
    source = info.energy_source
    used = {m.meter for m in info.meters if m.available and m.source == source}
    power = record.power[record.power["meter"].isin(used)].sort_values("t_s", kind="stable")
    for (node, meter), of_meter in power.groupby(["node", "meter"]):
        watts = of_meter["watts"]
        if watts.isna().all():
            watts = of_meter["joules"].diff() / of_meter["t_s"].diff()
        axes.plot(of_meter["t_s"], watts, linewidth=1, label=f"{node} {meter}")
    shaded = set()
    for row in _shades(record).itertuples():
        label = None if row.stage in shaded else row.stage.replace("_", ", ")
        shaded.add(row.stage)
        axes.axvspan(
            row.start_s, row.stop_s, color=_COLOURS[row.stage], alpha=0.25, lw=0, label=label
        )
    if source is None:
        text = f"no power: {info.no_energy_reason}"
        axes.text(0.5, 0.5, text, ha="center", wrap=True, transform=axes.transAxes)
    margin = 0.15 * (info.outcome.stop_s - info.outcome.start_s)
    axes.set_xlim(info.outcome.start_s - margin, info.outcome.stop_s + margin)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("run clock in s")
    axes.set_ylabel(f"power in W ({source})" if source else "power in W")
    axes.set_title(info.spec.run)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
    save(figure, stem)


def _against(
    axes: Axes,
    rows: pd.DataFrame,
    unit: str,
    what: str,
    colours: dict[str, str],
    band_percent: float,
) -> None:
    if rows.empty:
        axes.text(0.5, 0.5, f"no {what} to show", ha="center", transform=axes.transAxes)
        return
    for network, nodes in sorted(set(zip(rows["network"], rows["nodes"], strict=True))):
        cell = rows[(rows["network"] == network) & (rows["nodes"] == nodes)]
        axes.plot(
            cell["measured"],
            cell["predicted"],
            _MARKS.get(int(nodes), "v"),
            color=colours[network],
            alpha=0.8,
            label=f"{network}, N = {nodes}",
        )
    ends = np.array([rows["measured"].min() * 0.9, rows["measured"].max() * 1.1])
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.fill_between(
        ends,
        ends * (1 - band_percent / 100),
        ends * (1 + band_percent / 100),
        color="black",
        alpha=0.12,
        label=f"± {band_percent} %",
    )
    axes.set_xlabel(f"{what} in {unit}")
    axes.set_ylabel(f"predicted by MC2, in {unit}")


def predicted_against_measured(
    times: pd.DataFrame, energies: pd.DataFrame, stem: Path, band_percent: float
) -> None:
    """MC2's predictions of held-out settings against what was measured (or estimated), with a band of
    ``band_percent`` (the error that the paper publishes)."""
    figure, panels = plt.subplots(1, 3, figsize=(15, 4.2))
    palette = list(dict.fromkeys(_COLOURS.values()))
    networks = sorted(set(times["network"]) | set(energies["network"]))
    colours = {name: palette[k % len(palette)] for k, name in enumerate(networks)}
    energy = energies[energies["model"] == "MC2"]
    # Estimates are shown where there is nothing else, never among measurements.
    measured = energy["energy_source"].isin(MEASURED)
    energy = energy[measured] if measured.any() else energy
    source = "/".join(sorted(set(energy["energy_source"].dropna()))) or "measured"
    unseen = energy["split"] == "leave-one-node-count-out"
    other = energy["split"] == "leave-one-workload-out"
    time = times[(times["model"] == "MC2") & (times["split"] == "leave-one-node-count-out")]
    _against(panels[0], time, "s", "measured time", colours, band_percent)
    on_counts = energy[unseen & (energy["time"] == "predicted")]
    on_workloads = energy[other & (energy["time"] == "given")]
    _against(panels[1], on_counts, "J", f"{source} energy", colours, band_percent)
    _against(panels[2], on_workloads, "J", f"{source} energy", colours, band_percent)
    panels[0].set_title("node counts not seen" + _emulated(times))
    panels[1].set_title("node counts not seen, time predicted")
    panels[2].set_title("workloads not seen, time given")
    entries: dict[str, Any] = {}
    for axes in panels:
        entries |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="center left",
        bbox_to_anchor=(0.92, 0.5),
        frameon=False,
        fontsize=8,
    )
    save(figure, stem)
