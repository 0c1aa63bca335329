"""Measures real training on two ranks of this machine, for a simulator to be judged against.

Every job is one launch (of MPI, or of the op profiler) whose answer is kept in ``OUT.work`` as soon as it is
there, so an interrupted measurement goes on where it was. Operators, collectives and the other parts of a
step are measured by themselves, in the same session and apart from the steps that are judged.
"""

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.files.writing import explained_disk_errors, written_aside
from joulecast.graphs.capture import capture_network
from joulecast.graphs.database import Database, read_database
from joulecast.graphs.measure_ops import measure_database
from joulecast.ground_truth.kept import resumed_session
from joulecast.ground_truth.real_results import (
    COLLECTIVE_COLUMNS,
    FOREIGN,
    PART_COLUMNS,
    STEP_COLUMNS,
    WAITING,
    MeasuredSession,
    TrainingConfiguration,
    Workload,
    is_polluted,
    quietest_database,
    write_training_results,
)
from joulecast.ground_truth.real_worker import TrainingJob
from joulecast.power.foreign_load import load_before
from joulecast.records.provenance import host_fingerprint, source_state, versions
from joulecast.training.machine import machine_lock
from joulecast.training.ranks import launch_ranks, one_thread_environment

RANKS = 2
REPLICA_BATCHES = {"vgg16": 4, "resnet50": 8, "vit_s": 16}
"""Samples of a replica's step: few, so that what is sent weighs more; a step takes 0.2 to 0.6 s."""
BUCKETS_MB = {
    "vgg16": (600.0, 100.0, 16.0, 4.0),
    "resnet50": (100.0, 48.0, 24.0, 10.0),
    "vit_s": (100.0, 44.0, 22.0, 10.0),
}
"""Least sizes that give 1 to some 8 buckets; the gradients have 537, 94 and 86 MB."""
WITHOUT_OVERLAP = 2
"""So many of the bucket sizes are also sent after backward."""
CUTS = {
    "vgg16": "features.17",
    "resnet50": "layer3",
    "vit_s": "encoder.layers.encoder_layer_6",
}
PIPELINE_BATCHES = {"vgg16": 8, "resnet50": 16, "vit_s": 32}
PIPELINES = (("gpipe", 2), ("gpipe", 4), ("1f1b", 2), ("1f1b", 4))
FITTING_GAMMA = ("vgg16-overlap-16mb", "resnet50-overlap-24mb")
"""What the overlap slowdown is fitted on; it is tested on the others."""
ITERATIONS, PART_ITERATIONS, DATABASE_ITERATIONS = 3, 8, 8
SESSIONS, VISITS, ROUNDS, AGAIN_ITERATIONS = 2, 2, 2, 12
"""Many short turns, twice a quarter of an hour: what disturbs a machine then disturbs a turn, not a
configuration."""
_TIMEOUT_S = 300.0
_WHAT = (
    "Steps of training on 2 ranks of one machine, one thread and one core each, fp32: replicas (the code of "
    "joulecast.training, gradients all-reduced in shared memory, a prepared batch fetched in the step) and "
    "pipelines of 2 stages (joulecast.training.pipeline, MPI within the host; the batch is there before the "
    "step). `seconds` is from the first rank's start behind a barrier to the last one's end, optimizer "
    "included. Configurations took turns, forwards and backwards through their list; a warm-up iteration of "
    "every turn is not kept; repeat 1 was measured behind them, for an A/A comparison. `waited_share` is the "
    "share of an iteration in which some rank had no core, `foreign_cores` what other processes used; "
    f"`polluted` that they were above {WAITING} or {FOREIGN}. Stage times are those of rank 0. "
    "Collectives and parts were measured by themselves, operators by joulecast.graphs.measure_ops before "
    "every part of the steps (the quietest is kept): for replicas with both ranks at work, for pipelines, "
    "whose ranks are never at the same operator, with one."
)


def all_configurations(
    networks: Sequence[str] = tuple(REPLICA_BATCHES),
) -> list[TrainingConfiguration]:
    """What is measured, in order."""
    found = []
    for network in networks:
        for overlap in (False, True):
            sizes = BUCKETS_MB[network]
            for least in sizes if overlap else sizes[: 2 * WITHOUT_OVERLAP : 2]:
                name = f"{network}-{'overlap' if overlap else 'after'}-{least:g}mb"
                found.append(
                    TrainingConfiguration(
                        name=name,
                        family="overlapped" if overlap else "data parallel",
                        network=network,
                        batch=REPLICA_BATCHES[network],
                        bucket_mb=least,
                        overlap=overlap,
                        fits_gamma=name in FITTING_GAMMA,
                    )
                )
        for schedule, micro_batches in PIPELINES:
            found.append(
                TrainingConfiguration(
                    name=f"{network}-{schedule}-m{micro_batches}",
                    family=schedule,
                    network=network,
                    batch=PIPELINE_BATCHES[network],
                    micro_batches=micro_batches,
                    cut=CUTS[network],
                )
            )
    return found


def _repeated(configurations: Sequence[TrainingConfiguration]) -> list[TrainingConfiguration]:
    """Two of each network, measured again at the end: one with replicas, one a pipeline."""
    ends = (f"{BUCKETS_MB[c.network][0]:g}mb" for c in configurations)
    wanted = ("1f1b-m4",)
    return [
        c
        for c, end in zip(configurations, ends, strict=True)
        if c.name.endswith((*wanted, f"overlap-{end}", f"after-{end}"))
    ]


def all_jobs(networks: Sequence[str]) -> list[TrainingJob]:
    """The launches of MPI, in order."""
    configurations = all_configurations(networks)

    def job(kind: str, network: str, **changes: Any) -> TrainingJob:
        mine = tuple(c for c in changes.pop("of", configurations) if c.network == network)
        name = f"{network}-{changes.pop('suffix', kind)}"
        return TrainingJob.model_validate(
            {
                "name": name,
                "kind": kind,
                "network": network,
                "configurations": mine,
                **changes,
            }
        )

    again = _repeated(configurations)
    jobs = []
    for network in networks:
        jobs += [
            job("parts", network, iterations=PART_ITERATIONS, tries=2 * PART_ITERATIONS),
            *(
                job(
                    "steps",
                    network,
                    suffix=f"steps-{visit}",
                    rounds=ROUNDS,
                    warm_up=1,
                    iterations=ITERATIONS,
                    tries=ITERATIONS + 1,
                )
                for visit in range(VISITS)
            ),
            job(
                "steps",
                network,
                of=again,
                suffix="again",
                repeat=1,
                iterations=AGAIN_ITERATIONS,
                tries=AGAIN_ITERATIONS + 2,
            ),
        ]
    return jobs


def database_batches(
    configurations: Sequence[TrainingConfiguration], network: str, ranks: int
) -> list[int]:
    """Samples of a network's forward in replicas (measured by 2 ranks) or in pipelines (by 1)."""
    mine = [c for c in configurations if c.network == network and c.is_pipeline == (ranks == 1)]
    return sorted({c.samples for c in mine})


def _fewest_clean(found: dict[str, list[dict[str, float]]]) -> int:
    return min(sum(1 for row in rows if not is_polluted(row)) for rows in found.values())


def _answer(work: Path, job: TrainingJob, log: TextIO, lock: int) -> tuple[Any, str]:
    """A job's answer, from an earlier try or new, and what to tell of it."""
    file = work / f"{job.name}.json"
    wanted = job.model_dump(mode="json")
    if file.is_file():
        kept = json.loads(file.read_text())
        if kept["job"] == wanted:
            return kept["answer"], "measured before"
    begin = time.monotonic()
    answer = launch_ranks("validation_worker", job, job.name, RANKS, log, lock, _TIMEOUT_S)
    with written_aside(file) as partial:
        partial.write_text(json.dumps({"job": wanted, "answer": answer}))
    said = f"{time.monotonic() - begin:.0f} s"
    if job.kind == "steps":
        said += f", at least {_fewest_clean(answer)} clean iterations of each"
    return answer, said


def _database(
    file: Path, network: str, ranks: int, batches: list[int], workload: Workload
) -> tuple[Database, str]:
    if file.is_file() and (kept := read_database(file)).provenance["batches"] == batches:
        return kept, "measured before"
    begin = time.monotonic()
    size = (workload.image_size, workload.patch_size, workload.classes)
    database = measure_database(network, *size, batches, ranks, file, DATABASE_ITERATIONS)
    covered = ", ".join(f"{step.covered_share:.3f}" for step in database.steps)
    return database, f"{time.monotonic() - begin:.0f} s, ops cover {covered} of the step"


def _session(work: Path, networks: Sequence[str], workload: Workload) -> dict[str, Any]:
    fresh = {
        "what": _WHAT,
        "began_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host_fingerprint(),
        "versions": versions(),
        "source": source_state(),
        "load_before": load_before(),
        "networks": list(networks),
        "workload": workload.model_dump(),
        "ranks": RANKS,
        "threads": 1,
        "environment": {
            k: v
            for k, v in one_thread_environment().items()
            if k not in os.environ or k[:3] == "OMP"
        },
    }
    return resumed_session(work, fresh, ("host", "versions", "networks", "workload"))


def measure(
    out: Path,
    tell: Callable[[str], object] = print,
    networks: Sequence[str] = tuple(REPLICA_BATCHES),
) -> None:
    """Measure operators, parts and steps and leave them in ``out``.

    Args:
        out: new folder.
        tell: told of every job that is done.
        networks: of :data:`REPLICA_BATCHES`.

    Raises:
        JoulecastError: ``out`` is there already, no ``mpiexec``, or a job failed; what was measured before is
            kept in ``out``.work.
    """
    if out.exists():
        raise JoulecastError(f"{out} is there already; move it away to measure anew")
    workload = Workload()
    work = out.with_name(out.name + ".work")
    sessions = [
        _measured_session(work / f"session-{number}", networks, workload, tell)
        for number in range(SESSIONS)
    ]
    size = (workload.image_size, workload.patch_size, workload.classes)
    graphs = {network: capture_network(network, *size) for network in networks}
    write_training_results(out, all_configurations(networks), sessions, graphs)
    shutil.rmtree(work)


def _measured_session(
    work: Path, networks: Sequence[str], workload: Workload, tell: Callable[[str], object]
) -> MeasuredSession:
    """Measure everything once; what an earlier try left in ``work`` is kept."""
    configurations = all_configurations(networks)
    with explained_disk_errors(work):
        work.mkdir(parents=True, exist_ok=True)
        log = open(work / "log.txt", "a", encoding="utf-8")  # noqa: SIM115 (closed below)
    begin = time.monotonic()
    with log, machine_lock(log) as lock:
        provenance = _session(work, networks, workload)
        jobs = all_jobs(networks)
        databases: dict[tuple[str, int], list[Database]] = {}
        answers = {}

        def measure_databases(network: str, before: str) -> None:
            for ranks in (1, RANKS):
                batches = database_batches(configurations, network, ranks)
                file = work / f"database-{ranks}-before-{before}.json"
                found, said = _database(file, network, ranks, batches, workload)
                databases.setdefault((network, ranks), []).append(found)
                tell(f"database of {network}, {ranks} at work, before {before}: {said}")

        for network in networks:
            for job in jobs:
                if job.network == network:
                    # Several times in a session, so that one of them is quiet.
                    if job.kind == "steps":
                        measure_databases(network, job.name)
                    answers[job.name], said = _answer(work, job, log, lock)
                    tell(f"{job.name}: {said}")
    tell(f"{work.name} measured in {time.monotonic() - begin:.0f} s")
    kept = {key: quietest_database(measured) for key, measured in databases.items()}
    return MeasuredSession(tabulated_answers(jobs, answers), kept, provenance)


def tabulated_answers(
    jobs: Sequence[TrainingJob], answers: dict[str, Any]
) -> dict[str, pd.DataFrame]:
    """What all jobs answered as the tables of a results folder."""
    steps: list[dict[str, Any]] = []
    measured: Counter[tuple[str, int]] = Counter()
    collectives: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for job in jobs:
        answer = answers[job.name]
        if job.kind == "parts":
            collectives += answer["collectives"]
            parts += answer["parts"]
            continue
        for name, rows in answer.items():
            for row in rows:
                number = measured[name, job.repeat]
                steps.append(
                    {"configuration": name, "repeat": job.repeat, "iteration": number, **row}
                )
                measured[name, job.repeat] += 1
    return {
        "steps.csv": pd.DataFrame(steps).reindex(columns=list(STEP_COLUMNS)),
        "collectives.csv": pd.DataFrame(collectives).reindex(columns=list(COLLECTIVE_COLUMNS)),
        "parts.csv": pd.DataFrame(parts).reindex(columns=list(PART_COLUMNS)),
    }
