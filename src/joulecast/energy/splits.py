"""Splits of training runs: what a fit may see, and what it is judged on.

If a node count is held out, its all-reduce and sleeping-rank calibrations are held out, too. A fit that sees
only one node count also gets the communication calibration of the next larger count, because a user has two
nodes that are not training. If a workload is held out, its runs at the smallest node count stay in the fit:
they are its calibration, for every model. (A workload without larger counts is predicted from other workloads
alone.) In the last split, the next scale of a series is predicted from the two scales below it. The work is
predicted, too. Without power, only the time is predicted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Split:
    """Runs to fit and runs to judge, by boolean masks over the training runs."""

    name: str
    fitted: pd.Series
    judged: pd.Series


def _in_sample(training: pd.DataFrame) -> Iterator[Split]:
    everything = pd.Series(True, index=training.index)
    yield Split("in-sample", everything, everything)


def _leave_one_node_count_out(training: pd.DataFrame) -> Iterator[Split]:
    counts = sorted(training["nodes"].unique())
    for count in counts if len(counts) > 1 else ():
        out = training["nodes"] == count
        yield Split("leave-one-node-count-out", ~out, out & ~is_sweep(training))


def _leave_one_batch_out(training: pd.DataFrame) -> Iterator[Split]:
    """Splits, each of which holds out one batch of a network. At least two other batches of the network stay
    in the fit. There are no such splits if there are several node counts, or imported runs."""
    if training["nodes"].nunique() > 1 or (training["kind"] == "imported").any():
        return
    for _, own in training.groupby("workload"):
        batches = sorted(own["batch"].dropna().unique())
        for batch in batches if len(batches) > 2 else ():
            out = training.index.isin(own.index) & (training["batch"] == batch)
            yield Split("leave-one-batch-out", ~out, out)


def _extrapolation(training: pd.DataFrame) -> Iterator[Split]:
    small = training["nodes"] <= training["nodes"].max() / 4
    if small.any() and not small.all():
        yield Split("extrapolation", small, ~small)


def _leave_one_workload_out(training: pd.DataFrame) -> Iterator[Split]:
    networks = sorted(training["network"].unique())
    for network in networks if len(networks) > 1 else ():
        own = training["network"] == network
        smallest = training["nodes"] == training.groupby("workload")["nodes"].transform("min")
        out = own & ~smallest if (own & ~smallest).any() else own
        yield Split("leave-one-workload-out", ~out, out & ~is_sweep(training))


NEXT_SCALE = "next-scale"


def _next_scale(training: pd.DataFrame) -> Iterator[Split]:
    """Splits, each of which holds out one scale of a submitter's series of imported runs. The fit sees the
    two next smaller scales of the series, and runs of other submitters or benchmarks."""
    if "series" not in training:
        return
    for series, own in training.groupby("series"):
        if not (own["kind"] == "imported").all():
            continue
        scales = sorted(own["ranks"].unique())
        for *smaller, asked in zip(scales, scales[1:], scales[2:], strict=False):
            of_series = training["series"] == series
            judged = of_series & (training["ranks"] == asked)
            # The submitter's other runs of this benchmark, on another system or in another round, would tell
            # too much. So the fit does not see them.
            theirs = training["submitter"].str.lower() == own["submitter"].iloc[0].lower()
            theirs &= training["network"] == own["network"].iloc[0]
            yield Split(NEXT_SCALE, ~theirs | (of_series & training["ranks"].isin(smaller)), judged)


SPLITS: dict[str, Callable[[pd.DataFrame], Iterator[Split]]] = {
    "in-sample": _in_sample,
    "leave-one-node-count-out": _leave_one_node_count_out,
    "leave-one-batch-out": _leave_one_batch_out,
    "extrapolation": _extrapolation,
    "leave-one-workload-out": _leave_one_workload_out,
    NEXT_SCALE: _next_scale,
}
"""Splits by name. There is an in-sample split, because the errors in the papers may be in-sample.
``extrapolation`` fits runs on at most a quarter of the largest node count. The runs of a sweep over batch
sizes are in the fit if their node count is in the fit. They are judged in-sample, and are held out only if
all runs have one node count."""


USUAL = ("leave-one-node-count-out", "leave-one-batch-out", "leave-one-workload-out")
"""If no split is requested, errors are reported for the first of these splits that is possible with the
runs."""


def usual_time(split: str) -> str:
    """``given`` or ``predicted``: whether models get the time of the runs that a split holds out. If a
    workload is held out, its time is given, because it has no time model of its own."""
    return "given" if split == "leave-one-workload-out" else "predicted"


def is_sweep(training: pd.DataFrame) -> pd.Series:
    """Whether each run belongs to a sweep over batches: its batch was run on only one node count, although
    other batches of the network were run on several."""
    if training["batch_per_rank"].isna().all():
        return pd.Series(False, index=training.index)
    per_rank = training.groupby(["workload", "batch_per_rank"])["nodes"].transform("nunique")
    most = per_rank.groupby(training["workload"]).transform("max")
    return per_rank < most
