"""Measures real training on two ranks of this machine. See README.md.

Operators, collectives and the other parts of a step are measured by themselves, in the same sessions and
apart from the steps that are judged.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from configurations import REPLICA_BATCHES, TrainingJob, Workload, all_configurations, repeated
from jobs import OTHERS, WAITING, Answer
from measuring import (
    Measured,
    Program,
    Tell,
    begun_session,
    facts_of_now,
    kept_until_written,
    rank_path,
    write_results,
)

from joulecast.graphs.capture import capture
from joulecast.graphs.database import Database, read_database
from joulecast.graphs.measure_ops import measure_database
from joulecast.graphs.opgraph import OpGraph
from joulecast.measure.training.ranks import rank_environment
from joulecast.measure.workloads.networks import build_empty
from joulecast.simulate.judged.two_core_training import (
    RANKS,
    REAL,
    Databases,
    TrainingConfiguration,
    quietest_database,
)

ITERATIONS, PART_ITERATIONS, DATABASE_ITERATIONS = 3, 8, 8
SESSIONS, VISITS, ROUNDS, AGAIN_ITERATIONS = 2, 2, 2, 12
"""Many short turns, twice a quarter of an hour: what disturbs a machine then disturbs a turn, not a
configuration."""
PROGRAM = Program(
    "rank", REAL.tables, timeout_s=300.0, settings={"PYTHONPATH": rank_path(__file__)}
)
_WHAT = (
    "Steps of training on 2 ranks of one machine, one thread and one core each, fp32: replicas (the code of "
    "joulecast.measure.training, gradients all-reduced in shared memory, a prepared batch fetched in the "
    "step) and pipelines of 2 stages (torch.distributed.pipelining over gloo; the batch is there before the "
    "step). `seconds` is from the first rank's start behind a barrier to the last one's end, optimizer "
    "included. Configurations took turns, forwards and backwards through their list; a warm-up iteration of "
    "every turn is not kept; repeat 1 was measured behind them, for an A/A comparison. `waited_share` is the "
    "share of an iteration in which some rank had no core, `other_cores` what other processes used; "
    f"`disturbed` that they were above {WAITING} or {OTHERS}. Stage times are those of rank 0. "
    "Collectives and parts were measured by themselves, operators by joulecast.graphs.measure_ops before "
    "every part of the steps (the quietest are kept): for replicas with both ranks at work, for pipelines, "
    "whose ranks are never at the same operator, with one."
)


def _jobs(network: str) -> list[TrainingJob]:
    configurations = all_configurations([network])

    def job(
        suffix: str,
        kind: Literal["steps", "parts"],
        of: Sequence[TrainingConfiguration],
        **facts: int,
    ) -> TrainingJob:
        what = {"name": f"{network}-{suffix}", "kind": kind, "network": network, "ranks": RANKS}
        return TrainingJob.model_validate({**what, "configurations": tuple(of), **facts})

    alone = {"iterations": PART_ITERATIONS, "tries": 2 * PART_ITERATIONS}
    turns = {"rounds": ROUNDS, "warm_up": 1, "iterations": ITERATIONS, "tries": ITERATIONS + 1}
    again = {"iterations": AGAIN_ITERATIONS, "tries": AGAIN_ITERATIONS + 2}
    return [
        job("parts", "parts", configurations, **alone),
        *(job(f"steps-{visit}", "steps", configurations, **turns) for visit in range(VISITS)),
        job("again", "steps", repeated(configurations), repeat=1, **again),
    ]


def all_jobs(networks: Sequence[str]) -> list[TrainingJob]:
    """The launches of MPI, in order."""
    return [job for network in networks for job in _jobs(network)]


def database_batches(network: str, ranks: int) -> list[int]:
    """Samples of a network's forward in replicas (measured by 2 ranks) or in pipelines (by 1)."""
    found = all_configurations([network])
    return sorted({c.samples for c in found if c.is_pipeline == (ranks == 1)})


def write_op_costs(
    folder: Path, sessions: Sequence[Databases], graphs: Mapping[str, OpGraph]
) -> None:
    """Write the op graphs of the networks, and the databases of each session."""
    for number, databases in enumerate(sessions):
        for (network, ranks), database in databases.items():
            database.write(folder / f"database-{network}-{ranks}-{number}.json")
    for network, graph in graphs.items():
        graph.write(folder / f"graph-{network}.json")


def _size(workload: Workload) -> tuple[int, int, int]:
    return workload.image_size, workload.patch_size, workload.classes


def _graph_of(network: str, width: int, patch: int, classes: int) -> OpGraph:
    images = torch.empty(1, 3, width, width, device="meta")
    return capture(build_empty(network, width, patch, classes), [images], network)


def _database(file: Path, network: str, ranks: int, workload: Workload) -> tuple[Database, str]:
    """The database in a file, or a new one, and in words how it was got."""
    batches = database_batches(network, ranks)
    if file.is_file() and (kept := read_database(file)).provenance["batches"] == batches:
        return kept, "measured before"
    begin = time.monotonic()
    sizes = _size(workload)
    database = measure_database(network, *sizes, batches, ranks, file, DATABASE_ITERATIONS)
    covered = ", ".join(f"{step.covered_share:.3f}" for step in database.steps)
    return database, f"{time.monotonic() - begin:.0f} s, ops cover {covered} of the step"


def _facts(networks: Sequence[str], workload: Workload) -> dict[str, Any]:
    environment = rank_environment(threads=1)
    return {
        **facts_of_now(_WHAT),
        "networks": list(networks),
        "workload": workload.model_dump(),
        "ranks": RANKS,
        "threads": 1,
        "environment": {
            k: v for k, v in environment.items() if k not in os.environ or k[:3] == "OMP"
        },
    }


def _measured_session(
    work: Path, networks: Sequence[str], workload: Workload, tell: Tell
) -> tuple[Measured, Databases]:
    """Measure everything once; what an earlier try left in ``work`` is kept."""
    answers: list[Answer] = []
    databases: dict[tuple[str, int], list[Database]] = {}
    same = ("host", "versions", "networks", "workload")
    with begun_session(work, _facts(networks, workload), same, tell) as session:
        for job in all_jobs(networks):
            # Several times in a session, so that one of them is quiet.
            for ranks in (1, RANKS) if job.kind == "steps" else ():
                file = work / f"database-{ranks}-before-{job.name}.json"
                found, summary = _database(file, job.network, ranks, workload)
                databases.setdefault((job.network, ranks), []).append(found)
                tell(f"database of {job.network}, {ranks} at work, before {job.name}: {summary}")
            answer, summary = session.answer(job, PROGRAM)
            tell(f"{job.name}: {summary}")
            answers.append(answer)
    quietest = {key: quietest_database(measured) for key, measured in databases.items()}
    return Measured(answers, session.facts), quietest


def measure(
    out: Path, tell: Tell = print, networks: Sequence[str] = tuple(REPLICA_BATCHES)
) -> None:
    """Measure operators, parts and steps and leave them in ``out``.

    Args:
        out: new folder.
        tell: gets a line for every job that is done.
        networks: of :data:`REPLICA_BATCHES`.

    Raises:
        JoulecastError: ``out`` is there already, no ``mpiexec``, or a job failed; what was measured before is
            kept in ``out``.work.
    """
    workload = Workload()
    with kept_until_written(out) as work:
        sessions = [
            _measured_session(work / f"session-{number}", networks, workload, tell)
            for number in range(SESSIONS)
        ]
        graphs = {network: _graph_of(network, *_size(workload)) for network in networks}
        measured, databases = zip(*sessions, strict=True)
        write_more = partial(write_op_costs, sessions=databases, graphs=graphs)
        write_results(out, REAL, all_configurations(networks), measured, write_more)


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
