"""Importing MLPerf power submissions, from the files to the records that fits read."""

import gzip
import json
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import ROOT
from mlperf_fixtures import (
    RUN_S,
    epoch_lines,
    line,
    power_lines,
    readings,
    result_lines,
    sample_lines,
    write_lines,
    write_run,
)
from typer.testing import CliRunner

import joulecast
from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.logs.mlperf import import_mlperf, runs_of
from joulecast.runs.folders import record_folders
from joulecast.runs.integration import EnergyCurve
from joulecast.runs.record import RunRecord, read_record

SHIPPED = ROOT / "recorded/mlperf-power"
RAW = ROOT.parent / "shared/data/mlperf_power/raw"


def imported(source: Path, out: Path) -> dict[str, RunRecord]:
    """All records that an import leaves, also one that ends in an error."""
    try:
        import_mlperf(source, out)
    except JoulecastError as error:
        assert "no run is left" in str(error)
    return {folder.name: read_record(folder) for folder in sorted(out.iterdir())}


def the_one(source: Path, out: Path) -> RunRecord:
    (record,) = imported(source, out).values()
    return record


def kinds(texts: list[str]) -> set[str]:
    return {text.split(":")[0] for text in texts}


def node_joules(record: RunRecord, node: str = "node_0") -> float:
    curve = EnergyCurve.of(record.power[record.power["node"] == node])
    outcome = record.info.outcome
    return float(curve.between(np.array(outcome.start_s), np.array(outcome.stop_s)))


def test_a_clean_run_says_what_its_files_say(tmp_path):
    write_run(tmp_path / "results")
    record = the_one(tmp_path / "results", tmp_path.with_name(f"{tmp_path.name}-out"))
    info = record.info
    assert info.left_out == [] and info.remarks == []
    assert info.spec.run == "resnet-2xacme-fast9000-result_1"
    assert info.spec.kind == "imported" and info.spec.nodes == 2 and info.spec.ranks_per_node == 8
    assert info.spec.platform.name == "2xACME-Fast9000"
    imported = info.spec.imported
    assert imported.model_dump() == {
        "benchmark": "resnet",
        "submission": "resnet-2xACME-Fast9000-result_1",
        "global_batch_size": 8,
        "accelerators_per_node": 8,
        "accelerator": "Fast9000",
        "work_unit": "epochs",
    }
    assert info.versions == {"framework": "Frame 1.2"}
    assert info.started_utc == "2024-05-06T12:53:20+00:00"
    assert info.outcome.model_dump(include={"start_s", "stop_s", "samples", "reached_target"}) == {
        "start_s": 30.0,
        "stop_s": 230.0,
        "samples": 4,
        "reached_target": True,
    }
    assert info.spec.sample_period_s == pytest.approx(2.0, abs=0.05)
    assert info.energy_source == "imported"
    assert node_joules(record) == pytest.approx(6000 * 200, rel=0.01)
    assert [(m.node, m.readings, m.shared_with) for m in info.meters] == [
        ("node_0", 130, []),
        ("node_1", 130, []),
    ]
    assert info.meters[0].coverage == 1.0
    phases = record.phases.set_index(["phase", "index"])
    assert tuple(phases.loc[("init", 0), ["start_s", "stop_s"]]) == (0, 30)
    assert tuple(phases.loc[("run", 0), ["start_s", "stop_s", "samples"]]) == (30, 230, 4)
    assert tuple(phases.loc[("epoch", 2), ["start_s", "stop_s", "samples"]]) == (80, 125, 1)
    assert tuple(phases.loc[("evaluation", 2), ["start_s", "stop_s"]]) == (125, 130)


def test_work_in_samples_where_evaluations_count_them(tmp_path):
    write_run(tmp_path / "in", result=result_lines(sample_lines(), nodes=2))
    record = the_one(tmp_path / "in", tmp_path / "out")
    assert record.info.spec.imported.work_unit == "samples"
    assert record.info.outcome.samples == 1600 and record.info.outcome.steps == 200
    blocks = record.phases[record.phases["phase"] == "block"]
    assert list(blocks["index"]) == [0, 400, 800, 1200]
    assert list(blocks["samples"]) == [400] * 4
    evaluations = record.phases[record.phases["phase"] == "evaluation"]
    assert list(evaluations["index"]) == [400, 800, 1200, 1600]
    assert evaluations["samples"].isna().all()


@pytest.mark.parametrize(
    "counted, train_samples, total",
    [((150_069, 299_488), None, 299_488), ((0.25, 0.5), 4_000_000, 2_000_000)],
    ids=["BERT calls samples epochs", "DLRM counts shares of its epoch"],
)
def test_work_of_a_single_epoch_is_in_samples(tmp_path, counted, train_samples, total):
    events = [line("train_samples", 30, train_samples)] if train_samples else []
    events.append(line("epoch_start", 30, epoch_num=0))
    for i, index in enumerate(counted):
        events += [
            line("eval_start", 100 + 90 * i, epoch_num=index),
            line("eval_stop", 110 + 90 * i, epoch_num=index),
        ]
    # BERT's only epoch stops under another number than it starts with.
    events.append(line("epoch_stop", 229, epoch_num=counted[-1]))
    write_run(tmp_path / "in", result=result_lines(events, nodes=2))
    record = the_one(tmp_path / "in", tmp_path / "out")
    assert record.info.spec.imported.work_unit == "samples"
    assert record.info.outcome.samples == total
    (epoch,) = record.phases[record.phases["phase"] == "epoch"].itertuples()
    assert (epoch.start_s, epoch.stop_s, epoch.samples) == (30, 229, total)
    assert record.phases[record.phases["phase"] == "evaluation"]["index"].iloc[-1] == total


@pytest.mark.parametrize("closed", [True, False])
def test_an_epoch_that_was_cut_short_is_no_work(tmp_path, closed):
    events = [*epoch_lines(), line("epoch_start", 225, epoch_num=5)]
    events += [line("epoch_stop", 230, epoch_num=5)] if closed else []
    write_run(tmp_path / "in", result=result_lines(events, nodes=2))
    record = the_one(tmp_path / "in", tmp_path / "out")
    assert record.info.outcome.samples == 4
    epochs = record.phases[record.phases["phase"] == "epoch"]
    assert list(epochs["samples"]) == [1, 1, 1, 1, 0]
    assert epochs["stop_s"].iloc[-1] == 230


def test_what_runs_on_after_the_target_is_no_part_of_the_run(tmp_path):
    events = [
        *sample_lines(),
        line("block_start", 230.5, samples_count=1600),
        line("block_stop", 280, samples_count=1600),
        line("eval_start", 281, samples_count=1200),
        line("eval_stop", 300, samples_count=1200),
    ]
    write_run(tmp_path / "in", result=result_lines(events, nodes=2))
    record = the_one(tmp_path / "in", tmp_path / "out")
    assert record.phases["stop_s"].max() == 230
    assert kinds(record.info.remarks) == {"evaluations after the run"}


@pytest.mark.parametrize("deeper", ["results", "SMC/results", "v4.0/SMC/results", "closed", "."])
def test_results_may_lie_anywhere(tmp_path, deeper):
    source = tmp_path / "in"
    write_run(source / deeper)
    record = the_one(source, tmp_path / "out")
    assert record.info.left_out == []
    assert record.info.spec.platform.name == "2xACME-Fast9000"
    assert record.info.spec.imported.benchmark == "resnet"


@pytest.mark.parametrize("inside", ["2xACME-Fast9000", "2xACME-Fast9000/resnet"])
def test_the_source_may_be_a_folder_inside_a_submission(tmp_path, inside):
    write_run(tmp_path / "results")
    record = the_one(tmp_path / "results" / inside, tmp_path / "out")
    assert record.info.spec.run == "resnet-2xacme-fast9000-result_1"
    assert record.info.left_out == []


@pytest.mark.parametrize(
    "stem, folder",
    [
        ("result_12", "result_12"),
        ("result_5759-240517075402311260012_2", "result_5759-240517075402311260012_2"),
        ("result_1", "result_01"),
        ("result_01", "result_1"),
        ("result_0", "result_00"),
        ("result_4952-2405_raw_06", "result_4952-2405_06"),
        ("result_4952-2405_7", "result_4952-2405_raw_07"),
    ],
)
def test_power_folders_are_found_under_either_numbering(tmp_path, stem, folder):
    write_run(tmp_path / "in", stem, folder=folder)
    record = the_one(tmp_path / "in", tmp_path / "out")
    assert record.info.left_out == [] and record.info.meters[0].readings == 130


@pytest.mark.parametrize(
    "stem, folder", [("result_1", "result_10"), ("result_100", "result_10"), ("result_1", "x_1")]
)
def test_power_folders_of_other_runs_are_not_taken(tmp_path, stem, folder):
    write_run(tmp_path / "in", stem, folder=folder)
    record = the_one(tmp_path / "in", tmp_path / "out")
    assert kinds(record.info.remarks) == {"no power folder"} and record.power.empty
    assert record.info.left_out == [] and record.info.energy_source is None


def test_a_power_folder_that_two_runs_could_mean_is_taken_for_neither(tmp_path):
    place = write_run(tmp_path / "in", "result_01", folder="result_001")
    write_lines(place / "result_1.txt", result_lines(nodes=2))
    write_run(tmp_path / "in", "result_2", seed=2)
    assert {run.stem: bool(run.power) for run in runs_of(tmp_path / "in")} == {
        "result_01": False,
        "result_1": False,
        "result_2": True,
    }


def test_two_submitters_of_the_same_system_are_kept_apart(tmp_path):
    write_run(tmp_path / "in/ac/results", seed=1)
    write_run(tmp_path / "in/dc/results", seed=2)
    found = imported(tmp_path / "in", tmp_path / "out")
    assert set(found) == {
        "ac-resnet-2xacme-fast9000-result_1",
        "dc-resnet-2xacme-fast9000-result_1",
    }
    assert len({record.info.spec_sha256 for record in found.values()}) == 2
    assert {record.info.spec.campaign for record in found.values()} == {"ac", "dc"}


@pytest.mark.parametrize(
    "system, result, nodes",
    [
        ("8xACME", result_lines(nodes=2), 2),
        ("2xACME", result_lines(), 2),
        ("ACME-8xFast9000", [line("submission_platform", 0, "2xACME"), *result_lines()], 2),
        ("ACME", [":::DLPAL image.sqsh 4960 2 n1,n2 CLUSTER conf", *result_lines()], 2),
        ("ACME", result_lines(), 2),
        ("2xACME", result_lines(nodes=10**12), 2),
    ],
    ids=["SYSJSON", "system", "platform", "DLPAL", "files", "garbled SYSJSON"],
)
def test_where_the_number_of_nodes_comes_from(tmp_path, system, result, nodes):
    write_run(tmp_path / "in", system=system, result=result)
    record = the_one(tmp_path / "in", tmp_path / "out")
    assert record.info.spec.nodes == nodes and record.info.left_out == []


def test_the_description_of_the_system_is_read_where_the_log_has_none(tmp_path):
    nothing = ':::SYSJSON {"number_of_nodes": "1", "accelerators_per_node": ""}'
    result = [nothing, *result_lines()]
    write_run(tmp_path / "in/ACME/results", system="Box-8xF", nodes=1, result=result)
    facts = {"number_of_nodes": 1, "accelerators_per_node": 8, "accelerator_model_name": "F"}
    write_lines(tmp_path / "in/ACME/systems/Box-8xF.json", [json.dumps(facts)])
    spec = the_one(tmp_path / "in", tmp_path / "out").info.spec
    assert (spec.nodes, spec.imported.accelerators_per_node, spec.imported.accelerator) == (
        1,
        8,
        "F",
    )


def assert_same_records(left: dict[str, RunRecord], right: dict[str, RunRecord]) -> None:
    assert set(left) == set(right)
    for name, record in left.items():
        other = right[name]
        assert record.info.model_dump(exclude={"source"}) == other.info.model_dump(
            exclude={"source"}
        )
        pd.testing.assert_frame_equal(record.power, other.power)
        pd.testing.assert_frame_equal(record.phases, other.phases)


def test_shared_meters_are_named_and_the_run_is_kept(tmp_path):
    same = power_lines(readings(7))
    write_run(tmp_path / "in", nodes=3, power={"node_0": same, "node_2": same})
    info = the_one(tmp_path / "in", tmp_path / "out").info
    assert info.left_out == []
    assert [meter.shared_with for meter in info.meters] == [["node_2"], [], ["node_0"]]
    (remark,) = info.remarks
    assert (
        remark.startswith("shared meters: 3 nodes have 2 distinct") and "node_0 = node_2" in remark
    )


def test_gaps_are_remarked_with_their_length(tmp_path):
    write_run(tmp_path / "in", changed=lambda found: [r for r in found if not 101 < r[0] < 119])
    info = the_one(tmp_path / "in", tmp_path / "out").info
    assert info.left_out == []
    (remark,) = info.remarks
    assert remark.startswith("gaps: node_0.txt: 1 longer than 3 x 2.0") and "20." in remark
    assert info.meters[0].longest_gap_s == pytest.approx(20, abs=0.2)
    assert info.meters[0].coverage == pytest.approx(0.9, abs=0.01)


def test_a_meter_that_fails_under_load_is_an_outage(tmp_path):
    def fails(found):
        return [(t, 10.0 if 100 <= t <= 170 else w) for t, w in found]

    write_run(tmp_path / "in", changed=fails)
    record = the_one(tmp_path / "in", tmp_path / "out")
    (reason,) = record.info.left_out
    assert reason.startswith("coverage: node_0.txt: 36.0 % of the run is without readings")
    (failed,) = [text for text in record.info.remarks if text.startswith("failed readings")]
    assert "node_0.txt: 35 below" in failed and "between 100 and 168 s" in failed
    assert record.info.meters[0].failed_reads == 35
    assert record.power[record.power["node"] == "node_0"]["watts"].min() > 2000


def test_a_single_failed_reading_is_dropped_and_the_run_kept(tmp_path):
    def fails(found):
        return [(t, 0.0 if 100 <= t <= 102 else w) for t, w in found]

    write_run(tmp_path / "in", changed=fails)
    record = the_one(tmp_path / "in", tmp_path / "out")
    assert record.info.left_out == [] and kinds(record.info.remarks) == {"failed readings"}
    assert record.info.meters[0].failed_reads == 1
    assert node_joules(record) == pytest.approx(6000 * 200, rel=0.01)


def test_estimates_of_switches_are_no_part_of_the_nodes(tmp_path):
    write_run(tmp_path / "in", power={"sw_0": [line("interconnect_power_est", 100, 16100)]})
    info = the_one(tmp_path / "in", tmp_path / "out").info
    assert info.left_out == [] and info.energy_source == "imported" and info.remarks == []
    assert {meter.node for meter in info.meters} == {"node_0", "node_1"}


def test_a_stop_that_is_missing_or_carries_the_start_is_remarked(tmp_path):
    found = readings(5)
    as_start = [
        *power_lines(found, stop=False),
        line("power_measurement_stop", found[0][0]),
    ]
    write_run(
        tmp_path / "in",
        power={"node_0": power_lines(readings(4), stop=False), "node_1": as_start},
    )
    info = the_one(tmp_path / "in", tmp_path / "out").info
    assert info.left_out == []
    (remark,) = info.remarks
    assert remark.startswith("missing stop: node_0.txt has no power_measurement_stop; node_1.txt: ")


def test_a_conversion_efficiency_is_named_and_not_applied(tmp_path):
    lines = power_lines(readings(9))
    lines.insert(1, line("conversion_eff", -10, 0.94, measurement_type="AC"))
    write_run(tmp_path / "in", power={"node_0": lines})
    record = the_one(tmp_path / "in", tmp_path / "out")
    assert record.info.remarks == [
        "conversion efficiency: node_0.txt names 0.94; watts are as logged"
    ]
    assert node_joules(record) == pytest.approx(6000 * 200, rel=0.01)


def test_a_forecast_says_that_some_nodes_were_metered_before_their_supplies(tmp_path, monkeypatch):
    for nodes, supply in ((1, "AC"), (2, "DC")):
        monkeypatch.setattr("mlperf_fixtures.ZERO_MS", 1_715_000_000_000 + 1_000_000 * nodes)
        said = line("conversion_eff", -10, 0.94, measurement_type=supply)
        seeds = {f"node_{n}": 10 * nodes + n for n in range(nodes)}
        power = {name: [said, *power_lines(readings(seed))] for name, seed in seeds.items()}
        write_run(tmp_path / "in", system=f"{nodes}xACME", nodes=nodes, power=power)
    import_mlperf(tmp_path / "in", tmp_path / "out")
    notes = joulecast.forecast(tmp_path / "out", nodes=[4])["notes"]
    assert any("(AC)" in note and "(DC)" in note for note in notes)


def test_lines_of_other_submitters_are_read(tmp_path):
    """A rank before the mark, metadata in readings, watts as floats."""
    result = [f"0: {text}" if text.startswith(":::MLLOG") else text for text in result_lines()]
    found = readings(3)
    power = [line("power_reading", t, float(w), file="p.py", host="node_0") for t, w in found]
    write_run(tmp_path / "in", nodes=2, result=result, power={"node_0": power})
    record = the_one(tmp_path / "in", tmp_path / "out")
    assert record.info.left_out == [] and record.info.outcome.samples == 4
    node = record.power[record.power["node"] == "node_0"]
    assert list(node["watts"]) == [w for _, w in found]
    assert list(node["t_s"]) == pytest.approx([t for t, _ in found], abs=1e-9)


def test_lines_that_are_there_twice_change_nothing(tmp_path):
    write_run(tmp_path / "once")
    write_run(tmp_path / "twice", changed=lambda found: [r for r in found for _ in range(2)])
    once = the_one(tmp_path / "once", tmp_path / "out-once")
    twice = the_one(tmp_path / "twice", tmp_path / "out-twice")
    assert twice.info.left_out == [] and twice.info.remarks == []
    assert node_joules(twice) == pytest.approx(node_joules(once), abs=1e-6)


def test_stamps_that_jitter_are_sorted_and_a_clock_that_was_set_leaves_a_run_out(tmp_path):
    def swapped(found, by_s):
        watts = found[60][1]
        return [*found[:60], found[61], (found[61][0] - by_s, watts), *found[62:]]

    write_run(tmp_path / "jitter", changed=lambda found: swapped(found, 0.2))
    record = the_one(tmp_path / "jitter", tmp_path / "out-jitter")
    assert record.info.left_out == [] and kinds(record.info.remarks) == {"stamps out of order"}
    node = record.power[record.power["node"] == "node_0"]
    assert node["t_s"].is_monotonic_increasing

    write_run(tmp_path / "set", changed=lambda found: swapped(found, 2.0))
    info = the_one(tmp_path / "set", tmp_path / "out-set").info
    assert kinds(info.left_out) == {"non-monotonic stamps"}
    assert "node_0.txt: 1 stamps go back, by up to 2.000 s" in info.left_out[0]


BAD = {
    "aborted": (dict(result=result_lines(nodes=2, status="aborted")), "aborted"),
    "no run_stop": (dict(result=result_lines(nodes=2, status=None)), "no run_stop"),
    "no run_start": (
        dict(result=[t for t in result_lines(nodes=2) if "run_start" not in t]),
        "no run_start",
    ),
    "killed and requeued": (
        dict(result=[*result_lines(nodes=2), line("init_start", 150)]),
        "began again",
    ),
    "another batch in the middle": (
        dict(result=[*result_lines(nodes=2), line("global_batch_size", 150, 16)]),
        "several batches",
    ),
    "empty log": (dict(result=[""]), "empty log"),
    "text only": (dict(result=["srun: error: node n1: Killed"]), "empty log"),
    "truncated result": (
        dict(result=[*result_lines(nodes=2), line("eval_start", 229)[:70]]),
        "truncated line",
    ),
    "truncated power": (
        dict(power={"node_1": [*power_lines(readings(2)), line("power_reading", 240, 1)[:60]]}),
        "truncated line",
    ),
    "not an object": (dict(result=[*result_lines(nodes=2), ":::MLLOG 17"]), "truncated line"),
    "empty power file": (dict(power={"node_1": [""]}), "node without readings"),
    "missing power file": (dict(nodes=1, result=result_lines(nodes=2)), "node without readings"),
    "too many power files": (dict(nodes=3, result=result_lines(nodes=2)), "more meters than nodes"),
    "other day": (
        dict(changed=lambda found: [(t + 86400, w) for t, w in found]),
        "clocks do not overlap",
    ),
    "half of the run": (
        dict(changed=lambda found: [r for r in found if r[0] < 120]),
        "coverage",
    ),
    "no value of a BMC": (
        dict(scale=1.5, changed=lambda found: [*found[:60], (found[60][0], 65_535), *found[61:]]),
        "absurd watts",
    ),
    "one reading": (dict(changed=lambda found: found[60:61]), "too few readings"),
    "negative watts": (
        dict(changed=lambda found: [*found[:60], (found[60][0], -34), *found[61:]]),
        "absurd watts",
    ),
    "absurd watts": (
        dict(changed=lambda found: [*found[:60], (found[60][0], 250_000), *found[61:]]),
        "absurd watts",
    ),
    "a spike": (
        dict(changed=lambda found: [*found[:60], (found[60][0], 65_535), *found[61:]]),
        "absurd watts",
    ),
    "watts that are no number": (
        dict(power={"node_1": [*power_lines(readings(2)), line("power_reading", 240, "n/a")]}),
        "absurd watts",
    ),
    "stops first": (
        dict(result=[*result_lines(nodes=2, status=None), line("run_stop", 20, status="success")]),
        "stops before it starts",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_kept_and_marked_and_harms_no_other_run(tmp_path, case):
    changes, kind = BAD[case]
    write_run(tmp_path / "in", "result_1", **changes)
    write_run(tmp_path / "in", "result_2", seed=2)
    summary = import_mlperf(tmp_path / "in", tmp_path / "out")
    assert summary.runs == 2 and list(summary.left_out) == ["resnet-2xacme-fast9000-result_1"]
    assert summary.reasons[kind] == 1
    bad = read_record(tmp_path / "out/resnet-2xacme-fast9000-result_1")
    assert kind in kinds(bad.info.left_out)
    assert all(len(text.split(": ", 1)) == 2 for text in bad.info.left_out)
    measured = bad.power[bad.power["meter"] == "node_power"]["watts"]
    assert measured.between(0, 100e3).all()
    assert read_record(tmp_path / "out/resnet-2xacme-fast9000-result_2").info.left_out == []


def test_the_rest_of_a_truncated_file_is_kept(tmp_path):
    whole = power_lines(readings(2))
    write_run(tmp_path / "in", power={"node_1": [*whole[:100], whole[100][:80]]})
    record = the_one(tmp_path / "in", tmp_path / "out")
    assert (record.power["node"] == "node_1").sum() == 99
    assert "node_1.txt: line 101 is no complete" in record.info.left_out[0]


def test_an_empty_log_leaves_what_it_says_nothing_of_open(tmp_path):
    write_run(tmp_path / "in", result=[""], system="ACME")
    record = the_one(tmp_path / "in", tmp_path / "out")
    info = record.info
    assert (info.outcome.start_s, info.outcome.stop_s, info.outcome.samples) == (0, 0, 0)
    assert info.outcome.reached_target is None and info.spec.imported.global_batch_size is None
    assert info.spec.nodes == 2 and record.phases.empty
    assert kinds(info.left_out) == {"empty log", "no run_start", "no run_stop"}


def test_a_benchmark_without_power_is_there_for_its_times(tmp_path):
    write_run(tmp_path / "in", "result_1")
    place = tmp_path / "in/2xACME-Fast9000/gnn"
    write_lines(place / "result_1.txt", result_lines(sample_lines(), nodes=2))
    summary = import_mlperf(tmp_path / "in", tmp_path / "out")
    assert (summary.without_power, summary.clean) == (1, summary.runs)
    assert "1 without power: their times are used" in summary.text()
    record = read_record(tmp_path / "out/gnn-2xacme-fast9000-result_1")
    assert record.info.left_out == record.info.remarks == []
    assert record.info.energy_source is None and record.info.outcome.samples == 1600


@pytest.mark.parametrize("scale, word", [(0.9, "below"), (1.1, "above")])
def test_a_run_that_reads_unlike_its_repeats_is_marked_where_it_lies(tmp_path, scale, word):
    for number in range(1, 6):
        write_run(
            tmp_path / "in",
            f"result_{number}",
            seed=number,
            scale=scale if number == 3 else 1.0,
        )
    summary = import_mlperf(tmp_path / "in", tmp_path / "out")
    assert list(summary.left_out) == ["resnet-2xacme-fast9000-result_3"]
    (reason,) = read_record(tmp_path / "out/resnet-2xacme-fast9000-result_3").info.left_out
    assert f"% {word} the median of its 5 repeats (mean power of a node" in reason
    off = float(reason.split("reads ")[1].split(" %")[0])
    assert off == pytest.approx(10, abs=0.5)


def test_repeats_that_scatter_are_not_outliers(tmp_path):
    for number, scale in enumerate((0.94, 0.97, 1.0, 1.03, 1.06), start=1):
        write_run(tmp_path / "in", f"result_{number}", seed=number, scale=scale)
    assert import_mlperf(tmp_path / "in", tmp_path / "out").left_out == {}


def test_two_repeats_do_not_tell_which_one_is_wrong(tmp_path):
    write_run(tmp_path / "in", "result_1", seed=1)
    write_run(tmp_path / "in", "result_2", seed=2, scale=0.8)
    assert import_mlperf(tmp_path / "in", tmp_path / "out").left_out == {}


def test_importing_again_replaces_the_records(tmp_path):
    write_run(tmp_path / "in")
    import_mlperf(tmp_path / "in", tmp_path / "out")
    write_run(tmp_path / "in", scale=0.5)
    record = the_one(tmp_path / "in", tmp_path / "out")
    assert node_joules(record) == pytest.approx(3000 * 200, rel=0.02)


@pytest.mark.parametrize(
    ("times", "is_left_out"), [(1e-3, True), (0.03, False), (6, False), (1e3, True)]
)
def test_small_boards_and_large_nodes_are_believed_and_other_units_are_not(
    tmp_path, times, is_left_out
):
    def scaled(found):
        return [(t_s, times * watts) for t_s, watts in found]

    write_run(tmp_path / "in", nodes=1, changed=scaled)
    record = the_one(tmp_path / "in", tmp_path / "out")
    assert bool(record.info.left_out) == is_left_out, record.info.left_out
    if not is_left_out:
        assert node_joules(record) == pytest.approx(times * 6000 * 200, rel=0.02)


def test_nothing_left_fails_with_the_list_and_keeps_the_records(tmp_path):
    write_run(tmp_path / "in", "result_1", power={"node_1": [""]})
    write_run(tmp_path / "in", "result_2", result=[""])
    said = CliRunner().invoke(
        app, ["import", "mlperf", str(tmp_path / "in"), str(tmp_path / "out")]
    )
    assert said.exit_code == 2
    assert "error: " in said.output and "no run is left for fits" in said.output
    assert "result_1: node without readings: node_1.txt holds none" in said.output
    assert "result_2: empty log" in said.output
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_the_command_sums_up(tmp_path):
    write_run(tmp_path / "in", "result_1")
    write_run(tmp_path / "in", "result_2", power={"node_1": [""]})
    said = CliRunner().invoke(
        app, ["import", "mlperf", str(tmp_path / "in"), str(tmp_path / "out")]
    )
    assert said.exit_code == 0, said.output
    assert "2 runs imported" in said.output and "1 of them clean" in said.output
    assert "reason node without readings: 1" in said.output


def test_sources_that_hold_nothing_or_would_be_written_to(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(JoulecastError, match="no runs; expected SYSTEM/BENCHMARK/result_"):
        import_mlperf(tmp_path / "empty", tmp_path / "out")
    with pytest.raises(JoulecastError, match="no such folder"):
        import_mlperf(tmp_path / "nowhere", tmp_path / "out")
    write_run(tmp_path / "in")
    with pytest.raises(JoulecastError, match="lies inside"):
        import_mlperf(tmp_path / "in", tmp_path / "in" / "records")
    assert not (tmp_path / "in" / "records").exists()


def write_tables(folder: Path, **changes: str) -> None:
    power = [f"a,node_0,{t},{w}" for t, w in readings(1)]
    power += ["a,sw_0,,16100"] + [f"b,node_0,{t},{w}" for t, w in readings(2)]
    tables = {
        "runs": "run,system,benchmark,nodes,run_start_s,run_stop_s,status\n"
        f"a,1xACME,ssd,1,{RUN_S[0]},{RUN_S[1]},success\n"
        f"b,1xACME,ssd,1,{RUN_S[0]},{RUN_S[1]},success\n"
        f"c,1xACME,ssd,1,{RUN_S[0]},{RUN_S[1]},success\n",
        "events": "run,kind,index,start_s,stop_s\na,epoch,0,30,120\na,epoch,1,120,215\n"
        "a,epoch,2,225,230\na,eval,2,215,230\n",
        "power": "run,meter,t_s,watts\n" + "\n".join(power) + "\n",
    }
    folder.mkdir()
    for name, text in (tables | changes).items():
        (folder / f"{name}.csv").write_text(text)


def pack_tables(folder: Path) -> None:
    for plain in folder.glob("*.csv"):
        plain.with_suffix(".csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()


def test_tables_are_read_run_by_run(tmp_path, monkeypatch):
    monkeypatch.setattr("joulecast.logs.mlperf_tables.ROWS_AT_ONCE", 50)
    write_tables(tmp_path / "in")
    found = imported(tmp_path / "in", tmp_path / "out")
    assert kinds(found["c"].info.remarks) >= {"no power"}
    assert found["a"].info.left_out == [] and found["b"].info.left_out == []
    assert found["a"].info.outcome.samples == 2
    assert found["a"].info.meters[0].readings == len(readings(1))
    assert found["a"].info.remarks == []
    assert [meter.node for meter in found["a"].info.meters] == ["node_0"]
    assert kinds(found["b"].info.remarks) == {"work unknown"}


def test_packed_tables_are_those_that_were_packed(tmp_path):
    for name in ("plain", "packed"):
        write_tables(tmp_path / name)
    pack_tables(tmp_path / "packed")
    plain, packed = (imported(tmp_path / n, tmp_path / f"{n}-out") for n in ("plain", "packed"))
    assert plain.keys() == packed.keys() and len(plain) == 3
    for name, record in plain.items():
        pd.testing.assert_frame_equal(record.power, packed[name].power)
        assert record.info.outcome == packed[name].info.outcome


@pytest.mark.parametrize("broken", ["no gzip", "cut off", "a bomb"])
def test_a_packed_table_that_is_broken_is_named(tmp_path, monkeypatch, broken):
    write_tables(tmp_path / "in")
    pack_tables(tmp_path / "in")
    power = tmp_path / "in/power.csv.gz"
    content = power.read_bytes()
    said = "is no table"
    if broken == "a bomb":
        power.write_bytes(gzip.compress(b"run,meter,t_s,watts\n" + b"a,n,1,2\n" * 1_000_000))
        monkeypatch.setattr("joulecast.runs.files.columns.MAX_TABLE_BYTES", 1_000_000)
        said = "unfolds to more than 1 MB"
    else:
        power.write_bytes(b"a,b\n1,2\n" if broken == "no gzip" else content[: len(content) // 2])
    with pytest.raises(JoulecastError, match=rf"power\.csv\.gz: {said}"):
        import_mlperf(tmp_path / "in", tmp_path / "out")


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"runs": "run,system\na,b\n"}, "runs.csv: lacks the columns benchmark, status, nodes"),
        ({"power": "run,meter,t_s,watts\na,n,1,2\nb,n,1,2\na,n,2,2\n"}, "do not lie together"),
        ({"events": ""}, "events.csv: is no table"),
    ],
)
def test_tables_that_are_none_are_refused_by_name(tmp_path, monkeypatch, changes, said):
    monkeypatch.setattr("joulecast.logs.mlperf_tables.ROWS_AT_ONCE", 1)
    write_tables(tmp_path / "in", **changes)
    with pytest.raises(JoulecastError, match=said):
        import_mlperf(tmp_path / "in", tmp_path / "out")


def test_the_shipped_tables_have_one_run_that_cannot_be_used(tmp_path):
    summary = import_mlperf(SHIPPED, tmp_path / "out")
    assert summary.runs == 50 and list(summary.left_out) == ["ssd-n8-02"]
    assert summary.reasons["coverage"] == 1
    assert summary.traps["shared meters"] == 20
    ssd = read_record(tmp_path / "out/ssd-n8-01").info
    assert (ssd.outcome.samples, ssd.spec.imported.work_unit) == (4, "epochs")
    bert = read_record(tmp_path / "out/bert-n1-01").info
    assert (bert.outcome.samples, bert.spec.imported.work_unit) == (2100792, "samples")
    llm = read_record(tmp_path / "out/llama2_70b_lora-n8-01").info
    assert (llm.outcome.samples, llm.outcome.steps) == (3072, 384)
    assert [meter.node for meter in llm.meters if meter.source == "imported"] == [
        f"node_{number}" for number in range(1, 9)
    ]


@pytest.mark.skipif(not RAW.is_dir(), reason=f"{RAW}: logs as submitted are not shipped")
def test_submissions_agree_with_the_shipped_tables(tmp_path):
    import_mlperf(SHIPPED, tmp_path / "tables")
    raw = imported(RAW, tmp_path / "raw")
    assert len(raw) == 2
    tables = pd.read_csv(SHIPPED / "runs.csv.gz").set_index("submission_run")["run"]
    for record in raw.values():
        info = record.info
        other = read_record(tmp_path / "tables" / tables[info.spec.imported.submission])
        assert info.left_out == []
        assert info.spec.imported.accelerator == "NVIDIA H100-SXM5-80GB"
        assert info.spec.nodes == other.info.spec.nodes
        assert info.outcome == other.info.outcome
        assert [(m.node, m.readings, m.shared_with) for m in info.meters] == [
            (m.node, m.readings, m.shared_with) for m in other.info.meters
        ]
        pd.testing.assert_frame_equal(record.phases, other.phases, atol=0.002, rtol=0)
        pd.testing.assert_frame_equal(
            record.power.sort_values(["node", "t_s"], ignore_index=True),
            other.power.sort_values(["node", "t_s"], ignore_index=True),
            atol=0.002,
            rtol=0,
            check_dtype=False,
        )


def test_pipes_devices_and_links_out_of_a_folder_are_not_read(tmp_path):
    place = write_run(tmp_path / "in/ACME/results", nodes=2)
    (place / "power/result_1/node_0.txt").unlink()
    os.mkfifo(place / "power/result_1/node_0.txt")
    secret = tmp_path / "secret.txt"
    secret.write_text("the password")
    (place / "power/result_1/node_1.txt").unlink()
    (place / "power/result_1/node_1.txt").symlink_to(secret)
    with pytest.raises(JoulecastError, match=r"is a pipe or a device.*is a link that leaves"):
        import_mlperf(tmp_path / "in", tmp_path / "out")
    assert not any(
        "password" in file.read_text(errors="replace") for file in tmp_path.glob("out/*/*.json")
    )


def test_a_folder_with_too_many_files_is_refused(tmp_path, monkeypatch):
    write_run(tmp_path / "in/ACME/results")
    monkeypatch.setattr("joulecast.logs.mlperf.MAX_FILES", 2)
    with pytest.raises(JoulecastError, match="more than 2 files"):
        import_mlperf(tmp_path / "in", tmp_path / "out")


def test_names_that_are_no_text_or_too_long_become_names_of_records(tmp_path):
    results = tmp_path / "in" / ("s" * 200) / "results"
    write_run(results, "result_1", system="y" * 200, benchmark="b" * 200)
    write_run(results, "result_\udcff²", system="y" * 200, benchmark="b" * 200)
    summary = import_mlperf(tmp_path / "in", tmp_path / "out")
    assert summary.runs == 2 and len(list((tmp_path / "out").iterdir())) == 2


UNET = ROOT.parent / "shared/data/mlperf_power_unet3d"


@pytest.mark.skipif(not UNET.is_dir(), reason="U-Net's runs are not shipped")
def test_nodes_that_evaluate_beside_the_training_are_known_on_other_counts(tmp_path):
    """U-Net on one node from nine, of which some only evaluate: its steps on one wait for no other. And on
    nine from one: the nodes that evaluate wait in between, and draw more than idle."""
    for source in (SHIPPED, UNET):
        import_mlperf(source, tmp_path / source.name)
    verdict = joulecast.evaluate(
        record_folders(tmp_path), split="leave-one-node-count-out", time="given"
    )
    ours = {
        row["nodes"]: row
        for row in verdict["settings"]
        if (row["workload"], row["model"]) == ("unet3d", "MC2")
    }
    assert {*ours} == {1, 9}
    for row in ours.values():
        assert abs(row["error_percent"]) < 1 and row["covered_percent"] >= 80
