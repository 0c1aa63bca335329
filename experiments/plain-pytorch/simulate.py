"""Captures the networks of round 3. Compares their simulated steps with the measured ones. See README.md."""

import csv
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from measure import RECORDED, Setting, network

from joulecast.graphs.capture import capture_trained
from joulecast.simulate.judged.gpu_steps import GpuStep, simulate_steps
from joulecast.simulate.measured_step import MeasuredStep

ROUND = "3"


class Called(Exception):
    """The network was called: no operation of it is needed."""


def write_graph(setting: Setting, path: Path) -> None:
    """Write the op graph of a setting's network, captured from a call as by ``measure --capture``."""
    # Some networks of images compute while they are built. Language models may be larger than the memory.
    model, loss_of = network(setting, torch.device("meta" if setting.sequence else "cpu"))
    model.train()
    call: list[Any] = []

    def note(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        call.extend((args, named))
        raise Called

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        loss_of()
    except Called:
        hook.remove()
    capture_trained(model, *call).write(path)


def measured_step(row: dict[str, str], folder: Path) -> GpuStep:
    """A row of the measured steps, with its captured network."""
    precision: Any = row["precision"]
    setting = Setting(row["network"], int(row["batch"]), int(row["sequence"] or 0), precision)
    path = folder / f"{setting.network.replace(':', '_')}-{setting.batch}-{precision}.json"
    if not path.exists():
        write_graph(setting, path)
    return GpuStep(
        f"plain_pytorch round {ROUND}",
        row["gpu"],
        MeasuredStep(
            network=str(path),
            strategy="dp=1,recompute" if row["recompute"] == "True" else "dp=1",
            batch=setting.batch,
            precision=precision,
            optimizer=setting.optimizer,
            step_s=min(float(row["step_s"]), float(row["event_step_s"])),
            memory_bytes=float(row["memory_bytes"]),
        ),
    )


def compare(graphs: Path) -> None:
    """Print the error of each step, and of all.

    Args:
        graphs: folder for the captured graphs. Those that it has are not captured again.
    """
    graphs.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    with (RECORDED / "plain_pytorch.csv").open(newline="") as file:
        # Compiled code has fused kernels.
        rows = [
            r for r in csv.DictReader(file) if r["round"] == ROUND and r["precision"] != "compile"
        ]
    found = simulate_steps([measured_step(row, graphs) for row in rows])
    error = 100 * (found["predicted_s"] / found["measured_s"] - 1)
    for row, off in zip(rows, error, strict=True):
        print(f"{row['network']} {row['batch']} {row['precision']}: {off:+.1f} %")
    inside = found["measured_s"].between(found["time_low_s"], found["time_high_s"])
    print(
        f"{len(found)} steps: mean error {error.abs().mean():.1f} %, median {error.abs().median():.1f} %, "
        f"{100 * inside.mean():.0f} % inside the 90 % interval"
    )


if __name__ == "__main__":
    compare(Path(sys.argv[1]))
