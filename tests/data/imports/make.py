"""Makes the logs of this folder with the tools themselves, over devices that are not there.

This machine has neither RAPL nor a GPU. So perun reads a folder of files that a thread counts up, jpwr and
Zeus an NVML of ours; what they write of it is their own. CodeCarbon runs as it is, with its formulas.
Called as README.md says, each time by the Python that has the tool.
"""

import os
import sys
import threading
import time
from pathlib import Path
from unittest import mock

BUSY = Path("busy")
WATTS = {"package-0": (30, 90), "dram": (6, 12)}
GPUS = ((70, 350), (68, 320))


def train(lasts_s: float = 3.0) -> None:
    """What is measured: idle for a second, at work, idle for a second."""
    time.sleep(1)
    BUSY.touch()
    time.sleep(lasts_s)
    BUSY.unlink()
    time.sleep(1)


def rapl(root: Path) -> None:
    """A tree like the kernel's powercap, whose counters a thread counts up."""
    folders = {"package-0": root / "intel-rapl:0", "dram": root / "intel-rapl:0" / "intel-rapl:0:0"}
    for name, folder in folders.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text("262143328850\n")
        (folder / "energy_uj").write_text("0\n")

    def count() -> None:
        counted, last_s = dict.fromkeys(folders, 1e6), time.time()
        while True:
            time.sleep(0.02)
            now_s, busy = time.time(), BUSY.exists()
            for name, folder in folders.items():
                counted[name] += WATTS[name][busy] * (now_s - last_s) * 1e6
                with open(folder / "energy_uj", "r+") as file:
                    file.write(f"{int(counted[name])}\n")
            last_s = now_s

    threading.Thread(target=count, daemon=True).start()


def perun(arguments: list[str]) -> None:
    """``perun ARGUMENTS`` with its RAPL at our tree."""
    import perun.backend.powercap_rapl as backend

    root = Path(os.environ["FAKE_RAPL"])
    rapl(root)
    backend.RAPL_PATH = f"{root}/"
    from perun.api.cli import cli

    sys.argv = ["perun", *arguments]
    cli()


class Gpus:
    """Two GPUs whose energy counts up."""

    def __init__(self) -> None:
        self.last_s, self.mj = time.time(), [0.0, 0.0]

    def __len__(self) -> int:
        return len(GPUS)

    def supports_get_total_energy_consumption(self, gpu: int) -> bool:
        return True

    def get_total_energy_consumption(self, gpu: int) -> float:
        now_s = time.time()
        for each, watts in enumerate(GPUS):
            self.mj[each] += watts[BUSY.exists()] * (now_s - self.last_s) * 1000
        self.last_s = now_s
        return self.mj[gpu]


def zeus(log: str) -> None:
    """The windows of a ZeusMonitor."""
    import zeus.monitor.energy as monitor

    gpus = Gpus()
    with (
        mock.patch.object(monitor, "get_gpus", lambda *_, **__: gpus),
        mock.patch.object(monitor, "sync_execution_fn", lambda *_, **__: None),
    ):
        measured = monitor.ZeusMonitor(gpu_indices=[0, 1], cpu_indices=[], log_file=log)
        for name in ("idle", "train-1", "train-2"):
            if name != "idle":
                BUSY.touch()
            measured.begin_window(name)
            time.sleep(2)
            gpus.get_total_energy_consumption(0)
            BUSY.unlink(missing_ok=True)
            measured.end_window(name)


def jpwr(folder: str) -> None:
    """A power file of jpwr's pynvml method."""
    import random
    import types

    fake = types.ModuleType("pynvml")
    fake.nvmlInit = lambda: None
    fake.nvmlDeviceGetCount = lambda: len(GPUS)
    fake.nvmlDeviceGetHandleByIndex = lambda gpu: gpu
    fake.nvmlDeviceGetPowerUsage = lambda gpu: int(
        1000 * GPUS[gpu][BUSY.exists()] + random.uniform(-3000, 3000)
    )
    sys.modules["pynvml"] = fake
    from jpwr.clitool import main

    work = [sys.executable, __file__, "train"]
    sys.argv = ["jpwr", "--methods", "pynvml", "--df-out", folder, "--df-filetype", "csv", *work]
    main()


def codecarbon(how: str) -> None:
    """Two runs, or two tasks of one."""
    from codecarbon import OfflineEmissionsTracker

    def tracker(**more: str) -> OfflineEmissionsTracker:
        return OfflineEmissionsTracker(
            country_iso_code="DEU", measure_power_secs=1, log_level="error", **more
        )

    if how == "runs":
        for name in ("alpha", "beta"):
            one = tracker(project_name=name)
            one.start()
            sum(n * n for n in range(40_000_000))
            one.stop()
    else:
        one = tracker(project_name="tasks", experiment_name="exp")
        for name in ("load", "train"):
            one.start_task(name)
            sum(n * n for n in range(30_000_000))
            one.stop_task()
        one.stop()


def tensorboard(folder: str) -> None:
    """What PyTorch writes of 300 steps of half a second, of which each tenth is logged."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder) as writer:
        for step in range(10, 301, 10):
            at_s = 1_700_000_080 + step / 2
            writer.add_scalar("train/loss", 7 / step, step, walltime=at_s)
            if step % 100 == 0:
                writer.add_scalar("eval/loss", 8 / step, step, walltime=at_s + 0.25)
                writer.add_text("eval/said", "loss", step, walltime=at_s + 0.25)


def wandb(folder: str) -> None:
    """The same steps as W&B logs them offline, in the manner of Hugging Face's Trainer."""
    import wandb as tool

    quiet = tool.Settings(x_disable_stats=True, x_disable_meta=True, console="off", host="box")
    with tool.init(project="mine", mode="offline", dir=folder, settings=quiet) as run:
        for step in range(10, 301, 10):
            facts = {"train/global_step": step, "_timestamp": 1_700_000_080 + step / 2}
            run.log({"train/loss": 7 / step, **facts})
            if step % 100 == 0:
                run.log({"eval/loss": 8 / step, **facts})


if __name__ == "__main__":
    tool, arguments = sys.argv[1], sys.argv[2:]
    if tool == "train":
        train()
    elif tool == "perun":
        perun(arguments)
    else:
        made = {
            "zeus": zeus,
            "jpwr": jpwr,
            "codecarbon": codecarbon,
            "tensorboard": tensorboard,
            "wandb": wandb,
        }
        made[tool](*arguments)
