"""Logs of perun, CodeCarbon, Zeus, jpwr, SLURM and Prometheus become run records.

Those in ``data/imports`` were made by the tools; the others are in the form that these document.
"""

import json
import shutil
import sys

import numpy as np
import pandas as pd
import pytest
from log_fixtures import (
    MADE,
    ZERO_S,
    between,
    expected_j,
    imported,
    info,
    iso,
    load,
    refused,
    row,
    run,
)

from joulecast.energy.timeseries import resampled_power
from joulecast.runs.record import read_record

EXPORTED = {
    "1.0.0": "digits_2026-11-23T15:04:05.551027.csv",
    "0.8.1": "digits_2026-11-23T15:04:54.948756.csv",
}
SECONDS = np.arange(0, 300)


def test_perun_hdf5_gives_a_record_a_round(tmp_path):
    pytest.importorskip("h5py")
    imported(
        "perun", MADE / "perun-1.0.0.hdf5", tmp_path / "out", "--timezone", "UTC", "--epochs", 1
    )
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == ["digits-0", "digits-1"]
    for name in ("digits-0", "digits-1"):
        found = row(tmp_path / "out" / name)
        # 3 s at 102 W, the rest at 36 W; perun reads once a second.
        true_j = 3 * 102 + (found["total_s"] - 3) * 36
        assert found["energy_j"] == pytest.approx(true_j, rel=0.1)
        assert (found["energy_covers"], found["energy_source"]) == ("cpu+memory", "imported")
    first, second = (info(tmp_path / "out" / name).started_utc for name in ("digits-0", "digits-1"))
    assert first.startswith("2026-11-23T15:04:05") and first < second
    assert all(m.counter and m.node == "vm" for m in info(tmp_path / "out" / "digits-0").meters)


def test_perun_without_h5py_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    line = refused("perun", MADE / "perun-1.0.0.hdf5", tmp_path / "out")
    assert "pip install 'joulecast[hdf5]'" in line


@pytest.mark.parametrize("version", EXPORTED)
def test_perun_csv_of_two_versions(tmp_path, version):
    log = tmp_path / EXPORTED[version]
    shutil.copy(MADE / f"perun-{version}.csv", log)
    imported("perun", log, tmp_path / "out", "--timezone", "Europe/Berlin", "--epochs", 1)
    folders = sorted((tmp_path / "out").iterdir())
    assert len(folders) == (2 if version == "1.0.0" else 1)
    found = row(folders[0])
    assert found["energy_j"] == pytest.approx(3 * 102 + (found["total_s"] - 3) * 36, rel=0.15)
    assert info(folders[0]).started_utc.startswith("2026-11-23T14:04")


def test_perun_without_a_sensor_of_power(tmp_path):
    text = (MADE / "perun-0.8.1.csv").read_text().splitlines()
    log = tmp_path / "digits.csv"
    log.write_text(
        "\n".join(line for line in text if ",W," not in line and ",J," not in line) + "\n"
    )
    assert "no sensor of watts or joules" in refused("perun", log, tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "runs"),
    [
        ("codecarbon-3.3.2-runs.csv", ["alpha", "beta"]),
        ("codecarbon-2.2.7-runs.csv", ["alpha", "beta"]),
        ("codecarbon-3.3.2-tasks.csv", ["load", "train"]),
    ],
)
def test_codecarbon_is_an_estimate_and_a_total(tmp_path, file, runs):
    imported("codecarbon", MADE / file, tmp_path / "out", "--timezone", "UTC", "--samples", 100)
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == runs
    table = pd.read_csv(MADE / file)
    for name, kwh, seconds in zip(runs, table["energy_consumed"], table["duration"], strict=True):
        found = row(tmp_path / "out" / name)
        assert found["energy_j"] == pytest.approx(3.6e6 * kwh, rel=1e-6)
        assert found["total_s"] == pytest.approx(seconds, rel=1e-3)
        assert (found["energy_source"], found["energy_covers"]) == ("estimated", "cpu+memory")
        record = read_record(tmp_path / "out" / name)
        assert all("estimated: CodeCarbon" in m.remark and not m.trace for m in record.info.meters)
        assert all("what its parts took is not known" in m.remark for m in record.info.meters)
        assert np.isnan(found["idle_w"]) and not len(resampled_power(record, 1.0))


def test_codecarbon_gpus_are_read_and_the_pue_is_taken_out(tmp_path):
    table = pd.read_csv(MADE / "codecarbon-3.3.2-runs.csv").head(1)
    table = table.assign(gpu_energy=2e-4, gpu_count=2, gpu_model="2 x NVIDIA H100", pue=1.5)
    table["energy_consumed"] = table["cpu_energy"] + table["gpu_energy"] + table["ram_energy"]
    table.to_csv(tmp_path / "emissions.csv", index=False)
    imported("codecarbon", tmp_path / "emissions.csv", tmp_path / "out", "--timezone", "UTC")
    found = row(tmp_path / "out" / "alpha")
    # What was measured counts before what was estimated, and alone.
    assert found["energy_j"] == pytest.approx(2e-4 * 3.6e6 / 1.5)
    assert (found["energy_source"], found["energy_covers"]) == ("imported", "gpu")


def test_the_gpus_of_a_node_may_have_one_figure(tmp_path):
    # Eight GPUs together draw more than one GPU can.
    table = pd.read_csv(MADE / "codecarbon-3.3.2-runs.csv").head(1)
    joules = 5000 * float(table["duration"].iloc[0])
    table = table.assign(gpu_energy=joules / 3.6e6, gpu_count=8, gpu_model="8 x NVIDIA H100")
    table.to_csv(tmp_path / "emissions.csv", index=False)
    imported("codecarbon", tmp_path / "emissions.csv", tmp_path / "out", "--timezone", "UTC")
    assert row(tmp_path / "out" / "alpha")["energy_j"] == pytest.approx(joules)
    watts = 10 * load(SECONDS)
    of_node = answer(tmp_path / "sum.json", ({"Hostname": "n1"}, SECONDS, watts))
    said = ("--unit", "W", "--covers", "gpu", *between())
    imported("prometheus", of_node, tmp_path / "sum", *said)
    assert row(tmp_path / "sum" / "net")["energy_j"] == pytest.approx(10 * expected_j(), rel=0.01)


def test_codecarbon_writes_the_duration_of_the_last_task_beside_the_energy_of_all(tmp_path):
    tasks = pd.read_csv(MADE / "codecarbon-3.3.2-tasks.csv")
    beside = tmp_path / f"emissions_base_{tasks['run_id'].iloc[0]}.csv"
    tasks.to_csv(beside, index=False)
    whole = tasks.tail(1).drop(columns="task_name")
    whole["energy_consumed"] = tasks["energy_consumed"].sum()
    whole.to_csv(tmp_path / "emissions.csv", index=False)
    log, out = tmp_path / "emissions.csv", tmp_path / "out"
    assert f"import {beside}" in refused("codecarbon", log, out, "--timezone", "UTC")
    imported("codecarbon", beside, out, "--timezone", "UTC")


def test_runs_of_one_codecarbon_project_are_told_apart_by_their_ids(tmp_path):
    table = pd.read_csv(MADE / "codecarbon-3.3.2-runs.csv").assign(project_name="vit")
    log, runs, out = tmp_path / "emissions.csv", tmp_path / "runs.csv", tmp_path / "out"
    table.to_csv(log, index=False)
    facts = pd.DataFrame({"run": table["run_id"], "network": "vit", "batch": [8, 16], "steps": 10})
    facts.to_csv(runs, index=False)
    imported("codecarbon", log, out, "--timezone", "UTC", "--runs", runs)
    found = {row(folder)["batch"]: row(folder)["energy_j"] for folder in out.iterdir()}
    kwh = table["energy_consumed"].to_list()
    assert found == {
        8: pytest.approx(3.6e6 * kwh[0], rel=1e-6),
        16: pytest.approx(3.6e6 * kwh[1], rel=1e-6),
    }
    facts.head(1).assign(run="vit").to_csv(runs, index=False)
    said = refused("codecarbon", log, tmp_path / "none", "--timezone", "UTC", "--runs", runs)
    assert all(name in said for name in table["run_id"])


@pytest.mark.parametrize("batches", [(8, 16, 32), (8, 8, 8)])
def test_runs_of_other_batches_are_no_repeats(tmp_path, batches):
    (one,) = pd.read_csv(MADE / "codecarbon-3.3.2-runs.csv").head(1).to_dict("records")
    names, log, runs = ("a", "b", "c"), tmp_path / "emissions.csv", tmp_path / "runs.csv"
    times = [f"2026-11-23T15:0{minute}:00" for minute in range(3)]
    rows = [
        one | {"timestamp": time, "project_name": name, "run_id": name, "gpu_energy": kwh}
        for time, name, kwh in zip(times, names, (2e-4, 3e-4, 4e-4), strict=True)
    ]
    pd.DataFrame(rows).to_csv(log, index=False)
    pd.DataFrame({"run": names, "batch": batches, "steps": 10}).to_csv(runs, index=False)
    said = imported("codecarbon", log, tmp_path / "out", "--timezone", "UTC", "--runs", runs)
    assert ("unlike its repeats" in said) == (len(set(batches)) == 1)


def test_a_total_is_known_for_the_whole_run_only(tmp_path):
    imported(
        "zeus",
        MADE / "zeus-0.16.0-windows.csv",
        tmp_path / "out",
        "--run",
        "train-1",
        "--epochs",
        1,
    )
    (folder,) = (tmp_path / "out").iterdir()
    found = row(folder)
    # Two seconds of 350 and 320 W.
    assert found["energy_j"] == pytest.approx(2.0 * 670, rel=0.02)
    assert found["energy_covers"] == "gpu" and np.isnan(found["steady_w"])
    record = read_record(folder)
    half = record.phases[record.phases["phase"] == "run"].assign(phase="epoch")
    start, stop = record.info.outcome.start_s, record.info.outcome.stop_s
    parts = [
        half.assign(index=n, start_s=a, stop_s=b)
        for n, (a, b) in enumerate([(start, 0.9), (1.1, stop)])
    ]
    record.phases.drop(record.phases.index, inplace=True)
    for place, part in enumerate(parts):
        record.phases.loc[place] = part.iloc[0]
    from joulecast.runs.phases import observe_phases

    divided = observe_phases(record)
    assert divided["energy_j"] == pytest.approx(found["energy_j"])
    assert np.isnan(divided["training_j"])


def test_zeus_power_logs_of_other_versions(tmp_path):
    watts = load(SECONDS)
    rows = [f"{ZERO_S + t},{w / 2},{w / 2}" for t, w in zip(SECONDS, watts, strict=True)]
    (tmp_path / "old.csv").write_text("\n".join(rows) + "\n")
    printed = [
        f"{iso(t, form='%Y-%m-%d %H:%M:%S.%f')} {{'GPU0': {w / 2:.3f}, 'GPU1': {w / 2:.3f}}}"
        for t, w in zip(SECONDS, watts, strict=True)
    ]
    (tmp_path / "printed.txt").write_text("\n".join(printed) + "\n\nTotal time (s): 300\n")
    # What does not fit into 80 columns is printed on several lines.
    wrapped = [line.replace(" {", "\n{\n    ").replace(", ", ",\n    ") for line in printed]
    (tmp_path / "wrapped.txt").write_text("\n".join(wrapped))
    utc = ("--timezone", "UTC")
    for name, more in (("old.csv", ()), ("printed.txt", utc), ("wrapped.txt", utc)):
        imported("zeus", tmp_path / name, tmp_path / name[:3], *between(), *more)
        found = row(tmp_path / name[:3] / "net")
        assert found["energy_j"] == pytest.approx(expected_j(), rel=0.01)
        assert found["energy_covers"] == "gpu"
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    assert "neither a window log" in refused("zeus", tmp_path / "odd.csv", tmp_path / "out")


def test_jpwr(tmp_path):
    imported("jpwr", MADE / "power.vm.12851.csv", tmp_path / "out", "--epochs", 1)
    found = row(tmp_path / "out" / "net")
    assert found["energy_j"] == pytest.approx(670 * 3 + 138 * (found["total_s"] - 3), rel=0.05)
    meters = info(tmp_path / "out" / "net").meters
    assert {(m.node, m.meter, m.covers) for m in meters} == {
        ("vm", "jpwr:pynvml-0", "gpu"),
        ("vm", "jpwr:pynvml-1", "gpu"),
    }


def test_gpus_that_each_rank_has_read_with_jpwr_count_once(tmp_path):
    text = (MADE / "power.vm.12851.csv").read_text()
    for folder, names in {
        "ranks": "power.0.csv power.1.csv",
        "suffix": "power.0.vm.8.csv power.1.vm.9.csv",
    }.items():
        (tmp_path / folder).mkdir()
        for name in names.split():
            (tmp_path / folder / name).write_text(text)
        line = refused("jpwr", tmp_path / folder, tmp_path / "out")
        assert names.split()[1] in line
    imported("jpwr", tmp_path / "suffix" / "power.1.vm.9.csv", tmp_path / "out", "--epochs", 1)
    assert info(tmp_path / "out" / "net").nodes == ["vm"]


def test_jpwr_on_grace_hopper_counts_the_module_and_nothing_twice(tmp_path):
    columns = {
        "pynvml:0": 400.0,
        "gh:Module Power Socket 0": 600.0,
        "gh:Grace Power Socket 0": 150.0,
        "gh:CPU Power Socket 0": 100.0,
        "gh:SysIO Power Socket 0": 20.0,
    }
    noise = np.random.default_rng(1).normal(0, 2, (300, len(columns)))
    table = pd.DataFrame(np.array(list(columns.values())) + noise, columns=list(columns))
    table.insert(0, "timestamps", ZERO_S + SECONDS)
    table.to_csv(tmp_path / "power.jpbo-001-01.99.csv")
    pd.Series(columns).to_csv(tmp_path / "energy.jpbo-001-01.99.csv")
    imported("jpwr", tmp_path, tmp_path.parent / f"{tmp_path.name}-out", *between())
    found = row(tmp_path.parent / f"{tmp_path.name}-out" / "net")
    assert found["energy_covers"] == "module"
    assert found["energy_j"] == pytest.approx(600 * 180, rel=0.01)
    line = refused("jpwr", tmp_path / "energy.jpbo-001-01.99.csv", tmp_path / "no")
    assert "have no times" in line


SACCT = """JobID|JobName|State|Start|End|NNodes|NodeList|ConsumedEnergyRaw|SubmitLine
17|train|COMPLETED|2026-05-02T10:00:00|2026-05-02T11:00:00|4|n[01-04]|7200000|sbatch --token=geheim x
17.batch|batch|COMPLETED|2026-05-02T10:00:00|2026-05-02T11:00:00|1|n01|1800000|
17.0|python|COMPLETED|2026-05-02T10:00:10|2026-05-02T10:59:00|4|n[01-04]|7100000|
18|train|FAILED|2026-05-02T12:00:00|2026-05-02T12:30:00|2|n[01-02]||
18.0|python|FAILED|2026-05-02T12:00:00|2026-05-02T12:30:00|2|n[01-02]|1500000|
19|train|COMPLETED|2026-05-02T13:00:00|2026-05-02T13:30:00|2|n[01-02]|18446744073709551614|
20|train|RUNNING|2026-05-02T14:00:00|Unknown|2|n[01-02]|0|
20.0|prepare|COMPLETED|2026-05-02T14:00:00|2026-05-02T14:10:00|2|n[01-02]|300000|
21|train|COMPLETED|2026-05-02T10:00:00|2026-05-02T11:00:00|1|n05|1800000|
22|train|COMPLETED|2026-05-02T13:10:00|2026-05-02T13:30:00|1|n02|600000|
"""


def test_slurm_accounts(tmp_path):
    (tmp_path / "jobs.txt").write_text(SACCT)
    said = imported(
        "slurm", tmp_path / "jobs.txt", tmp_path / "out", "--timezone", "UTC", "--epochs", 2
    )
    assert "18-train: not successful" in said and "22-train: at the same time: 19-train" in said
    assert [info(tmp_path / "out" / f"{job}-train").left_out for job in (17, 21)] == [[], []]
    found = row(tmp_path / "out" / "17-train")
    # The job's own figure, once: its steps are inside.
    assert found["energy_j"] == pytest.approx(7.2e6) and found["nodes"] == 4
    assert found["total_s"] == 3600 and found["energy_source"] == "imported"
    record = info(tmp_path / "out" / "17-train")
    assert record.nodes == ["n01", "n02", "n03", "n04"]
    assert all(len(m.shared_with) == 3 and not m.trace for m in record.meters)
    assert row(tmp_path / "out" / "18-train")["energy_j"] == pytest.approx(1.5e6)
    assert np.isnan(row(tmp_path / "out" / "19-train")["energy_j"])
    assert "acct_gather_energy" in " ".join(info(tmp_path / "out" / "19-train").remarks)
    kept = "".join(f.read_text() for f in tmp_path.glob("out/*/run.json")) + said
    assert "geheim" not in kept and not any(tmp_path.glob("out/20-*"))
    (tmp_path / "bad.txt").write_text("JobID|Start\n1|2026-05-02T10:00:00\n")
    assert "no column End; there are: JobID, Start; ask sacct" in refused(
        "slurm", tmp_path / "bad.txt", tmp_path / "no"
    )
    # In autumn, an hour is there twice. The order of the jobs does not say which of the two is meant.
    job = "{}|t|COMPLETED|2026-10-24T22:00:00|2026-10-25T02:{}:00|1|n01|9e6|\n"
    (tmp_path / "autumn.txt").write_text(
        SACCT[: SACCT.index("17")] + job.format(1, 50) + job.format(2, 10)
    )
    zone = "--timezone", "Europe/Berlin"
    assert "is there twice" in refused("slurm", tmp_path / "autumn.txt", tmp_path / "no", *zone)


@pytest.mark.parametrize(
    ("steps", "joules"),
    [
        ([("0", 0, 30, 2, 1_800_000), ("1", 30, 58, 2, 1_700_000)], 3.5e6),
        # Two on other nodes, and two that count the same nodes.
        ([("0", 0, 59, 1, 1_800_000), ("1", 0, 59, 1, 1_900_000)], 3.7e6),
        ([("0", 0, 59, 2, 3_600_000), ("1", 0, 59, 2, 3_600_000)], None),
        ([("0", 0, 20, 2, 1_200_000)], None),
        ([("batch", 0, 59, 1, 1_800_000)], None),
    ],
)
def test_steps_are_the_energy_of_a_job_only_if_they_cover_it_once(tmp_path, steps, joules):
    head = "JobID|Start|End|NNodes|ConsumedEnergyRaw"
    form = "{}|2026-05-02T10:{:02d}:00|2026-05-02T10:{:02d}:00|{}|{}"
    rows = [form.format("5", 0, 59, 2, 0), *(form.format(f"5.{name}", *of) for name, *of in steps)]
    (tmp_path / "jobs.txt").write_text("\n".join([head, *rows]) + "\n")
    imported("slurm", tmp_path / "jobs.txt", tmp_path / "out", "--timezone", "UTC", "--epochs", 1)
    found = row(tmp_path / "out" / "5")["energy_j"]
    assert np.isnan(found) if joules is None else found == pytest.approx(joules)


def test_totals_of_several_node_counts_forecast_another(tmp_path):
    rows = [
        f"{n}|t|COMPLETED|2026-05-02T1{n}:00:00|2026-05-02T1{n}:{m:02d}:00|{n}|n[1-{n}]|{j}"
        for n, m, j in ((1, 59, 3_540_000), (2, 31, 3_800_000), (4, 17, 4_200_000))
    ]
    (tmp_path / "jobs.txt").write_text("\n".join([SACCT.splitlines()[0][:-11], *rows]) + "\n")
    imported("slurm", tmp_path / "jobs.txt", tmp_path / "out", "--timezone", "UTC", "--epochs", 3)
    done = run("forecast", "--records", tmp_path / "out", "--nodes", 8, "--json")
    (forecast,) = json.loads(done.output)["forecasts"]
    # Joules of a job rise with its nodes.
    assert 3.5e6 < forecast["energy_j"] < 7e6 and "nan" not in done.output.lower()


def test_each_start_of_a_requeued_job_is_a_run(tmp_path):
    head = "JobID|JobName|State|Start|End|NNodes|NodeList|ConsumedEnergyRaw"
    job = "5|t|{}|2026-05-02T1{}:00:00|2026-05-02T1{}:30:00|1|n1|{}"
    rows = [head, job.format("NODE_FAIL", 0, 0, 90000), job.format("COMPLETED", 2, 2, 700000)]
    # A part of a heterogeneous job is no training.
    rows.append(rows[-1].replace("5|", "6+0|", 1))
    (tmp_path / "jobs.txt").write_text("\n".join(rows) + "\n")
    said = imported("slurm", tmp_path / "jobs.txt", tmp_path / "out", "--timezone", "UTC")
    assert "5-t: not successful" in said and "remark part of a job" in said
    assert row(tmp_path / "out" / "5-t-2")["energy_j"] == pytest.approx(7e5)
    (tmp_path / "runs.csv").write_text("run,epochs\n5-t-2,3\n")
    options = ("--timezone", "UTC", "--runs", tmp_path / "runs.csv")
    said = imported("slurm", tmp_path / "jobs.txt", tmp_path / "named", *options)
    assert "not imported, no row in --runs: 5-t\n" in said
    assert row(tmp_path / "named" / "5-t-2")["energy_j"] == pytest.approx(7e5)
    nowhere = tmp_path / "nowhere", "--timezone", "UTC", "--epochs", 3, "--run", "6-t"
    assert "has no run 6-t; there are: 5-t and 5-t-2" in refused(
        "slurm", tmp_path / "jobs.txt", *nowhere
    )


@pytest.mark.parametrize("version", [22, 23, 24])
def test_slurm_json(tmp_path, version):
    modern = version == 24

    def number(value):
        return {"set": True, "infinite": False, "number": value} if modern else value

    def step(name, joules):
        names = {22: int(name) if name.isdigit() else name, 23: {"step_id": name}}
        identity = {"id": names.get(version, f"17.{name}")}
        return {
            "step": identity,
            "time": {"start": number(int(ZERO_S) + 60), "end": number(int(ZERO_S) + 3600)},
            "nodes": {"count": 2, "range": "n[1-2]"},
            "statistics": {"energy": {"consumed": number(joules)}},
        }

    job = {
        "job_id": 17,
        "name": "train",
        "nodes": "n[1-2]",
        "allocation_nodes": 2,
        "state": {"current": ["COMPLETED"]} if modern else {"current": "COMPLETED"},
        "time": {"start": int(ZERO_S), "end": int(ZERO_S) + 3600},
        "tres": {"allocated": [{"type": "cpu", "count": 64}]},
        "steps": [
            step("batch", 9),
            step("0", 5_000_000),
        ],
    }
    part = job | {"job_id": 19, "het": {"job_id": 18, "job_offset": number(1)}}
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job, part]}))
    imported("slurm", tmp_path / "jobs.json", tmp_path / "out")
    assert [folder.name for folder in tmp_path.glob("out/*")] == ["17-train"]
    found = row(tmp_path / "out" / "17-train")
    assert found["energy_j"] == pytest.approx(5e6) and found["nodes"] == 2
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [{"name": "x"}]}))
    assert "job 1 is not as `sacct --json`" in refused(
        "slurm", tmp_path / "jobs.json", tmp_path / "no"
    )


def answer(path, *series):
    values = [
        {
            "metric": labels,
            "values": [[ZERO_S + t, f"{v:.6f}"] for t, v in zip(times, numbers, strict=True)],
        }
        for labels, times, numbers in series
    ]
    path.write_text(
        json.dumps({"status": "success", "data": {"resultType": "matrix", "result": values}})
    )
    return path


def test_prometheus_gauges_and_counters(tmp_path):
    watts = load(SECONDS)
    power = {"__name__": "DCGM_FI_DEV_POWER_USAGE"}
    dcgm = [
        ({**power, "Hostname": f"n{n}", "gpu": g, "UUID": f"GPU-{n}{g}"}, SECONDS, watts / 2)
        for n in (1, 2)
        for g in "01"
    ]
    file = answer(tmp_path / "dcgm.json", *dcgm)
    imported("prometheus", file, tmp_path / "dcgm", *between(), "--accelerators", 2)
    line = refused("prometheus", file, tmp_path / "no", *between(), "--accelerators", 8)
    assert "readings of 2 GPUs of n1, and a node has 8" in line
    found = row(tmp_path / "dcgm" / "net")
    assert (found["nodes"], found["energy_covers"]) == (2, "gpu")
    assert found["energy_j"] == pytest.approx(2 * expected_j(), rel=0.01)
    counts = np.cumsum(watts)
    labels = {
        "__name__": "kepler_node_platform_joules_total",
        "instance": "n1:9102",
        "source": "redfish",
    }
    kepler = [
        ({**labels, "mode": m}, SECONDS, counts * share)
        for m, share in (("idle", 0.4), ("dynamic", 0.6))
    ]
    imported("prometheus", answer(tmp_path / "k.json", *kepler), tmp_path / "kepler", *between())
    found = row(tmp_path / "kepler" / "net")
    assert found["energy_covers"] == "node" and info(tmp_path / "kepler" / "net").nodes == ["n1"]
    assert found["energy_j"] == pytest.approx(expected_j(), rel=0.01)
    model = [({**labels, "source": "trained_power_model"}, SECONDS, counts)]
    imported("prometheus", answer(tmp_path / "m.json", *model), tmp_path / "model", *between())
    assert row(tmp_path / "model" / "net")["energy_source"] == "estimated"
    energy = {"__name__": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Hostname": "n1", "gpu": "0"}
    millijoules = [(energy, SECONDS, counts * 1e3)]
    imported("prometheus", answer(tmp_path / "mj.json", *millijoules), tmp_path / "mj", *between())
    assert row(tmp_path / "mj" / "net")["energy_j"] == pytest.approx(expected_j(), rel=0.01)
    for name, numbers in (
        ("pdu_power_kw", watts / 1e3),
        ("pdu_power_mw", watts * 1e3),
        ("ipmi_kilowatts", watts / 1e3),
        ("pdu_power_watthours_total", counts / 3.6e3),
        ("pdu_power_meter_kwh", counts / 3.6e6),
    ):
        series = ({"__name__": name, "instance": "n1:1"}, SECONDS, numbers)
        imported(
            "prometheus", answer(tmp_path / f"{name}.json", series), tmp_path / name, *between()
        )
        assert row(tmp_path / name / "net")["energy_j"] == pytest.approx(expected_j(), rel=0.02)


def test_prometheus_slices_of_a_gpu_and_gpus_that_change_hands_count_once(tmp_path):
    watts = load(SECONDS)
    base = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "Hostname": "n1", "gpu": "0", "UUID": "GPU-1"}
    slices = [({**base, "GPU_I_ID": str(s)}, SECONDS, watts) for s in (1, 2, 3)]
    imported("prometheus", answer(tmp_path / "mig.json", *slices), tmp_path / "mig", *between())
    assert row(tmp_path / "mig" / "net")["energy_j"] == pytest.approx(expected_j(), rel=0.01)
    twice = [({**base, "job": job}, SECONDS, watts + k) for k, job in enumerate("ab")]
    assert "which differ in job" in refused(
        "prometheus", answer(tmp_path / "two.json", *twice), tmp_path / "no", *between()
    )
    limit = [({**base, "__name__": "DCGM_FI_DEV_POWER_MGMT_LIMIT"}, SECONDS, watts)]
    assert "may draw" in refused(
        "prometheus", answer(tmp_path / "limit.json", *limit), tmp_path / "no", *between()
    )
    shared = [({**base, "pod": pod}, SECONDS, watts) for pod in "ab"]
    imported("prometheus", answer(tmp_path / "one.json", *shared), tmp_path / "one", *between())
    assert row(tmp_path / "one" / "net")["energy_j"] == pytest.approx(expected_j(), rel=0.01)
    pods = [
        ({**base, "pod": "a"}, SECONDS[:150], watts[:150]),
        ({**base, "pod": "b"}, SECONDS[150:], watts[150:]),
    ]
    imported("prometheus", answer(tmp_path / "pods.json", *pods), tmp_path / "pods", *between())
    assert row(tmp_path / "pods" / "net")["energy_j"] == pytest.approx(expected_j(), rel=0.01)


def test_prometheus_says_what_it_does_not_know(tmp_path):
    watts = load(SECONDS)
    nameless = answer(tmp_path / "rate.json", ({"instance": "n1:1"}, SECONDS, watts))
    assert "say --unit W or --unit J" in refused("prometheus", nameless, tmp_path / "no")
    assert "say --covers" in refused("prometheus", nameless, tmp_path / "no", "--unit", "W")
    imported("prometheus", nameless, tmp_path / "yes", "--unit", "W", "--covers", "node")
    # An option that would change nothing is no option of this kind of log.
    assert run("import", "prometheus", nameless, tmp_path / "no", "--decimal", ",").exit_code == 2
    shares = answer(
        tmp_path / "c.json", ({"__name__": "kepler_container_joules_total"}, SECONDS, watts)
    )
    assert "share of what a device draws" in refused("prometheus", shares, tmp_path / "no")
    two = [({"__name__": f"node_{n}_watts", "rack": "1"}, SECONDS, watts) for n in "ab"]
    assert "choose one with --metric" in refused(
        "prometheus", answer(tmp_path / "t.json", *two), tmp_path / "no"
    )
    nodes = [({"__name__": "pdu_watts", "rack": r}, SECONDS, watts) for r in "ab"]
    line = refused("prometheus", answer(tmp_path / "n.json", *nodes), tmp_path / "no")
    assert "say --node-label; there are: __name__ and rack" in line
    ipmi = {"__name__": "ipmi_power_watts", "instance": "n1:9290"}
    both = [({**ipmi, "name": name}, SECONDS, watts) for name in ("PSU1", "Total")]
    line = refused("prometheus", answer(tmp_path / "i.json", *both), tmp_path / "no")
    assert "2 series of the whole node n1; select one in the query" in line
    (tmp_path / "v.json").write_text(
        '{"status": "success", "data": {"resultType": "vector", "result": []}}'
    )
    assert "query_range" in refused("prometheus", tmp_path / "v.json", tmp_path / "no")
    (tmp_path / "cut.json").write_text('{"status": "success", "data": {"resul')
    assert "was cut short" in refused("prometheus", tmp_path / "cut.json", tmp_path / "no")
