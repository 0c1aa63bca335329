"""Corrupted submissions: what is wrong with their readings is found, also where all repeats share it."""

from dataclasses import replace

import numpy as np
import pytest
from corruptions import (
    KINDS,
    MeteredRun,
    imported,
    is_found,
    kinds_of,
    metered_run,
    write_metered_run,
    write_repeats,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlperf_fixtures import ZERO_MS, line

from joulecast.logs.checked_meters import checked_meters
from joulecast.logs.imported_run import ImportedRun, record_of
from joulecast.logs.lags import LoggedActivity, lag_of
from joulecast.logs.log import Findings, LoggedMeter
from joulecast.logs.mlperf import import_mlperf
from joulecast.logs.run_phases import Interval
from joulecast.runs.integration import EnergyCurve
from joulecast.runs.record import RunRecord, read_record


def joules(record: RunRecord) -> float:
    """What all nodes draw in the run."""
    run_s = record.info.outcome.start_s, record.info.outcome.stop_s
    of_nodes = record.power[record.power["meter"] == "node_power"]
    return sum(
        float(EnergyCurve.of(readings).between(*map(np.array, run_s)))
        for _, readings in of_nodes.groupby("node")
    )


def joules_of(run: MeteredRun) -> float:
    """The same of the run as it was before it was corrupted."""
    return sum(
        float(EnergyCurve.of_power(*meter).between(*map(np.array, run.run_s)))
        for meter in run.readings.values()
    )


@pytest.mark.parametrize("shape", ["epochs", "blocks"])
@pytest.mark.parametrize("clipped", [False, True])
def test_clean_runs_are_neither_lost_nor_changed(tmp_path, shape, clipped):
    write_repeats(tmp_path / "in", None, 0, shape=shape, clipped=clipped)
    for number, record in enumerate(imported(tmp_path / "in", tmp_path / "out")):
        assert record.info.left_out == [] and record.info.remarks == []
        run = metered_run(number, shape=shape, clipped=clipped, same_course=0)
        assert joules(record) == pytest.approx(joules_of(run), rel=1e-6)


@pytest.mark.parametrize(
    "faulty", [pytest.param(1, marks=pytest.mark.long), 5], ids=["one run", "all repeats"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_corruptions_are_found_and_harm_no_other_run(tmp_path, kind, faulty):
    write_repeats(tmp_path / "in", KINDS[kind], faulty, seed=7)
    records = imported(tmp_path / "in", tmp_path / "out")
    for number, record in enumerate(records):
        if number >= faulty:
            assert record.info.left_out == [] and record.info.remarks == []
        else:
            assert is_found(kind, record)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("kW for W", {"unit": "kW"}),
        ("mW for W", {"unit": "mW"}),
        ("clocks shifted by 60 s", {"shift_s": -60.0}),
        ("another time zone", {"shift_s": -7 * 3600.0}),
    ],
)
def test_what_the_user_knows_makes_the_readings_right(tmp_path, kind, said):
    write_repeats(tmp_path / "in", KINDS[kind], 5, seed=7)
    import_mlperf(tmp_path / "in", tmp_path / "out", **said)
    for number, folder in enumerate(sorted((tmp_path / "out").iterdir())):
        record = read_record(folder)
        assert record.info.left_out == []
        clean = metered_run(7000 + number, same_course=7)
        assert joules(record) == pytest.approx(joules_of(clean), rel=0.001)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_cut_to_the_run_is_judged_too(tmp_path, kind):
    """Readings before and after the run tell most; without them all repeats can still be judged."""
    write_repeats(tmp_path / "in", KINDS[kind], 5, seed=11, clipped=True)
    for record in imported(tmp_path / "in", tmp_path / "out"):
        assert is_found(kind, record)


def evaluations_of(run: MeteredRun) -> list[tuple[float, float]]:
    at_s = [float(text.split('"time_ms": ')[1].split(",")[0]) for text in run.events]
    seconds = [(ms - ZERO_MS) / 1000 for ms in at_s]
    return list(zip(seconds[2::4], seconds[3::4], strict=True))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10_000),
    nodes=st.integers(1, 5),
    lag_s=st.one_of(st.just(0.0), st.floats(8, 200), st.floats(-50, -8)),
)
def test_the_lag_of_a_clock_shows_in_what_the_run_did(seed, nodes, lag_s):
    run = metered_run(seed, nodes)
    meters = [
        LoggedMeter(node, None, None, node, t_s + lag_s, watts)
        for node, (t_s, watts) in run.readings.items()
    ]
    evaluations = [Interval("evaluation", None, *stop) for stop in evaluations_of(run)]
    lag = lag_of(meters, LoggedActivity(run.run_s, (0.0, run.run_s[0]), evaluations))
    # Full power is reached seconds after the log's word, which no meter knows.
    assert lag.lag_s == pytest.approx(lag_s, abs=4.0) and lag.matters == bool(lag_s)


_NUMBERS = st.one_of(
    st.floats(-1e4, 1e6),
    st.sampled_from([0.0, np.nan, 1e15, -1e15, 6000.0, 2500.0]),
)


@settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    readings=st.lists(st.lists(st.tuples(st.floats(-1e9, 1e9), _NUMBERS), max_size=60), max_size=3),
    even=st.booleans(),
    stop_s=st.floats(1, 1e6),
)
def test_nothing_in_the_readings_makes_the_import_fail(readings, even, stop_s):
    meters = []
    for node, pairs in enumerate(readings):
        t_s = np.array([2.0 * n if even else t for n, (t, _) in enumerate(pairs)])
        meters.append(
            LoggedMeter(f"node_{node}", None, None, "f", t_s, np.array([w for _, w in pairs]))
        )
    run = ImportedRun("r", "c", "s", "b", "x", {"path": "p"}, start_s=0.0, stop_s=stop_s)
    run.meters = meters
    run.intervals = [Interval("evaluation", 1.0, stop_s / 2, stop_s)]
    record, _ = record_of(run)
    assert record.power["watts"].between(0, 100e3).all()


def test_a_job_that_waits_after_the_start_is_no_lag(tmp_path):
    """With nothing read after the end, a minute of waiting looks as if all were a minute late."""
    run = metered_run(12)
    readings = {}
    for node, (t_s, watts) in run.readings.items():
        keep = t_s <= run.run_s[1] + 4
        waits = (t_s > run.run_s[0]) & (t_s < run.run_s[0] + 60)
        readings[node] = t_s[keep], np.where(waits, watts[0] + t_s % 7, watts)[keep]
    write_metered_run(tmp_path / "in", MeteredRun(run.events, run.run_s, readings))
    (record,) = imported(tmp_path / "in", tmp_path / "out")
    assert record.info.left_out == [] and "clock lag" not in kinds_of(record.info.remarks)


def test_a_job_that_warms_up_before_the_start_is_under_load(tmp_path):
    run = metered_run(13)
    readings = {
        node: (
            t_s[t_s <= run.run_s[1]],
            np.where(t_s < run.run_s[0], 6200 + t_s % 7, watts)[t_s <= run.run_s[1]],
        )
        for node, (t_s, watts) in run.readings.items()
    }
    write_metered_run(tmp_path / "in", MeteredRun(run.events, run.run_s, readings))
    (record,) = imported(tmp_path / "in", tmp_path / "out")
    assert record.info.left_out == []


def test_nodes_that_evaluate_while_others_train_are_not_moved_nor_lost(tmp_path):
    """A node that waits, and works only in evaluations, reads unlike the others and rightly so."""
    run = metered_run(5)
    t_s, watts = run.readings["node_3"]
    inside = (t_s > run.run_s[0]) & (t_s < run.run_s[1])
    busy = np.zeros(len(t_s), bool)
    for start_s, stop_s in evaluations_of(run):
        busy |= (t_s > start_s + 2) & (t_s < stop_s)
    of_evaluation = np.where(inside & ~busy, 3000.0, np.where(busy, 5800.0, watts))
    of_evaluation += np.random.default_rng(1).integers(-40, 40, len(t_s))
    readings = run.readings | {"node_3": (t_s, of_evaluation)}
    write_metered_run(tmp_path / "in", MeteredRun(run.events, run.run_s, readings))
    (record,) = imported(tmp_path / "in", tmp_path / "out")
    assert record.info.left_out == [] and record.info.remarks == []


def test_meters_that_read_coarsely_are_not_frozen(tmp_path):
    run = metered_run(6)
    readings = {node: (t, np.round(w / 100) * 100) for node, (t, w) in run.readings.items()}
    write_metered_run(tmp_path / "in", MeteredRun(run.events, run.run_s, readings))
    (record,) = imported(tmp_path / "in", tmp_path / "out")
    assert record.info.left_out == [] and record.info.remarks == []


def test_a_switch_that_was_metered_is_no_part_of_the_nodes(tmp_path):
    run = metered_run(8)
    texts = [line("power_reading", t_s, 900 + t_s % 7) for t_s in range(-10, 500, 2)]
    write_metered_run(
        tmp_path / "in", MeteredRun(run.events, run.run_s, run.readings, {"sw_0": texts})
    )
    (record,) = imported(tmp_path / "in", tmp_path / "out")
    assert record.info.left_out == [] and record.info.remarks == []
    assert {meter.node for meter in record.info.meters} == set(run.readings)
    assert joules(record) == pytest.approx(joules_of(run), rel=1e-6)


def test_a_run_metered_before_and_behind_the_supplies_counts_once(tmp_path):
    run = metered_run(9)
    behind = {node: (t, np.round(0.94 * w)) for node, (t, w) in run.readings.items()}
    write_metered_run(tmp_path / "in", run, system="4xACME-AC")
    write_metered_run(
        tmp_path / "in", MeteredRun(run.events, run.run_s, behind), system="4xACME-DC"
    )
    ac, dc = imported(tmp_path / "in", tmp_path / "out")
    assert [meter.supply for meter in ac.info.meters] == ["AC"] * 4
    assert [meter.supply for meter in dc.info.meters] == ["DC"] * 4
    assert ac.info.left_out == []
    (reason,) = dc.info.left_out
    assert reason.startswith("there twice: the same run as resnet-4xacme-ac-result_1 (AC)")


def test_the_efficiency_of_a_supply_is_kept(tmp_path):
    run = metered_run(10)
    write_metered_run(tmp_path / "in", run)
    power = tmp_path / "in/4xACME-Fast9000/resnet/power/result_1/node_0.txt"
    said = line("conversion_eff", -10, 0.94, measurement_type="DC")
    power.write_text(said + "\n" + power.read_text())
    (record,) = imported(tmp_path / "in", tmp_path / "out")
    first, second = record.info.meters[:2]
    assert (first.supply, first.conversion_eff) == ("DC", 0.94)
    assert (second.supply, second.conversion_eff) == (None, None)


def test_readings_of_another_run_are_known_by_being_the_same(tmp_path):
    runs = [metered_run(seed, same_course=0) for seed in (20, 21, 22)]
    runs[1] = MeteredRun(runs[1].events, runs[1].run_s, runs[0].readings)
    for number, run in enumerate(runs, start=1):
        zero_ms = ZERO_MS + 10_000_000 * number
        write_metered_run(tmp_path / "in", run, f"result_{number}", zero_ms=zero_ms)
    records = imported(tmp_path / "in", tmp_path / "out")
    assert [kinds_of(r.info.left_out) for r in records] == [{"readings of another run"}] * 2 + [
        set()
    ]


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_setting_that_reads_half_of_its_platform_is_left_out(tmp_path, factor):
    for place, benchmark in enumerate(("resnet", "ssd", "unet3d")):
        for number in range(2):
            run = metered_run(100 * place + number, nodes=2)
            if benchmark == "ssd":
                scaled = {node: (t, factor * w) for node, (t, w) in run.readings.items()}
                run = MeteredRun(run.events, run.run_s, scaled)
            zero_ms = ZERO_MS + 10_000_000 * (3 * number + place)
            write_metered_run(
                tmp_path / "in", run, f"result_{number}", benchmark=benchmark, zero_ms=zero_ms
            )
    for record in imported(tmp_path / "in", tmp_path / "out"):
        bad = record.info.spec.imported.benchmark == "ssd"
        assert kinds_of(record.info.left_out) == ({"unlike its platform"} if bad else set())


def test_a_node_that_only_evaluates_is_no_implausible_one():
    t_s = np.arange(-40.0, 400.0, 2.0)
    trains = np.where(t_s < 0, 2200.0, 6500.0) + 20 * np.sin(t_s)
    evaluates = np.where(t_s % 100 > 85, 6000.0, 2200.0) + 20 * np.sin(t_s)
    watts = [*(trains + n for n in range(7)), evaluates]
    meters = [
        LoggedMeter(f"node_{n}", None, None, f"node_{n}.txt", t_s, w) for n, w in enumerate(watts)
    ]
    findings = Findings()
    checked_meters(meters, 8, (0.0, 400.0), findings)
    assert findings.left_out == []
    idle = replace(meters[7], watts=np.full_like(t_s, 2200.0) + 20 * np.sin(t_s))
    checked_meters([*meters[:7], idle], 8, (0.0, 400.0), findings)
    assert "unlike the other nodes" in kinds_of(findings.left_out)


def test_a_stall_at_little_power_is_read_and_10_watts_under_load_are_not():
    t_s = np.arange(-40.0, 400.0, 2.0)
    load = 2000.0 + 20 * np.sin(t_s)
    for low, failed in ((350.0, 0), (10.0, 26)):
        watts = np.where((t_s >= 100) & (t_s <= 150), low, load)
        meter = LoggedMeter("node_0", None, None, "node_0.txt", t_s, watts)
        (found,) = checked_meters([meter], None, (0.0, 400.0), Findings())
        assert found.info.failed_reads == failed
