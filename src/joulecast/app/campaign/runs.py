"""The runs of a campaign's configuration, each with its specification.

If the platform is a recorded campaign, they are the recorded runs.
"""

import math
import random
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd
from pydantic import TypeAdapter

from joulecast.app.campaign.config import Config
from joulecast.app.campaign.workload_section import filled_in
from joulecast.errors import JoulecastError
from joulecast.measure.workloads.datasets import ROOT_LAYOUT
from joulecast.quantities import listed
from joulecast.runs.files.reading import validated
from joulecast.runs.files.shipped import PLATFORMS
from joulecast.runs.platforms import Platform, find_platform, recorded_for
from joulecast.runs.recorded import recorded_infos
from joulecast.runs.spec import Calibration, MeterSettings, Observed, RunSpec, Training, Workload

_MOST_RUNS = 100_000


def _steps(config: Config, network: str, batch: int) -> int:
    samples, steps = config.training.samples, config.training.steps
    if samples is not None:
        wanted = samples[network] if isinstance(samples, dict) else samples
        return math.ceil(wanted / batch)
    return steps[network] if isinstance(steps, dict) else steps


_SPEC = TypeAdapter(RunSpec)


def _spec(config: Config, platform: Platform, run: str, **parts: object) -> RunSpec:
    scale = config.scale
    common: dict[str, object] = {
        "run": run,
        "campaign": config.campaign,
        "platform": platform,
        "ranks_per_node": scale.ranks_per_node,
        "threads_per_rank": scale.threads_per_rank,
        "emulation": config.emulation,
        "meters": tuple(config.power.meters),
        "sample_period_s": config.power.sample_period_s,
        "metering": MeterSettings(config.power.sysfs_root, tuple(config.power.command)),
    }
    return validated(_SPEC, common | parts, f"run {run} (configuration keys `scale`)")


def _cells(config: Config) -> list[tuple[int, int, int]]:
    """Nodes, batch and repeat of each run of a training."""
    scale = config.scale
    asked = max(1, len(config.workload.networks)) * len(scale.nodes) * scale.repeats
    if asked > _MOST_RUNS:
        raise JoulecastError(
            f"the configuration asks for {asked:,} runs, more than {_MOST_RUNS:,} (keys `workload.networks`, "
            "`scale.nodes` and `scale.repeats`)"
        )
    cells = {
        (nodes, scale.batch_size * (nodes if scale.scaling == "weak" else 1), repeat)
        for nodes in scale.nodes
        for repeat in range(1, scale.repeats + 1)
    }
    # One node also runs the batch sizes of the sweep, except those that the campaign runs anyway.
    return sorted(cells | {(1, batch, 1) for batch in config.calibration.batch_sizes})


def _training_runs(config: Config, platform: Platform) -> list[RunSpec]:
    section = config.training.model_dump(exclude={"steps", "samples"})
    workload = config.workload.model_dump(exclude={"networks", "command", "name"})
    cells = _cells(config)
    return [
        _spec(
            config,
            platform,
            f"{network}-n{nodes}-b{batch}-run{repeat}",
            kind="training",
            nodes=nodes,
            repeat=repeat,
            seed=config.scale.seed + repeat,
            workload=Workload(network=network, **workload),
            training=Training.model_validate(
                {**section, "global_batch_size": batch, "steps": _steps(config, network, batch)}
            ),
        )
        for network in sorted(set(config.workload.networks))
        for nodes, batch, repeat in cells
    ]


def _command_run(
    config: Config, platform: Platform, nodes: int, batch: int, repeat: int
) -> RunSpec:
    """The specification of a training that the configuration's command runs."""
    name = config.workload.name
    run = f"{name}-n{nodes}-b{batch}-run{repeat}"
    ranks = nodes * config.scale.ranks_per_node
    if batch % ranks:
        raise JoulecastError(
            f"run {run}: a batch of {batch} is not divisible by {ranks} ranks; change scale.batch_size or "
            "calibration.batch_sizes"
        )
    hosts = nodes if platform.hosts is None else min(nodes, platform.hosts)
    steps = _steps(config, name, batch)
    blanks = {"nodes": hosts, "gpus": ranks // hosts, "ranks": ranks, "steps": steps}
    command = filled_in(
        config.workload.command or "", blanks | {"batch": batch, "batch_per_rank": batch // ranks}
    )
    return _spec(
        config,
        platform,
        run,
        kind="training",
        nodes=nodes,
        repeat=repeat,
        emulation=None,
        observed=Observed(name=name, command=("sh", "-c", command), samples_per_step=batch),
    )


def _calibration_runs(config: Config, platform: Platform) -> list[RunSpec]:
    section = config.calibration
    allreduce = Calibration(
        sizes_bytes=tuple(section.allreduce_bytes),
        repeats=section.allreduce_repeats,
        algorithm=config.training.algorithm,
    )
    cells = [("idle", 1, Calibration(seconds=section.idle_s))]
    for nodes in config.scale.nodes:
        if nodes * config.scale.ranks_per_node > 1:
            cells.append(("allreduce", nodes, allreduce))
            cells.append(("sleeping_rank", nodes, Calibration(seconds=section.sleeping_rank_s)))
    return [
        _spec(config, platform, f"{kind}-n{nodes}", kind=kind, nodes=nodes, calibration=part)
        for kind, nodes, part in cells
    ]


def _require_root(config: Config) -> None:
    """Raise the error that every run would raise: the data set's folder is missing."""
    dataset, root = config.workload.dataset, config.workload.data_root
    if dataset in ROOT_LAYOUT and (root is None or not Path(root).is_dir()):
        found = "is not given" if root is None else f"{root} is no folder"
        raise JoulecastError(
            f"workload.data_root: {found}; the data set {dataset} is read from a folder that holds "
            f"{ROOT_LAYOUT[dataset]}"
        )


def _left_in(runs: list[RunSpec], without: list[str]) -> list[RunSpec]:
    """The runs that the configuration does not leave out (``scale.without``)."""
    for pattern in without:
        if not any(fnmatchcase(spec.run, pattern) for spec in runs):
            raise JoulecastError(
                f"scale.without: no run has the name `{pattern}` (a name is such as {runs[0].run})"
            )
    left = [spec for spec in runs if not any(fnmatchcase(spec.run, pattern) for pattern in without)]
    if not any(spec.kind == "training" for spec in left):
        raise JoulecastError("scale.without: leaves no training to run")
    return left


def campaign_runs(config: Config, platforms: Path = PLATFORMS) -> list[RunSpec]:
    """All runs of a campaign in the order in which they are to be measured.

    The order is shuffled by ``scale.seed``, so that a drift of the machine does not correlate with the node
    count. The runs of a recorded campaign are in the order of their names. The configuration's sections
    ``workload``, ``scale``, ``training``, ``power``, ``emulation`` and ``calibration`` have no effect on
    them.

    Args:
        platforms: folder of the user's own platform files.

    Raises:
        JoulecastError: the platform is missing or lacks the watts that ``estimated`` needs, a batch is
            smaller than the ranks, the command takes no batch although its runs have several, the data set's
            root is no folder, ``scale.without`` names no run or all of them, or the recorded campaign cannot
            be read.
    """
    recorded = recorded_for(config.platform, platforms)
    if recorded is not None:
        return [info.spec for info in recorded_infos(recorded)]
    platform = find_platform(config.platform, platforms)
    if "estimated" in config.power.meters:
        platform.require_watts()
    _require_root(config)
    command = config.workload.command
    if command is None:
        runs = _training_runs(config, platform) + _calibration_runs(config, platform)
    else:
        # A user's command does its own exchange. So our calibration of the all-reduce does not hold for it.
        idle = [run for run in _calibration_runs(config, platform) if run.kind == "idle"]
        cells = _cells(config)
        batches = sorted({batch for nodes, batch, _ in cells if nodes == 1})
        if len(batches) > 1 and "{batch" not in command:
            raise JoulecastError(
                f"workload.command: its runs on one node have the batches {listed(batches)}, but it takes no "
                "batch; put {batch_per_rank} or {batch} where it sets its batch, or give its own batch as "
                "scale.batch_size and calibration.batch_sizes"
            )
        runs = [_command_run(config, platform, *cell) for cell in cells] + idle
    runs = _left_in(runs, config.scale.without)
    random.Random(config.scale.seed).shuffle(runs)
    return runs


def run_table(runs: list[RunSpec]) -> pd.DataFrame:
    """Table with one row for each run, indexed by name: kind, network, nodes, ranks, batch, repeat, order."""
    rows = [
        {
            "run": spec.run,
            "kind": spec.kind,
            "network": spec.network,
            "nodes": spec.nodes,
            "ranks": spec.ranks,
            "batch": spec.global_batch_size,
            "repeat": spec.repeat,
            "order": order,
        }
        for order, spec in enumerate(runs)
    ]
    return pd.DataFrame(rows).set_index("run", drop=False)
