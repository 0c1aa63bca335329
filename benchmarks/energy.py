"""What judging costs: reading, fitting and predicting 1,000 imported runs with 10 million readings.

The runs are synthetic: three workloads on 1, 2, 4 and 8 nodes with one meter a node, their energy made by
MC2's own equations with noise, so that the errors shown say only that the fit found what was put in. The
peer reads the same files with pandas and integrates with NumPy's trapezoidal rule, and does no more; it
has its own process, as the model has, so that the memory shown is its own.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from _output import parser, show

from joulecast.energy.mc2_phases import PhaseMC2
from joulecast.runs.frames import ACTIVITY_COLUMNS, PHASE_COLUMNS, STAGE_COLUMNS
from joulecast.runs.left_out import runs_to_fit, used
from joulecast.runs.platforms import Platform
from joulecast.runs.record import Checks, MeterInfo, Outcome, RunInfo, RunRecord, write_record
from joulecast.runs.spec import Imported, RunSpec

_COUNTS = (1, 2, 4, 8)
_WORKLOADS = {"a": (300.0, 4200.0), "b": (500.0, 4400.0), "c": (800.0, 4000.0)}
_IDLE_W, _EPOCHS = 2600.0, 10


def _record(run: int, readings: int, random: np.random.Generator) -> RunRecord:
    workload = sorted(_WORKLOADS)[run % len(_WORKLOADS)]
    nodes = _COUNTS[run // len(_WORKLOADS) % len(_COUNTS)]
    alone_s, excess_w = _WORKLOADS[workload]
    share = 1 / (1 + 0.06 * (nodes - 1))
    training_s = alone_s / nodes / share
    spec = RunSpec(
        run=f"r{run:04d}",
        campaign="benchmark",
        kind="imported",
        platform=Platform(name="synthetic"),
        nodes=nodes,
        imported=Imported(
            benchmark=workload, submission=str(run), global_batch_size=256, work_unit="epochs"
        ),
    )
    names = [f"node_{n}" for n in range(nodes)]
    epochs = np.linspace(20, 20 + training_s, _EPOCHS + 1)
    phases = [("epoch", k, epochs[k], epochs[k + 1], 1.0) for k in range(_EPOCHS)]
    each = np.linspace(0, 30 + training_s, readings // nodes)
    duty = share + (share - share**1.4)
    level = np.where((each >= 20) & (each < 20 + training_s), excess_w * duty, 0.0) + _IDLE_W
    power = pd.DataFrame(
        {
            "node": np.repeat(names, len(each)),
            "meter": "node_power",
            "t_s": np.tile(each, nodes),
            "watts": np.tile(level, nodes) + random.normal(0, 30, len(each) * nodes),
            "joules": np.nan,
        }
    )
    info = RunInfo(
        spec=spec,
        spec_sha256=spec.digest(),
        started_utc="2026-01-01T00:00:00+00:00",
        nodes=names,
        nodes_are="hosts",
        outcome=Outcome(start_s=20, stop_s=20 + training_s, samples=_EPOCHS),
        checks=Checks(ranks=0, distinct_hosts=0),
        meters=[
            MeterInfo(node=n, meter="node_power", available=True, source="imported") for n in names
        ],
    )
    empty = pd.DataFrame(columns=list(STAGE_COLUMNS))
    activity = pd.DataFrame(columns=list(ACTIVITY_COLUMNS))
    return RunRecord(
        info, empty, power, activity, pd.DataFrame(phases, columns=list(PHASE_COLUMNS))
    )


def _model(folder: Path) -> dict[str, float]:
    clean = used(runs_to_fit(sorted(folder.iterdir())))
    read = time.perf_counter()
    mc2 = PhaseMC2().fit(clean)
    fitted = time.perf_counter()
    error = (mc2.predict_energy(clean) / clean["energy_j"] - 1).abs().mean()
    return {
        "fit_s": fitted - read,
        "predict_s": time.perf_counter() - fitted,
        "mape_percent": 100 * float(error),
    }


def _peer(folder: Path) -> dict[str, float]:
    total = 0.0
    for record in sorted(folder.iterdir()):
        power = pd.read_parquet(record / "power.parquet")
        for _, readings in power.groupby("node"):
            total += float(np.trapezoid(readings["watts"], readings["t_s"]))
    return {"joules": total}


def _in_own_process(what: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--part", what, "--folder", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    told: dict[str, float] = json.loads(done.stdout)
    return told


def _part(what: str, folder: Path) -> None:
    started = time.perf_counter()
    told = {"model": _model, "peer": _peer}[what](folder)
    told["total_s"] = time.perf_counter() - started
    told["peak_rss_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(told))


def main() -> None:
    """Make the runs, judge them, and print what it took."""
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=1000)
    arguments.add_argument("--readings", type=int, default=10_000, help="a run, all its meters")
    arguments.add_argument("--part", help="internal: what this process is to do")
    arguments.add_argument("--folder", type=Path, help="internal: where the records are")
    given = arguments.parse_args()
    if given.part:
        _part(given.part, given.folder)
        return
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for run in range(given.runs):
            write_record(Path(folder) / f"r{run:04d}", _record(run, given.readings, random))
        peer = _in_own_process("peer", Path(folder))
        model = _in_own_process("model", Path(folder))
    row = {"runs": given.runs, "readings": given.runs * given.readings} | model
    row |= {"peer_s": peer["total_s"], "ratio_to_peer": model["total_s"] / peer["total_s"]}
    show([row], given)


if __name__ == "__main__":
    main()
