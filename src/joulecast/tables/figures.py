"""Figures of a campaign: stage times, a power trace with its stages, predicted against measured."""

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from joulecast.energy.observations import TIMED
from joulecast.files import written_aside
from joulecast.records import RunRecord

# Okabe and Ito's colours, which colour-blind people can tell apart.
_COLOURS = {
    "materials": "#E69F00",
    "computing": "#0072B2",
    "communicating_wait": "#CC79A7",
    "communicating_copy": "#D55E00",
    "update": "#009E73",
    "other": "#BBBBBB",
}
_MARKS = {1: "o", 2: "s", 4: "^", 8: "D"}


def _save(figure: Figure, stem: Path) -> None:
    for suffix in ("svg", "pdf"):
        with written_aside(stem.with_suffix(f".{suffix}")) as partial:
            figure.savefig(partial, format=suffix, bbox_inches="tight")
    plt.close(figure)


def _emulated(observations: pd.DataFrame) -> str:
    return " (emulated nodes)" if (observations["nodes_are"] == "emulated").any() else ""


def stage_times(training: pd.DataFrame, stem: Path) -> None:
    """Stacked stage times of a step by node count, one panel a network."""
    networks = sorted(training["network"].unique())
    figure, panels = plt.subplots(
        1, len(networks), figsize=(1 + 3 * len(networks), 3.4), squeeze=False
    )
    for axes, network in zip(panels[0], networks, strict=True):
        of_network = training[training["network"] == network]
        usual = of_network["batch_per_rank"].mode().iloc[0]
        cells = of_network[of_network["batch_per_rank"] == usual].groupby("nodes")
        means = cells[[f"t_{stage}_s" for stage in (*TIMED, "other")]].mean()
        bottom = np.zeros(len(means))
        for stage in (*TIMED, "other"):
            height = means[f"t_{stage}_s"].to_numpy()
            axes.bar(
                [str(n) for n in means.index],
                height,
                bottom=bottom,
                color=_COLOURS[stage],
                label=stage.replace("_", ", "),
            )
            bottom += height
        axes.set_title(network)
        axes.set_xlabel("nodes" + _emulated(of_network))
    panels[0][0].set_ylabel("time of a step in s")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="lower center", ncol=3, bbox_to_anchor=(0.5, -0.2), frameon=False
    )
    _save(figure, stem)


def power_trace(record: RunRecord, stem: Path) -> None:
    """Power of every node of one run, the stages of rank 0 shaded; says why where there is none."""
    info = record.info
    figure, axes = plt.subplots(figsize=(8, 3.4))
    source = info.energy_source
    used = {m.meter for m in info.meters if m.available and m.source == source}
    power = record.power[record.power["meter"].isin(used)].sort_values("t_s")
    for (node, meter), of_meter in power.groupby(["node", "meter"]):
        watts = of_meter["watts"]
        if watts.isna().all():
            watts = of_meter["joules"].diff() / of_meter["t_s"].diff()
        axes.plot(of_meter["t_s"], watts, linewidth=1, label=f"{node} {meter}")
    shaded = set()
    for row in record.stages[record.stages["rank"] == 0].itertuples():
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
    axes.set_title(f"{info.spec.run}: stages of rank 0")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
    _save(figure, stem)


def _against(axes: Axes, rows: pd.DataFrame, unit: str, what: str) -> None:
    if rows.empty:
        axes.text(0.5, 0.5, f"no {what} to show", ha="center", transform=axes.transAxes)
        return
    networks = sorted(rows["network"].unique())
    for place, network in enumerate(networks):
        for nodes, cell in rows[rows["network"] == network].groupby("nodes"):
            axes.plot(
                cell["measured"],
                cell["predicted"],
                _MARKS.get(int(nodes), "v"),
                color=list(_COLOURS.values())[place % len(_COLOURS)],
                alpha=0.8,
                label=f"{network}, N = {nodes}",
            )
    ends = np.array([rows["measured"].min() * 0.9, rows["measured"].max() * 1.1])
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.fill_between(
        ends, ends * 0.9716, ends * 1.0284, color="black", alpha=0.12, label="± 2.84 %"
    )
    axes.set_xlabel(f"{what} in {unit}")
    axes.set_ylabel(f"predicted by MC2, in {unit}")


def predicted_against_measured(times: pd.DataFrame, energies: pd.DataFrame, stem: Path) -> None:
    """MC2's predictions of held-out node counts against what was measured (or estimated)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2))
    held_out = "leave-one-node-count-out"
    _against(
        left, times[(times["model"] == "MC2") & (times["split"] == held_out)], "s", "measured time"
    )
    chosen = energies[
        (energies["model"] == "MC2")
        & (energies["split"] == held_out)
        & (energies["time"] == "predicted")
    ]
    source = "/".join(sorted(set(chosen["energy_source"].dropna()))) or "measured"
    _against(right, chosen, "J", f"{source} energy")
    figure.suptitle("Node counts that the fit has not seen" + _emulated(times))
    handles, labels = left.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="center left", bbox_to_anchor=(0.92, 0.5), frameon=False, fontsize=8
    )
    _save(figure, stem)
