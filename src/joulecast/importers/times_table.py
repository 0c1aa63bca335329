"""Times of MLPerf runs as a flat table: ``runs.csv.gz`` with a row a run, and no power.

The work of a run stands in the unit of its log. It becomes what :mod:`joulecast.importers.work` makes of the
same log: samples, or epochs where a benchmark counts whole ones. Runs whose unit stays open are left out,
and of runs that are there twice in one round the second.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from joulecast.files.columns import Column, csv_in_parts
from joulecast.importers.foreign import ForeignRun
from joulecast.importers.run_files import sanitised
from joulecast.importers.work import work_done

_NAME = "runs.csv.gz"
_SAMPLES, _STEPS = ("samples", "tokens"), ("steps", "iterations")
_TEXT = Column("text", optional=True)
_COLUMNS = {
    **dict.fromkeys(("version", "org", "system", "benchmark", "run"), Column("text")),
    **dict.fromkeys(("status", "work_unit", "accelerator"), _TEXT),
    **dict.fromkeys(("seconds", "work"), Column("number", least=0)),
    **dict.fromkeys(
        ("global_batch", "train_samples", "nodes", "accelerators_per_node"),
        Column("number", least=0, optional=True),
    ),
}


def is_times_table(folder: Path) -> bool:
    """Whether ``folder`` holds a table of times, and none of power."""
    return (folder / _NAME).is_file() and not any(folder.glob("power.csv*"))


def times_table(folder: Path) -> pd.DataFrame:
    """A row a run that reached its target: ``run, submission, submitter, system, network, accelerator, nodes,
    accelerators_per_node, batch, samples, work_unit, total_s``.

    Raises:
        JoulecastError: the table cannot be read; names the row.
    """
    table = next(csv_in_parts(folder / _NAME, "table of times", _COLUMNS))
    names = ["version", "org", "benchmark", "system", "run"]
    run = table[names].astype(str).agg("-".join, axis=1)
    work, unit = _in_samples(table)
    rows = pd.DataFrame(
        {
            "run": run,
            "submission": table["version"].astype(str) + "/" + table["org"].astype(str),
            "submitter": table["org"],
            "system": table["system"],
            "network": table["benchmark"],
            "accelerator": table["accelerator"],
            "nodes": table["nodes"],
            "accelerators_per_node": table["accelerators_per_node"],
            "batch": table["global_batch"],
            "samples": work,
            "work_unit": unit,
            "total_s": table["seconds"],
        }
    )
    good = (table["status"] == "success") & (table["nodes"] >= 1) & (table["seconds"] > 0)
    good &= work > 0
    same = [
        table["version"],
        *(rows[name] for name in ("network", "total_s", "samples", "batch", "nodes")),
    ]
    return rows[good & ~pd.concat(same, axis=1).duplicated()].reset_index(drop=True)


def _in_samples(table: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Work and its unit; NaN where the unit is open. A benchmark counts in one way in a round: what one run
    alone leaves open (1.0 epochs, or a share of the data set?) the others decide."""
    work, batch, of_log = table["work"], table["global_batch"], table["work_unit"].fillna("epochs")
    benchmark = [table["version"], table["benchmark"], of_log]
    whole = (work % 1 == 0).groupby(benchmark).transform("all")
    # No evaluation comes before the first batch: what is below a batch cannot count samples.
    larger = (work >= batch).where(batch.notna() & (batch > 1)).astype(float)
    counts_samples = larger.groupby(benchmark).transform("mean") >= 0.5
    in_epochs = of_log == "epochs"
    samples = work.where(of_log.isin(_SAMPLES) | (in_epochs & whole))
    samples = samples.where(~of_log.isin(_STEPS), work * batch)
    samples = samples.where(whole | ~in_epochs, (work * table["train_samples"]).round())
    epochs = in_epochs & whole & ~counts_samples
    return samples, pd.Series(np.where(epochs, "epochs", "samples"), index=table.index)


def read_times(folder: Path) -> Iterator[ForeignRun]:
    """The runs of the table, one by one.

    Raises:
        JoulecastError: the table cannot be read; names the row.
    """
    for row in times_table(folder).itertuples():
        yield ForeignRun(
            run=sanitised(str(row.run)),
            campaign=str(row.submission),
            system=str(row.system),
            benchmark=str(row.network),
            submission=f"{row.submission}/{row.run}",
            source={"format": "table of times", "path": str(folder.resolve())},
            nodes=int(row.nodes),
            accelerators_per_node=int(row.accelerators_per_node)
            if row.accelerators_per_node >= 1
            else None,
            accelerator=row.accelerator if isinstance(row.accelerator, str) else None,
            global_batch_size=int(row.batch) if row.batch >= 1 else None,
            start_s=0.0,
            stop_s=float(row.total_s),
            status="success",
            intervals=work_done(str(row.work_unit), float(row.samples), float(row.total_s)),
        )
