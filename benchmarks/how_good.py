"""Makes docs/how-good.md from kept figures. They come from benchmarks (`--keep`) and from a campaign's
tables.

    ./run python benchmarks/how_good.py --collect results   # from the tables of a campaign and of the papers
    ./run python benchmarks/how_good.py                     # writes the page

No figure is written by hand. Each is in benchmarks/measured, with the command, the machine, the commit and
the day.
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

The first table is a summary. Below each further table is the command that makes it again, with the day,
the commit and the machine.
"""


@dataclass(frozen=True)
class Kept:
    """A table of the page: its figures in ``benchmarks/measured/NAME.json``, and the part of them that it
    shows.

    ``columns`` are shown under these names. If there are none, all columns are shown. A column without a name
    is kept, but not shown. ``of`` is a campaign's table, below its results. ``where`` has the values of the
    rows to show. ``spread`` names a column whose values become columns, and the column that they show.
    """

    name: str
    title: str
    text: str
    columns: Mapping[str, str]
    of: str | None = None
    where: Mapping[str, Sequence[Any]] | None = None
    spread: tuple[str, str] | None = None


@dataclass(frozen=True)
class Brief:
    """A line of the page's first table: one figure of a kept table, and the figures to compare it with.

    ``row`` has values that identify the figure's row. ``peer`` names other columns of this row. ``rivals``
    names the column in which the rows of rivals differ, with its values. The least figure of the rivals
    counts.
    """

    question: str
    judged_on: str
    name: str
    row: Mapping[str, Any]
    column: str
    unit: str = "%"
    peer: Sequence[str] = ()
    rivals: tuple[str, Sequence[str]] | None = None
    peer_is: str = ""


ENERGY = {
    "split": "held out",
    "time": "time of the judged run",
    "settings": "settings",
}
MODELS = ["MC2", "LP1", "LP2", "LP3", "LP4", "Fan", "energy power law"]
TIME_MODELS = ["perfect-scaling", "power-law", "Amdahl", "Ernest", "Gaussian-process"]
HELD_OUT = ["leave-one-node-count-out", "leave-one-workload-out", "extrapolation"]
SECTIONS: dict[str, list[Kept]] = {
    "Energy and time": [
        Kept(
            "metered_energy",
            "Energy on real clusters",
            "Public runs of MLPerf Training on 1 and 8 nodes of eight H100. Each node has a power meter "
            "behind its power supplies (DC). Mean errors in percent. If the power law cannot forecast "
            "all settings of a row, it has a row of its own. "
            "MC2's paper has 2.84 % on its own cluster. "
            "[What is held out, and what `given` means](explanation/mc2.md#splits), "
            "[rivals](explanation/mc2.md#rivals).",
            ENERGY,
            "metered/tables/energy_summary.parquet",
            {"split": HELD_OUT, "model": MODELS},
            ("model", "mape_percent"),
        ),
        Kept(
            "real_clusters",
            "Time on real clusters",
            "The first two lines are of the runs above. The others are of MLPerf Training v3.1 to v4.1. "
            "There, the batch is known, and the amount of work is forecast. The rivals of the first two "
            "lines are equal: from one node count, each can only assume perfect scaling. Some results were "
            "submitted to several rounds. Such a result is a case in each round in the third line, and one "
            "case in the last line. Mean errors in percent.",
            {"question": "question", "cases": "cases"},
            where={
                "question": [
                    "time, leave-one-node-count-out, time predicted",
                    "time, leave-one-workload-out, time predicted",
                    "time to quality at the next scale",
                    "the same; a case of several rounds counts once",
                ]
            },
            spread=("model", "mean_percent"),
        ),
        Kept(
            "campaign_time",
            "Time on this machine's emulated nodes, per setting",
            "The default campaign. Errors of MC2's time in percent. The columns differ in what was held out.",
            {"workload": "workload", "nodes": "nodes"},
            "tables/energy/time_error.parquet",
            {"model": ["MC2"], "split": HELD_OUT},
            ("split", "error_percent"),
        ),
        Kept(
            "observed_scales",
            "Time on four ranks, forecast from observed runs on one and two",
            "The ranks sleep and do not compute, so that four ranks fit on two cores.",
            {},
        ),
    ],
    "Simulator": [
        Kept(
            "simulator_real_gpus",
            "Measured steps on GPUs, simulated from the GPU's name",
            "Single GPUs (NeuSight), Megatron on up to 512 A100 (vTrain), FSDP (llm-foundry), a vendor's "
            "recipes on up to 1,024 H100 and GB200 (Megatron-Bridge), and plain PyTorch, measured by "
            "joulecast. Some constants were fitted to these steps "
            "([which](explanation/simulator.md#what-it-is-judged-on)). `after one measured step`: the "
            "mean error after a correction by one other step of the same data, GPU and kind.",
            {
                "data": "data",
                "gpu": "GPU",
                "kind": "kind",
                "steps": "steps",
                "error_percent": "mean error (%)",
                "worst_percent": "worst (%)",
                "covered_percent": "inside the 90 % interval (%)",
                "one_step_error_percent": "after one measured step (%)",
                "called_out_of_memory": "",
                "peer_error_percent": "",
            },
            "tables/simulator/simulator_real_gpus.parquet",
        ),
        Kept(
            "simulator_error",
            "Steps on an emulated network, and of real training on two ranks",
            "The table also has the errors of two simple predictions: the sum of computing and "
            "communicating, and the larger of the two. *Measured twice*: how far two measurements of the "
            "same step differ. Real training is compared with the fastest quarter of each configuration's "
            "measurements "
            "([with all of them](explanation/simulator.md#what-it-is-judged-on), the error is larger).",
            {
                "experiment": "experiment",
                "configuration": "configurations",
                "predicted_error_percent": "error (%)",
                "sum_error_percent": "error of the sum (%)",
                "max_error_percent": "error of the larger (%)",
                "noise_percent": "measured twice (%)",
            },
            "tables/simulator/simulator_error.parquet",
            {
                "configuration": [
                    "(mean of 104: all)",
                    "(maximum of 104: all)",
                    "(mean of 28: all)",
                    "(maximum of 28: all)",
                ]
            },
        ),
        Kept(
            "simulator",
            "Speed of simulating and searching",
            "*Original*: the Proteus paper's public code, on another machine with 2 cores. This code "
            "simulates each device. joulecast simulates equal devices once. In the row `gpt3-175b search`, "
            "the platform is `dgx-h100.yaml`, the weights are at fp32, the batch is 1536, and the times of "
            "the ops come from a roofline.",
            {
                "what": "what",
                "devices": "devices",
                "folded": "",
                "seconds": "seconds",
                "peak_mib": "peak MiB",
                "original_s": "original (s)",
                "strategies": "",
            },
            where={
                "what": [
                    "resnet50 data parallel",
                    "gpt3-175b 96 micro-batches",
                    "gpt3-175b search",
                    *(
                        f"gpt3-175b search, {gpu}, batch 1536"
                        for gpu in ("a100-80gb-sxm", "h100-sxm", "b200")
                    ),
                    "llama-7b plan, four platforms",
                ],
                "devices": [8, 128, 512, 10_000],
                "folded": [True, None],
            },
        ),
    ],
    "Partitioning": [
        Kept(
            "partition_quality",
            "Pipeline stages on 8 devices, simulated with 16 micro-batches",
            "A ratio is the time of the slowest stage in another method's cut, divided by the time of the "
            "slowest stage in ours. The paper prints a speedup of 3.76 on 8 GPUs, but names no network. "
            "joulecast measured these graphs. README has the speedups on PipeDream's graphs.",
            {
                "network": "network",
                "certified": "proven optimal",
                "parameters_ratio": "cut by parameters",
                "block_partition_ratio": "block partition",
                "pipedream_ratio": "PipeDream",
                "predicted_speedup_gpipe": "speedup, GPipe",
                "predicted_speedup_1f1b": "speedup, 1F1B",
            },
            "tables/partition/partition_quality.parquet",
            {"devices": [8]},
        ),
    ],
    "Tuning": [
        Kept(
            "tuning_comparison",
            "Cost on the Zeus traces, relative to always taking the default",
            "After 5, 10, 20 and 50 recurrences of a training. Means over 24 settings: six workloads on four "
            "GPUs, replayed. A value below 1 is a saving. [Policies](explanation/tuning.md#policies).",
            {"policy": "policy"},
            "paper/tables/tuning/tuning_comparison.parquet",
            spread=("recurrences", "mean_cost_ratio"),
        ),
    ],
    "What it costs": [
        Kept(
            "sampling",
            "Sampling eight counters at 10 Hz for a day",
            "*Integral s*: seconds to read the file of a day and to compute its energies.",
            {},
        ),
        Kept("observer", "`joulecast measure` on a training's own steps", "", {}),
    ],
}

BRIEFS = [
    Brief(
        "Energy of a run on another node count, from its forecast time: mean error",
        "metered runs of MLPerf Training, node count held out",
        "metered_energy",
        {"split": "leave-one-node-count-out", "time": "predicted", "model": "MC2"},
        "mape_percent",
        rivals=("model", MODELS[1:]),
        peer_is="best rival",
    ),
    Brief(
        "Energy of a run on more nodes, from its forecast time: mean error",
        "the same runs, the larger scale held out",
        "metered_energy",
        {"split": "extrapolation", "time": "predicted", "model": "MC2"},
        "mape_percent",
        rivals=("model", MODELS[1:]),
        peer_is="best rival",
    ),
    Brief(
        "Time of a run: mean error",
        "the same runs, node count held out",
        "real_clusters",
        {"question": "time, leave-one-node-count-out, time predicted", "model": "MC2"},
        "mean_percent",
        rivals=("model", TIME_MODELS),
        peer_is="best rival",
    ),
    Brief(
        "Time to the target quality on more accelerators than a submitter's known runs: mean error",
        "MLPerf Training v3.1 to v4.1, the next scale held out",
        "real_clusters",
        {"question": "time to quality at the next scale", "model": "MC2"},
        "mean_percent",
        rivals=("model", TIME_MODELS),
        peer_is="best rival",
    ),
    Brief(
        "Time on four ranks from one and two: mean error",
        "this machine; the ranks sleep and do not compute",
        "observed_scales",
        {"width": "mean of all, without sign"},
        "error_percent",
    ),
    Brief(
        "Simulated step from the GPU's name alone: mean error. Some constants were tuned on these GPUs; with "
        "constants from other GPUs, it is [7 to 12 %](explanation/simulator.md#what-it-is-judged-on)",
        "single GPUs of many kinds (NeuSight's data)",
        "simulator_real_gpus",
        {"data": "neusight", "gpu": "all"},
        "error_percent",
        peer=["peer_error_percent"],
        peer_is="NeuSight itself",
    ),
    Brief(
        "The same, Megatron",
        "up to 512 A100 (vTrain's data)",
        "simulator_real_gpus",
        {"data": "vtrain"},
        "error_percent",
        peer=["peer_error_percent"],
        peer_is="vTrain itself",
    ),
    Brief(
        "The same, FSDP. With constants from other GPUs, it is "
        "[6.4 %](explanation/simulator.md#what-it-is-judged-on)",
        "A100 and H100 (llm-foundry's data)",
        "simulator_real_gpus",
        {"data": "llm_foundry", "gpu": "all"},
        "error_percent",
    ),
    Brief(
        "The same, plain PyTorch (fp32, tf32, autocast), not held out",
        "one H100 and one H200 (measured by joulecast)",
        "simulator_real_gpus",
        {"data": "plain_pytorch", "gpu": "all"},
        "error_percent",
    ),
    Brief(
        "The same, later steps. The simulator was corrected with them. Before that, its error on such steps "
        "was 17 to 26 %",
        "another H100 and another H200 with slower hosts (measured by joulecast)",
        "simulator_real_gpus",
        {"data": "plain_pytorch_later", "kind": "all"},
        "error_percent",
    ),
    Brief(
        "The same, a vendor's tuned recipes for dense networks at fp8, mxfp8 and nvfp4",
        "H100 and GB200 (Megatron-Bridge's data)",
        "simulator_real_gpus",
        {"data": "megatron_bridge", "kind": "dense networks"},
        "error_percent",
    ),
    Brief(
        "The same, the vendor's recipes for mixtures of experts, also at bf16. With different releases of "
        "its software, the same recipe took up to twice as long",
        "H100 and GB200 (Megatron-Bridge's data)",
        "simulator_real_gpus",
        {"data": "megatron_bridge", "kind": "mixtures of experts"},
        "error_percent",
    ),
    Brief(
        "Simulated step on an emulated network: mean error",
        "104 configurations of two to eight ranks; the paper has 3.0 %",
        "simulator_error",
        {"configuration": "(mean of 104: all)"},
        "predicted_error_percent",
        peer=["sum_error_percent"],
        peer_is="sum of computing and communicating",
    ),
    Brief(
        "Cost of 50 repetitions of a training, relative to its default setting",
        "24 settings of the Zeus traces, replayed; policy `curve`, held out",
        "tuning_comparison",
        {"policy": "curve, held out", "recurrences": 50},
        "mean_cost_ratio",
        unit="",
        rivals=("policy", ["zeus"]),
        peer_is="the paper's policy",
    ),
    Brief(
        "What `joulecast measure` adds to a step",
        "this machine, one rank; median of pairs of runs, one with and one without `joulecast measure`",
        "observer",
        {"ranks": 1, "wrapper": "joulecast measure"},
        "overhead_percent",
        peer=["least_percent", "most_percent"],
        peer_is="least and most of the pairs",
    ),
    Brief(
        "CPU that sampling takes",
        "this machine, eight counters at 10 Hz",
        "sampling",
        {},
        "percent_of_a_core",
        unit="% of a core",
    ),
]
"""The page's first table."""


def collected(results: Path, kept: Kept) -> list[dict[str, Any]] | None:
    """The rows of a campaign's table that the page shows; ``None`` if the campaign has no such table."""
    assert kept.of is not None
    path = results / kept.of
    if not path.is_file():
        return None
    table = pd.read_parquet(path)
    for column, values in (kept.where or {}).items():
        table = table[
            table[column].isin([v for v in values if v is not None])
            | (None in values and table[column].isna())
        ]
    columns = list(dict.fromkeys([*kept.columns, *(kept.spread or ())])) or list(table.columns)
    return [
        {key: None if pd.isna(value) else value for key, value in row.items()}
        for row in table[columns].to_dict("records")
    ]


def commit_of(results: Path) -> dict[str, Any]:
    """The commit that measured a campaign, from one of its records. It is empty if the campaign measured
    nothing."""
    for record in sorted(results.glob("records/*/run.json")):
        return {"commit": json.loads(record.read_text())["source"].get("git_commit")}
    return {}


def collect(results: Path) -> list[Path]:
    """Keep the rows of a campaign's tables that the page shows. Returns the files."""
    made = []
    for kept in (kept for section in SECTIONS.values() for kept in section if kept.of is not None):
        rows = collected(results, kept)
        if rows:
            flag = " --configfile config/paper.yaml" if kept.of.startswith("paper/") else ""
            command = f"./run snakemake --cores all{flag}  # results/{kept.of}"
            made.append(keep(kept.name, command, rows, **commit_of(results)))
    return made


def cell(value: Any) -> str:
    """The text of a value on the page."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return digits(value) if is_number(value) else str(value)


def shown(kept: Kept, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a table that the page shows, with the columns that ``spread`` makes."""
    found = [
        dict(row)
        for row in rows
        if all(row.get(k) in v for k, v in (kept.where or {}).items() if k in row)
    ]
    if kept.spread is None:
        return found
    by, value = kept.spread
    spread: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in found:
        index = {name: row.get(name) for name in kept.columns}
        spread.setdefault(tuple(index.values()), index)[str(row[by])] = row.get(value)
    return list(spread.values())


def section(kept: Kept, content: Mapping[str, Any]) -> list[str]:
    """A table of the page."""
    rows = shown(kept, content["rows"])
    hidden = [name for name, head in kept.columns.items() if not head]
    names = [n for n in kept.columns if n not in hidden] if kept.columns and not kept.spread else []
    names = names or list(dict.fromkeys(key for row in rows for key in row))
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


def figures(name: str) -> dict[str, Any] | None:
    """The kept figures of that name."""
    file = MEASURED / f"{name}.json"
    return json.loads(file.read_text()) if file.is_file() else None


_JUDGED = ("settings", "cases", "steps")
"""Columns with the number of values of which a figure is the mean."""


def brief(line: Brief) -> list[str] | None:
    """The cells of a line of the first table; ``None`` if its figures were not kept."""
    content = figures(line.name)
    if content is None:
        return None
    rows = [row for row in content["rows"] if all(row.get(k) == v for k, v in line.row.items())]
    [row] = rows
    peer = ""
    if line.peer:
        ends = " to ".join(digits(row[name]) for name in line.peer)
        peer = f"{line.peer_is}: {_with_unit(ends, line.unit)}"
    elif line.rivals:
        by, names = line.rivals
        rivals = [
            (abs(other[line.column]), other[by])
            for other in content["rows"]
            if other.get(by) in names
            and all(other.get(k) == v for k, v in line.row.items() if k != by)
            and other[line.column] is not None
        ]
        least, which = min(rivals)
        better = ", which is better" if least < abs(row[line.column]) else ""
        named = f"{line.peer_is} ({which})"
        if len(rivals) > 1 and len({digits(error) for error, _ in rivals}) == 1:
            named = "all rivals, which are equal here"
        peer = f"{named}: {_with_unit(digits(least), line.unit)}{better}"
    return [
        line.question,
        f"**{_with_unit(digits(row[line.column]), line.unit)}**",
        peer,
        line.judged_on + "".join(f", {row[kind]:g} {kind}" for kind in _JUDGED if kind in row),
    ]


def _with_unit(amount: str, unit: str) -> str:
    return f"{amount} {unit}" if unit else amount


def in_short() -> list[str]:
    """The page's first table."""
    found = [cells for cells in map(brief, BRIEFS) if cells is not None]
    head = ["| question | joulecast | compared with | judged on |", "|---|---|---|---|"]
    return ["## In short", "", *head, *(f"| {' | '.join(cells)} |" for cells in found), ""]


def page() -> str:
    """The text of docs/how-good.md."""
    lines = [HEAD, *in_short()]
    for title, tables in SECTIONS.items():
        there = [(kept, figures(kept.name)) for kept in tables]
        if any(content for _, content in there):
            lines += [f"## {title}", ""]
        for kept, content in there:
            if content is not None:
                lines += section(kept, content)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--collect", type=Path, metavar="RESULTS")
    results = arguments.parse_args().collect
    if results is not None:
        made = collect(results)
        print("\n".join(map(str, made)) or f"{results}: has none of the tables")
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
