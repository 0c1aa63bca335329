"""One row for each run, made from the run records. Models are fitted to these rows, and judged on them.

:data:`joulecast.runs.runs_table.COLUMNS` says what each column holds.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.runs.frames import FRAMES, STAGES
from joulecast.runs.integration import energy_of_stages, exposed_intervals
from joulecast.runs.meter_choice import Metering, kind_of
from joulecast.runs.metered_power import counted_power, machines
from joulecast.runs.phases import observe_phases
from joulecast.runs.processes import mapped
from joulecast.runs.provenance import usable_cores
from joulecast.runs.record import RunInfo, RunRecord, read_info, read_record
from joulecast.runs.runs_table import ENERGIES, typed

UNNAMED = "mlperf"
"""Campaign of imported runs if their submission has no name."""

UTILISATIONS = ("u_cpu", "memory_bytes", "network_bytes_per_s")

TIMED = STAGES[:-1]
"""The timed stages. The rest of the time is ``other``."""

RECORDS_A_PROCESS = 200
"""Number of records that take about as long to read as it takes to start a process and to send it work."""

Row = dict[str, Any]


def is_training(runs: pd.DataFrame) -> pd.Series:
    """Whether each run is a training, ours or imported, and not a calibration."""
    return runs["kind"].isin(("training", "imported"))


def most_frequent(values: pd.Series) -> float:
    """The most frequent number. If several are equally frequent, the smallest of them. NaN if there is
    none."""
    modes = values.mode()
    return float(modes.iloc[0]) if len(modes) else float("nan")


def of_usual_batch(training: pd.DataFrame) -> pd.DataFrame:
    """The runs of each workload with its most frequent batch of a rank. A sweep over batches is left out."""
    usual = training.groupby("workload")["batch_per_rank"].transform(most_frequent)
    return training[(training["batch_per_rank"] == usual) | usual.isna()]


def platform_family(system: str) -> str:
    """Name of a node type: a system's name without its node count (``8xSMC-H100`` and ``smc_n8_v2`` are
    ``SMC-H100`` and ``smc_v2``)."""
    without = re.sub(r"^(\d+x(?=[A-Za-z])|\d+-?nodes?[-_])", "", system)
    without = re.sub(r"[-_]([nN]\d+|\d+nodes?)(?=[-_]|$)", "", without)
    return re.sub(r"[-_]x?\d+$", "", without) or system


def imported_platform(info: RunInfo) -> str:
    """Name of the system of an imported run.

    The name of the campaign is a part of it, because one cluster may submit its runs twice: metered before
    and behind the power supplies.
    """
    family, campaign = platform_family(info.spec.platform.name), info.spec.campaign
    return family if campaign == UNNAMED else f"{family} ({campaign})"


_MODEL = re.compile(r"(?:[AHVPTL]|B|GB|GH|RTX|MI)\d{2,4}[A-Z]{0,2}")
"""Names of GPUs. Other names with letters and digits are numbers of nodes, or names of machines."""


def accelerator_model(accelerator: str | None, system: str) -> str | None:
    """Model of an accelerator, such as ``H100`` or ``H100 PCIE``. It is found in the accelerator's name or in
    the system's name.

    It is ``None`` if neither name has a model.
    """
    for name in (accelerator or "", system):
        words = re.split(r"[^A-Za-z0-9]+", name)
        models = [word for word in words if _MODEL.fullmatch(word)]
        if models:
            forms = [word.upper() for word in words if word.upper() in ("PCIE", "NVL")]
            return " ".join([models[0], *forms[:1]])
        if gaudi := re.search(r"gaudi(?:\(R\))?\W*(\d)?", name, re.IGNORECASE):
            return f"Gaudi{gaudi[1] or ''}"
    return accelerator


def identity(submission: str, benchmark: str, accelerator: str | None, platform: str) -> Row:
    """Columns that identify the runs of others for comparisons: ``submitter``, ``accelerator`` and
    ``series``."""
    return {
        "submitter": submission.rsplit("/", 1)[-1],
        "accelerator": accelerator,
        "series": f"{submission}: {benchmark} on {accelerator or platform}",
    }


def _setting(info: RunInfo) -> dict[str, Any]:
    """The columns that say what was run, for any kind of record."""
    spec, outcome, imported = info.spec, info.outcome, info.spec.imported
    batch = info.global_batch_size or 0
    row: dict[str, Any] = {
        "run": spec.run,
        "kind": spec.kind,
        "platform": spec.platform.name,
        "network": spec.network,
        "workload": spec.network,
        "nodes": spec.nodes,
        "ranks": spec.ranks,
        "repeat": spec.repeat,
        "batch": float(batch),
        "batch_per_rank": batch / spec.ranks,
        "steps": outcome.steps,
        "samples": outcome.samples,
        "work_unit": outcome.work_unit,
        "total_s": outcome.stop_s - outcome.start_s,
        "gradient_bytes": 4.0 * (info.parameters or 0),
        "nodes_are": info.nodes_are,
        "left_out": "; ".join(info.left_out),
        "disturbed": "; ".join(info.disturbed),
        "left_out_for": ", ".join(reason.split(":")[0] for reason in info.left_out),
        "overlap": bool(spec.training and spec.training.overlap),
        "algorithm": info.algorithm_used,
    }
    if spec.training is not None and spec.training.device == "cuda":
        row["accelerators_per_node"] = spec.ranks_per_node
    if spec.observed is not None:
        row |= _of_observed(info)
    if imported is not None:
        platform = imported_platform(info)
        row |= {
            "platform": platform,
            "network": imported.benchmark,
            "workload": f"{imported.benchmark} on {platform}",
            "batch": float(imported.global_batch_size or np.nan),
            "batch_per_rank": np.nan,
            "metered_units": spec.nodes,
            "work_unit": imported.work_unit,
            "accelerators_per_node": imported.accelerators_per_node,
            **_supply(info.metering),
        }
        model = accelerator_model(imported.accelerator, spec.platform.name)
        row |= identity(spec.campaign, imported.benchmark, model, platform)
    return row


def _supply(metering: Metering) -> Row:
    """Where the meters of a run's nodes are (AC or DC), and the efficiency of the power supplies.

    The first is ``None`` unless all nodes are metered at the same place.
    """
    supplies = {meter.supply for meter in metering.meters}
    known = [meter.conversion_eff for meter in metering.meters if meter.conversion_eff]
    return {
        "supply": supplies.pop() if len(supplies) == 1 else None,
        "conversion_eff": float(np.mean(known)) if known else np.nan,
    }


def _of_observed(info: RunInfo) -> Row:
    """The columns that have other values for an observed training. Its scale is its number of ranks (or
    GPUs), and a host has several of them."""
    spec = info.spec
    gpus = Counter(
        (m.node, kind_of(m.meter)) for m in info.meters if m.available and m.covers == "gpu"
    )
    on_gpus = info.outcome.device == "cuda"
    # The launcher may count ranks of one host as nodes.
    of_hosts = Counter(info.node_of_rank)
    return {
        "nodes": spec.ranks,
        "nodes_are": "GPUs" if on_gpus else "ranks",
        "ranks_per_host": max([*of_hosts.values(), *(gpus.values() if on_gpus else ())]),
    }


def _times_of_stages(info: RunInfo, stages: pd.DataFrame, exposed: pd.DataFrame) -> Row:
    """Seconds of each stage in a step, averaged over ranks, and the standard deviation of the time that a
    rank computes in a step."""
    ranks, steps = info.spec.ranks, max(info.outcome.steps, 1)
    lasted_s = (exposed["stop_s"] - exposed["start_s"]).groupby(exposed["stage"]).sum()
    seconds = {
        stage: float("nan") if stage in info.unseen else float(lasted_s.get(stage, 0.0)) / ranks
        for stage in TIMED
    }
    total_s = info.outcome.stop_s - info.outcome.start_s
    computing = stages[stages["stage"] == "computing"]
    computed_s = computing["stop_s"] - computing["start_s"]
    by_step = computed_s.groupby([computing["rank"], computing["step"]]).sum().to_numpy(float)
    return {
        "sigma_computing_s": float(by_step.std(ddof=1)) if len(by_step) > 1 else 0.0,
        **{f"t_{stage}_s": value / steps for stage, value in seconds.items()},
        "t_other_s": max(0.0, total_s - float(np.nansum(list(seconds.values())))) / steps,
    }


def _source(metering: Metering) -> Row:
    return {
        "energy_source": metering.source,
        "energy_covers": metering.covers,
        "why_no_energy": metering.why_not,
    }


def _energy(record: RunRecord, exposed: pd.DataFrame) -> Row:
    # Measured and estimated figures of one run are never added up.
    metering, power = counted_power(record)
    row: Row = _source(metering) | {"energy_j": np.nan, "metered_units": 0}
    row |= {f"e_{stage}_j": np.nan for stage in STAGES}
    if metering.source is None:
        return row
    info = record.info
    span = info.outcome.start_s, info.outcome.stop_s
    parts = energy_of_stages(power, exposed, info.node_of_rank, *span)
    by_stage = parts.groupby("stage")["energy_j"].sum()
    row |= {f"e_{stage}_j": float(by_stage.get(stage, 0.0)) for stage in STAGES}
    row["energy_j"] = float(parts["energy_j"].sum())
    row["metered_units"] = machines(metering)
    return row


def _utilisation(record: RunRecord) -> dict[str, float]:
    """Mean utilisations over the run and its nodes.

    A row of activity is the mean over the time since the row before it. Its weight is the part of this time
    that lies in the run. So a run that is shorter than the sampler's period has utilisations, too.
    """
    outcome = record.info.outcome
    activity = record.activity
    nodes, t_s = pd.factorize(activity["node"])[0], activity["t_s"].to_numpy(float)
    order = np.lexsort((t_s, nodes))
    nodes, until = nodes[order], t_s[order]
    is_first = np.diff(nodes, prepend=-1) != 0
    since = np.where(is_first, until - record.info.spec.sample_period_s, np.roll(until, 1))
    inside = np.minimum(until, outcome.stop_s) - np.maximum(since, outcome.start_s)
    weights = np.maximum(inside, 0.0)
    names = {"u_cpu": "cpu_utilisation"} | {name: name for name in UTILISATIONS[1:]}
    means = {}
    for name, column in names.items():
        shares = activity[column].to_numpy(float)[order]
        known = np.where(np.isnan(shares), 0.0, weights)
        total, weighted = float(known.sum()), float((np.nan_to_num(shares) * known).sum())
        means[name] = weighted / total if total > 0 else float("nan")
    return means


def metered_units(example: Mapping[str, Any], nodes: int, hosts: int | None) -> float:
    """Number of units with a meter of their own, for a run on ``nodes`` nodes. Each of them draws idle power.

    Args:
        example: row of a run on the platform; if possible, of a run on several nodes.
        hosts: number of physical hosts on which all nodes are; ``None``: one host for each node.
    """
    per_host = example.get("ranks_per_host", np.nan)
    if per_host == per_host:  # an observed training
        return float(math.ceil(nodes / per_host))
    if example["nodes"] > 1:
        # A meter that all nodes share stays one meter. Otherwise each node has its meter.
        shared = example["metered_units"] == 1
        return 1.0 if shared else float(example["metered_units"]) * nodes / float(example["nodes"])
    if example["energy_source"] == "estimated" or hosts is None:
        return float(nodes)
    return float(min(nodes, hosts))


def _with_sound_energy(row: dict[str, Any]) -> dict[str, Any]:
    """The row. If its energies add up to nothing, they are left out, because a meter that stands still
    measures nothing."""
    energy_j = row["energy_j"]
    if np.isnan(energy_j) or 0 < energy_j < np.inf:
        return row
    energies = [name for name in ENERGIES if name in row]
    why = f"its meters add up to {energy_j:g} J, which is no energy of a run"
    none = {"energy_source": None, "energy_covers": None, "why_no_energy": why}
    return row | dict.fromkeys(energies, np.nan) | none


def observe(record: RunRecord) -> Row:
    """The row of one record."""
    row = _setting(record.info)
    if record.info.spec.kind == "imported":
        row |= _source(record.info.metering) | dict.fromkeys(("u_cpu", "memory_bytes"), np.nan)
        return _with_sound_energy(row | observe_phases(record))
    exposed = exposed_intervals(record.stages)
    if record.info.spec.ranks == 1:
        # On one rank, there is no exchange. So the time that DDP spends on its buckets is computing.
        exchange = exposed["stage"].str.startswith("communicating")
        exposed["stage"] = exposed["stage"].mask(exchange, "computing")
    row |= _times_of_stages(record.info, record.stages, exposed)
    return _with_sound_energy(row | _energy(record, exposed) | _utilisation(record))


def _observe_folder(folder: Path) -> Row:
    # Imported runs have no stages and no activity, so these files are not opened.
    imported = read_info(folder).spec.kind == "imported"
    record = read_record(folder, ("power", "phases") if imported else tuple(FRAMES))
    return observe(record) | {"folder": str(folder)}


def _with_comparable_energies(rows: pd.DataFrame) -> pd.DataFrame:
    """Observations in which all energies of a platform cover the same parts, as ``node`` or ``gpu+cpu``.

    In one run, the meter of a node may fail, or be too slow for a short run. Then the energy of the run
    covers only parts of the node. If the energy of most runs of the platform covers other parts, the energy
    of this run is removed, and the run gets the reason. If two sets of parts are equally frequent, ``node``
    is preferred. Runs that do not say what their energy covers are not changed.
    """
    if "energy_covers" not in rows or "energy_j" not in rows:
        return rows
    known = rows[rows["energy_covers"].notna() & rows["energy_j"].notna()]
    energies = [name for name in ENERGIES if name in rows]
    changed = rows
    for _, of_platform in known.groupby(["platform", "energy_source"], sort=True):
        counts = of_platform["energy_covers"].value_counts()
        if len(counts) < 2:
            continue
        usual = min(counts.index, key=lambda c: (-counts[c], c != "node", c))
        others = of_platform.index[of_platform["energy_covers"] != usual]
        changed = changed.copy() if changed is rows else changed
        changed.loc[others, "why_no_energy"] = [
            f"its energy is of {covers}, the energy of most runs is of {usual}"
            for covers in of_platform.loc[others, "energy_covers"]
        ]
        changed.loc[others, energies] = np.nan
        changed.loc[others, ["energy_source", "energy_covers"]] = None
    return changed


def observe_all(folders: Iterable[Path]) -> pd.DataFrame:
    """The rows of many records. Each process has one record in memory at a time."""
    paths = [Path(folder) for folder in folders]
    processes = max(1, min(usable_cores(), len(paths) // RECORDS_A_PROCESS))
    rows = pd.DataFrame(mapped(_observe_folder, paths, processes))
    # Imported runs have no utilisation, and measured runs have no phases. The table has the columns of both.
    rows = rows.reindex(columns=[*rows.columns, *(c for c in UTILISATIONS if c not in rows)])
    return _with_comparable_energies(typed(rows))


def allreduce_points(folders: Iterable[Path]) -> pd.DataFrame:
    """A row for each all-reduce in the all-reduce calibrations, with the columns ``run platform nodes ranks
    bytes copy_s algorithm``.

    The time of an all-reduce is the time of the slowest rank.
    """
    rows: list[dict[str, Any]] = []
    for folder in folders:
        spec = read_info(Path(folder)).spec
        if spec.kind != "allreduce":
            continue
        record = read_record(Path(folder), ("stages",))
        copies = record.stages[record.stages["stage"] == "communicating_copy"]
        slowest = (copies["stop_s"] - copies["start_s"]).groupby(copies["step"]).max()
        for step, size in enumerate(record.info.step_bytes or []):
            if step not in slowest.index:
                continue
            rows.append(
                {
                    "run": spec.run,
                    "platform": spec.platform.name,
                    "nodes": spec.nodes,
                    "ranks": spec.ranks,
                    "bytes": float(size),
                    "copy_s": float(slowest[step]),
                    "algorithm": record.info.algorithm_used,
                }
            )
    columns = ["run", "platform", "nodes", "ranks", "bytes", "copy_s", "algorithm"]
    return pd.DataFrame(rows, columns=columns)
