"""Figures of the tuning experiments: cumulative cost by recurrence, and the map of configurations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from joulecast.report.figures.campaign import save
from joulecast.tuning.comparison import by_setting, cumulative_ratios
from joulecast.tuning.expectation import configurations, expected, expected_default
from joulecast.tuning.policy_experiment import Setting

# Okabe and Ito's colours, which the colour-blind can tell apart.
_COLOURS = {
    "power-limit-only": "#999999",
    "zeus": "#D55E00",
    "outward-walk": "#009E73",
    "curve": "#0072B2",
    "warm-start": "#CC79A7",
}
_HIGHEST_SHOWN = 2.0


def cumulative_cost(
    by_policy: Mapping[str, pd.DataFrame], settings: Sequence[Setting], eta: float, stem: Path
) -> None:
    """A panel a setting: mean cost so far relative to the default, with a band over seeds (80 %)."""
    gpus = list(dict.fromkeys(setting.name[1] for setting in settings))
    workloads = list(dict.fromkeys(setting.name[0] for setting in settings))
    figure, panels = plt.subplots(
        len(workloads),
        len(gpus),
        figsize=(2.6 * len(gpus), 1.9 * len(workloads)),
        squeeze=False,
        sharex=True,
        layout="constrained",
    )
    for policy, colour in _COLOURS.items():
        if policy not in by_policy:
            continue
        costs = by_setting(by_policy[policy], "cost")
        for (workload, gpu), curve in cumulative_ratios(costs, settings, eta).items():
            axes = panels[workloads.index(workload)][gpus.index(gpu)]
            n = np.arange(1, curve.shape[1] + 1)
            low, high = np.quantile(curve, [0.1, 0.9], axis=0)
            axes.plot(n, curve.mean(0), color=colour, lw=1.3, label=policy)
            axes.fill_between(n, low, high, color=colour, alpha=0.15, lw=0)
    for workload, row in zip(workloads, panels, strict=True):
        for gpu, axes in zip(gpus, row, strict=True):
            axes.axhline(1, color="black", lw=0.7, ls="--")
            lowest, highest = axes.get_ylim()
            axes.set_ylim(lowest, min(highest, _HIGHEST_SHOWN))
            axes.set_title(f"{workload}, {gpu}", fontsize=8, loc="left")
            axes.tick_params(labelsize=7)
    for axes in panels[-1]:
        axes.set_xlabel("recurrences", fontsize=8)
    for row in panels:
        row[0].set_ylabel("cost / default", fontsize=8)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8)
    save(figure, stem)


def configuration_maps(
    by_policy: Mapping[str, pd.DataFrame],
    settings: Sequence[Setting],
    eta: float,
    stem: Path,
    policies: Sequence[str] = ("zeus", "curve"),
) -> None:
    """Expected cost of every batch size and power limit, and the path of policies over it (first seed)."""
    figure, panels = plt.subplots(
        len(settings),
        len(policies),
        figsize=(4.6 * len(policies), 2.5 * len(settings)),
        squeeze=False,
        layout="constrained",
    )
    for setting, row in zip(settings, panels, strict=True):
        trace = setting.trace
        default = expected_default(trace, eta).cost
        sizes = list(trace.epochs)
        limits = sorted({watts for _, watts in configurations(trace)})
        grid = np.full((len(limits), len(sizes)), np.nan)
        for batch, watts in configurations(trace):
            grid[limits.index(watts), sizes.index(batch)] = (
                expected(trace, batch, watts, eta).cost / default
            )
        grid[np.isinf(grid)] = np.nan
        for policy, axes in zip(policies, row, strict=True):
            image = axes.imshow(
                grid, origin="lower", aspect="auto", cmap="viridis_r", vmax=_HIGHEST_SHOWN
            )
            _draw_path(axes, by_policy[policy], setting, sizes, limits)
            axes.set_xticks(range(len(sizes)), [str(b) for b in sizes], rotation=60, fontsize=6)
            axes.set_yticks(range(len(limits)), [str(w) for w in limits], fontsize=6)
            axes.set_title(f"{trace.workload}, {trace.gpu}: {policy}", fontsize=8, loc="left")
        row[0].set_ylabel("power limit, W", fontsize=8)
        figure.colorbar(image, ax=row[-1], label="cost / default")
    for axes in panels[-1]:
        axes.set_xlabel("batch size", fontsize=8)
    figure.suptitle(
        "white: does not reach the target; square: first recurrence, star: last", fontsize=8
    )
    save(figure, stem)


def _draw_path(
    axes: Any, table: pd.DataFrame, setting: Setting, sizes: list[int], limits: list[int]
) -> None:
    workload, gpu = setting.name
    path = table[(table["workload"] == workload) & (table["gpu"] == gpu) & (table["seed"] == 0)]
    x = [sizes.index(batch) for batch in path["batch_size"]]
    y = [limits.index(watts) for watts in path["power_limit_w"]]
    axes.plot(x, y, color="black", lw=0.8, alpha=0.6)
    axes.scatter(
        x, y, s=10, c=np.arange(len(x)), cmap="Greys_r", edgecolors="black", linewidths=0.4
    )
    axes.scatter(x[:1], y[:1], s=45, marker="s", facecolors="none", edgecolors="red")
    axes.scatter(x[-1:], y[-1:], s=60, marker="*", color="red")


def live_cost(record: Mapping[str, Any], stem: Path) -> None:
    """Cost of every recurrence of a training that was tuned live, with its batch size."""
    rows = record["recurrences"]
    n = np.arange(1, len(rows) + 1)
    costs = np.array([np.nan if row["cost"] is None else row["cost"] for row in rows], float)
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(6, 3.6), sharex=True, layout="constrained", height_ratios=(2, 1)
    )
    above.bar(n, costs, color="#0072B2", label="a recurrence")
    above.plot(n, np.cumsum(costs) / n, color="#D55E00", label="mean so far")
    above.set(ylabel=f"cost, {record['cost_unit']}")
    above.legend(fontsize=8)
    below.step(n, [row["batch_size"] for row in rows], where="mid", color="black")
    below.set_yscale("log", base=2)
    below.set(ylabel="batch size", xlabel="recurrence")
    figure.suptitle(f"{record['network']}, tuned live by {record['policy']}", fontsize=10)
    save(figure, stem)
