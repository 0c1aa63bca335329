"""Finds how wide the intervals of imported runs must be. They are judged on settings that no fit had seen.

    ./run python benchmarks/widths.py [--write]

* Times: each recorded scale of a series (``recorded/mlperf-times``) is predicted from one or two scales next
  to it: above, below or on both sides. Its work is given, or is predicted, too.
* Energies: the held-out workloads and node counts of ``recorded/mlperf-power``, with the time given.
* GPUs that were not run: if a submitter trained a network on two GPUs (``recorded/mlperf-times``), each GPU
  is predicted from the other one and the simulator.

A row has the share of the settings that are inside of their intervals. Their widths come from the others
alone: other submitters, other benchmarks, other workloads.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import yaml
from _output import parser, show
from real_clusters import metered_records, timed_runs

from joulecast.energy import intervals, rate
from joulecast.energy.campaign_fit import KnownRuns
from joulecast.energy.evaluation import evaluate, without_copies
from joulecast.energy.intervals import JudgedWidths
from joulecast.energy.run_time import RunTimes
from joulecast.errors import JoulecastError
from joulecast.logs.mlperf_tables import times_table
from joulecast.report.advice.other_platform import simulate_training
from joulecast.runs.files.shipped import recorded_folder
from joulecast.runs.judging import OURS, judge
from joulecast.runs.platforms import gpu_in

HEAD = "# Written by benchmarks/widths.py --write; JudgedWidths in energy/intervals.py says what they are.\n"
NO_WIDTHS = JudgedWidths(0, {"given": 0.0, "predicted": 0.0}, 0, 0.0, 0, 0.0)
_SPLITS = ("leave-one-workload-out", "leave-one-node-count-out")


def holding(needed: pd.Series, of: pd.Series) -> float:
    """The least width that holds 90 % of the settings and of a further one (conformal). If there are few
    settings, it is the largest width.

    Args:
        needed: the width that each run needs.
        of: the setting of each run. All settings count the same.
    """
    share = 1 / of.map(of.value_counts())
    order = needed.sort_values().index
    held = share[order].cumsum() >= 0.9 * (of.nunique() + 1) - 1e-9
    return float(needed[order][held].min() if held.any() else needed.max())


def _neighbours(scales: list[float]) -> Iterator[tuple[list[float], float]]:
    """One or two scales, and a scale next to them."""
    for place, asked in enumerate(scales):
        below, above = scales[max(0, place - 2) : place], scales[place + 1 : place + 3]
        for fitted in (below, below[-1:], above, above[:1], below[-1:] + above[:1]):
            yield fitted, asked


def other_scales(runs: pd.DataFrame) -> pd.DataFrame:
    """Times of recorded scales that are predicted from scales next to them.

    Args:
        runs: as of :func:`real_clusters.timed_runs`.

    Returns:
        a row for each scale, batch, kind of ``work`` and fit: ``doublings`` to the nearest fitted scale,
        ``error`` (logarithm of the predicted over the mean measured time), and the ``half`` width of the
        interval of the prediction.
    """
    rows = []
    for series, own in runs.groupby("series"):
        # Other runs of this benchmark by the same submitter are left out, because they would make the
        # prediction too easy.
        theirs = (runs["submitter"].str.lower() == own["submitter"].iloc[0].lower()) & (
            runs["network"] == own["network"].iloc[0]
        )
        others = without_copies(runs[~theirs], own)
        asked_of = {
            (tuple(sorted(fitted)), asked)
            for fitted, asked in _neighbours(sorted(own["ranks"].unique()))
            if fitted
        }
        for fitted, asked in sorted(asked_of):
            times = RunTimes().fit(pd.concat([others, own[own["ranks"].isin(fitted)]]))
            for batch, of in own[own["ranks"] == asked].groupby("batch"):
                for work in ("given", "predicted"):
                    samples = of["samples"].mean() if work == "given" else np.nan
                    answer = times.predict(of.iloc[:1].assign(samples=samples)).iloc[0]
                    rows.append(
                        {
                            **of.iloc[0][["submitter", "network", "ranks"]],
                            "series": series,
                            "batch": batch,
                            "fitted": fitted,
                            "work": work,
                            "measured_s": of["total_s"].mean(),
                            "doublings": float(np.abs(np.log2(asked / np.array(fitted))).min()),
                            "error": np.log(answer["time_s"] / of["total_s"].mean()),
                            "half": np.log(answer["time_high_s"] / answer["time_low_s"]) / 2,
                        }
                    )
    table = pd.DataFrame(rows)
    # A submission that is in several rounds counts once.
    return table.drop_duplicates(["network", "measured_s", "fitted", "work"], ignore_index=True)


def _needed(times: pd.DataFrame) -> pd.Series:
    """The amount that each doubling of the scale must add, in quadrature, to the half width of a
    prediction."""
    lacking = (times["error"] ** 2 - times["half"] ** 2).clip(lower=0)
    return np.sqrt(lacking / times["doublings"])


def energies_given() -> pd.DataFrame:
    """Energies of held-out runs with their time given, in the form of
    :func:`joulecast.runs.judging.judge`."""
    with metered_records() as folders:
        runs = KnownRuns.of_records(folders)
        found = evaluate(runs.clean, runs.allreduce, runs.watts, splits=_SPLITS, times=["given"])
    judged = judge(found.predictions, runs.clean, "energy")
    judged = judged[judged["model"] == OURS].reset_index(drop=True)
    setting = judged["split"] + " " + judged["network"] + " " + judged["nodes"].astype(str)
    return judged.assign(
        setting=setting,
        error=np.log(judged["predicted"] / judged["measured"]),
        half=np.log(judged["upper"] / judged["lower"]) / 2,
    )


_GRAPHS = {"resnet": "resnet50", "bert": "bert-large"}
"""The networks of the recorded times that the simulator has as op graphs."""


def other_platforms() -> pd.DataFrame:
    """Predicts times on a GPU from times of the same submitter on another GPU, corrected by the simulator.

    Returns:
        a row for each submitter, network, scale and other GPU: ``error`` (logarithm of the predicted over the
        measured time of a step), and ``by_peak``, the same by the peak rates of the GPUs alone.
    """
    runs = times_table(recorded_folder(Path("mlperf-times")))
    runs = runs[runs["network"].isin(_GRAPHS) & runs["batch"].notna() & runs["nodes"].notna()]
    runs = runs.assign(gpu=[gpu_in(str(name)) for name in runs["accelerator"]])
    runs = runs.dropna(subset=["gpu", "accelerators_per_node"])
    runs = runs.assign(devices=runs["nodes"] * runs["accelerators_per_node"])
    cells = []
    by = ["submitter", "network", "gpu", "accelerators_per_node", "devices", "batch"]
    for key, of in runs.groupby(by):
        submitter, network, gpu, each, devices, batch = key
        platform = f"{gpu}:gpus={each:.0f}"
        try:
            step = simulate_training(_GRAPHS[network], platform, "bf16", int(devices), int(batch))
        except JoulecastError as error:
            print(f"left out: {error}")
            continue
        took_s = float((of["total_s"] / of["samples"]).mean()) * batch
        peak = step.platform.require_cluster().device.peak_flops["bf16"]
        cells.append(
            dict(zip(by, key, strict=True))
            | {"factor": took_s / step.step_s, "per_peak": took_s * devices * peak / batch}
        )
    rows = []
    for (submitter, network), of in pd.DataFrame(cells).groupby(["submitter", "network"]):
        for asked in of.to_dict("records"):
            for gpu, other in of[of["gpu"] != asked["gpu"]].groupby("gpu"):
                apart = np.abs(np.log2(other["devices"] / asked["devices"]))
                near = other[apart == apart.min()]
                rows.append(
                    {
                        "submitter": submitter,
                        "network": network,
                        "pair": f"{submitter} {network} {sorted([gpu, asked['gpu']])}",
                        "devices": asked["devices"],
                        "error": float(np.log(near["factor"] / asked["factor"]).mean()),
                        "by_peak": float(np.log(near["per_peak"] / asked["per_peak"]).mean()),
                    }
                )
    return pd.DataFrame(rows)


def _inside(question: str, settings: int, error: pd.Series, half: pd.Series) -> dict[str, Any]:
    return {
        "question": question,
        "settings": settings,
        "mean_percent": 100 * float(error.abs().mean()),
        "half_width_percent": 100 * float(half.median()),
        "inside_percent": 100 * float((error.abs() <= half).mean()),
    }


def _times_held_out(times: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Shares of settings inside of intervals: with the model's own width, and with widths from other
    submitters and benchmarks."""
    for work, of in times.groupby("work"):
        said = f"time of another scale, work {work}"
        yield _inside(f"{said}, no judged width", len(of), of["error"], of["half"])
        for by in ("submitter", "network"):
            needed = _needed(of)
            width = pd.Series(
                {
                    name: holding(needed[of[by] != name], needed[of[by] != name].index.to_series())
                    for name in of[by].unique()
                }
            )
            half = np.hypot(of["half"], of[by].map(width) * np.sqrt(of["doublings"]))
            yield _inside(f"{said}, width of other {by}s", len(of), of["error"], half)
            for low, high in ((0, 0.75), (0.75, 1.5), (1.5, 3.5), (3.5, 20)):
                far = of["doublings"].between(low, high, inclusive="right")
                name = f"{said}, width of other {by}s, {low:g} to {high:g} doublings"
                yield _inside(name, int(far.sum()), of["error"][far], half[far])


def _energies_held_out(energies: pd.DataFrame) -> dict[str, Any]:
    needed = energies["error"].abs()
    width = {
        name: holding(needed[rest], energies.loc[rest, "setting"])
        for name in energies["network"].unique()
        for rest in [energies["network"] != name]
    }
    half = energies["half"].clip(lower=energies["network"].map(width))
    return _inside(
        "energy, time given, width of other workloads",
        energies["setting"].nunique(),
        energies["error"],
        half,
    )


def _platforms_held_out(pairs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The errors of the simulator and of peak rates, and the shares inside of intervals with widths from
    others."""
    said = "time on a GPU that was not run"
    for name, error in ((said, "error"), (f"{said}, by peak rates", "by_peak")):
        for by in ("submitter", "network"):
            width = {
                left_out: holding(pairs[error][rest].abs(), pairs["pair"][rest])
                for left_out in pairs[by].unique()
                for rest in [pairs[by] != left_out]
            }
            half = pairs[by].map(width)
            yield _inside(
                f"{name}, width of other {by}s", pairs["pair"].nunique(), pairs[error], half
            )


def main() -> None:
    """Judge, print, and write if asked."""
    arguments: argparse.ArgumentParser = parser(__doc__)
    arguments.add_argument("--write", action="store_true", help="write energy/judged_widths.yaml")
    given = arguments.parse_args()
    with patch.object(rate, "judged_widths", lambda: NO_WIDTHS):
        times = other_scales(timed_runs())
    energies, pairs = energies_given(), other_platforms()
    found = JudgedWidths(
        times=int((times["work"] == "given").sum()),
        of_times={
            str(work): round(holding(_needed(of), of.index.to_series()), 3)
            for work, of in times.groupby("work")
        },
        energies=energies["setting"].nunique(),
        of_energies=round(holding(energies["error"].abs(), energies["setting"]), 3),
        platforms=pairs["pair"].nunique(),
        of_platforms=round(holding(pairs["error"].abs(), pairs["pair"]), 3),
    )
    rows = [*_times_held_out(times), _energies_held_out(energies), *_platforms_held_out(pairs)]
    show(rows, given)
    print(found)
    if given.write:
        path = Path(intervals.__file__).with_name("judged_widths.yaml")
        path.write_text(HEAD + yaml.safe_dump(asdict(found), sort_keys=False))


if __name__ == "__main__":
    main()
