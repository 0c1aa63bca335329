"""A synthetic campaign of any size: the configuration, and a record for every run that it asks for.

The runs are those of :func:`joulecast.app.campaign.runs.campaign_runs`, so that the job graph and what is
made of the records are of one campaign. Times and energies come from MC2's own equations with noise: three
networks on 1, 2, 4 and 8 nodes, nine runs in ten repeats of these settings, one in ten a batch size of its
own at N = 1. Frames are small (two steps, 5 readings a node), so that what is timed is what a run costs
whatever it holds.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.app.campaign.config import Config, parse_config
from joulecast.app.campaign.runs import campaign_runs
from joulecast.runs.frames import ACTIVITY_COLUMNS, PHASE_COLUMNS, POWER_COLUMNS, STAGE_COLUMNS
from joulecast.runs.record import Checks, MeterInfo, Outcome, RunInfo, RunRecord, write_record
from joulecast.runs.spec import RunSpec

ROOT = Path(__file__).resolve().parents[1]
NODES = (1, 2, 4, 8)
_NETWORKS = {"resnet18": (0.05, 0.010, 11.7e6), "vit_ti": (0.03, 0.006, 5.7e6)}
_NETWORKS |= {"lenet5": (0.01, 0.002, 0.06e6)}
"""By name: seconds of a step beside its samples, seconds of a sample, parameters."""

_METER = "rapl"
_POWER_W = {"materials": 8.0, "computing": 25.0, "communicating_wait": 4.0}
_POWER_W |= {"communicating_copy": 12.0, "update": 15.0}
_IDLE_W, _READINGS = 20.0, 5


def configuration(runs: int, name: str = "scale") -> dict[str, Any]:
    """The configuration of a campaign of ``runs`` runs, as nearly as whole repeats make it.

    What the other stages simulate, cut and tune does not grow with the campaign and is kept small.
    """
    calibrations = 1 + 2 * (len(NODES) - 1)
    sweep = max(1, runs // (10 * len(_NETWORKS)))
    cells = len(_NETWORKS) * len(NODES)
    repeats = max(1, round((runs - calibrations - sweep * len(_NETWORKS)) / cells))
    return {
        "campaign": name,
        "results": f"results/{name}",
        "workload": {"networks": sorted(_NETWORKS), "image_size": 32},
        "scale": {"nodes": list(NODES), "repeats": repeats, "batch_size": 4},
        "training": {"steps": 2},
        "power": {"meters": [_METER]},
        "emulation": None,
        "calibration": {
            "batch_sizes": [4 + 4 * k for k in range(1, sweep + 1)],
            "allreduce_bytes": [2**16, 2**20, 2**22, 2**24],
        },
        "evaluation": {"series_splits": 5},
        "simulator": {"speed_devices": [8]},
        "partition": {"networks": ["resnet18"], "pipelines": []},
    }


def specifications(runs: int) -> list[RunSpec]:
    """The runs of :func:`configuration`, in the order in which they would be measured."""
    return campaign_runs(_config(runs), ROOT / "config" / "platforms")


def _config(runs: int) -> Config:
    return parse_config(configuration(runs), "benchmark")


def _step_s(spec: RunSpec, random: np.random.Generator) -> dict[str, float]:
    """Seconds of the stages of one step of a training."""
    assert spec.workload is not None and spec.training is not None
    tau, per_sample, parameters = _NETWORKS[spec.workload.network]
    batch = spec.training.global_batch_size / spec.ranks
    step = {"materials": 4e-4 * batch, "computing": tau + per_sample * batch}
    if spec.ranks > 1:
        step["communicating_wait"] = 0.01 * np.sqrt(2 * np.log(spec.ranks))
        step["communicating_copy"] = _copy_s(spec.ranks, 4 * parameters)
    step["update"] = 1e-3 + 20 * parameters / 8e9
    return {stage: seconds * random.normal(1, 0.02) for stage, seconds in step.items()}


def _copy_s(ranks: int, size_bytes: float) -> float:
    return 2e-4 * (ranks - 1) + ranks / 2 * size_bytes / 3e9


def _training_stages(spec: RunSpec, random: np.random.Generator) -> list[tuple[Any, ...]]:
    assert spec.training is not None
    rows: list[tuple[Any, ...]] = []
    clock = 0.0
    for step in range(spec.training.steps):
        for stage, seconds in _step_s(spec, random).items():
            rows += [(rank, step, stage, clock, clock + seconds) for rank in range(spec.ranks)]
            clock += seconds
    return rows


def _calibration_stages(spec: RunSpec, random: np.random.Generator) -> list[tuple[Any, ...]]:
    assert spec.calibration is not None
    if spec.kind == "idle":
        return []
    if spec.kind == "sleeping_rank":
        waiting = spec.calibration.seconds
        return [(rank, 0, "communicating_wait", 0.0, waiting) for rank in range(1, spec.ranks)]
    rows: list[tuple[Any, ...]] = []
    clock = 0.0
    for step, size in enumerate(_step_bytes(spec)):
        seconds = _copy_s(spec.ranks, size) * random.normal(1, 0.02)
        rows += [
            (rank, step, "communicating_copy", clock, clock + seconds) for rank in range(spec.ranks)
        ]
        clock += seconds
    return rows


def _step_bytes(spec: RunSpec) -> list[int]:
    assert spec.calibration is not None
    return [size for size in spec.calibration.sizes_bytes for _ in range(spec.calibration.repeats)]


def record(spec: RunSpec, random: np.random.Generator) -> RunRecord:
    """What the run would leave behind, were it measured on nodes that obey MC2."""
    training = spec.kind == "training"
    rows = (_training_stages if training else _calibration_stages)(spec, random)
    stages = pd.DataFrame(rows, columns=list(STAGE_COLUMNS)).astype(
        {"rank": int, "step": int, "start_s": float, "stop_s": float}
    )
    stop_s = float(stages["stop_s"].max()) if rows else 5.0
    seconds = (stages["stop_s"] - stages["start_s"]).groupby(stages["stage"]).sum() / spec.ranks
    excess_j = sum(_POWER_W[str(stage)] * s for stage, s in seconds.items())
    watts = (_IDLE_W + excess_j / stop_s) * random.normal(1, 0.01)
    names = [f"host/{n}" for n in range(spec.nodes)]
    t_s = np.linspace(-0.1, stop_s + 0.1, _READINGS)
    power = [(n, _METER, t, watts, watts * (t + 0.1)) for n in names for t in t_s]
    activity = [(n, t, 0.9, np.nan, 1e9, 1e6 * (spec.ranks - 1)) for n in names for t in t_s]
    given = spec.training.global_batch_size if spec.training else 0
    info = RunInfo(
        spec=spec,
        spec_sha256=spec.digest(),
        started_utc="2026-01-01T00:00:00+00:00",
        nodes=names,
        node_of_rank=names,
        nodes_are=spec.nodes_are,
        algorithm_used="two_level",
        parameters=int(_NETWORKS[spec.workload.network][2]) if spec.workload else None,
        outcome=Outcome(
            start_s=0.0,
            stop_s=stop_s,
            steps=spec.training.steps if spec.training else 0,
            samples=spec.training.steps * given if spec.training else 0,
            final_loss=1.0 if training else None,
        ),
        checks=Checks(ranks=spec.ranks, distinct_hosts=spec.hosts, replicas_equal=True),
        meters=[
            MeterInfo(node=n, meter=_METER, available=True, source="measured", counter=True)
            for n in names
        ],
        step_bytes=_step_bytes(spec) if spec.kind == "allreduce" else None,
    )
    return RunRecord(
        info,
        stages,
        pd.DataFrame(power, columns=list(POWER_COLUMNS)),
        pd.DataFrame(activity, columns=list(ACTIVITY_COLUMNS)),
        pd.DataFrame([("run", 0, 0.0, stop_s, float(given))], columns=list(PHASE_COLUMNS)),
    )


def write_records(runs: int, folder: Path) -> list[Path]:
    """Write a record of every run below ``folder``; the folders written, by name of the run."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for spec in specifications(runs):
        write_record(folder / spec.run, record(spec, random))
    return sorted(folder.iterdir())
