"""Writes the figures that a rewrite must not change, as one JSON file. They come from shipped data only.

    ./run snakemake --cores all --configfile config/paper.yaml
    ./run python benchmarks/golden.py --out golden.json          # before
    ./run python benchmarks/golden.py --compare golden.json      # after: prints the changed figures

It reads the tables of the papers' campaign (simulator, planner, policies), judges MC2 and its rivals on the
shipped metered runs and times, and imports the logs of tests/data/imports. It times nothing.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from real_clusters import metered, next_scale, timed_runs

import joulecast
from joulecast.runs.judging import summarise

ROOT = Path(__file__).resolve().parents[1]
_TABLES = (
    "simulator_error",
    "simulator_order",
    "simulator_ablation",
    "simulator_real_gpus",
    "simulator_choice",
    "simulator_collectives",
    "partition_quality",
    "tuning_potential",
    "tuning_savings",
    "tuning_reproduction",
    "tuning_comparison",
)
_LOGS = {
    "perun": "perun-1.0.0.hdf5",
    "codecarbon": "codecarbon-3.3.2-runs.csv",
    "jpwr": "power.vm.12851.csv",
}
_FACTS = ["--timezone", "UTC", "--epochs", "1", "--network", "net", "--platform", "box"]


def _named(rows: list[dict[str, Any]], names: list[str]) -> dict[str, float]:
    figures = {}
    for row in rows:
        name = " | ".join(str(row[key]) for key in names)
        for key, value in row.items():
            if isinstance(value, int | float) and key not in names:
                figures[f"{name} | {key}"] = float(value)
    return figures


def _of_table(file: Path) -> dict[str, float]:
    table = pd.read_parquet(file)
    names = [column for column in table if not pd.api.types.is_float_dtype(table[column])]
    rows = table.astype({name: str for name in names}).to_dict("records")
    return _named(rows, names)


def _imported() -> dict[str, float]:
    figures = {}
    with tempfile.TemporaryDirectory() as scratch:
        for kind, log in _LOGS.items():
            out = Path(scratch) / kind
            subprocess.run(
                ["joulecast", "import", kind, ROOT / "tests/data/imports" / log, out, *_FACTS],
                check=True,
                capture_output=True,
            )
            frame = joulecast.fit(out).observations
            for row in frame.itertuples():
                figures[f"{kind} | {row.run} | energy_j"] = float(row.energy_j)
    return figures


def _metered() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "records"
        subprocess.run(
            ["joulecast", "import", "mlperf", ROOT / "recorded/mlperf-power", out],
            check=True,
            capture_output=True,
        )
        folders = sorted(out.iterdir())
        figures = _named(list(metered(folders, ("summary", "time_summary"))), ["question", "model"])
        for row in joulecast.fit(out).observations.itertuples():
            figures[f"{row.run} | energy_j"] = float(row.energy_j)
    return figures


def _later_scales() -> dict[str, float]:
    summary = summarise(next_scale(timed_runs()), ["model"])
    names = {"mape_percent": "mean_percent", "covered_percent": "inside_percent"}
    shown = summary.rename(columns=names)
    columns = ["model", "mean_percent", "median_percent", "inside_percent"]
    return _named(shown[columns].to_dict("records"), ["model"])


def golden(results: Path) -> dict[str, dict[str, float]]:
    """All figures, by table and row."""
    figures = {
        name: _of_table(results / "tables" / name.split("_")[0] / f"{name}.parquet")
        for name in _TABLES
    }
    return figures | {
        "metered clusters": _metered(),
        "time at the next scale": _later_scales(),
        "imported logs": _imported(),
    }


def moved(before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> list[str]:
    """The figures that are missing, new, or off by more than a thousandth."""
    lines = []
    for table in sorted(before.keys() | after.keys()):
        old, new = before.get(table, {}), after.get(table, {})
        gone, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
        lines += [f"{table}: gone: {name} = {old[name]:.6g}" for name in gone]
        lines += [f"{table}: new: {name} = {new[name]:.6g}" for name in added]
        for name in old.keys() & new.keys():
            if abs(old[name] - new[name]) > 1e-3 * max(abs(old[name]), 1e-9):
                lines.append(f"{table}: {name}: {old[name]:.6g} -> {new[name]:.6g}")
    return lines


def main() -> None:
    """Write the figures, or compare them with earlier figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "results/paper")
    parser.add_argument("--out", type=Path, help="write the figures here")
    parser.add_argument("--compare", type=Path, help="file of earlier figures, to compare with")
    given = parser.parse_args()
    figures = json.loads(json.dumps(golden(given.results)))
    count = sum(map(len, figures.values()))
    if given.out:
        given.out.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
        print(f"{count} figures in {given.out}")
    if given.compare:
        lines = moved(json.loads(given.compare.read_text()), figures)
        print("\n".join(lines) or "nothing moved", f"({count} figures)")
        sys.exit(bool(lines))


if __name__ == "__main__":
    main()
