"""One partition of a network measured as a real pipeline on this machine, with what it is compared to.

One measurement is one launch of MPI with a rank for each stage. In it these take turns: every stage alone,
the whole network in one process, the pipeline, and whole networks in several processes at once. The last
shows the speed of all cores together, which no pipeline can exceed. Only the ranks
(:mod:`joulecast.training.pipeline_worker`) need torch.
"""

import json
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.files.reading import validated
from joulecast.files.writing import written_aside
from joulecast.graphs.schedules import Schedule, timeline
from joulecast.power.foreign_load import LoadWatch, disturbances, load_before
from joulecast.records.provenance import (
    host_fingerprint,
    source_state,
    usable_cores,
    versions,
)
from joulecast.training.machine import held_machine
from joulecast.training.ranks import launch_ranks, opened_log
from joulecast.workloads.networks import check_size

_WHAT = (
    "Training steps in fp32 on one machine, one thread a process, each process on a core of its own unless "
    "`oversubscribed`; images are synthetic (torch.randn). `step_s` is forward and backward of all "
    "micro-batches, `updated_s` with the optimizer (SGD with momentum) too, of the pipeline from the "
    "first rank's start to the last one's end. `alone`: every stage's forward and backward of a "
    "micro-batch, stage after stage in one process, receiving included. `whole`: the network that is not "
    "cut, the same micro-batches one after the other in one process. `at_once`: the same in several "
    "processes at a time, with nothing between them. `waited_share` is the share of a step in which a "
    "process had no core (or, `oversubscribed`, gave it away while it waited for messages). "
    "`message_bytes` go from each stage to later ones for a micro-batch, and as many come back (of the "
    "last: what it gets). The parts took turns in `rounds`; the first steps of every turn are not kept."
)


class PipelineJob(BaseModel):
    """The measurement that the ranks are to make."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: str
    image_size: PositiveInt
    patch_size: PositiveInt
    classes: PositiveInt
    global_batch: PositiveInt
    micro_batches: PositiveInt
    schedule: Schedule
    stages: tuple[tuple[str, ...], ...] = Field(min_length=1)
    """Names of the tasks of every stage."""
    iterations: PositiveInt
    """Steps kept of every turn."""
    rounds: PositiveInt
    """Turns of each part."""
    warm_up: PositiveInt
    """Steps of every turn that are not kept."""
    oversubscribed: bool


def _summary(job: PipelineJob, answer: dict[str, Any]) -> dict[str, Any]:
    """Medians of the measured times, and the figures that follow from them."""
    median = statistics.median
    forward_s = [median(times) for times in answer["alone"]["forward_s"]]
    backward_s = [median(times) for times in answer["alone"]["backward_s"]]
    predicted = timeline(forward_s, backward_s, job.schedule, job.micro_batches)
    whole_s, step_s = median(answer["whole"]["step_s"]), median(answer["pipeline"]["step_s"])
    updated = {part: median(answer[part]["updated_s"]) for part in ("whole", "pipeline")}
    of_processes = [median(times) for times in answer["at_once"]["step_s"]]
    return {
        "forward_s": forward_s,
        "backward_s": backward_s,
        "predicted_makespan_s": predicted.makespan_s,
        "predicted_busy_shares": list(predicted.busy_shares),
        "step_s": step_s,
        "unpartitioned_s": whole_s,
        "speedup": whole_s / step_s,
        "speedup_updated": updated["whole"] / updated["pipeline"],
        "capacity_processes": len(of_processes),
        "capacity": len(of_processes) * whole_s / statistics.fmean(of_processes),
    }


def measure_pipeline(
    network: str,
    image_size: int,
    classes: int,
    global_batch: int,
    micro_batches: int,
    schedule: Schedule,
    stages: Sequence[Sequence[str]],
    log_file: Path,
    *,
    patch_size: int = 16,
    iterations: int = 5,
    rounds: int = 2,
    warm_up: int = 1,
    oversubscribe: bool = False,
    out: Path | None = None,
    timeout_s: float = 300.0,
    quiet_wait_s: float = 0.0,
) -> dict[str, Any]:
    """The record of a partition run as a pipeline, with a rank for each stage, and of its comparisons.

    All times are in seconds. In its ``summary``, ``speedup`` is the step of the whole network over that of
    the pipeline, ``capacity`` is k t1 / tk of k whole networks at once, and ``predicted_makespan_s`` is
    computed from the stages' own times.

    Args:
        network: of :mod:`joulecast.workloads.networks`.
        image_size: height and width of the synthetic images.
        global_batch: samples of a step, divided evenly into ``micro_batches``.
        stages: names of the tasks of every stage, as in the network's task graph; those without a tensor
            may be left out.
        log_file: gets what the ranks print.
        iterations: steps kept of each of the ``rounds``, after ``warm_up`` others.
        oversubscribe: allow more ranks than cores; the record says so.
        out: JSON file for the record.
        quiet_wait_s: longest wait for other programs to end.

    Raises:
        JoulecastError: more ranks than cores, an impossible network, batch or partition, or a rank failed.
    """
    cores = usable_cores()
    if len(stages) > cores and not oversubscribe:
        raise JoulecastError(
            f"pipeline of {network}: {len(stages)} stages need a core each, and there are {cores}; stages "
            "that share cores say nothing of speed (oversubscribe=True measures them, and the record says so)"
        )
    asked = {
        "network": network,
        "image_size": image_size,
        "patch_size": patch_size,
        "classes": classes,
        "global_batch": global_batch,
        "micro_batches": micro_batches,
        "schedule": schedule,
        "stages": stages,
        "iterations": iterations,
        "rounds": rounds,
        "warm_up": warm_up,
        "oversubscribed": len(stages) > cores,
    }
    job = validated(TypeAdapter(PipelineJob), asked, f"pipeline of {network}")
    check_size(network, image_size, patch_size)
    if global_batch % micro_batches:
        raise JoulecastError(
            f"pipeline of {network}: a batch of {global_batch} does not divide into {micro_batches} "
            "micro-batches"
        )
    record = _measured(job, log_file, timeout_s, quiet_wait_s)
    if out is not None:
        with written_aside(out) as partial:
            partial.write_text(json.dumps(record, indent=1) + "\n")
    return record


def _measured(
    job: PipelineJob, log_file: Path, timeout_s: float, quiet_wait_s: float
) -> dict[str, Any]:
    name, ranks = f"pipeline of {job.network}", len(job.stages)
    with opened_log(log_file) as log, held_machine(log, quiet_wait_s) as machine:
        load, watch = machine.wait_for_quiet(), LoadWatch()
        before = load_before(load)
        began_utc = datetime.now(UTC).isoformat(timespec="seconds")
        answer = launch_ranks(
            "joulecast.training.pipeline_worker", job, name, ranks, log, machine.lock, timeout_s
        )
        during = watch.load()
    return {
        "label": "measured",
        "what": _WHAT,
        **job.model_dump(mode="json"),
        "ranks": ranks,
        "threads_per_rank": 1,
        "images": "synthetic",
        "summary": _summary(job, answer),
        **answer,
        "began_utc": began_utc,
        "host": host_fingerprint(),
        "versions": versions(),
        "load_before": before,
        "load_during": {} if during is None else {"busy_cores": during.busy_cores},
        "disturbed": disturbances(load, during),
        "source": source_state(),
    }
