"""The partitioning paper: seconds to partition (Table 1) and speedups of pipelines."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from joulecast.report.papers.rows import Row
from joulecast.report.papers.summary import Paper
from joulecast.report.tables.partition import PublishedPartitioning, planning_times, quality
from joulecast.runs.files.reading import read_json_object

_PAPER = "antichain"
_TABLE = "Table 1"
_ANTICHAINS = "antichain DP (PipeDream's arithmetic)"
_EXACT = "exact, with a proof (joulecast)"
_OF_ANTICHAINS = "what the paper prints for antichains; it has no exact planner"
# The paper's column, what of ours stands next to it, and where its milliseconds are.
_OURS = (
    ("cudasize", "greedy by memory (cudasize)", "cudasize_cpu_ms"),
    ("hashrate", "greedy by work (hashrate)", "hashrate_cpu_ms"),
    ("paper", _ANTICHAINS, "pipedream_cpu_ms"),
    ("paper", _EXACT, "joulecast_cpu_ms"),
)


def of_antichain(published: PublishedPartitioning) -> Paper:
    """The paper, the data behind our numbers, and the quantities that the summary names for it."""
    return Paper(
        _PAPER,
        published,
        "PipeDream's profiles of the same networks, and graphs that this project measured",
        {
            "time to partition by antichains": [f"time to partition: {_ANTICHAINS}"],
            **{
                f"speedup of the pipeline on {devices} devices": [
                    f"speedup of the pipeline on {devices} devices"
                ]
                for devices in published.pipeline_speedup
            },
        },
    )


def antichain_rows(
    experiments: Sequence[Path],
    own_experiments: Sequence[Path],
    published: PublishedPartitioning,
    tables: Path,
) -> list[Row]:
    """Rows of Table 1 and of the speedups.

    Args:
        experiments: results of :func:`joulecast.partition.planner_experiment.partition_experiment` on some
            profiles. We assume that these were the paper's inputs.
        own_experiments: the same on graphs that this project measured, now or earlier.
        published: the paper's numbers.
        tables: folder of ``partition_quality.html``, which shows ``own_experiments``.
    """
    found, own = (
        [read_json_object(p, "partition experiment") for p in paths]
        for paths in (experiments, own_experiments)
    )
    made_of = {e["network"]: path for e, path in zip(found, experiments, strict=True)}
    rows = _times(planning_times(found, published), published, made_of)
    rows += _speedups(quality(found), "PipeDream's profiles", published)
    sources = " and ".join(sorted({experiment["source"] for experiment in own}))
    made = tables / "partition_quality.html"
    return rows + _speedups(quality(own), f"our graphs ({sources})", published, made)


def _times(
    table: pd.DataFrame, published: PublishedPartitioning, made_of: Mapping[str, Path]
) -> list[Row]:
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
                        None if what == _EXACT else float(printed[column]),
                        None if ours is None else ours / 1e3,
                        None if ours is None else "measured",
                        published.tolerances["time"],
                        "down",
                        why,
                        "" if cell else f"there is no profile of {network}",
                        float(printed[column]) if what == _EXACT else None,
                        _OF_ANTICHAINS if what == _EXACT else "",
                        None if ours is None else made_of[network],
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


def _speedups(
    table: pd.DataFrame, graphs: str, published: PublishedPartitioning, made: Path | None = None
) -> list[Row]:
    """A row for each device count. The paper prints one speedup for each count, and names no network."""
    rows = []
    for devices, printed in published.pipeline_speedup.items():
        of_count = table[table["devices"] == devices] if len(table) else table
        there = len(of_count) > 0
        setting = f"{graphs}, {devices} devices"
        if there:
            speedups = of_count["predicted_speedup_1f1b"]
            setting += (
                f", mean of {len(of_count)} networks ({speedups.min():.3g} to {speedups.max():.3g})"
            )
            setting += f", {of_count['micro_batches'].iloc[0]} micro-batches"
        rows.append(
            Row(
                _PAPER,
                "speedup",
                setting,
                f"speedup of the pipeline on {devices} devices",
                "times",
                printed,
                float(speedups.mean()) if there else None,
                "simulated" if there else None,
                published.tolerances["speedup"],
                "up",
                "measured there, with an unknown number of micro-batches; ours is simulated with free "
                "transfers",
                "" if there else f"no network was cut into {devices} stages",
                ours_from=made if there else None,
            )
        )
    return rows
