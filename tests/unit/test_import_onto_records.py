"""A log's meter is added to records of runs that joulecast measured, with the lag of its clock."""

import dataclasses
from datetime import datetime

import numpy as np
import pandas as pd
import pytest
from conftest import make_record, make_spec
from log_fixtures import MADE, row, run

from joulecast.runs.meter_choice import MeterInfo
from joulecast.runs.record import read_record, write_record

BEGAN_S = datetime.fromisoformat("2026-01-01T00:00:00+00:00").timestamp()
PAUSES = ((20.0, 24.0), (55.0, 57.5), (90.0, 91.5))
LASTS_S = 120.0


def load(t_s):
    """Share of the node at work: training from 0 on, with some pauses."""
    t_s = np.asarray(t_s, float)
    busy = (t_s >= 0) & (t_s < LASTS_S)
    for begin_s, end_s in PAUSES:
        busy &= ~((t_s >= begin_s) & (t_s < end_s))
    return np.where(busy, 0.9, 0.05)


def recorded(folder, activity=load, **changes):
    """A record of 120 steps of a second, with what the kernel saw of it."""
    record = make_record(make_spec(folder.name, training={"steps": int(LASTS_S)}))
    t_s = np.arange(-3, LASTS_S + 3, 0.1)
    share = np.clip(activity(t_s) + np.random.default_rng(5).normal(0, 0.1, len(t_s)), 0, 1)
    seen = {"node": "host/0", "t_s": t_s, "cpu_utilisation": share, "gpu_utilisation": np.nan}
    frame = pd.DataFrame(seen | {"memory_bytes": 1e9, "network_bytes_per_s": 0.0})
    info = record.info.model_copy(update=changes)
    write_record(folder, dataclasses.replace(record, info=info, activity=frame))
    return folder


def wattmeter(path, lag_s, watts=load, period_s=0.5):
    t_s = np.arange(-60, LASTS_S + 60, period_s)
    # A reading is the mean of the time before it.
    fine = watts(t_s[:, None] - period_s * np.linspace(0, 1, 20)[None]).mean(1)
    noise = np.random.default_rng(6).normal(0, 2, len(t_s))
    rows = zip(BEGAN_S + t_s + lag_s, 100 + 400 * fine + noise, strict=True)
    path.write_text("t,w\n" + "".join(f"{t:.3f},{w:.2f}\n" for t, w in rows))
    return path


def added(tmp_path, kind="csv", log="log.csv", *options):
    mapped = ("--map", "time=t,watts=w") if kind == "csv" else ()
    words = (tmp_path / log, tmp_path / "out", "--records", tmp_path / "records", *mapped, *options)
    return run("import", kind, *words)


def true_j():
    t_s = np.arange(0, LASTS_S, 0.01)
    return float((100 + 400 * load(t_s)).sum() * 0.01)


@pytest.mark.parametrize("lag_s", [-31.7, 3.4, 0.3])
def test_the_meter_is_added_and_its_lag_reported(tmp_path, lag_s):
    source = recorded(tmp_path / "records" / "a")
    before = {f.name: f.read_bytes() for f in source.iterdir()}
    wattmeter(tmp_path / "log.csv", lag_s)
    far = abs(lag_s) > 2
    if far:
        done = added(tmp_path, "csv", "log.csv", "--node", "host")
        assert done.exit_code == 2 and "say --shift" in done.output
    shift = ("--shift", -lag_s) if far else ()
    done = added(tmp_path, "csv", "log.csv", "--node", "host", *shift)
    assert done.exit_code == 0, done.output
    assert {f.name: f.read_bytes() for f in source.iterdir()} == before
    record = read_record(tmp_path / "out" / "a")
    about = record.info.source["imported_meters"][0]
    assert about["clock_lag_s"] == pytest.approx(0 if far else lag_s, abs=0.5)
    assert about["shifted_by_s"] == (-lag_s if far else 0)
    assert "nothing was applied" in done.output
    found = row(tmp_path / "out" / "a")
    assert (found["energy_source"], found["energy_covers"]) == ("imported", "node")
    assert found["energy_j"] == pytest.approx(true_j(), rel=0.02)
    stages = (
        found["e_computing_j"] + found["e_materials_j"] + found["e_update_j"] + found["e_other_j"]
    )
    assert stages == pytest.approx(found["energy_j"])
    (meter,) = [m for m in record.info.meters if m.source == "imported"]
    assert (meter.meter, meter.node, meter.renewed_s) == ("csv", "host", pytest.approx(0.5))
    assert "imported from" in meter.remark and "clock lag" in meter.remark
    assert record.info.spec_sha256 == read_record(source).info.spec_sha256
    # Again into the same folder: the records are replaced.
    assert added(tmp_path, "csv", "log.csv", "--node", "host", *shift).exit_code == 0


def test_a_lag_that_cannot_be_told_is_not_known(tmp_path):
    def flat(t_s):
        return np.full(np.shape(t_s), 0.9)

    recorded(tmp_path / "records" / "a", flat)
    wattmeter(tmp_path / "log.csv", 4.0, flat)
    done = added(tmp_path, "csv", "log.csv", "--node", "host")
    assert done.exit_code == 0 and "clock lag not known: " in done.output, done.output
    about = read_record(tmp_path / "out" / "a").info.source["imported_meters"][0]
    assert about["clock_lag_s"] is None


def test_readings_that_no_node_can_give_are_not_added(tmp_path):
    recorded(tmp_path / "records" / "a")
    log = pd.read_csv(wattmeter(tmp_path / "log.csv", 0.0))
    log.assign(w=log["w"] / 1000).to_csv(tmp_path / "log.csv", index=False)
    done = added(tmp_path, "csv", "log.csv", "--node", "host")
    assert done.exit_code == 2 and "a: implausible watts" in done.output
    assert added(tmp_path, "csv", "log.csv", "--node", "host", "--unit", "kW").exit_code == 0
    assert row(tmp_path / "out" / "a")["energy_j"] == pytest.approx(true_j(), rel=0.02)


def test_records_that_get_no_meter_say_why(tmp_path):
    recorded(tmp_path / "records" / "a")
    metered = MeterInfo(
        node="host/0", meter="pm_counters:node", available=True, source="measured", covers="node"
    )
    recorded(tmp_path / "records" / "b", meters=[metered])
    recorded(tmp_path / "records" / "c", started_utc="2026-03-01T00:00:00+00:00")
    brief = make_record(make_spec("d", training={"steps": 1}), {"computing": 0.03})
    write_record(tmp_path / "records" / "d", brief)
    wattmeter(tmp_path / "log.csv", 0.0)
    done = added(tmp_path, "csv", "log.csv", "--node", "host")
    assert done.exit_code == 0, done.output
    assert "d: csv on host has something new every 0.5 s" in done.output
    assert "b: has a meter of node on host already (pm_counters:node)" in done.output
    assert "c: nothing was read while it ran" in done.output
    assert [f.name for f in (tmp_path / "out").iterdir()] == ["a"]
    other = run(
        *(
            "import",
            "csv",
            tmp_path / "log.csv",
            tmp_path / "o2",
            "--records",
            tmp_path / "records" / "b",
        ),
        *("--map", "time=t,watts=w"),
    )
    assert other.exit_code == 2 and not (tmp_path / "o2").exists()
    assert "has a meter of node" in other.output


def test_a_total_is_refused(tmp_path):
    recorded(tmp_path / "records" / "a")
    text = (
        (MADE / "codecarbon-3.3.2-runs.csv")
        .read_text()
        .replace("2026-11-23T15:04", "2026-01-01T00:01")
    )
    (tmp_path / "emissions.csv").write_text(text)
    done = added(tmp_path, "codecarbon", "emissions.csv", "--timezone", "UTC", "--node", "host")
    assert done.exit_code == 2 and "one figure for the whole" in done.output


def test_local_times_need_a_zone(tmp_path):
    recorded(tmp_path / "records" / "a")
    rows = "".join(f"2026-01-01T01:00:{s:02d},{300 + s % 7}\n" for s in range(60))
    (tmp_path / "log.csv").write_text("t,w\n" + rows)
    done = added(tmp_path, "csv", "log.csv", "--node", "host")
    assert done.exit_code == 2 and "give --timezone" in done.output


def test_what_is_known_of_the_runs_is_not_given_again(tmp_path):
    recorded(tmp_path / "records" / "a")
    (tmp_path / "log.csv").write_text("t,w\n2026-03-01T01:00:00Z,300\n2026-03-01T01:00:01Z,301\n")
    done = added(tmp_path, "csv", "log.csv", "--network", "net")
    assert done.exit_code == 2 and "its runs are known already" in done.output
    done = added(tmp_path, "csv", "log.csv")
    assert done.exit_code == 2 and "the log reaches from 2026-03-01 01:00:00" in done.output


def test_a_run_and_its_copy_with_the_meter_are_no_repeats(tmp_path):
    recorded(tmp_path / "records" / "a")
    wattmeter(tmp_path / "log.csv", 0.0)
    assert added(tmp_path, "csv", "log.csv", "--node", "host").exit_code == 0
    once = run("forecast", "--records", tmp_path / "out", "--json")
    assert once.exit_code == 0, once.output
    both = run("forecast", "--records", tmp_path)
    assert both.exit_code == 2 and "twice" in both.output and "records/a" in both.output
