"""Judges the simulator on measured steps of real GPUs, by data and GPU. Writes the widths of its intervals.

    ./run python benchmarks/simulator_gpus.py [--held-out] [--write] [--rows] [--choice] [--held-shares]
        [--all-others]

These steps were known when three constants were chosen: the joules of an operation (from P4, T4 and L4, whose
power limits bind), the share of AMD's peak (MI100, MI210), and the share that fused attention reaches (A100,
H100). ``--held-out`` fits each constant to every GPU alone. Then it judges each GPU with the mean of the
other GPUs. ``--choice`` ranks vTrain's configurations after one of them was measured. It does so with the
corrected steps, with the error that all steps share alone, and without a correction. The overlap slowdown of
NVLink was also chosen on FSDP's steps. It would be 0.8 for A100 alone, and 0.6 for H100 alone.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import yaml
from training_steps import FOLDER, steps_with_memory

from joulecast.graphs import kernel_costs
from joulecast.report.tables.simulator import (
    all_reduces_table,
    choice_table,
    gpu_error_table,
)
from joulecast.runs.judging import by_setting, rank, summarise
from joulecast.runs.platforms import Platform, find_platform
from joulecast.runs.platforms.gpus import catalogue
from joulecast.simulate import correction as interval
from joulecast.simulate.correction import MeasuredSteps
from joulecast.simulate.judged import gpu_steps
from joulecast.simulate.judged.gpu_steps import (
    GpuStep,
    corrected_s,
    judge,
    judge_all_reduces,
    read_gpu_steps,
)
from joulecast.simulate.measured_step import simulated_step

LEVEL = 0.9
"""Level of the prediction intervals."""
GROUPS_HELD = 0.8
"""Share of the groups of steps in which an interval has that level."""
GROUP = ["data", "gpu", "kind"]
JOULES = "joules of an operation"
CONSTANTS: dict[str, tuple[Sequence[str], Sequence[float]]] = {
    JOULES: (("p4", "t4", "l4"), tuple(np.linspace(1.0e-12, 2.0e-12, 11))),
    "vector": (("mi100", "mi210"), tuple(np.linspace(0.5, 0.9, 9))),
    "attention": (("a100-40gb-sxm", "h100-sxm"), (0.25, 0.3, 0.36, 0.42, 0.5, 0.6)),
}
"""For each constant: the GPUs to which it is fitted, and the values that are tried."""
MMA_SYNC = {"h100-sxm": 0.63}
"""Share of the matrix units' peak that Ampere's instructions reach on Hopper (Luo et al. 2024, "Benchmarking
and Dissecting the Nvidia Hopper GPU Architecture"): those of the FlashAttention that llm-foundry ran."""


def judged_with(steps: list[GpuStep], constant: str, value: float) -> pd.DataFrame:
    """The judged steps, with another value of a constant."""
    kept_joules, kept_platform = kernel_costs.JOULES_PER_FLOP_NM, gpu_steps.find_platform

    def with_share(name: str) -> Platform:
        found = find_platform(name)
        cluster = found.require_cluster()
        assert cluster.device.architecture is not None
        architecture = cluster.device.architecture.model_copy(update={constant: value})
        device = cluster.device.model_copy(update={"architecture": architecture})
        return found.model_copy(update={"cluster": cluster.model_copy(update={"device": device})})

    try:
        if constant == JOULES:
            kernel_costs.JOULES_PER_FLOP_NM = value
        else:
            gpu_steps.find_platform = with_share
        return judge(steps)
    finally:
        kernel_costs.JOULES_PER_FLOP_NM = kept_joules
        gpu_steps.find_platform = kept_platform


def error(judged: pd.DataFrame, constant: str) -> float:
    """The error by which a constant is fitted. For attention, it is the error after one step was measured.
    For the others, it is the error before that."""
    basis, taken = ("one step", "mean") if constant == "attention" else ("description", "median")
    cells = by_setting(judged[judged["basis"] == basis], ["step"])
    return float(cells["mean_absolute_percent"].agg(taken))


def held_out(steps: list[GpuStep]) -> pd.DataFrame:
    """The judged steps. If a constant was fitted to a GPU, this GPU is judged with the value from the other
    GPUs."""
    of: Callable[[str], list[GpuStep]] = lambda gpu: [  # noqa: E731
        step for step in steps if find_platform(step.platform).name == gpu
    ]
    parts, done = [], set()
    for constant, (gpus, values) in CONSTANTS.items():
        # A few rows of each kind are enough.
        own = {
            gpu: min(values, key=lambda v: error(judged_with(of(gpu)[::3], constant, v), constant))
            for gpu in gpus
        }
        for gpu in gpus:
            units = MMA_SYNC if constant == "attention" else {}
            value = fmean(own[o] / units.get(o, 1) for o in gpus if o != gpu) * units.get(gpu, 1)
            print(f"{constant}: {gpu} alone {own[gpu]:.3g}, the others {value:.3g}")
            parts.append(judged_with(of(gpu), constant, value))
            done.add(gpu)
    rest = [step for step in steps if find_platform(step.platform).name not in done]
    return pd.concat([*parts, judge(rest)], ignore_index=True)


def held_shares(steps: list[GpuStep]) -> None:
    """Print the share of the best shape's rate with which a training's steps fit best, by data and GPU.

    Every network counts the same. The error of each network is its error with the share from the others.
    """
    tried, fine = np.linspace(0.6, 0.9, 7), np.linspace(0.6, 0.9, 61)
    parts = []
    for share in tried:

        def with_share(name: str, share: float = share) -> Platform:
            found = find_platform(name)
            cluster = found.require_cluster()
            best = catalogue().gpus[found.name].measured
            measured = {precision: share * rate * 1e12 for precision, rate in best.items()}
            device = cluster.device.model_copy(update={"measured_flops": measured})
            return found.model_copy(
                update={"cluster": cluster.model_copy(update={"device": device})}
            )

        gpu_steps.find_platform = with_share
        parts.append(gpu_steps.simulate_steps(steps).assign(share=share))
    gpu_steps.find_platform = find_platform
    frame = pd.concat(parts)
    frame["error"] = frame["predicted_s"] / frame["measured_s"] - 1
    frame["network"] = frame["network"].str.partition(":sequence")[0]
    for (data, gpu), rows in frame.groupby(["data", "gpu"]):
        errors = rows.pivot(index=["network", "step"], columns="share", values="error")
        off = errors.apply(lambda row: np.abs(np.interp(fine, tried, row)), axis=1)
        off = pd.DataFrame(off.tolist(), index=errors.index, columns=fine)
        by_network = off.groupby("network").mean()
        own = by_network.mean().idxmin()
        others = {name: by_network.drop(name).mean().idxmin() for name in by_network.index}
        left_out = np.mean([off.loc[place, others[place[0]]] for place in off.index])
        print(
            f"{data}, {gpu}: {own:.3f} ({min(others.values()):.3f} to {max(others.values()):.3f} without a "
            f"network); off by {off[own].mean():.1%}, networks left out {left_out:.1%}; at 0.85 "
            f"{off.iloc[:, 50].mean():.1%}"
        )


BASES = {"description": "description", "one step": "calibrated"}
"""Name of each basis of a prediction among the widths."""

NARROW = (0.4, 0.8)
"""Shares of the narrow peaks at which recipes are simulated; between them a step is linear in 1 / share."""


def held_narrow_shares(steps: list[GpuStep]) -> None:
    """Print the share of the narrow peaks with which the steps of a vendor's recipes fit best, by GPU and
    precision. Every network counts the same, and is judged with the share from the others."""
    parts = []
    for share in NARROW:

        def with_share(name: str, share: float = share) -> Platform:
            found = find_platform(name)
            cluster = found.require_cluster()
            assert cluster.device.architecture is not None
            narrow = cluster.device.architecture.narrow
            shares = {key: kept if key == "attention" else share for key, kept in narrow.items()}
            architecture = cluster.device.architecture.model_copy(update={"narrow": shares})
            device = cluster.device.model_copy(update={"architecture": architecture})
            cluster = cluster.model_copy(update={"device": device})
            return found.model_copy(update={"cluster": cluster})

        gpu_steps.find_platform = with_share
        parts.append(gpu_steps.simulate_steps(steps))
    gpu_steps.find_platform = find_platform
    rows = parts[0]
    fine = np.linspace(0.3, 0.9, 61)
    low, high = (1 / share for share in NARROW)
    along = (1 / fine[None] - high) / (low - high)
    at_low, at_high = (part["predicted_s"].to_numpy()[:, None] for part in parts)
    seconds = at_high * (1 - along) + at_low * along
    off = pd.DataFrame(np.abs(seconds / rows["measured_s"].to_numpy()[:, None] - 1), columns=fine)
    networks = rows["network"].str.partition(":")[0]
    for (gpu, kind), of_kind in rows.groupby(["gpu", "kind"]):
        by_network = off.loc[of_kind.index].groupby(networks[of_kind.index]).mean()
        own = by_network.mean().idxmin()
        others = {name: by_network.drop(name).mean().idxmin() for name in by_network.index}
        said = ", ".join(
            f"{name} {share:.2f} {by_network.loc[name, share]:.1%}"
            for name, share in others.items()
        )
        print(f"{gpu}, {kind}: {own:.2f}; by the others' share: {said}")


def inside_by_others_widths(judged: pd.DataFrame) -> pd.DataFrame:
    """Share (%) of each group's steps inside intervals whose widths come from the other groups."""
    judged = judged[judged["basis"].isin(BASES) & ~judged["data"].str.startswith("plain_pytorch")]
    parts = []
    for _, group in judged.groupby(["step_kind", "data", "gpu", "kind"]):
        widths = judged_widths(judged.drop(group.index))
        cells = by_setting(group, ["step", "basis", "step_kind", "data", "gpu", "kind"])
        width = [
            widths[BASES[b]][k] for b, k in zip(cells["basis"], cells["step_kind"], strict=True)
        ]
        parts.append(cells.assign(inside=100.0 * (cells["mean_absolute_percent"] / 100 <= width)))
    groups = pd.concat(parts).groupby(["step_kind", "data", "gpu", "kind", "basis"])["inside"]
    return groups.mean().unstack()


def choice_after_one_step(steps: list[GpuStep]) -> pd.DataFrame:
    """Mean regret (%) and Kendall's tau. Each configuration is measured in turn, and the others are
    ranked."""
    parts = []
    found = gpu_steps.simulate_steps(steps)
    for _, group in found.groupby(["network", "devices", "global_batch"]):
        for place in range(len(group) if len(group) > 4 else 0):
            known = MeasuredSteps((group["error"].iloc[place],))
            others = group.drop(group.index[place])
            ops_s = others["predicted_s"] - others["exposed_s"]
            for way, seconds in (
                ("corrected", [corrected_s(row, known) for row in others.to_dict("records")]),
                ("shared", others["exposed_s"] + np.exp(known.shared) * ops_s),
                ("uncorrected", others["predicted_s"]),
            ):
                after = others.assign(way=way, known=group.index[place], predicted=seconds)
                parts.append(after.rename(columns={"measured_s": "measured"}))
    ranks = rank(pd.concat(parts), ["way", "known"], fewest=4)
    return ranks.groupby("way")[["regret_percent", "kendall_tau"]].mean()


def after_all_others(steps: list[GpuStep]) -> pd.DataFrame:
    """Mean error (%) with the description alone, and with ops that are scaled by the median of all other
    steps of the group.

    The second error is the one that a single factor for a GPU reaches, however many steps are measured.
    """
    found = gpu_steps.simulate_steps(steps)
    log_factors = found["error"].map(lambda error: error.ops)
    parts = []
    for _, group in found.groupby(["data", "gpu", "kind"]):
        factor = [np.exp(log_factors[group.index.drop(place)].median()) for place in group.index]
        seconds = group["exposed_s"] + factor * (group["predicted_s"] - group["exposed_s"])
        parts.append(group.assign(after_all_others=seconds))
    judged = pd.concat(parts)
    for name in ("predicted_s", "after_all_others"):
        judged[name] = 100 * (judged[name] / judged["measured_s"] - 1).abs()
    columns = ["predicted_s", "after_all_others"]
    by_group = judged.groupby(["data", "gpu", "kind"])[columns].mean()
    return pd.concat([by_group, judged.groupby("data")[columns].mean()])


def judged_widths(judged: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Half widths of 90 % intervals, as ratios, by the basis of a prediction and the kind of step.

    A group is a GPU's steps of one kind in one data set. The width holds 90 % of the steps in four of five
    groups. The group of the next GPU is not among them, so with few groups the width is that of the worst one
    (split conformal prediction: Papadopoulos et al. 2002). Steps of plain PyTorch do not count. Some of them
    were used to choose constants. Others have the time of their host, which the interval knows.

    Args:
        judged: result of :func:`judge`.
    """
    judged = judged[~judged["data"].str.startswith("plain_pytorch")]
    cells = by_setting(judged, ["step", "basis", "step_kind", *GROUP])
    found: dict[str, dict[str, float]] = {}
    for name, basis in (("description", "description"), ("calibrated", "one step")):
        of_basis = cells[cells["basis"] == basis]
        groups = of_basis.groupby(["step_kind", *GROUP])["mean_absolute_percent"].quantile(LEVEL)
        found[name] = {}
        for kind, errors in groups.groupby("step_kind"):
            place = min(math.ceil(GROUPS_HELD * (len(errors) + 1)), len(errors))
            found[name][str(kind)] = round(float(errors.sort_values().iloc[place - 1]) / 100, 3)
    return found


def judge_memory() -> pd.DataFrame:
    """Predict the peak memory of measured steps: those of Sailor, and the later ones of plain PyTorch.

    Returns:
        A row for each step: ``data``, ``devices``, ``measured_bytes``, ``predicted_bytes``, and ``off``, the
            share by which the measured bytes differ from the predicted ones.
    """
    steps = steps_with_memory()
    steps += [step for step in read_gpu_steps(FOLDER) if step.source == "plain_pytorch_later"]
    rows = []
    for each in steps:
        platform = find_platform(each.platform)
        costs = kernel_costs.KernelCosts(platform.require_cluster().device, each.step.precision)
        found = simulated_step(each.step, platform, costs)
        # Torch counts the memory that it allocated, without the memory that a process needs.
        extra = platform.require_cluster().device.reserved_bytes
        predicted = found.peak_memory_bytes - (extra if each.source != "sailor" else 0.0)
        measured = each.step.memory_bytes or math.nan
        rows.append((each.source, found.strategy.devices, measured, predicted))
    frame = pd.DataFrame(rows, columns=["data", "devices", "measured_bytes", "predicted_bytes"])
    return frame.assign(off=frame["measured_bytes"] / frame["predicted_bytes"] - 1)


def main() -> None:
    """Judge, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--held-out", action="store_true", help="constants from other GPUs")
    parser.add_argument("--write", action="store_true", help="write simulator/judged_errors.yaml")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument(
        "--held-shares", action="store_true", help="share of a rate that trainings reach"
    )
    parser.add_argument("--choice", action="store_true", help="rank after one measured step")
    parser.add_argument("--all-others", action="store_true", help="errors after all other steps")
    given = parser.parse_args()
    steps = read_gpu_steps(FOLDER)
    if given.held_shares:
        held_shares([step for step in steps if step.source in ("llm_foundry", "vtrain")])
        held_narrow_shares(
            [step for step in steps if step.source == "megatron_bridge" and "," in step.kind]
        )
        return
    if given.all_others:
        print(after_all_others(steps).round(2).to_string())
        return
    if given.choice:
        vtrain = [step for step in steps if step.source == "vtrain"]
        print(choice_after_one_step(vtrain).round(3).to_string())
        return
    frame = held_out(steps) if given.held_out else judge(steps)
    pd.set_option("display.width", 200, "display.max_columns", 30, "display.max_colwidth", 60)
    described = frame[frame["basis"] == "description"]
    if given.rows:
        print(described.to_string())
    print(gpu_error_table(frame).round(1).to_string())
    print(choice_table(frame).round(2).drop(columns=["data", "network"]).to_string())
    nvidia = described[(described["devices"] == 1) & ~described["gpu"].str.startswith("mi")]
    errors = summarise(by_setting(nvidia, ["step", "gpu", "kind"]), ["kind"])
    print("NVIDIA, one GPU:", errors[["kind", "mape_percent"]].round(1).to_string())
    all_reduces = judge_all_reduces(FOLDER)
    print(all_reduces_table(all_reduces).round(1).to_string())
    print(
        "Inside, by the widths of other groups (%):",
        inside_by_others_widths(frame).round(0).to_string(),
    )
    widths = judged_widths(frame)
    peaks = judge_memory()
    kinds = np.where(peaks["devices"] == 1, "one", "several")
    errors = peaks["off"].abs().groupby(kinds).quantile(LEVEL)
    memory = {str(kind): round(float(width), 3) for kind, width in errors.items()}
    print(widths, memory, peaks.groupby("data")["off"].apply(lambda off: off.abs().mean()))
    if given.write:
        path = Path(interval.__file__).with_name("judged_errors.yaml")
        head = (
            "# Written by benchmarks/simulator_gpus.py --held-out --write: what 90 % of the measured\n"
            "# steps are off by at most.\n"
        )
        content = {
            "steps": sum(not step.source.startswith("plain") for step in steps),
            "widths": widths,
            "memory": memory,
        }
        path.write_text(head + yaml.safe_dump(content, sort_keys=False))


if __name__ == "__main__":
    main()
