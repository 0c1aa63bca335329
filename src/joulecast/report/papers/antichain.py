"""The partitioning paper: seconds to partition (Table 1) and speedups of pipelines."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.report.papers.rows import Paper, Row
from joulecast.report.tables.partition import PublishedPartitioning, quality
from joulecast.runs.files.reading import read_json_object

_ANTICHAINS = "antichain DP (PipeDream's arithmetic)"
_EXACT = "exact, with a proof (joulecast)"
_OF_ANTICHAINS = "what the paper prints for antichains; it has no exact planner"
# The column in the paper, our quantity next to it, and our planner. (``None`` is the exact planner.)
_OURS = (
    ("cudasize", "greedy by memory (cudasize)", "cudasize"),
    ("hashrate", "greedy by work (hashrate)", "hashrate"),
    ("paper", _ANTICHAINS, "PipeDream"),
    ("paper", _EXACT, None),
)


def antichain(
    published: PublishedPartitioning,
    experiments: Sequence[Path],
    own_experiments: Sequence[Path],
    tables: Path,
) -> Paper:
    """The paper, with the rows of Table 1 and of the speedups.

    Args:
        experiments: results of :func:`joulecast.partition.planner_experiment.partition_experiment` on some
            profiles. We assume that these profiles were the paper's inputs.
        own_experiments: results of the same function on graphs that this project measured, now or earlier.
        tables: folder of ``partition_quality.html``, which shows ``own_experiments``.
    """
    found, own = (
        [read_json_object(p, "partition experiment") for p in paths]
        for paths in (experiments, own_experiments)
    )
    made_of = {e["network"]: path for e, path in zip(found, experiments, strict=True)}
    sources = " and ".join(sorted({experiment["source"] for experiment in own}))
    made = tables / "partition_quality.html"
    return Paper(
        "antichain",
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
        [
            *_times(found, published, made_of),
            *_speedups(quality(found), "PipeDream's profiles", published),
            *_speedups(quality(own), f"our graphs ({sources})", published, made),
        ],
    )


def _times(
    experiments: Sequence[Mapping[str, Any]],
    published: PublishedPartitioning,
    made_of: Mapping[str, Path],
) -> list[Row]:
    cells = {
        (experiment["network"], int(devices)): found
        for experiment in experiments
        for devices, found in experiment["on_devices"].items()
    }
    rows = []
    for network, of_network in published.partition_s.items():
        for devices, printed in of_network.items():
            of_setting = partial(Row, "Table 1", f"{network}, {devices} devices")
            tolerance = published.tolerances["time"]
            rows.append(
                of_setting(
                    "time to partition: by hand (handsplit)",
                    "min",
                    printed["handsplit_minutes"],
                    None,
                    None,
                    tolerance,
                    "down",
                    "the paper prints the minutes of a person; no graph was cut by hand here",
                )
            )
            for column, what, planner in _OURS:
                seconds, why = _ours(cells.get((network, devices)), planner)
                theirs = float(printed[column])
                rows.append(
                    of_setting(
                        f"time to partition: {what}",
                        "s",
                        None if what == _EXACT else theirs,
                        seconds,
                        None if seconds is None else "measured",
                        tolerance,
                        "down",
                        "; ".join([published.not_comparable_because, *why]),
                        theirs if what == _EXACT else None,
                        _OF_ANTICHAINS if what == _EXACT else "",
                        None if seconds is None else made_of[network],
                    )
                )
    return rows


def _ours(found: Mapping[str, Any] | None, planner: str | None) -> tuple[float | None, list[str]]:
    """Seconds of one of our planners, and a remark on them."""
    if found is None:
        return None, ["ours: there is no profile of the network"]
    if planner is None:
        proven = found["plan"]["certified"]
        return found["cpu_ms"] / 1e3, [] if proven else ["ours: the proof did not come to an end"]
    theirs = found["planners"][planner]
    if theirs["cpu_ms"] is None:
        return None, [f"ours: {theirs['refused']}"]
    return theirs["cpu_ms"] / 1e3, []


def _speedups(
    table: pd.DataFrame, graphs: str, published: PublishedPartitioning, made: Path | None = None
) -> list[Row]:
    """A row for each device count. The paper prints one speedup for each count, and names no network."""
    rows = []
    for devices, printed in published.pipeline_speedup.items():
        of_count = table[table["devices"] == devices] if len(table) else table
        setting, ours = f"{graphs}, {devices} devices", None
        why = f"no network was cut into {devices} stages"
        if len(of_count):
            speedups = of_count["predicted_speedup_1f1b"]
            ours = float(speedups.mean())
            setting += (
                f", mean of {len(of_count)} networks ({speedups.min():.3g} to {speedups.max():.3g}), "
                f"{of_count['micro_batches'].iloc[0]} micro-batches"
            )
            why = (
                "measured there, with an unknown number of micro-batches; ours is simulated with free "
                "transfers"
            )
        rows.append(
            Row(
                "speedup",
                setting,
                f"speedup of the pipeline on {devices} devices",
                "times",
                printed,
                ours,
                None if ours is None else "simulated",
                published.tolerances["speedup"],
                "up",
                why,
                ours_from=None if ours is None else made,
            )
        )
    return rows
