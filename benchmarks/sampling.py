"""What sampling power costs: CPU seconds of the sampler per second, as a share of the ranks' cores.

Throughput with and without sampling differs by less than two runs of the same do, so the cost is taken
from the sampler's own CPU time; the two throughputs are shown beside.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from _output import parser, show

from joulecast.platforms import Platform
from joulecast.records.provenance import usable_cores
from joulecast.records.record import read_record
from joulecast.records.spec import RunSpec, Training, Workload
from joulecast.training.launch import measure


def _cpu_share(period_s: float, seconds: float) -> float:
    nodes = {"host_node": "h", "core_seconds_per_s": 2.0, "idle_w": 20.0, "full_w": 45.0}
    order = {"meters": ["nvml", "rapl", "estimated"], "period_s": period_s, "nodes": nodes}
    process = subprocess.Popen(
        [sys.executable, "-m", "joulecast.power.sampler"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    time.sleep(2)  # starting up comes before the ranks train
    sampler = psutil.Process(process.pid)
    before = sum(sampler.cpu_times()[:2])
    time.sleep(seconds)
    share = (sum(sampler.cpu_times()[:2]) - before) / seconds
    process.stdin.close()
    process.wait()
    return share


def _throughput(meters: tuple[str, ...], period_s: float) -> float:
    spec = RunSpec(
        run="sampling",
        campaign="benchmark",
        platform=Platform(name="bench", hosts=1, idle_w=20, full_w=45),
        nodes=2,
        workload=Workload(network="resnet18", image_size=32),
        training=Training(global_batch_size=16, steps=120, warmup_steps=3),
        meters=meters,
        sample_period_s=period_s,
    )
    with tempfile.TemporaryDirectory() as folder:
        measure(spec, Path(folder) / "r", Path(folder) / "log")
        outcome = read_record(Path(folder) / "r").info.outcome
    return outcome.samples / (outcome.stop_s - outcome.start_s)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    rows = []
    for hertz in (10, 50):
        with_sampling, without = [], []
        for _ in range(options.rounds):
            with_sampling.append(_throughput(("nvml", "rapl", "estimated"), 1 / hertz))
            without.append(_throughput((), 5.0))
        rows.append(
            {
                "hertz": hertz,
                "cost_percent": 100 * _cpu_share(1 / hertz, 10) / usable_cores(),
                "samples_per_s": float(np.median(with_sampling)),
                "samples_per_s_without": float(np.median(without)),
            }
        )
    show(rows, options.json)


if __name__ == "__main__":
    main()
