"""Reads the folder of results of an experiment. This needs no root, no torch and no MPI.

A folder has

``configurations.json``   the steps that were measured
``steps.csv``             a row for each iteration: its seconds, and what disturbed it
``collectives.csv``       the same for collectives and messages that ran alone
other tables              tables that only this experiment has
``provenance.json``       where the results come from

Disturbed iterations are kept and marked ``disturbed``. Predictions are judged only on ``steps.csv``.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from joulecast.runs.files.columns import Column, read_csv
from joulecast.runs.files.reading import read_json, read_json_object, validated
from joulecast.runs.judging import join_references
from joulecast.runs.platforms import Cluster, Device, Link, Platform
from joulecast.simulate.network_calibration import NetworkCalibration

CONFIGURATIONS_FILE = "configurations.json"
PROVENANCE_FILE = "provenance.json"
STAGES = (
    "materials_s",
    "computing_s",
    "communicating_wait_s",
    "communicating_copy_s",
    "update_s",
)
"""Columns with the seconds of rank 0 in each stage of a step. Only replicas have them."""
_COLUMNS = {
    **dict.fromkeys(("configuration", "kind", "algorithm", "network", "part"), Column("text")),
    **dict.fromkeys(("repeat", "iteration", "rank", "ranks"), Column("whole", 0, 1e9)),
    **dict.fromkeys(("ranks_per_node", "buckets"), Column("whole", 0, 1e9)),
    **dict.fromkeys(("seconds", "began_s", "ended_s", "late_s"), Column("number", 0, 1e9)),
    **dict.fromkeys(("waited_share", "other_cores"), Column("number", 0, 1e6)),
    **dict.fromkeys(STAGES, Column("number", 0, 1e9, optional=True)),
    "bytes": Column("whole", 0, 1e15),
    "disturbed": Column("text", choices=("True", "False")),
}


class Frozen(BaseModel):
    """A value that does not change and can be written as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StepConfiguration(Frozen):
    """A step of training. Each experiment adds its own settings."""

    name: str = Field(pattern=r"^[a-z0-9_-]+$")
    family: str


C = TypeVar("C", bound=StepConfiguration)


@dataclass(frozen=True)
class IterationTable:
    """A table of iterations."""

    key: tuple[str, ...]
    """Columns that say what was measured. Iterations with the same key are numbered."""
    values: tuple[str, ...]
    """Columns with the results."""

    @property
    def is_timed(self) -> bool:
        """Whether the rows have ``seconds``, and may be disturbed."""
        return "seconds" in self.values

    def read(self, path: Path) -> pd.DataFrame:
        """Read the table from a file.

        Raises:
            JoulecastError: the file has no such table.
        """
        names = [*self.key, "iteration", *self.values, *(["disturbed"] if self.is_timed else [])]
        table = read_csv(path, "table of measurements", {name: _COLUMNS[name] for name in names})
        return table.assign(disturbed=table["disturbed"] == "True") if self.is_timed else table


@dataclass(frozen=True)
class Experiment(Generic[C]):
    """The format of an experiment's results."""

    configuration: type[C]
    tables: Mapping[str, IterationTable]
    """Tables by name, without ``.csv``. ``steps`` and ``collectives`` are among them."""
    typical: Callable[[list[float]], float]
    """The typical seconds of undisturbed iterations."""

    def summary(self, rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
        """Typical seconds of undisturbed iterations in groups.

        Returns:
            a row for each group (the index): typical ``seconds``, their interquartile range ``spread_s``, the
            number of ``iterations``, and the number of ``clean`` (undisturbed) ones. If none is clean, the
            seconds are NaN.
        """
        clean = rows[~rows.disturbed].groupby(list(by), sort=False).seconds
        summary = pd.DataFrame({"iterations": rows.groupby(list(by), sort=False).size()})
        summary["seconds"] = clean.agg(lambda seconds: self.typical(seconds.tolist()))
        summary["spread_s"] = clean.quantile(0.75) - clean.quantile(0.25)
        summary["clean"] = clean.size()
        return summary.assign(clean=summary.clean.fillna(0).astype(int))

    def apart_from_steps(self, name: str, rows: pd.DataFrame) -> pd.DataFrame:
        """The summary of the table ``name``. Each of its measurements ran alone, such as a single collective.
        The columns that identify a row are columns of the result, not its index."""
        return self.summary(rows, self.tables[name].key).reset_index()


@dataclass(frozen=True)
class Measurements(Generic[C]):
    """The measurements of an experiment."""

    configurations: list[C]
    """Configurations of all measured steps."""
    steps: pd.DataFrame
    """A row of :meth:`Experiment.summary` for each configuration (the index), and ``again_s``, the seconds of
    the A/A repeat or NaN."""
    collectives: pd.DataFrame
    """The same summary, with the key of the table in columns."""
    rows: dict[str, pd.DataFrame]
    """The raw tables by name."""
    provenance: dict[str, Any]


def read_folder(folder: Path, experiment: Experiment[C]) -> Measurements[C]:
    """Read the measurements of an experiment.

    Raises:
        JoulecastError: ``folder`` has no such measurements.
    """
    provenance = read_json_object(folder / PROVENANCE_FILE, "provenance of measurements")
    listed = folder / CONFIGURATIONS_FILE
    configurations: list[C] = validated(
        TypeAdapter(list[experiment.configuration]),  # type: ignore[name-defined]
        read_json(listed, "list of configurations"),
        str(listed),
    )
    rows = {name: table.read(folder / f"{name}.csv") for name, table in experiment.tables.items()}
    steps, by = rows["steps"], ["configuration"]
    summary = experiment.summary(steps[steps.repeat == 0], by)
    again = experiment.summary(steps[steps.repeat > 0], by)
    return Measurements(
        configurations=configurations,
        steps=summary.reindex([each.name for each in configurations]).assign(again_s=again.seconds),
        collectives=experiment.apart_from_steps("collectives", rows["collectives"]),
        rows=rows,
        provenance=provenance,
    )


ROLES = {"simulator": "model", "sum": "rival", "max": "rival", "measured again": "repeat"}
"""Roles of the simulator, two rules of thumb, and the A/A repeat. Other models are the simulator without a
part."""


class Calibrated(NamedTuple):
    """A link with its calibration."""

    name: str
    rates: NetworkCalibration
    joins: int | None = None
    """Number of devices that it joins; ``None``: all."""


def platform_of(
    name: str,
    device: str,
    links: Sequence[Calibrated],
    devices_per_node: int,
    overlap_slowdown: float,
    nodes: int | None = None,
) -> Platform:
    """A platform with calibrated links.

    Args:
        links: the innermost first. The outermost link says by which algorithm collectives
            run, and how long they take to start.
        nodes: number of nodes; ``None``: any number.
    """
    outermost = links[-1].rates
    return Platform(
        name=name,
        cluster=Cluster(
            nodes=nodes,
            devices_per_node=devices_per_node,
            device=Device(name=device),
            links=tuple(
                Link(name=name, joins=joins, bytes_per_s=of.bytes_per_s, latency_s=of.latency_s)
                for name, of, joins in links
            ),
            collective_launch_s=outermost.launch_s,
            collective_algorithm=outermost.algorithm,
            overlap_slowdown=overlap_slowdown,
        ),
    )


def judge_steps(
    results: Measurements[Any],
    experiment: str,
    seconds: Mapping[str, Mapping[str, float]],
    basis: str,
    fitted: Collection[str] = (),
) -> pd.DataFrame:
    """Join the predictions of an experiment's steps with the measurements.

    Args:
        seconds: predicted seconds of each configuration, by model.
        basis: the data that the models saw.
        fitted: configurations that the models also saw. Their ``split`` is ``in-sample``.

    Returns:
        a row of :func:`joulecast.runs.judging.join_references` for each configuration and model. The A/A
        repeat is a model, too. Facts of a configuration are ``experiment``, ``family``, ``ranks``,
        ``network`` (only for real training), ``source`` and ``spread_s``.
    """
    wide = pd.DataFrame.from_dict(seconds, orient="index").rename_axis("configuration")
    wide["measured again"] = results.steps["again_s"]
    rows = wide.reset_index().melt("configuration", var_name="model", value_name="time_s")
    predictions = rows.assign(
        split=np.where(rows["configuration"].isin(fitted), "in-sample", "held out"),
        time="predicted",
        role=rows["model"].map(ROLES).fillna("ablation"),
        basis=basis,
    )
    known = [
        (each.name, each.family, each.ranks, getattr(each, "network", None))
        for each in results.configurations
    ]
    references = pd.DataFrame(known, columns=["configuration", "family", "ranks", "network"])
    references = references.assign(experiment=experiment, source="recorded")
    measured = results.steps[["seconds", "spread_s"]].rename(columns={"seconds": "time_s"})
    references = references.join(measured, on="configuration")
    return join_references(predictions, references, "configuration", "time_s")
