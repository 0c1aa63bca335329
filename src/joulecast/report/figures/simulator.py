"""Figures of the simulator: predicted against measured, and where a step's time goes by node count."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from joulecast.report.figures.campaign import save

_PARTS = {
    "computing_s": ("computing", "#0072B2"),
    "exposed_communication_s": ("exposed communication", "#D55E00"),
    "bubble_s": ("bubble", "#BBBBBB"),
}
_MARKS = "osD^vP*X"


def predicted_against_measured(judged: pd.DataFrame, stem: Path) -> None:
    """Every judged configuration, one panel an experiment; the band is 3 % either way."""
    experiments = list(judged.groupby("experiment", sort=False))
    figure, panels = plt.subplots(
        1,
        len(experiments),
        figsize=(4.6 * len(experiments), 4.2),
        squeeze=False,
        layout="constrained",
    )
    for axes, (name, group) in zip(panels[0], experiments, strict=True):
        for mark, (family, of_family) in zip(
            _MARKS, group.groupby("family", sort=False), strict=False
        ):
            axes.plot(
                of_family["measured_s"],
                of_family["predicted_s"],
                mark,
                label=family,
                ms=4,
                alpha=0.8,
            )
        ends = np.array([group["measured_s"].min() * 0.9, group["measured_s"].max() * 1.1])
        axes.plot(ends, ends, color="black", lw=0.8)
        axes.fill_between(ends, 0.97 * ends, 1.03 * ends, color="#BBBBBB", alpha=0.5)
        axes.set(xscale="log", yscale="log", xlabel="measured step, s", title=name)
        axes.legend(frameon=False, fontsize=7)
    panels[0][0].set_ylabel("simulated step, s")
    save(figure, stem)


def step_by_node_count(forecast: pd.DataFrame, stem: Path) -> None:
    """Stacked parts of a simulated step by node count: a row a platform, a column a network.

    A dot is the step that was measured on as many nodes.
    """
    known = forecast[(forecast["rests_on"] == "simulated") & forecast["step_s"].notna()]
    ran = forecast[forecast["rests_on"] == "measured"]
    platforms, networks = known["platform"].unique(), known["network"].unique()
    if not len(known):
        figure, axes = plt.subplots(figsize=(5, 3))
        axes.text(0.5, 0.5, "no platform could be simulated", ha="center")
        save(figure, stem)
        return
    figure, panels = plt.subplots(
        len(platforms),
        len(networks),
        figsize=(3.4 * len(networks), 2.2 * len(platforms)),
        squeeze=False,
        layout="constrained",
    )
    for row, platform in zip(panels, platforms, strict=True):
        for axes, network in zip(row, networks, strict=True):
            cell = known[(known["platform"] == platform) & (known["network"] == network)]
            bottom = np.zeros(len(cell))
            for column, (label, colour) in _PARTS.items():
                height = 1e3 * cell[column].to_numpy(float)
                axes.bar(
                    cell["nodes"].astype(str), height, bottom=bottom, color=colour, label=label
                )
                bottom += height
            same = ran[(ran["platform"] == platform) & (ran["network"] == network)]
            dots = same[same["nodes"].isin(cell["nodes"])]
            axes.plot(dots["nodes"].astype(str), 1e3 * dots["step_s"], "ko", ms=3, label="measured")
            axes.set_title(f"{network} on {platform}", fontsize=8)
            axes.tick_params(labelsize=6, axis="x", rotation=60)
        row[0].set_ylabel("ms a step", fontsize=8)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncol=3, frameon=False)
    figure.supxlabel("nodes (simulated)", fontsize=8)
    save(figure, stem)
