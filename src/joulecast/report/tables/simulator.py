"""Tables of the simulator: its error, the order of strategies, ablations, its speed, scaling forecasts."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.graphs.shipped_graphs import load
from joulecast.quantities import steady
from joulecast.report.tables.output import write_table
from joulecast.report.tables.published import FromPaper, read_published_file
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
"""Columns of the error of each model."""
_FEWEST = 3
"""Strategies that have an order worth telling."""


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


def _cells(judged: pd.DataFrame) -> pd.DataFrame:
    facts = ["experiment", "configuration", "family", "ranks", "source", "split", "model", "role"]
    return by_setting(judged, facts)


def _with_parts(rows: pd.DataFrame, **labels: str) -> pd.DataFrame:
    """What was held out of each experiment, once as the part ``all`` and once by each fact."""
    held_out = rows[rows["split"] != "in-sample"]
    parts = [held_out.assign(part="all")]
    for fact, label in labels.items():
        known = held_out[held_out[fact].notna()]
        parts.append(known.assign(part=[label.format(value) for value in known[fact]]))
    return pd.concat(parts).sort_values("experiment", kind="stable")


def _averages(cells: pd.DataFrame, published: PublishedSimulators) -> list[dict[str, Any]]:
    """Rows of averages, published ones beside those of the same kind."""
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
    """Averages first, then every configuration, the worst first."""
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
    """Whether the order of strategies is kept: Kendall's tau, and what trusting the best one costs."""
    parts = _with_parts(judged, ranks="ranks: {}", family="family: {}", network="network: {}")
    key = ["experiment", "part"]
    ranks = rank(parts[parts["model"].isin([_OURS, "sum"])], [*key, "model"], _FEWEST)
    of_sum = ranks[ranks["model"] == "sum"].set_index(key)["kendall_tau"]
    table = ranks[ranks["model"] == _OURS].join(of_sum.rename("kendall_tau_sum"), on=key)
    names = {"part": "strategies", "settings": "count", "regret_percent": "top1_regret_percent"}
    columns = ["experiment", "strategies", "count", "kendall_tau", "top1_regret_percent"]
    return table.rename(columns=names)[[*columns, "kendall_tau_sum"]]


def ablation_table(judged: pd.DataFrame, published: PublishedSimulators) -> pd.DataFrame:
    """Errors of the simulator, whole (``full``) and with a part of it taken out."""
    parts = _with_parts(_cells(judged))
    summary = summarise(parts[parts["role"].isin(["model", "ablation"])], ["experiment", "model"])
    table = summary[["experiment", "model", "mape_percent", "max_percent", "bias_percent"]]
    theirs = published.ablation_error_percent
    beside = {_OURS: "with runtime behaviour", "no overlap": "without runtime behaviour"}
    return table.assign(
        model=table["model"].replace(_OURS, "full"),
        published_percent=table["model"].map(beside).map(theirs),
    )


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
        judged: predictions joined with measured steps, as of
            :func:`joulecast.simulate.judged.judged_on_emulated.judge`.
        platform: to time the simulator on.
        published: numbers of the papers.
        devices: device counts to time.
    """
    beside = f"Published: {published.paper}; {published.where}. {published.setting}."
    unlike = f"Not the same setting: {published.not_comparable_because}."
    fitted = judged.loc[judged["split"] == "in-sample", "configuration"].nunique()
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
