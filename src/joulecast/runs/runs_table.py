"""The runs table: one row for each run, and what each column holds.

All code that fits, judges or plots reads this table. Some columns exist only for some kinds of runs. If no
run has such a column, it is missing. Units are in the names: ``_s``, ``_w``, ``_j``, ``_bytes``.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from joulecast.runs.frames import STAGE_MEANINGS


@dataclass(frozen=True)
class Column:
    """A column of the runs table.

    Attributes:
        kind: ``text``, ``whole`` numbers, ``number`` (NaN: not known), or ``flag``.
        of: the kind of runs that have it: all, or only staged, imported or observed runs, or runs on GPUs.
    """

    kind: Literal["text", "whole", "number", "flag"]
    meaning: str
    of: Literal["all", "staged", "imported", "observed", "on GPUs"] = "all"


COLUMNS: dict[str, Column] = {
    "run": Column("text", "name of the run"),
    "kind": Column(
        "text", "`training`, `imported`, or a calibration: `idle`, `sleeping_rank`, `allreduce`"
    ),
    "platform": Column("text", "type of its nodes"),
    "network": Column("text", "network, or benchmark of an imported run"),
    "workload": Column(
        "text",
        "`network`; for an imported run also its platform",
    ),
    "nodes": Column(
        "whole", "number of nodes; for an observed training the number of its ranks or GPUs"
    ),
    "nodes_are": Column("text", "what `nodes` counts"),
    "ranks": Column("whole", "number of ranks on all nodes together"),
    "ranks_per_host": Column("number", "ranks (or GPUs) on each host", "observed"),
    "accelerators_per_node": Column("number", "GPUs in each node", "on GPUs"),
    "repeat": Column("whole", "number of the run among the runs of one setting"),
    "batch": Column("number", "samples in one step, of all nodes together"),
    "batch_per_rank": Column("number", "samples in one step, of one rank"),
    "steps": Column("whole", "steps that count"),
    "samples": Column("number", "work, in `work_unit`"),
    "work_unit": Column("text", "what work is counted in: samples, epochs or steps"),
    "total_s": Column("number", "time of the run"),
    "gradient_bytes": Column("number", "size of all gradients in fp32: 4 bytes for each parameter"),
    "overlap": Column("flag", "whether gradients were exchanged during the backward pass"),
    "algorithm": Column("text", "all-reduce of the gradients"),
    "energy_j": Column("number", "energy of all nodes"),
    "energy_source": Column("text", "`measured`, `estimated`, `recorded`, `imported`, `simulated`"),
    "energy_covers": Column(
        "text", "parts of a node that `energy_j` covers, such as `node` or `gpu+cpu`"
    ),
    "why_no_energy": Column("text", "reason why there is no energy"),
    "metered_units": Column("whole", "machines that have a meter of their own"),
    "u_cpu": Column("number", "share of the nodes' cores at work, mean over the run"),
    "memory_bytes": Column("number", "memory in use on a node, mean over the run"),
    "network_bytes_per_s": Column("number", "traffic of a node, mean over the run"),
    "left_out": Column("text", "reasons why the run is left out of all fits"),
    "left_out_for": Column("text", "the same reasons, in few words"),
    "disturbed": Column("text", "what other programs did before and during the run"),
    "sigma_computing_s": Column(
        "number", "spread of a step's computing over steps and ranks", "staged"
    ),
    **{
        f"t_{stage}_s": Column("number", f"of a step, mean over ranks: {meaning}", "staged")
        for stage, meaning in STAGE_MEANINGS.items()
    },
    **{
        f"e_{stage}_j": Column("number", f"of `energy_j`: {meaning}", "staged")
        for stage, meaning in STAGE_MEANINGS.items()
    },
    "submitter": Column("text", "who ran it", "imported"),
    "accelerator": Column("text", "model of its GPUs", "imported"),
    "supply": Column(
        "text",
        "where the nodes were metered: before their power supplies (AC) or behind them (DC)",
        "imported",
    ),
    "conversion_eff": Column(
        "number", "share of AC that becomes DC, according to the log", "imported"
    ),
    "series": Column(
        "text",
        "name of a group of runs that can be compared: one submitter, one benchmark, one kind of GPU",
        "imported",
    ),
    "has_phases": Column("flag", "whether the log divides the run into phases", "imported"),
    "training_s": Column("number", "time in which the run trains steadily", "imported"),
    "both_s": Column("number", "part of `training_s` in which it also evaluates", "imported"),
    "evaluating_s": Column("number", "time in which it evaluates and does not train", "imported"),
    "stalled_s": Column("number", "time in which it stands still", "imported"),
    "stalled_training_s": Column(
        "number", "part of `stalled_s` that lies within the training", "imported"
    ),
    "starts": Column("number", "how often it started again after a break", "imported"),
    "training_j": Column("number", "part of `energy_j` while it trains", "imported"),
    "evaluating_j": Column("number", "part of `energy_j` while it only evaluates", "imported"),
    "idle_w": Column("number", "power of a node before the run", "imported"),
    "lowest_w": Column("number", "lowest power of a node in the run and right after", "imported"),
    "steady_w": Column("number", "power of a node in steady training", "imported"),
    "evaluators": Column("number", "number of nodes that only evaluate", "imported"),
    "folder": Column("text", "folder of the run"),
}
"""The columns of the runs table, in their order."""

ENERGIES = tuple(name for name in COLUMNS if name.endswith("_j"))
"""Columns of energies. A run has all of them that are possible for it; or none, and the reason."""

# Texts are Python's texts. With Arrow's texts, a fit on tens of rows takes a fifth longer.
_TEXT = pd.StringDtype("python", na_value=np.nan)
_TYPES = {"whole": "int64", "number": "float64", "flag": "bool"}


def typed(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows as the runs table: its columns in their order and with their types.

    Raises:
        KeyError: a row has a column that the runs table does not have.
    """
    if unknown := sorted(set(rows.columns) - COLUMNS.keys()):
        raise KeyError(f"columns {unknown} are none of the runs table (joulecast.runs.runs_table)")
    names = [name for name in COLUMNS if name in rows]
    kinds = {name: COLUMNS[name].kind for name in names}
    types = {n: _TYPES[kind] for n, kind in kinds.items() if kind in _TYPES}
    texts = dict.fromkeys(rows[names].select_dtypes("str"), _TEXT)
    return rows[names].astype(types | texts)
