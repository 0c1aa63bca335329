"""The partitioning paper: seconds to partition (Table 1) and speedups of pipelines."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from joulecast.files.reading import read_json_object
from joulecast.report.papers.rows import Row
from joulecast.report.tables.partition import PublishedPartitioning, planning_times, quality

_PAPER = "antichain"
_TABLE = "Table 1"
# The paper's column, what of ours stands beside it, and where its milliseconds are.
_OURS = (
    ("cudasize", "greedy by memory (cudasize)", "cudasize_cpu_ms"),
    ("hashrate", "greedy by work (hashrate)", "hashrate_cpu_ms"),
    ("paper", "antichain DP (PipeDream's arithmetic)", "pipedream_cpu_ms"),
    ("paper", "exact, with a proof (joulecast)", "joulecast_cpu_ms"),
)


def antichain_rows(
    experiments: Sequence[Path],
    own_experiments: Sequence[Path],
    published: PublishedPartitioning,
) -> list[Row]:
    """Rows of Table 1 and of the speedups.

    Args:
        experiments: of :func:`joulecast.partition.planner_experiment.partition_experiment` on the profiles
            that are taken for the paper's inputs.
        own_experiments: the same on graphs that this project measured, here or when it recorded them.
        published: the paper's numbers.
    """
    found, own = (
        [read_json_object(p, "partition experiment") for p in paths]
        for paths in (experiments, own_experiments)
    )
    rows = _times(planning_times(found, published), published)
    rows += _speedups(quality(found, published), "PipeDream's profiles", published)
    sources = " and ".join(sorted({experiment["source"] for experiment in own}))
    return rows + _speedups(quality(own, published), f"our graphs ({sources})", published)


def _times(table: pd.DataFrame, published: PublishedPartitioning) -> list[Row]:
    cells = {(cell["network"], cell["devices"]): cell for cell in table.to_dict("records")}
    rows = []
    for network, of_network in published.partition_s.items():
        for devices, printed in of_network.items():
            setting = f"{network}, {devices} devices"
            cell = cells.get((network, devices))
            rows.append(_by_hand(setting, printed["handsplit_minutes"], published))
            for column, what, ours_ms in _OURS:
                ours = None if cell is None or pd.isna(cell[ours_ms]) else float(cell[ours_ms])
                why = published.not_comparable_because
                if cell is not None and ours is None:
                    why += f"; ours: {cell['why_no_pipedream']}"
                if cell is not None and ours_ms == "joulecast_cpu_ms" and not cell["certified"]:
                    why += "; ours: the proof did not come to an end"
                rows.append(
                    Row(
                        _PAPER,
                        _TABLE,
                        setting,
                        f"time to partition: {what}",
                        "s",
                        float(printed[column]),
                        None if ours is None else ours / 1e3,
                        None if ours is None else "measured",
                        published.tolerances["time"],
                        "down",
                        why,
                        "" if cell else f"there is no profile of {network}",
                    )
                )
    return rows


def _by_hand(setting: str, minutes: float | str, published: PublishedPartitioning) -> Row:
    return Row(
        _PAPER,
        _TABLE,
        setting,
        "time to partition: by hand (handsplit)",
        "min",
        minutes,
        None,
        None,
        published.tolerances["time"],
        "down",
        "a person's minutes; no graph was cut by hand here",
    )


def _speedups(table: pd.DataFrame, graphs: str, published: PublishedPartitioning) -> list[Row]:
    rows = []
    for devices, printed in published.pipeline_speedup.items():
        of_count = table[table["devices"] == devices] if len(table) else table
        absent = "" if len(of_count) else f"no network was cut into {devices} stages"
        head = f"{graphs}, {devices} devices"
        for what in ("mean", "min", "max"):
            speedup = getattr(of_count["predicted_speedup_1f1b"], what)() if len(of_count) else None
            rows.append(
                Row(
                    _PAPER,
                    "speedup",
                    f"{head}, {len(of_count)} networks, "
                    f"{of_count['micro_batches'].iloc[0]} micro-batches"
                    if len(of_count)
                    else head,
                    f"speedup of the pipeline, {what} of the networks",
                    "times",
                    printed,
                    speedup,
                    "simulated" if speedup is not None else None,
                    published.tolerances["speedup"],
                    "up",
                    "measured there, with an unknown number of micro-batches; ours is simulated with free "
                    "transfers",
                    absent,
                )
            )
    return rows
