"""Shows errors on real clusters: energy and time of metered runs, and the time to quality at the next scale.

All data are shipped: metered MLPerf runs (``recorded/mlperf-power``), and times of three rounds
(``recorded/mlperf-times``). Each row is a question and a model. Errors are of settings that the fit had not
seen. `--ablation` takes away one part at a time. `--priors` halves and doubles every prior. `--corrupted`
counts the corrupted submissions that the import finds. No times are measured.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
from _output import parser, show

from joulecast.energy import mc2_phases, rate, run_time, work_law
from joulecast.energy.error_summary import evaluate_records
from joulecast.energy.evaluation import evaluate
from joulecast.energy.recorded_times import recorded_times
from joulecast.energy.splits import NEXT_SCALE
from joulecast.logs.mlperf import import_mlperf
from joulecast.runs.files.shipped import recorded_folder
from joulecast.runs.judging import by_setting, judge, summarise
from joulecast.runs.recorded import record_folders

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

_SPLITS = (
    ("leave-one-workload-out", "given"),
    ("leave-one-workload-out", "predicted"),
    ("leave-one-node-count-out", "given"),
    ("leave-one-node-count-out", "predicted"),
)
_CASE = ["series", "ranks", "model"]
_SHOWN = {
    "model": "model",
    "cases": "settings",
    "mean_percent": "mape_percent",
    "median_percent": "median_percent",
    "worst_percent": "max_percent",
    "inside_percent": "covered_percent",
}


@contextmanager
def metered_records() -> Iterator[list[Path]]:
    """The metered runs as records, in a folder for the block."""
    with tempfile.TemporaryDirectory() as scratch:
        import_mlperf(recorded_folder(Path("mlperf-power")), Path(scratch) / "records")
        yield record_folders(Path(scratch) / "records")


def timed_runs() -> pd.DataFrame:
    """The recorded times as observations of imported runs without power."""
    table = recorded_times()
    nothing = {"energy_j": np.nan, "energy_source": None, "batch_per_rank": np.nan, "steps": 0}
    return table.assign(
        kind="imported",
        platform=table["system"],
        workload=table["series"],
        repeat=table.groupby(["series", "system"]).cumcount() + 1,
        nodes_are="hosts",
        folder=[f"{n}" for n in range(len(table))],
        stalled_s=np.nan,
        **nothing,
    )


def next_scale(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each case and model, in the form of :func:`joulecast.runs.judging.by_setting`."""
    predicted = evaluate(
        runs,
        pd.DataFrame(columns=["platform", "nodes"]),
        {},
        splits=[NEXT_SCALE],
        times=["predicted"],
    ).predictions
    judged = judge(predicted, runs, "time").merge(runs[["run", "series", "ranks"]], on="run")
    cases = by_setting(judged, _CASE)
    # A case counts once, however often it was repeated.
    return cases.assign(bounded=cases["bounded"].clip(upper=1))


def _row(question: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the output, from a row of :func:`joulecast.runs.judging.summarise`."""
    return {"question": question} | {name: summary[of] for name, of in _SHOWN.items()}


def _in_short(question: str, cases: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for summary in summarise(cases, ["model"]).to_dict("records"):
        yield _row(question, summary)


def metered(folders: list[Path], what: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Errors of energy (``summary``), of time (``time_summary``) and without parts of MC2 (``ablation``)."""
    for split, time in _SPLITS:
        verdict = evaluate_records(folders, split, time)
        for name in what:
            for row in verdict[name]:
                quantity = "time" if name == "time_summary" else "energy"
                yield _row(f"{quantity}, {split}, time {time}", row)


def _priors() -> Iterator[tuple[str, Any, str, Any]]:
    """Every prior of the time model, halved and doubled. Each has a text, a module, a name and a value."""
    for factor in (0.5, 2.0):
        for name, (median, sd) in rate.BELIEFS.items():
            beliefs = rate.BELIEFS | {name: (factor * median, sd)}
            yield f"median of {name} x {factor:g}", rate, "BELIEFS", beliefs
        for module, name in (
            (rate, "OWN_NOISE"),
            (rate, "ALIKE_NOISE"),
            (rate, "UNLIKE_NOISE"),
            (work_law, "CRITICAL_SD"),
            (work_law, "DEPARTURE"),
            (work_law, "SUBMITTER_SD"),
        ):
            yield f"{name} x {factor:g}", module, name, factor * getattr(module, name)


def _nothing(*_: Any) -> rate.Neighbours:
    return rate.Neighbours([], [], [])


class _OwnWork(work_law.WorkLaw):
    """No law: the work is the work of the nearest batch of the same training."""

    def draws(self, submitter: str, batch: float, normal: Any) -> Any:
        own = self.points[self.points["submitter"] == submitter]
        nearest = (np.log(own["batch"]) - np.log(batch)).abs().idxmin()
        return np.full(len(normal), own.loc[nearest, "samples"])


def _ablations() -> Iterator[tuple[str, Any, str, Any]]:
    yield "without the times of others", run_time.RunTimes, "_neighbours", _nothing
    yield "without the work law", run_time, "WorkLaw", _OwnWork
    yield "without departures from the law", work_law, "DEPARTURE", 1e-6


def _ours(folders: list[Path], text: str) -> Iterator[dict[str, Any]]:
    """MC2's energies, with some changes."""
    for row in metered(folders, ("summary",)):
        if row["model"] == "MC2":
            yield row | {"question": f"{row['question']}, {text}"}


def _energy_priors(folders: list[Path]) -> Iterator[dict[str, Any]]:
    """Energies, with every prior of kappa halved and doubled."""
    for factor in (0.5, 2.0):
        for name in ("KAPPA_PRIOR", "KAPPA_SPREAD"):
            with patch.object(mc2_phases, name, factor * getattr(mc2_phases, name)):
                yield from _ours(folders, f"{name} x {factor:g}")


def _varied(changes: Callable[[], Iterator[tuple[str, Any, str, Any]]]) -> Iterator[dict[str, Any]]:
    runs = timed_runs()
    for text, module, name, value in changes():
        with patch.object(module, name, value):
            cases = next_scale(runs)
        ours = cases[cases["model"] == "MC2"]
        yield next(_in_short(f"time to quality at the next scale, {text}", ours))


def corrupted() -> Iterator[dict[str, Any]]:
    """How many kinds of corrupted submissions the import finds."""
    from corruptions import found_table

    with tempfile.TemporaryDirectory() as scratch:
        rows = found_table(Path(scratch))
    for where in ("one_run", "all_repeats"):
        found = sum(row[where] for row in rows)
        missed = ", ".join(row["kind"] for row in rows if not row[where])
        yield {
            "question": f"corrupted submissions found, in {where.replace('_', ' ')}",
            "model": f"import (misses {missed or 'none'})",
            "cases": len(rows),
            "found_percent": 100 * found / len(rows),
            "clean_runs_lost": sum(row["clean_lost"] for row in rows),
        }


def main() -> None:
    """Print the errors."""
    arguments: argparse.ArgumentParser = parser(__doc__)
    arguments.add_argument(
        "--ablation", action="store_true", help="take away parts of the models of time and energy"
    )
    arguments.add_argument("--priors", action="store_true", help="halve and double the priors")
    arguments.add_argument("--corrupted", action="store_true", help="count corrupted submissions")
    arguments.add_argument("--cases", action="store_true", help="show every case of the next scale")
    given = arguments.parse_args()
    cases = next_scale(timed_runs())
    if given.cases:
        shown = cases[cases["model"] == "MC2"]
        columns = [
            "series",
            "ranks",
            "measured",
            "predicted",
            "difference_percent",
            "covered_percent",
        ]
        show(shown[columns].to_dict("records"), given)
        return
    ours = cases.drop_duplicates(["model", "measured"])
    with metered_records() as folders:
        rows = [*metered(folders, ("summary", "time_summary"))]
        rows += _in_short("time to quality at the next scale", cases)
        rows += _in_short("the same; a case of several rounds counts once", ours)
        if given.ablation:
            rows += [*metered(folders, ("ablation",)), *_varied(_ablations)]
            with patch.object(run_time.RunTimes, "_neighbours", _nothing):
                rows += _ours(folders, "without the times of others")
        if given.priors:
            rows += [*_energy_priors(folders), *_varied(_priors)]
    rows += corrupted() if given.corrupted else []
    show(rows, given)


if __name__ == "__main__":
    main()
