"""Tables of the simulator: its error, the order of strategies, ablations, its speed, scaling forecasts."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import kendalltau

from joulecast.graphs.shipped_graphs import load
from joulecast.quantities import steady
from joulecast.report.tables.output import write_table
from joulecast.report.tables.published import FromPaper, read_published_file
from joulecast.runs.platforms import Platform
from joulecast.simulate.judged.emulated_results import read_results
from joulecast.simulate.judged.judged_on_emulated import judge
from joulecast.simulate.judged.judged_on_real import judge_training
from joulecast.simulate.judged.judging import PREDICTIONS, with_errors
from joulecast.simulate.judged.real_results import read_training_results
from joulecast.simulate.simulate import Assumptions, simulate
from joulecast.simulate.strategy import Strategy

_NOT_PREDICTIONS = ("measured_s", "spread_s", "again_s", "predicted_s", "sum_s", "max_s")


class PublishedSimulators(FromPaper):
    """What papers publish about simulators, in percent and seconds."""

    error_percent: dict[str, float]
    ablation_error_percent: dict[str, float]
    order: str
    on_gpus_percent: dict[str, float]
    """What other simulators publish on data of their own, by the data's name here."""
    speed_s: dict[int, float]


def read_published_simulators(path: Path) -> PublishedSimulators:
    """Read ``config/published/proteus.yaml``.

    Raises:
        JoulecastError: missing, or with wrong keys.
    """
    return read_published_file(PublishedSimulators, path)


def judged_experiments(emulated: Path, training: Path | None) -> pd.DataFrame:
    """Predict the steps of the experiments.

    Args:
        emulated: folder of steps on an emulated network.
        training: folder of steps of real training, if there is one.
    """
    on_network = judge(read_results(emulated)).assign(
        experiment="emulated network", source="recorded", fitted=False
    )
    if training is None:
        return on_network
    real = judge_training(read_training_results(training)).assign(
        experiment="real training", source="recorded"
    )
    real = real.rename(columns={"without_gamma_s": "no gamma"})
    return pd.concat([on_network, real], ignore_index=True)


def _averages(errors: pd.DataFrame, published: PublishedSimulators) -> list[dict[str, Any]]:
    """Rows of averages, published ones beside those of the same kind."""
    rows = []
    judged = errors[~errors["fitted"]]
    for experiment, of_experiment in judged.groupby("experiment", sort=False):
        groups = [("all", of_experiment)]
        groups += [(f"{r} ranks", g) for r, g in of_experiment.groupby("ranks")]
        groups += list(of_experiment.groupby("family", sort=False))
        for name, group in groups if of_experiment["ranks"].nunique() > 1 else [groups[0]]:
            for what in ("mean", "maximum"):
                row: dict[str, Any] = {
                    "experiment": experiment,
                    "configuration": f"({what} of {len(group)}: {name})",
                    "source": group["source"].iloc[0],
                }
                for judged_by in PREDICTIONS:
                    column = f"{judged_by}_error_percent"
                    if column in group:
                        row[column] = getattr(
                            group[column].abs(), what[:4].replace("maxi", "max")
                        )()
                noise = group["noise_percent"].abs().dropna()
                row["noise_percent"] = float(noise.mean()) if len(noise) else None
                if name == "all":
                    row["published_percent"] = published.error_percent[f"Proteus, {what}"]
                    row["flexflow_percent"] = published.error_percent[f"FlexFlow-Sim, {what}"]
                rows.append(row)
    return rows


def error_table(judged: pd.DataFrame, published: PublishedSimulators) -> pd.DataFrame:
    """Averages first, then every configuration, the worst first."""
    errors = with_errors(judged)
    sizes = errors["predicted_error_percent"].abs().map(steady)
    order = sizes.sort_values(ascending=False, kind="stable").index
    columns = [
        "experiment",
        "configuration",
        "family",
        "ranks",
        "measured_s",
        "predicted_s",
        "predicted_error_percent",
        "sum_error_percent",
        "max_error_percent",
        "noise_percent",
        "fitted",
        "source",
        "published_percent",
        "flexflow_percent",
    ]
    rows = [*_averages(errors, published), *errors.loc[order].to_dict("records")]
    return pd.DataFrame(rows).reindex(columns=columns)


def _order_row(experiment: str, what: str, group: pd.DataFrame) -> dict[str, Any]:
    predicted = group["predicted_s"].map(steady)
    best = predicted.idxmin()
    regret = group.loc[best, "measured_s"] / group["measured_s"].min() - 1
    return {
        "experiment": experiment,
        "strategies": what,
        "count": len(group),
        "kendall_tau": float(kendalltau(group["measured_s"], predicted).statistic),
        "top1_regret_percent": 100 * float(regret),
        "kendall_tau_sum": float(
            kendalltau(group["measured_s"], group["sum_s"].map(steady)).statistic
        )
        if "sum_s" in group
        else None,
    }


def order_table(judged: pd.DataFrame) -> pd.DataFrame:
    """Whether the order of strategies is kept: Kendall's tau, and what trusting the best one costs."""
    rows = []
    for experiment, of_experiment in judged[~judged["fitted"]].groupby("experiment", sort=False):
        rows.append(_order_row(str(experiment), "all", of_experiment))
        for column in ("ranks", "family", "network"):
            if column in of_experiment and of_experiment[column].notna().all():
                for value, group in of_experiment.groupby(column, sort=False):
                    if len(group) > 2:
                        rows.append(_order_row(str(experiment), f"{column}: {value}", group))
    return pd.DataFrame(rows)


def ablation_table(judged: pd.DataFrame, published: PublishedSimulators) -> pd.DataFrame:
    """Mean absolute error with a part of the model taken out."""
    rows = []
    for experiment, group in judged[~judged["fitted"]].groupby("experiment", sort=False):
        variants = ["predicted_s"] + [
            c
            for c in group.columns
            if (c not in _NOT_PREDICTIONS and c.startswith("no ")) or c == "single queue"
        ]
        for variant in variants:
            error = 100 * (group[variant] / group["measured_s"] - 1)
            if error.isna().all():
                continue
            row = {
                "experiment": experiment,
                "model": "full" if variant == "predicted_s" else variant,
                "mape_percent": float(error.abs().mean()),
                "max_percent": float(error.abs().max()),
                "bias_percent": float(error.mean()),
            }
            if variant == "predicted_s":
                row["published_percent"] = published.ablation_error_percent[
                    "with runtime behaviour"
                ]
            if variant == "no overlap":
                row["published_percent"] = published.ablation_error_percent[
                    "without runtime behaviour"
                ]
            rows.append(row)
    return pd.DataFrame(rows)


def _timed(run: Callable[[], Any], repeats: int = 3) -> float:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def speed_table(
    platform: Platform, devices: Sequence[int], published: Mapping[int, float]
) -> pd.DataFrame:
    """Seconds that simulating ResNet-50 data parallel takes here, the original's beside them."""
    graph = load("resnet50")
    rows: list[dict[str, Any]] = []
    for count in devices:
        for folded in (True, False):
            if not folded and count > 1024:
                continue
            assumed = Assumptions(folded=folded)
            strategy = Strategy(mesh={"data": count})
            seconds = _timed(
                lambda s=strategy, a=assumed: simulate(graph, platform, s, 32, assumptions=a)  # type: ignore[misc]
            )
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
    devices: Sequence[int] = (8, 32, 64, 128, 1024, 10000),
) -> None:
    """Write the tables of the simulator's errors and of its speed.

    Args:
        folder: of the tables.
        judged: predictions and measurements (:func:`joulecast.simulate.judged.judged_on_emulated.judge`),
            with ``experiment``, ``source`` and ``fitted``.
        platform: to time the simulator on.
        published: numbers of the papers.
        devices: device counts to time.
    """
    beside = f"Published: {published.paper}; {published.where}. {published.setting}."
    unlike = f"Not the same setting: {published.not_comparable_because}."
    fitted = int(judged["fitted"].sum())
    write_table(
        folder / "simulator_error",
        "Error of the simulator",
        [
            "Steps that were measured, against the prediction made without them; averages first, then the "
            "worst. `sum` adds compute and communication, `max` takes the larger. `noise_percent` is the "
            "same configuration measured again.",
            f"{fitted} configurations that gamma was fitted on are shown, and are in no average.",
            beside,
            unlike,
        ],
        error_table(judged, published),
        sections="experiment",
    )
    write_table(
        folder / "simulator_order",
        "Order of strategies",
        [
            "Kendall's tau of predicted and measured step times (1: the same order), and how much slower "
            "than the best strategy the one is that is predicted best.",
            f"The paper prints no tau; it says: {published.order}.",
            beside,
        ],
        order_table(judged),
    )
    write_table(
        folder / "simulator_ablation",
        "What parts of the simulator are worth",
        ["Mean absolute error when a part is left out.", beside, unlike],
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
