"""Measures what sampling costs in a run of days: the sampler's CPU time, memory and file, and its reading.

The sampler is the real one. It reads eight energy counters in a pretended ``/sys``, and a thread of this
program moves them. No GPU is read, so the time of a vendor's library is not included. The file of a day is
written by the sampler's own writer, with random times, watts and joules of eight GPUs.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import psutil
from _output import parser, show

from joulecast.measure.power.host_activity import Row
from joulecast.measure.power.meters import MeteredNodes, SampledMeter
from joulecast.measure.power.sampler import SamplerOrder
from joulecast.measure.power.samples import Left, SamplerFacts, SampleWriter
from joulecast.runs.integration import EnergyCurve

GPUS = 8
METERS_READ = ("gpu", "cpu", "soc", "hwmon")
"""Zeus is loaded, too, because its meters are tried. Only the meters of the kernel exist here."""
HERTZ = 10
BLOCK_S = 4


def _counters(root: Path) -> list[Path]:
    """The energy counters of eight GPUs, in the form in which the kernel shows counters of Intel's GPUs."""
    files = []
    (root / "class/hwmon").mkdir(parents=True)
    for gpu in range(GPUS):
        device = root / f"devices/0000:{gpu:02x}:00.0"
        folder = device / f"hwmon/hwmon{gpu}"
        folder.mkdir(parents=True)
        for name, content in (
            ("name", "xe"),
            ("energy1_input", "0"),
        ):
            (folder / name).write_text(f"{content}\n")
        (folder / "device").symlink_to(device)
        (root / f"class/hwmon/hwmon{gpu}").symlink_to(folder)
        files.append(folder / "energy1_input")
    return files


def _move(files: list[Path], stop: threading.Event) -> None:
    begin = time.monotonic()
    while not stop.wait(0.05):
        microjoules = int((time.monotonic() - begin) * 500e6)
        for file in files:
            partial = file.with_suffix(".new")
            partial.write_text(f"{microjoules}\n")
            os.replace(partial, file)


def _sampler(seconds: float) -> dict[str, float]:
    """The sampler after its first minute: shares of a core, MiB of memory, and MiB of its file."""
    with tempfile.TemporaryDirectory() as folder:
        root, file, stop = Path(folder), Path(folder) / "samples", threading.Event()
        files = _counters(root)
        threading.Thread(target=_move, args=(files, stop), daemon=True).start()
        nodes = MeteredNodes("h", sysfs_root=str(root))
        order = SamplerOrder(METERS_READ, 1 / HERTZ, nodes, (os.getpid(),))
        process = subprocess.Popen(
            [sys.executable, "-m", "joulecast.measure.power.sampler", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(order)) + "\n")
        process.stdin.flush()
        time.sleep(65)  # it reads more often in its first minute
        sampler = psutil.Process(process.pid)
        before = sum(sampler.cpu_times()[:2])
        time.sleep(seconds)
        share = (sum(sampler.cpu_times()[:2]) - before) / seconds
        memory = sampler.memory_info().rss
        process.stdin.close()
        process.wait()
        stop.set()
        samples = Left(file, "h", METERS_READ).samples()
        readings = sum(reading.shape[1] for reading in samples.readings)
        meters = samples.facts.meters
        faults = [meter.reason for meter in meters if not meter.available]
        if len(meters) != GPUS or faults:
            raise SystemExit(f"{len(meters)} of {GPUS} counters were read; {faults}")
        return {
            "percent_of_a_core": 100 * share,
            "memory_MiB": memory / 2**20,
            "bytes_a_reading": file.stat().st_size / readings,
        }


def _day(hours: float, path: Path) -> dict[str, float]:
    """The size of a file of a day, and the time to read it and to integrate each GPU."""
    chance = random.Random(1)
    writer = SampleWriter(path)
    meters = [
        SampledMeter(node="n", meter=f"gpu:{gpu}", available=True, source="measured", counter=True)
        for gpu in range(GPUS)
    ]
    facts = SamplerFacts(meters=meters, nodes=["n"])
    joules, now_s = [0.0] * GPUS, 1e6
    # The writer has its own thread. Its time is the time of the process minus the time of this thread.
    spent_s = time.thread_time() - time.process_time()
    for _ in range(int(hours * 3600 / BLOCK_S)):
        rows: list[tuple[int, Row]] = []
        for gpu in range(GPUS):
            for k in range(BLOCK_S * HERTZ):
                joules[gpu] += chance.gauss(600, 60) / HERTZ
                at_s = now_s + k / HERTZ + chance.gauss(0, 2e-4)
                rows.append((gpu, (at_s, None, round(joules[gpu], 3))))
        for at_s, share in ((now_s, 0.98), (now_s + 2, 0.97)):
            memory, network = chance.randrange(10**11), chance.randrange(10**9)
            rows.append((GPUS, (at_s, chance.random(), share, memory, network)))
        writer.append(facts, rows)
        now_s += BLOCK_S
    facts.ended = True
    writer.append(facts, [])
    writer.close()
    spent_s += time.process_time() - time.thread_time()
    begin_s = time.perf_counter()
    samples = Left(path, "n").samples()
    totals = [
        float(EnergyCurve(t_s, counted, None).between(np.array(1e6), np.array(now_s)))
        for t_s, _, counted in samples.readings
    ]
    assert all(np.isclose(total, own, rtol=1e-3) for total, own in zip(totals, joules, strict=True))
    return {
        "hours": hours,
        "file_MiB": path.stat().st_size / 2**20,
        "writing_percent_of_a_core": 100 * spent_s / (hours * 3600),
        "integral_s": time.perf_counter() - begin_s,
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--hours", type=float, default=24)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        day = _day(options.hours, Path(folder) / "day")
    show([_sampler(options.seconds) | day], options)


if __name__ == "__main__":
    main()
