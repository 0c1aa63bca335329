"""Tables of the simulator: its error, the order of strategies, ablations, and its speed. Other tables have
its error on steps that others measured on GPUs, and which configuration it would choose."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from timeit import repeat
from typing import Any

import numpy as np
import pandas as pd

from joulecast.graphs.network_graphs import op_graph
from joulecast.quantities import steady
from joulecast.report.tables.output import write_table
from joulecast.report.tables.published import FromPaper
from joulecast.runs.judging import by_setting, rank, summarise
from joulecast.runs.platforms import Platform
from joulecast.simulate.simulate import Assumptions, simulate
from joulecast.simulate.strategy import Strategy

_OURS, _REPEAT = "simulator", "measured again"
_ERRORS = {
    _OURS: "predicted_error_percent",
    "sum": "sum_error_percent",
    "max": "max_error_percent",
    _REPEAT: "noise_percent",
}
"""Columns with the errors of each model."""
_FEWEST = 3
"""Least number of strategies whose order is judged."""


class PublishedSimulators(FromPaper):
    """Published numbers about simulators, in percent and seconds."""

    error_percent: dict[str, float]
    ablation_error_percent: dict[str, float]
    order: str
    on_gpus_percent: dict[str, float]
    """Errors that other simulators publish on their own data, by our name of the data."""
    speed_s: dict[int, float]


def _cells(judged: pd.DataFrame) -> pd.DataFrame:
    facts = ["experiment", "configuration", "family", "ranks", "source", "split", "model", "role"]
    return by_setting(judged, facts)


def _with_parts(rows: pd.DataFrame, **labels: str) -> pd.DataFrame:
    """The held-out rows with a column ``part``. Each row occurs once with the part ``all``, and once more for
    each column in ``labels`` in which it has a value. Then the part is the label of this value."""
    held_out = rows[rows["split"] != "in-sample"]
    parts = [held_out.assign(part="all")]
    for fact, label in labels.items():
        known = held_out[held_out[fact].notna()]
        parts.append(known.assign(part=[label.format(value) for value in known[fact]]))
    return pd.concat(parts).sort_values("experiment", kind="stable")


def _averages(cells: pd.DataFrame, published: PublishedSimulators) -> list[dict[str, Any]]:
    """Rows of averages, with published averages of the same kind next to them."""
    parts = _with_parts(cells, ranks="{} ranks", family="{}")
    several = parts.groupby("experiment")["ranks"].transform("nunique") > 1
    by = ["experiment", "source", "part"]
    summary = summarise(parts[several | (parts["part"] == "all")], [*by, "model"])
    rows = []
    for (experiment, source, part), of_part in summary.groupby(by, sort=False):
        of_model = of_part.set_index("model")
        for what, column in (("mean", "mape_percent"), ("maximum", "max_percent")):
            row = {
                "experiment": experiment,
                "configuration": f"({what} of {of_model.loc[_OURS, 'settings']}: {part})",
                "source": source,
                **{name: of_model[column].get(model) for model, name in _ERRORS.items()},
                _ERRORS[_REPEAT]: of_model["mape_percent"].get(_REPEAT),
            }
            if part == "all":
                row["published_percent"] = published.error_percent[f"Proteus, {what}"]
                row["flexflow_percent"] = published.error_percent[f"FlexFlow-Sim, {what}"]
            rows.append(row)
    return rows


def error_table(judged: pd.DataFrame, published: PublishedSimulators) -> pd.DataFrame:
    """The table of errors: first averages, then every configuration, with the largest error first."""
    cells, key = _cells(judged), ["experiment", "configuration"]
    errors = cells.pivot(index=key, columns="model", values="difference_percent")
    steps = cells[cells["model"] == _OURS].join(errors.rename(columns=_ERRORS), on=key)
    steps = steps.assign(fitted=steps["split"] == "in-sample")
    steps = steps.rename(columns={"measured": "measured_s", "predicted": "predicted_s"})
    sizes = steps[_ERRORS[_OURS]].abs().map(steady)
    order = sizes.sort_values(ascending=False, kind="stable").index
    columns = [
        *("experiment", "configuration", "family", "ranks", "measured_s", "predicted_s"),
        *_ERRORS.values(),
        *("fitted", "source", "published_percent", "flexflow_percent"),
    ]
    rows = [*_averages(cells, published), *steps.loc[order].to_dict("records")]
    return pd.DataFrame(rows).reindex(columns=columns)


def order_table(judged: pd.DataFrame) -> pd.DataFrame:
    """Whether the simulator gets the order of strategies right: Kendall's tau, and how much time is lost if
    the best prediction is trusted."""
    parts = _with_parts(judged, ranks="ranks: {}", family="family: {}", network="network: {}")
    key = ["experiment", "part"]
    ranks = rank(parts[parts["model"].isin([_OURS, "sum"])], [*key, "model"], _FEWEST)
    of_sum = ranks[ranks["model"] == "sum"].set_index(key)["kendall_tau"]
    table = ranks[ranks["model"] == _OURS].join(of_sum.rename("kendall_tau_sum"), on=key)
    names = {"part": "strategies", "settings": "count", "regret_percent": "top1_regret_percent"}
    columns = ["experiment", "strategies", "count", "kendall_tau", "top1_regret_percent"]
    return table.rename(columns=names)[[*columns, "kendall_tau_sum"]]


def ablation_table(judged: pd.DataFrame, published: PublishedSimulators) -> pd.DataFrame:
    """Errors of the complete simulator (``full``), and of the simulator without one of its parts."""
    parts = _with_parts(_cells(judged))
    summary = summarise(parts[parts["role"].isin(["model", "ablation"])], ["experiment", "model"])
    table = summary[["experiment", "model", "mape_percent", "max_percent", "bias_percent"]]
    theirs = published.ablation_error_percent
    published_as = {_OURS: "with runtime behaviour", "no overlap": "without runtime behaviour"}
    return table.assign(
        model=table["model"].replace(_OURS, "full"),
        published_percent=table["model"].map(published_as).map(theirs),
    )


def speed_table(
    platform: Platform, devices: Sequence[int], published: Mapping[int, float]
) -> pd.DataFrame:
    """Seconds that our simulator takes for data-parallel ResNet-50, next to the seconds of the original
    simulator."""
    graph = op_graph("resnet50")
    rows: list[dict[str, Any]] = []
    for count in devices:
        for folded in (True, False):
            if not folded and count > 1024:
                continue
            assumed = Assumptions(folded=folded)
            strategy = Strategy(mesh={"data": count})
            step = partial(simulate, graph, platform, strategy, 32, assumptions=assumed)
            seconds = min(repeat(step, number=1, repeat=3))
            row: dict[str, Any] = {"devices": count, "folded": folded, "seconds": seconds}
            if count in published:
                row["original_s"] = published[count]
                row["times_faster"] = published[count] / seconds
            rows.append(row)
    return pd.DataFrame(rows)


def write_simulator_tables(
    folder: Path,
    judged: pd.DataFrame,
    platform: Platform,
    published: PublishedSimulators,
    devices: Sequence[int],
) -> None:
    """Write the tables of the simulator's errors and of its speed.

    Args:
        judged: as from :func:`joulecast.simulate.judged.emulated_network.judge`.
        platform: the simulated platform, for the timing of the simulator.
        devices: device counts for which the simulator is timed.
    """
    source = f"Published: {published.paper}; {published.where}. {published.setting}."
    unlike = f"Not the same setting: {published.not_comparable_because}."
    fitted = judged.loc[judged["split"] == "in-sample", "configuration"].nunique()
    write_table(
        folder / "simulator_error",
        "Error of the simulator",
        [
            "Measured steps, and predictions that did not use them. Averages are first, then the worst. "
            "`sum` adds compute and communication, `max` takes the larger. `noise_percent`: the difference "
            "when the same configuration was measured again.",
            f"{fitted} configurations on which gamma was fitted are shown, but are in no average.",
            source,
            unlike,
        ],
        error_table(judged, published),
        sections="experiment",
    )
    write_table(
        folder / "simulator_order",
        "Order of strategies",
        [
            "Kendall's tau of predicted and measured step times (1: the same order). "
            "`top1_regret_percent`: how much slower the strategy that is predicted best is than the "
            "best one.",
            f"The paper prints no tau; it says: {published.order}.",
            source,
        ],
        order_table(judged),
    )
    write_table(
        folder / "simulator_ablation",
        "What parts of the simulator are worth",
        ["Mean absolute error when a part is left out.", source, unlike],
        ablation_table(judged, published),
    )
    write_table(
        folder / "simulator_speed",
        "Speed of the simulator",
        [
            "ResNet-50, data parallel: compiled and run, the best of three, measured on this machine. "
            "`original_s` is the paper's public code on another machine with 2 cores.",
        ],
        speed_table(platform, devices, published.speed_s),
    )


WHAT = {
    "neusight": "one GPU, fp32, eager attention",
    "vtrain": "64 to 512 A100, tensor x data x pipeline, fp16",
    "llm_foundry": "8 to 512 GPUs, FSDP, bf16",
    "megatron_bridge": "a vendor's recipes on 8 to 1,024 H100 and GB200, by release of its software",
    "plain_pytorch": "one H100 or H200, plain PyTorch at fp32, tf32 and amp, measured by joulecast; the "
    "simulator's constants for it were chosen with these steps in sight",
    "plain_pytorch_later": "one H100 or H200, plain PyTorch, other networks, batches and precisions, "
    "measured later",
}
_GPU_COLUMNS = {
    "settings": "steps",
    "mape_percent": "error_percent",
    "median_percent": "median_error_percent",
    "bias_percent": "bias_percent",
    "worst_percent": "worst_percent",
    "one step": "one_step_error_percent",
    "three steps": "three_steps_error_percent",
    "covered_percent": "covered_percent",
    "called_out_of_memory": "called_out_of_memory",
}
"""Columns of the table of errors, by their names in the judged steps."""


def _gpu_errors(cells: pd.DataFrame) -> pd.DataFrame:
    """Errors of the simulator by data source, GPU and kind of step: with the description of the GPU alone,
    and after a calibration on other measured steps."""
    by = ["data", "gpu", "kind"]
    described = cells[cells["basis"] == "description"]
    groups = described.groupby(by, sort=False)
    table = summarise(described, by).set_index(by)
    table["worst_percent"] = groups["difference_percent"].agg(lambda e: e.loc[e.abs().idxmax()])
    table["called_out_of_memory"] = groups["out_of_memory"].sum()
    after = cells.groupby([*by, "basis"])["mean_absolute_percent"].mean().unstack("basis")
    return table.join(after).rename(columns=_GPU_COLUMNS)[[*_GPU_COLUMNS.values()]].reset_index()


def gpu_error_table(judged: pd.DataFrame, peers: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Mean errors by data source, GPU and kind of step. The first row of each source has its mean. If it has
    mixtures of experts and dense networks, the next rows have the mean of each of the two.

    Args:
        judged: as from :func:`joulecast.simulate.judged.gpu_steps.judge`.
        peers: published errors of other simulators on their own data, in percent, by data source.
    """
    named = ["step", "data", "gpu", "kind", "step_kind", "basis", "out_of_memory"]
    cells, parts = by_setting(judged, named), []
    for data, of_data in cells.groupby("data", sort=False):
        mixed = {name: "all" for name in ("gpu", "kind") if of_data[name].nunique() > 1}
        peer = (peers or {}).get(str(data), np.nan)
        parts.append(_gpu_errors(of_data.assign(**mixed)).assign(peer_error_percent=peer))
        experts = of_data["step_kind"] == "experts"
        if experts.nunique() > 1:
            networks = experts.map({True: "mixtures of experts", False: "dense networks"})
            parts.append(_gpu_errors(of_data.assign(gpu="all", kind=networks)))
        if mixed:
            parts.append(_gpu_errors(of_data.sort_values(["gpu", "kind"], kind="stable")))
    return pd.concat(parts, ignore_index=True)


def write_gpu_tables(
    folder: Path, judged: pd.DataFrame, collectives: pd.DataFrame, peers: Mapping[str, float]
) -> None:
    """Write ``simulator_real_gpus``, ``simulator_choice`` and ``simulator_collectives``. The arguments are as
    for :func:`gpu_error_table` and :func:`all_reduces_table`."""
    settings = "; ".join(f"{name}: {what}" for name, what in WHAT.items())
    write_table(
        folder / "simulator_real_gpus",
        "The simulator on real GPUs",
        [
            "Measured steps, and predictions from the GPU's data sheet and fitted constants. The first "
            "row of each data set is its mean.",
            f"{settings}.",
            "`one_step_error_percent`: the error after a correction by one other row of the same data, GPU "
            "and kind; the mean over all such rows. `three_steps_error_percent`: by three of them. "
            "`covered_percent`: share inside the 90 % interval of the prediction from the description. "
            "`peer_error_percent`: the published error of the data's own simulator, on all of its data.",
            "Some constants were tuned on some of these rows: docs/explanation/simulator.md says which.",
        ],
        gpu_error_table(judged, peers),
        sections="data",
    )
    write_table(
        folder / "simulator_choice",
        "The simulator's choice of a strategy on real GPUs",
        [
            "Of the configurations of one training that others measured: the one that is predicted to be the "
            "fastest, the one that was, and how much longer the chosen one takes. Kendall's tau compares the "
            "orders (1: the same).",
        ],
        choice_table(judged),
        sections="data",
    )
    write_table(
        folder / "simulator_collectives",
        "The simulator's collectives on real GPUs",
        [
            "All-reduces of 1 MB to 1 GB in one node (vTrain): measured, and simulated from the GPU's name."
        ],
        all_reduces_table(collectives),
    )


def all_reduces_table(judged: pd.DataFrame) -> pd.DataFrame:
    """Errors of all-reduces in percent by GPU and number of GPUs.

    Args:
        judged: the result of :func:`joulecast.simulate.judged.gpu_steps.judge_all_reduces`.
    """
    by = ["gpu", "gpus"]
    table = summarise(by_setting(judged, ["all_reduce", *by]), by).sort_values(by)
    names = {"settings": "rows", "mape_percent": "error_percent", "max_percent": "worst_percent"}
    return table.rename(columns=names)[[*by, *names.values()]]


_FEWEST_OF_CHOICE = 4
"""Least number of configurations of a training between which the simulator chooses."""


def choice_table(judged: pd.DataFrame) -> pd.DataFrame:
    """Which of the measured configurations of a training the simulator would choose, and how much time is
    lost by this choice.

    There is a row for each network, GPU, number of devices and samples per step with at least four
    configurations. A vendor's recipes have no row: each was measured with other software, so they have no
    order.

    Args:
        judged: as from :func:`joulecast.simulate.judged.gpu_steps.judge`.
    """
    of_one_training = ["data", "gpu", "network", "devices", "global_batch"]
    compared = (judged["basis"] == "description") & (judged["data"] != "megatron_bridge")
    ranks = rank(judged[compared], of_one_training, _FEWEST_OF_CHOICE)
    for column in ("chosen", "least"):
        ranks[column] = ranks[column].map(judged["strategy"])
    return ranks.rename(columns={"settings": "configurations", "least": "fastest"})
