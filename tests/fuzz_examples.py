"""An example of every format that the project reads, written into a folder."""

import gzip
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from conftest import ROOT
from mlperf_fixtures import write_run
from nccl_logs import nccl_log

import joulecast
from joulecast.measure.observer.inside.marks import BACKWARD, EXCHANGE, FETCH, ROW, UPDATE
from joulecast.measure.observer.job_folder import JobFolder, Place, SamplerBegun
from joulecast.measure.observer.job_record import begin
from joulecast.measure.observer.request import ObserveRequest, observed
from joulecast.measure.power.host_clocks import ClockOffset
from joulecast.measure.power.meters import SampledMeter
from joulecast.measure.power.other_load import Load
from joulecast.measure.power.samples import SamplerFacts, SampleWriter
from joulecast.runs.provenance import host_fingerprint
from joulecast.runs.recorded import pack, unpack_all
from joulecast.tune.history import add_to_history_file, begin_history_file
from joulecast.tune.trial import CostModel, EpochAtLimit, Proposal, Trial

RECORDED = ROOT / "recorded"
TRAINING = RECORDED / "two-core-training"


def records(folder: Path) -> None:
    """A run of one network on one node, one on two, and what exchange takes: each try reads them all."""
    kept = ("resnet18-n1-b4-r1", "resnet18-n2-b8-r1", "allreduce-n2")
    for record in unpack_all(RECORDED / "two-core-vm", folder / "records"):
        if record.name not in kept:
            shutil.rmtree(record)


def recorded(folder: Path) -> None:
    records(folder)
    pack(sorted((folder / "records").iterdir()), folder / "mine", name="mine", configurations=[])
    shutil.rmtree(folder / "records")


def history(folder: Path) -> None:
    cost = CostModel(0.5, 250)
    said = {
        "environment": "replay",
        "batch_sizes": [16, 32, 64],
        "default_batch_size": 32,
        "power_limits_w": {str(size): [250, 200, 150] for size in (16, 32, 64)},
        "cost": {"eta": 0.5, "max_power_w": 250},
    }
    begin_history_file(folder / "h.jsonl", said)
    for recurrence, (batch, epochs) in enumerate(((32, 10), (32, 12), (16, 8), (64, 15), (16, 9))):
        limits = {watts: EpochAtLimit(11.0, 1900.0) for watts in (250, 200)}
        time_s, energy_j = 10.0 * epochs, 2000.0 * epochs
        trial = Trial(
            recurrence,
            Proposal(batch, (250, 200)),
            True,
            "target",
            epochs,
            time_s,
            energy_j,
            "measured",
            cost.of(time_s, energy_j),
            200,
            limits,
        )
        add_to_history_file(folder / "h.jsonl", trial)


def task_graph(folder: Path) -> None:
    shutil.copy(RECORDED / "task-graphs/alexnet.json", folder / "graph.json")


def pipedream(folder: Path) -> None:
    lines = [
        f"node{n} -- Layer{n}(in=3, out={n}) -- forward_compute_time={n + 0.5}, "
        f"backward_compute_time={2 * n}.0, activation_size={1000 * n}.0, parameter_size={64 * n}.000"
        for n in range(1, 7)
    ]
    lines[2] = lines[2].replace("activation_size=3000.0", "activation_size=[1000.0; 2000.0]")
    edges = [f"\tnode{n} -- node{n + 1}" for n in range(1, 6)] + ["\tnode1 -- node4"]
    (folder / "graph.txt").write_text("\n".join([*lines, *edges]) + "\n")


def copied(source: Path, name: str) -> Callable[[Path], object]:
    return lambda folder: shutil.copy(source, folder / name)


def calibration(folder: Path) -> None:
    content = {
        "algorithm": "ring",
        "bytes_per_s": 1e9,
        "latency_s": 1e-5,
        "launch_s": 1e-5,
        "mape_percent": 3.5,
        "points": 12,
    }
    (folder / "calibration.json").write_text(json.dumps(content))


def strategy(folder: Path) -> None:
    (folder / "strategy.yaml").write_text(
        "mesh: {pipeline: 2, data: 2, tensor: 1}\nmicro_batches: 4\nschedule: 1f1b\n"
        "bucket_bytes: 1e+6\noverlap: true\ntree:\n  zero: 1\n  children:\n"
        "    classifier: {recompute: true}\n"
    )


def submission(folder: Path) -> None:
    results = folder / "in/ACME/results"
    write_run(results, "result_1")
    write_run(results, "result_2", seed=2)
    systems = folder / "in/ACME/systems"
    systems.mkdir()
    facts = {
        "number_of_nodes": 2,
        "accelerators_per_node": 8,
        "accelerator_model_name": "F",
        "framework": "x",
    }
    (systems / "2xACME-Fast9000.json").write_text(json.dumps(facts))


def tables(folder: Path) -> None:
    inside = folder / "in"
    inside.mkdir()
    runs, events, power = [], [], []
    for run in ("a", "b", "c"):
        runs.append((run, "sys", "resnet", 2, 10.0, 110.0, "success", 128, 8.0))
        events += [(run, "epoch", n, 10.0 + 50 * n, 55.0 + 50 * n) for n in range(2)]
        events += [(run, "eval", n, 55.0 + 50 * n, 60.0 + 50 * n) for n in range(2)]
        power += [
            (run, f"node_{n}", float(t), 1000.0 + t * ord(run) % 50 + 7 * n)
            for n in range(2)
            for t in range(0, 120, 5)
        ]
        power.append((run, "sw_0", 0.0, 500.0))
    head = ("run", "system", "benchmark", "nodes", "run_start_s", "run_stop_s", "status")
    for name, rows, columns in (
        ("runs", runs, (*head, "global_batch_size", "init_stop_s")),
        ("events", events, ("run", "kind", "index", "start_s", "stop_s")),
        ("power", power, ("run", "meter", "t_s", "watts")),
    ):
        pd.DataFrame(rows, columns=list(columns)).to_csv(inside / f"{name}.csv", index=False)


def packed_tables(folder: Path) -> None:
    tables(folder)
    for plain in (folder / "in").glob("*.csv"):
        plain.with_suffix(".csv.gz").write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
        plain.unlink()


def traces(folder: Path) -> None:
    setting = {"dataset": "cifar100", "network": "shufflenetv2", "optimizer": "adadelta"}
    train = [
        setting | {"batch_size": b, "run": n, "target_metric": 0.6, "target_epoch": e}
        for b, epochs in ((512, (20, 22)), (1024, (30, None, 28)))
        for n, e in enumerate(epochs)
    ]
    power = [
        setting
        | {"batch_size": b, "power_limit": w}
        | {"time_per_epoch": 9.0 + 900 / w, "average_power": 0.9 * w}
        for b in (512, 1024)
        for w in (250, 200, 150)
    ]
    pd.DataFrame(train).to_csv(folder / "summary_train.csv", index=False)
    pd.DataFrame(power).to_csv(folder / "summary_power_v100.csv", index=False)


_CONFIGURATION = """\
campaign: mine
workload: {networks: [resnet18, vit_ti], dataset: digits, image_size: 32}
scale: {nodes: [1, 2], repeats: 2, batch_size: 4}
training: {steps: 3, warmup_steps: 1, learning_rate: 0.01}
calibration: {batch_sizes: [4, 8]}
power: {meters: [estimated], sample_period_s: 0.1}
platform: this-machine
"""


def configuration(folder: Path) -> None:
    (folder / "mine.yaml").write_text(_CONFIGURATION)


def nccl_tests(folder: Path) -> None:
    (folder / "log").mkdir()
    (folder / "log/one.log").write_text(nccl_log("all_gather") + nccl_log("all_reduce"))
    (folder / "log/all_reduce_perf.log").write_text(nccl_log("all_reduce", 2, said=False))


def training_log(folder: Path) -> None:
    (folder / "train.log").write_text(
        "".join(
            f" [2026-05-02 10:00:{step:02d}] iteration {step:8d}/ 50 | consumed samples: {step * 8:12d} | "
            "elapsed time per iteration (ms): 1000.0 | energy per GPU (J/iter/GPU): 300.0 | "
            "global batch size:     8 |\n"
            for step in range(1, 20)
        )
    )


def killed_measurement(folder: Path) -> None:
    """What `joulecast measure` leaves where it is killed: 20 steps of two ranks, 4 s of samples."""
    with TemporaryDirectory() as scratch:
        job = JobFolder(Path(scratch), Place(0, 1, "alone-0123456789ab"))
        begin(job, observed(ObserveRequest(name="mine"), ["python", "train.py"]))
        now_s = time.monotonic()
        begun = SamplerBegun(
            host=job.host,
            label="vm",
            meters=("command", "estimated"),
            load_before=Load(0.1, ("sh",)),
            clock=ClockOffset(0.0, 0.0, now_s),
            fingerprint=host_fingerprint(),
        )
        job.write("begun-0", begun)
        writer = SampleWriter(job.samples_of(0))
        about = {"node": "vm", "covers": "node", "renewed_s": 1.0, "missed_deadlines": 1}
        meters = [
            SampledMeter(
                meter="command",
                available=True,
                source="measured",
                counter=True,
                identity="a:command",
                **about,
            ),
            SampledMeter(node="vm", meter="gpu", available=False, reason="gpu: none; plug one in"),
        ]
        rows = []
        for k in range(41):
            at_s = now_s + k / 10
            rows.append((0, (at_s, None, 10.0 * k)))
            rows.append((2, (at_s, 0.5, None, 1e9, 0.5)))
            rows.append((3, (at_s, k / 10, 0.5)))
        writer.append(SamplerFacts(meters=meters, nodes=["vm"]), rows)
        writer.close()
        for pid in (11, 12):
            rows = [
                row
                for k in range(20)
                for row in (
                    ROW.pack(FETCH, now_s + 0.15 * k, 0.01, 8),
                    ROW.pack(BACKWARD, now_s + 0.15 * k + 0.05, 0.02, 0),
                    ROW.pack(EXCHANGE, now_s + 0.15 * k + 0.07, 0.01, 0),
                    ROW.pack(UPDATE, now_s + 0.15 * k + 0.1, 0.02, 0),
                )
            ]
            (job.marks / f"{pid}.marks").write_bytes(b"".join(rows))
            noted = {"rank": pid - 11, "ranks": 2, "loss": 1.5}
            noted |= {"optimizer": "SGD", "parameters_0": 4160, "device": "cpu"}
            (job.marks / f"{pid}.json").write_text(json.dumps(noted))
        shutil.copytree(scratch, folder / "out")


LOGS = {
    "csv": "pdu.csv",
    "nvidia-smi": "n1.log",
    "prometheus": "kepler.json",
    "slurm": "jobs.txt",
    "codecarbon": "emissions.csv",
}
"""Logs of other tools, by the kind that reads them; ``runs.csv`` is of the first."""


MADE = Path(__file__).parent / "data" / "imports"


def forecast(folder: Path) -> None:
    found = joulecast.forecast("two-core-vm", [4, 8], price=0.3, co2=380)
    (folder / "forecast.json").write_text(json.dumps(found))


def logs(folder: Path) -> None:
    watts = [200 + 300 * (10 <= t < 50) + t * 5 % 13 for t in range(60)]
    at = [f"2026-05-02 10:00:{t:02d}.25" for t in range(60)]
    rows = {
        "pdu.csv": ["t,w,node", *(f"{1.7e9 + t},{w},n1" for t, w in enumerate(watts))],
        "runs.csv": [
            "run,network,platform,batch,start,stop,epochs",
            f"a,net,box,8,{1.7e9 + 10},{1.7e9 + 50},3",
        ],
        "n1.log": [
            "timestamp, index, power.draw [W]",
            *(f"{t.replace('-', '/')}, 0, {w} W" for t, w in zip(at, watts, strict=True)),
        ],
        "jobs.txt": [
            "JobID|Start|End|NNodes|NodeList|ConsumedEnergyRaw",
            "7|2026-05-02T10:00:00|2026-05-02T10:30:00|2|n[1-2]|900000",
        ],
    }
    for name, lines in rows.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    labels = {"__name__": "kepler_node_platform_joules_total", "instance": "n1:9102"}
    values = [[1.7e9 + t, str(200.0 * t)] for t in range(60)]
    result = [{"metric": labels, "values": values}]
    answer = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    (folder / "kepler.json").write_text(json.dumps(answer))
    shutil.copy(MADE / "codecarbon-3.3.2-runs.csv", folder / "emissions.csv")
