"""All-reduces in one node that others measured on GPUs, and the simulator's price of the same."""

from pathlib import Path

import numpy as np
import pandas as pd

from joulecast.runs.files.columns import Column, read_csv
from joulecast.runs.judging import join_references
from joulecast.runs.platforms import Platform, find_platform
from joulecast.simulate.collectives import Kind
from joulecast.simulate.fleet import build_fleet
from joulecast.simulate.network import alone
from joulecast.simulate.strategy import parse_strategy
from joulecast.simulate.topology import topology_of
from joulecast.simulate.transfers import Transfers

_PLATFORMS = {"a100": "a100-80gb-sxm", "v100": "v100"}
_COLUMNS = {
    "gpu": Column("text"),
    "gpus": Column("whole"),
    "bytes": Column("number"),
    "seconds": Column("number"),
}


def all_reduce_s(platform: Platform, devices: int, size: float) -> float:
    """Seconds of an all-reduce of ``size`` bytes among the first devices of a platform, alone on it."""
    topology = topology_of(platform, devices)
    node_of = topology.node_of(np.arange(devices))
    strategy = parse_strategy(f"dp={devices}")
    fleet = build_fleet(strategy, [], node_of, topology.widths, {}, folded=True)
    cluster = platform.require_cluster()
    kinds: set[tuple[Kind, str]] = {("all_reduce", "data")}
    transfers = Transfers(fleet, topology, cluster, kinds, set())
    sent = transfers.flow("all_reduce", "data", 0).activity("all-reduce", size, gradient=False)
    return sent.latency + sent.work / alone(sent.usage or {}, transfers.capacity)


def judge_all_reduces(folder: Path) -> pd.DataFrame:
    """Predict measured all-reduces from the GPU's name, and join them with what was measured.

    Args:
        folder: with ``allreduce_in_node.csv``.

    Returns:
        A row an all-reduce, as of :func:`joulecast.runs.judging.join_references`: ``gpu``, ``gpus`` and
        ``bytes``.

    Raises:
        JoulecastError: the file is missing or has no such columns.
    """
    frame = read_csv(folder / "allreduce_in_node.csv", "measured all-reduces", _COLUMNS)
    platforms = {gpu: find_platform(name) for gpu, name in _PLATFORMS.items()}
    predicted = [
        all_reduce_s(platforms[gpu], int(count), size)
        for gpu, count, size in zip(frame["gpu"], frame["gpus"], frame["bytes"], strict=True)
    ]
    references = frame.rename_axis("all_reduce").reset_index()
    predictions = references[["all_reduce"]].assign(
        split="held out",
        time="predicted",
        model="simulator",
        role="model",
        basis="description",
        time_s=predicted,
    )
    references = references.rename(columns={"seconds": "time_s"}).assign(source="recorded")
    return join_references(predictions, references, "all_reduce", "time_s")
