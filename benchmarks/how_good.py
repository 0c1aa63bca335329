"""docs/how-good.md, made of kept figures: those of benchmarks (`--keep`) and of a campaign's tables.

    ./run python benchmarks/how_good.py --collect results [--collect results/paper]   # from its tables
    ./run python benchmarks/how_good.py                                               # writes the page

No figure is written by hand: each stands in benchmarks/measured, with the command, machine, commit and day.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from _output import MEASURED, keep

from joulecast.quantities import digits, is_number

PAGE = Path(__file__).parents[1] / "docs/how-good.md"
HEAD = """# How good

What was measured, with the command that measures it again. `benchmarks/how_good.py` makes this page from
`benchmarks/measured/`. The tables of a campaign are its own (`results/`), cut to the rows that sum up. Times
depend on the machine, which stands below each table.
"""


@dataclass(frozen=True)
class Kept:
    """A table of the page: its figures in ``benchmarks/measured/NAME.json``, and what it shows.

    ``columns`` are shown under the names given; all of them if empty. ``of`` is a campaign's table, below its
    results, and ``where`` the values that its rows have.
    """

    name: str
    title: str
    text: str
    columns: Mapping[str, str]
    of: str | None = None
    where: Mapping[str, Sequence[Any]] | None = None


ENERGY = {
    "split": "held out",
    "time": "time of the judged run",
    "model": "model",
    "mape_percent": "mean error (%)",
    "max_percent": "worst (%)",
    "covered_percent": "inside its 90 % interval (%)",
    "settings": "settings",
}
HELD_OUT = ["leave-one-node-count-out", "leave-one-workload-out", "extrapolation"]
SECTIONS: dict[str, list[Kept]] = {
    "Energy and time": [
        Kept(
            "metered_energy",
            "Energy on real clusters",
            "Public runs of MLPerf Training with a power meter a node (1 and 8 nodes of eight H100). MC2's "
            "paper has 2.84 % on its own cluster, which cannot be had.",
            ENERGY,
            "metered/tables/energy_summary.csv",
            {"split": HELD_OUT, "model": ["MC2", "LP1", "LP2", "LP3", "LP4", "Fan"]},
        ),
        Kept(
            "real_clusters",
            "Time to quality at the next larger scale of a submitter",
            "MLPerf Training v3.1 to v4.1, batch known; the last column is a power law's error.",
            {},
        ),
        Kept(
            "campaign_time",
            "Time on this machine's emulated nodes, per setting",
            "The default campaign. Without a meter its energy is estimated, and judges no model.",
            {
                "workload": "workload",
                "nodes": "nodes",
                "split": "held out",
                "measured_s": "measured (s)",
                "predicted_s": "predicted (s)",
                "error_percent": "error (%)",
            },
            "tables/time_error.csv",
            {"model": ["MC2"], "split": HELD_OUT},
        ),
        Kept(
            "observed_scales",
            "Time on four ranks, forecast from observed runs on one and two",
            "Computing is a sleep, so that four ranks fit on two cores.",
            {},
        ),
    ],
    "Simulator": [
        Kept(
            "simulator_real_gpus",
            "Steps on GPUs that others measured, simulated from the GPU's name",
            "Single GPUs (NeuSight), Megatron on up to 512 A100 (vTrain), FSDP (llm-foundry). The one-step "
            "error is after a correction by one measured step.",
            {
                "data": "data",
                "gpu": "GPU",
                "kind": "kind",
                "steps": "steps",
                "error_percent": "mean error (%)",
                "worst_percent": "worst (%)",
                "one_step_error_percent": "after one measured step (%)",
                "called_out_of_memory": "called out of memory",
                "peer_error_percent": "its own authors' simulator (%)",
            },
            "tables/simulator_real_gpus.csv",
        ),
        Kept(
            "simulator_error",
            "Steps on an emulated network, and of real training on two ranks",
            "Means and maxima of groups of configurations. The paper has 3.0 %.",
            {
                "experiment": "experiment",
                "configuration": "configurations",
                "predicted_error_percent": "error (%)",
                "sum_error_percent": "adding all up (%)",
                "max_error_percent": "the longest part (%)",
                "noise_percent": "the same again (%)",
            },
            "tables/simulator_error.csv",
            {"ranks": [None]},
        ),
        Kept("simulator", "Speed of simulating and searching", "", {}),
    ],
    "Partitioning": [
        Kept(
            "partition_quality",
            "Pipeline stages, simulated with 16 micro-batches",
            "A ratio is the slowest stage of another method's cut to that of ours. The paper prints "
            "a speedup of 3.4 on 4 GPUs and 3.76 on 8, of no network by name.",
            {
                "network": "network",
                "devices": "devices",
                "certified": "proven optimal",
                "parameters_ratio": "cut by parameters",
                "block_partition_ratio": "block partition",
                "pipedream_ratio": "PipeDream",
                "predicted_speedup_gpipe": "speedup, GPipe",
                "predicted_speedup_1f1b": "speedup, 1F1B",
            },
            "tables/partition_quality.csv",
        ),
        Kept("partition", "Time and quality of planners on PipeDream's profiles", "", {}),
    ],
    "Tuning": [
        Kept(
            "tuning_comparison",
            "Cost on the Zeus traces, relative to always taking the default",
            "",
            {},
            "tables/tuning_comparison.csv",
        ),
        Kept("tuning", "Time of replaying policies", "", {}),
    ],
    "What it costs": [
        Kept("sampling", "Sampling eight counters at 10 Hz for a day", "", {}),
        Kept("observer", "`joulecast measure` on a training's own steps", "", {}),
        Kept(
            "training", "Our data-parallel training against DistributedDataParallel (gloo)", "", {}
        ),
        Kept("allreduce", "All-reduce against a bare MPI_Allreduce", "", {}),
        Kept(
            "energy", "Reading, fitting and predicting 1,000 runs with 10 million readings", "", {}
        ),
        Kept("scale", "Job graph, fits and tables of large campaigns", "", {}),
        Kept("page", "The page of a campaign in headless Chromium", "", {}),
    ],
}


def collected(results: Path, kept: Kept) -> list[dict[str, Any]] | None:
    """The rows of a campaign's table that the page shows; ``None`` where the campaign has no such table."""
    assert kept.of is not None
    path = results / kept.of
    if not path.is_file():
        return None
    table = pd.read_csv(path)
    for column, values in (kept.where or {}).items():
        table = table[
            table[column].isin([v for v in values if v is not None])
            | (None in values and table[column].isna())
        ]
    columns = list(kept.columns) or list(table.columns)
    return [
        {key: None if pd.isna(value) else value for key, value in row.items()}
        for row in table[columns].to_dict("records")
    ]


def commit_of(results: Path) -> dict[str, Any]:
    """The commit that measured a campaign, by one of its records; nothing where it measured nothing."""
    for record in sorted(results.glob("records/*/run.json")):
        return {"commit": json.loads(record.read_text())["source"].get("git_commit")}
    return {}


def collect(results: Path) -> list[Path]:
    """Keep what the page shows of a campaign's tables; returns the files."""
    made = []
    for kept in (kept for section in SECTIONS.values() for kept in section if kept.of is not None):
        rows = collected(results, kept)
        if rows:
            command = f"./run snakemake --cores all  # results/{kept.of}"
            made.append(keep(kept.name, command, rows, **commit_of(results)))
    return made


def cell(value: Any) -> str:
    """A value as the page shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return digits(value) if is_number(value) else str(value)


def section(kept: Kept, content: Mapping[str, Any]) -> list[str]:
    """A table of the page."""
    rows = content["rows"]
    names = list(kept.columns) or list(dict.fromkeys(key for row in rows for key in row))
    heads = [kept.columns.get(name, name.replace("_", " ")) for name in names]
    lines = [f"### {kept.title}", ""]
    lines += [kept.text, ""] if kept.text else []
    lines += [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += [f"| {' | '.join(cell(row.get(name)) for name in names)} |" for row in rows]
    commit = (content["commit"] or "unknown")[:7]
    command = content["command"].partition("  # ")
    table = f", table `{command[2]}`" if command[2] else ""
    lines += [
        "",
        f"`{command[0]}`{table}; {content['measured']}, commit {commit}, {content['machine']}",
        "",
    ]
    return lines


def page() -> str:
    """The text of docs/how-good.md."""
    lines = [HEAD]
    for title, tables in SECTIONS.items():
        shown = [kept for kept in tables if (MEASURED / f"{kept.name}.json").is_file()]
        if shown:
            lines += [f"## {title}", ""]
        for kept in shown:
            lines += section(kept, json.loads((MEASURED / f"{kept.name}.json").read_text()))
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--collect", type=Path, action="append", default=[], metavar="RESULTS")
    for results in arguments.parse_args().collect:
        made = collect(results)
        print("\n".join(map(str, made)) or f"{results}: has none of the tables")
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
