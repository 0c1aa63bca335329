"""Synthetic MLPerf submissions in the raw layout, for tests that have no shared data."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

ZERO_MS = 1_715_000_000_000
RUN_S = (30.0, 230.0)
EPOCHS = 4

Reading = tuple[float, float]


def line(key: str, t_s: float, value: object = None, **metadata: object) -> str:
    """One MLLOG line at ``t_s`` seconds of the run clock."""
    content = {
        "namespace": "",
        "time_ms": round(ZERO_MS + 1000 * t_s),
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": metadata or "",
    }
    return ":::MLLOG " + json.dumps(content)


def epoch_lines() -> list[str]:
    """Four epochs with an evaluation after each, as ResNet logs them."""
    each_s = (RUN_S[1] - RUN_S[0]) / EPOCHS
    lines = []
    for number in range(1, EPOCHS + 1):
        start_s = RUN_S[0] + (number - 1) * each_s
        lines += [
            line("epoch_start", start_s, epoch_num=number),
            line("epoch_stop", start_s + 0.9 * each_s, epoch_num=number),
            line("eval_start", start_s + 0.9 * each_s, epoch_num=number),
            line("eval_stop", start_s + each_s, epoch_num=number),
        ]
    return lines


def sample_lines() -> list[str]:
    """Blocks of 400 samples with an evaluation after each, as LLMs log them."""
    each_s = (RUN_S[1] - RUN_S[0]) / EPOCHS
    lines = []
    for number in range(EPOCHS):
        start_s, done = RUN_S[0] + number * each_s, 400 * number
        lines += [
            line("block_start", start_s, samples_count=done),
            line("block_stop", start_s + 0.8 * each_s, samples_count=done),
            line("eval_start", start_s + 0.8 * each_s, samples_count=done + 400),
            line("eval_stop", start_s + each_s, samples_count=done + 400),
        ]
    return lines


def result_lines(
    events: Sequence[str] | None = None,
    nodes: int | None = None,
    status: str | None = "success",
    batch_size: int = 8,
) -> list[str]:
    """A result file; ``nodes`` puts a SYSJSON line into it."""
    lines = ["Beginning trial 1 of 5", line("init_start", 0.0)]
    if nodes is not None:
        system = {
            "number_of_nodes": str(nodes),
            "accelerators_per_node": "8",
            "accelerator_model_name": "Fast9000",
            "framework": "Frame 1.2",
        }
        lines += [f"+ echo ':::SYSJSON {json.dumps(system)}'", f":::SYSJSON {json.dumps(system)}"]
    lines += [
        line("global_batch_size", 1.0, batch_size),
        line("init_stop", RUN_S[0]),
        "some text :: of the job",
        line("run_start", RUN_S[0]),
        *(epoch_lines() if events is None else events),
    ]
    if status is not None:
        lines.append(line("run_stop", RUN_S[1], status=status))
    return lines


def readings(seed: int, scale: float = 1.0) -> list[Reading]:
    """Idle before and after the run, 6 kW within it; a reading about every 2 s."""
    chance = random.Random(seed)
    found = []
    for step in range(-5, 125):
        t_s = 2 * step + round(chance.uniform(0, 0.1), 3)
        loaded = RUN_S[0] <= t_s <= RUN_S[1]
        found.append((t_s, scale * (6000 if loaded else 2500) + chance.randrange(-60, 60)))
    return found


def power_lines(found: Sequence[Reading], stop: bool = True) -> list[str]:
    """A node's power file."""
    first, last = (found[0][0], found[-1][0]) if found else (0.0, 0.0)
    lines = [line("power_measurement_start", first)]
    lines += [line("power_reading", t_s, watts) for t_s, watts in found]
    return lines + ([line("power_measurement_stop", last)] if stop else [])


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def write_run(
    results: Path,
    stem: str = "result_1",
    *,
    system: str = "2xACME-Fast9000",
    benchmark: str = "resnet",
    nodes: int = 2,
    seed: int = 1,
    scale: float = 1.0,
    result: Sequence[str] | None = None,
    power: dict[str, Sequence[str]] | None = None,
    changed: Callable[[list[Reading]], list[Reading]] | None = None,
    folder: str | None = None,
) -> Path:
    """Write one clean run below ``results`` and return its benchmark's folder.

    ``result`` replaces the result file's lines, ``power`` single power files (by name, without
    ending), ``changed`` alters the readings of node_0, ``folder`` is the power folder's name.
    """
    place = results / system / benchmark
    write_lines(place / f"{stem}.txt", result_lines(nodes=nodes) if result is None else result)
    files: dict[str, Sequence[str]] = {}
    for node in range(nodes):
        found = readings(100 * seed + node, scale)
        if changed is not None and node == 0:
            found = changed(found)
        files[f"node_{node}"] = power_lines(found)
    for name, lines in (files | (power or {})).items():
        write_lines(place / "power" / (folder or stem) / f"{name}.txt", lines)
    return place
