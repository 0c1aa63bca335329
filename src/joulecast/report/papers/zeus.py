"""Zeus and its reproduction: figure 1, savings, and the reproduction's two experiments."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from joulecast.report.papers.rows import Row
from joulecast.report.papers.summary import Paper
from joulecast.report.tables.published import PublishedTuning
from joulecast.report.tables.tuning import PAPER_ZEUS
from joulecast.runs.files.columns import read_frame

_PAPER = "Zeus"
_SIMULATED = "the authors' public simulator on the same traces, run for this project"
_TUNED = ("batch_size_only", "power_limit_only", "both")


def of_zeus(published: PublishedTuning) -> Paper:
    """The paper, the data behind our numbers, and the quantities that the summary names for it."""
    return Paper(
        _PAPER,
        published,
        "the traces that its authors measured: six workloads on four GPUs",
        {
            "least energy saved": ["least energy saved"],
            "most energy saved": ["most energy saved"],
            "most time saved": ["most time saved"],
            "least energy of each workload (figure 1)": [
                f"least energy, {of}" for of in ("batch size only", "power limit only", "both")
            ],
            "the reproduction: energy of its experiments": ["energy"],
            "the reproduction: time of its experiments": ["time"],
            "the reproduction: least and most energy saved": [
                f"{which} energy saved, the reproduction's own range" for which in ("least", "most")
            ],
        },
    )


def zeus_rows(tables: Path, published: PublishedTuning) -> list[Row]:
    """Rows of the tables of the replays.

    Args:
        tables: folder of ``tuning_potential``, ``tuning_savings`` and ``tuning_reproduction``.
        published: the papers' numbers.
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
    return [
        replace(row, ours_from=None if row.ours is None else tables / f"tuning_{name}.html")
        for name, of_table in rows.items()
        for row in of_table
    ]


def _potential(table: pd.DataFrame, published: PublishedTuning) -> list[Row]:
    rows = []
    for workload, printed in published.potential.items():
        of_v100 = table[(table["workload"] == workload) & (table["gpu"] == "v100")]
        cells = of_v100.set_index("tuned").to_dict("index")
        for tuned in _TUNED:
            ours = cells.get(tuned.replace("_", " "), {}).get("ours")
            rows.append(
                Row(
                    _PAPER,
                    "figure 1",
                    f"{workload}, V100",
                    f"least energy, {tuned.replace('_', ' ')}",
                    "of the default",
                    getattr(printed, tuned),
                    ours,
                    _replayed(ours),
                    published.tolerances["potential"],
                )
            )
        chosen = cells.get("both", {}).get("configuration")
        numbers = [None, None] if chosen is None else [float(n) for n in _numbers(chosen)]
        for what, unit, ours in zip(("batch size", "power limit"), ("", "W"), numbers, strict=True):
            rows.append(
                Row(
                    _PAPER,
                    "figure 1",
                    f"{workload}, V100",
                    f"{what} of the least energy",
                    unit,
                    getattr(printed, f"{what.replace(' ', '_')}{'_w' if unit else ''}"),
                    ours,
                    _replayed(ours),
                    published.tolerances["configuration"],
                )
            )
    return rows


def _replayed(ours: float | None) -> str | None:
    return None if ours is None else "replayed"


def _numbers(configuration: str) -> list[str]:
    """Batch size and watts in a text as ``32, 100 W``."""
    return configuration.removesuffix(" W").split(", ")


def _savings(table: pd.DataFrame, published: PublishedTuning) -> list[Row]:
    """Savings of Zeus on the V100 in its last recurrences, with as many recurrences as in the paper:
    from the workload that saves least to the one that saves most."""
    of_paper = table[(table["policy"] == PAPER_ZEUS) & (table["stretch"] == "steady")]
    of_v100 = of_paper[of_paper["gpu"] == "v100"]
    least, most = published.energy_saving_percent
    rows = []
    for what, column, extreme, printed in (
        ("least energy saved", "energy_saving_percent", "min", least),
        ("most energy saved", "energy_saving_percent", "max", most),
        ("most time saved", "time_saving_percent", "max", published.time_saving_percent_up_to),
    ):
        ours = float(getattr(of_v100[column], extreme)())
        rows.append(
            Row(
                _PAPER,
                "abstract and section 6.2",
                "six workloads, V100, Zeus, last five recurrences",
                what,
                "%",
                printed,
                ours,
                _replayed(ours),
                published.tolerances["savings"],
                "up",
            )
        )
    return rows


_EXPERIMENTS = {
    "power_limit_only": ("power-limit-only", "last five"),
    "last_five": ("zeus", "last five"),
    "all": ("zeus", "all"),
}


def _reproduction(table: pd.DataFrame, published: PublishedTuning) -> list[Row]:
    rows = []
    for gpu, of_gpu in published.reproduction.simulator.items():
        for experiment, ratios in of_gpu.items():
            policy, recurrences = _EXPERIMENTS[experiment]
            (cell,) = table[
                (table["gpu"] == gpu)
                & (table["policy"] == policy)
                & (table["recurrences"] == recurrences)
            ].to_dict("records")
            for what, simulated in zip(("energy", "time"), ratios, strict=True):
                ours = float(cell[f"{what}_ratio"])
                rows.append(
                    Row(
                        _PAPER,
                        "reproduction",
                        f"CIFAR-100 to 0.5, {gpu.upper()}, {policy}, {recurrences} recurrences",
                        what,
                        "of the default",
                        None,
                        ours,
                        _replayed(ours),
                        published.tolerances["reproduction"],
                        reference=simulated,
                        reference_is=_SIMULATED,
                    )
                )
    return [*rows, *_student(table, published)]


def _student(table: pd.DataFrame, published: PublishedTuning) -> list[Row]:
    """What the reproduction itself reports, next to Zeus, from the GPU that saves least to the one that
    saves most."""
    of_zeus = table[(table["policy"] == "zeus") & (table["recurrences"] == "last five")]
    saved = of_zeus["energy_saving_percent"]
    printed = published.reproduction.energy_saving_percent
    rows = []
    for what, extreme, value in zip(("least", "most"), ("min", "max"), printed, strict=True):
        ours = float(getattr(saved, extreme)())
        rows.append(
            Row(
                _PAPER,
                "reproduction",
                "CIFAR-100 to 0.5, four GPUs, zeus, last five recurrences",
                f"{what} energy saved, the reproduction's own range",
                "%",
                value,
                ours,
                _replayed(ours),
                published.tolerances["savings"],
                "up",
                "the reproduction reports a range of savings, and not of which GPUs and recurrences",
            )
        )
    return rows
