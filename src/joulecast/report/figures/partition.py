"""Figures of the partitioning experiment: time, memory and traffic of every stage of a network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from joulecast.report.figures.campaign import save

_COLOURS = ("#0072B2", "#D55E00", "#009E73")


def stages_of_network(experiment: Mapping[str, Any], stem: Path) -> None:
    """A row of three panels for each number of devices: stage time, memory, and bytes handed on."""
    plans = [(int(count), found["plan"]) for count, found in experiment["on_devices"].items()]
    figure, panels = plt.subplots(
        len(plans), 3, figsize=(10, 2.4 * len(plans)), squeeze=False, layout="constrained"
    )
    for (count, plan), row in zip(plans, panels, strict=True):
        stages = plan["stages"]
        shown = (
            ("time, ms", [s["time"] / 1e3 for s in stages]),
            ("memory, GB", [s["memory"] / 1e9 for s in stages]),
            ("activations out, MB", [(s["bytes_out"] or 0) / 1e6 for s in stages]),
        )
        for axes, (label, values), colour in zip(row, shown, _COLOURS, strict=True):
            axes.bar(range(len(values)), values, color=colour)
            axes.set(xlabel="stage", ylabel=label, xticks=range(len(values)))
        row[0].axhline(plan["lower_bound"] / 1e3, color="black", lw=0.8, ls="--")
        row[0].set_title(
            f"{count} devices, speedup up to {plan['speedup_bound']:.2f}", fontsize=9, loc="left"
        )
    figure.suptitle(
        f"{experiment['network']}: stages with the least bottleneck (dashed: lower bound)",
        fontsize=10,
    )
    save(figure, stem)
