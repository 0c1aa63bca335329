"""Zeus and its reproduction: figure 1, savings, and the reproduction's two experiments."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.report.papers.rows import Paper, Row
from joulecast.report.tables.published import PublishedTuning
from joulecast.report.tables.tuning import PAPER_ZEUS
from joulecast.runs.files.columns import read_frame

_SIMULATED = "the authors' public simulator on the same traces, run for this project"
_TUNED = ("batch_size_only", "power_limit_only", "both")


def zeus(published: PublishedTuning, tables: Path) -> Paper:
    """The paper, with the rows of the tables of the replays.

    Args:
        tables: folder of ``tuning_potential``, ``tuning_savings`` and ``tuning_reproduction``.
    """
    potential, savings, reproduction = (
        read_frame(tables / f"tuning_{name}.parquet", "table of a campaign")
        for name in ("potential", "savings", "reproduction")
    )
    rows = {
        "potential": _potential(potential, published),
        "savings": _savings(savings, published),
        "reproduction": _reproduction(reproduction, published),
    }
    return Paper(
        "Zeus",
        published,
        "the traces that its authors measured: six workloads on four GPUs",
        {
            "smallest saving of energy": ["least energy saved"],
            "largest saving of energy": ["most energy saved"],
            "largest saving of time": ["most time saved"],
            "least energy of each workload if batch size, power limit or both are chosen (figure 1)": [
                f"least energy, {of}" for of in ("batch size only", "power limit only", "both")
            ],
            "the paper that reproduced Zeus: energy of its experiments, by each policy": ["energy"],
            "the paper that reproduced Zeus: time of its experiments, by each policy": ["time"],
            "the paper that reproduced Zeus: the smallest and the largest saving of energy that it names": [
                f"{which} energy saved, the reproduction's own range" for which in ("least", "most")
            ],
        },
        [
            replace(row, source="replayed", ours_from=tables / f"tuning_{name}.html")
            for name, of_table in rows.items()
            for row in of_table
        ],
    )


def _potential(table: pd.DataFrame, published: PublishedTuning) -> list[Row]:
    rows = []
    potential, same = (published.tolerances[name] for name in ("potential", "configuration"))
    for workload, printed in published.potential.items():
        of_v100 = table[(table["workload"] == workload) & (table["gpu"] == "v100")]
        cells = of_v100.set_index("tuned").to_dict("index")
        row = partial(Row, "figure 1", f"{workload}, V100")
        for tuned in _TUNED:
            name = tuned.replace("_", " ")
            theirs, ours = getattr(printed, tuned), cells[name]["ours"]
            what = f"least energy, {name}"
            rows.append(row(what, "of the default", theirs, ours, None, potential))
        best, of_least = cells["both"], "of the least energy"
        for name, unit in (("batch_size", ""), ("power_limit_w", "W")):
            what = f"{name.removesuffix('_w').replace('_', ' ')} {of_least}"
            rows.append(row(what, unit, getattr(printed, name), float(best[name]), None, same))
    return rows


def _savings(table: pd.DataFrame, published: PublishedTuning) -> list[Row]:
    """Savings of Zeus on the V100 in its last recurrences, with as many recurrences as in the paper:
    from the workload that saves least to the one that saves most."""
    of_paper = table[(table["policy"] == PAPER_ZEUS) & (table["stretch"] == "steady")]
    of_v100 = of_paper[of_paper["gpu"] == "v100"]
    energy, time = of_v100["energy_saving_percent"], of_v100["time_saving_percent"]
    least, most = published.energy_saving_percent
    setting = "six workloads, V100, Zeus, last five recurrences"
    row = partial(Row, "abstract and section 6.2", setting)
    tolerance = published.tolerances["savings"]
    return [
        row(what, "%", printed, float(ours), None, tolerance, "up")
        for what, printed, ours in (
            ("least energy saved", least, energy.min()),
            ("most energy saved", most, energy.max()),
            ("most time saved", published.time_saving_percent_up_to, time.max()),
        )
    ]


_EXPERIMENTS = {
    "power_limit_only": ("power-limit-only", "last five"),
    "last_five": ("zeus", "last five"),
    "all": ("zeus", "all"),
}


def _reproduction(table: pd.DataFrame, published: PublishedTuning) -> list[Row]:
    rows, tolerance = [], published.tolerances["reproduction"]
    cells = table.set_index(["gpu", "policy", "recurrences"])
    for gpu, of_gpu in published.reproduction.simulator.items():
        for experiment, ratios in of_gpu.items():
            policy, recurrences = _EXPERIMENTS[experiment]
            cell = cells.loc[(gpu, policy, recurrences)]
            setting = f"CIFAR-100 to 0.5, {gpu.upper()}, {policy}, {recurrences} recurrences"
            row = partial(Row, "reproduction", setting)
            for what, simulated in zip(("energy", "time"), ratios, strict=True):
                ours = float(cell[f"{what}_ratio"])
                reference: dict[str, Any] = {"reference": simulated, "reference_is": _SIMULATED}
                rows.append(row(what, "of the default", None, ours, None, tolerance, **reference))
    # These numbers are printed in the reproduction. They go from the GPU that saves least to the GPU that
    # saves most.
    saved = cells.xs(("zeus", "last five"), level=["policy", "recurrences"])[
        "energy_saving_percent"
    ]
    printed = published.reproduction.energy_saving_percent
    for what, theirs, ours in zip(
        ("least", "most"), printed, (saved.min(), saved.max()), strict=True
    ):
        rows.append(
            Row(
                "reproduction",
                "CIFAR-100 to 0.5, four GPUs, zeus, last five recurrences",
                f"{what} energy saved, the reproduction's own range",
                "%",
                theirs,
                float(ours),
                None,
                published.tolerances["savings"],
                "up",
                "the paper that reproduced Zeus does not say for which GPUs and recurrences its savings are",
            )
        )
    return rows
