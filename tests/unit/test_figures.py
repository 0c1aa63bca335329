"""Figures as files: what is drawn says its units and its source, and what is missing is said."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, make_imported, make_record, make_spec
from fuzz_examples import traces

from joulecast.energy.observations import observe_all
from joulecast.records.record import write_record
from joulecast.report.figures.live import live_cost
from joulecast.report.figures.policies import cumulative_cost
from joulecast.report.figures.policy_maps import configuration_maps
from joulecast.report.figures.power import _thinned, power_trace
from joulecast.report.figures.predicted import simulator_predictions
from joulecast.report.figures.time_parts import stage_energies, stage_times, step_by_node_count
from joulecast.tuning.policy_experiment import read_settings, replayed


def words_of(stem):
    """All text of a figure, which was written as SVG and as PDF."""
    assert stem.with_name(f"{stem.name}.pdf").read_bytes().startswith(b"%PDF")
    svg = stem.with_name(f"{stem.name}.svg").read_text()
    return re.findall(r"<text[^>]*>([^<]+)</text>", svg)


def test_one_module_has_all_colours():
    found = {
        path.name
        for path in (ROOT / "src/joulecast/report/figures").glob("*.py")
        if re.search(r"#[0-9A-Fa-f]{6}", path.read_text())
    }
    assert found == {"look.py"}


@pytest.fixture
def runs(tmp_path):
    """Own runs with estimated energies, and imported ones."""
    for nodes in (1, 2):
        write_record(tmp_path / f"runs/own{nodes}", make_record(make_spec(f"own{nodes}", nodes)))
        record = make_imported(f"box-n{nodes}", nodes=nodes)
        write_record(tmp_path / f"runs/box{nodes}", record)
    return observe_all(sorted((tmp_path / "runs").iterdir()))


def test_energies_of_each_source_have_a_chart_of_their_own(runs, tmp_path):
    stage_energies(runs, tmp_path / "a.b")
    words = words_of(tmp_path / "a.b")
    assert "joules per sample (estimated)" in words
    assert "joules per sample or epoch (imported)" in words
    assert {"training", "stalled", "computing", "exchanging", "2 nodes"} <= set(words)
    mixed = runs.assign(energy_source=np.where(runs["nodes"] == 2, "measured", "estimated"))
    stage_energies(mixed[mixed["kind"] == "training"], tmp_path / "mixed")
    words = words_of(tmp_path / "mixed")
    assert "joules per sample (measured)" in words and "joules per sample (estimated)" in words


def test_what_is_not_known_is_said(runs, tmp_path):
    stage_times(runs[runs["kind"] == "imported"], tmp_path / "times")
    assert "Nothing to show: no run tells its stages." in words_of(tmp_path / "times")
    stage_energies(runs.assign(energy_j=np.nan), tmp_path / "dark")
    assert "Nothing to show: no run has an energy." in words_of(tmp_path / "dark")
    parts = {column: np.nan for column in ("training_j", "evaluating_j")}
    stage_energies(runs.assign(**parts).query("kind == 'imported'"), tmp_path / "parts")
    assert "Nothing to show: no part is known." in words_of(tmp_path / "parts")
    record = make_record(make_spec())
    meters = [
        m.model_copy(update={"available": False, "reason": "no RAPL"}) for m in record.info.meters
    ]
    info = record.info.model_copy(update={"meters": meters})
    power_trace(replace(record, info=info, power=record.power.iloc[:0]), tmp_path / "trace")
    assert "no RAPL" in " ".join(words_of(tmp_path / "trace"))


def test_a_trace_names_its_source_and_what_the_run_did(tmp_path):
    power_trace(make_record(make_spec()), tmp_path / "own")
    words = words_of(tmp_path / "own")
    assert "power, W (estimated)" in words and "run clock, s" in words
    assert {"stage of rank 0", "computing", "updating"} <= set(words)
    power_trace(make_imported("box-n2", nodes=2), tmp_path / "imported")
    words = words_of(tmp_path / "imported")
    assert {"power, W (imported)", "phase", "training"} <= set(words)


def test_a_long_trace_is_drawn_by_means():
    long = pd.DataFrame({"t_s": np.arange(4000.0), "watts": [10.0, 20.0, 30.0, 40.0] * 1000})
    thin = _thinned(long)
    assert len(thin) == 1000 and thin["watts"].mean() == long["watts"].mean()
    assert _thinned(long.head(9)).equals(long.head(9))


def test_simulated_and_measured_steps_are_told_apart(tmp_path):
    steps = {"measured_s": [1.0, 2.0], "predicted_s": [1.1, 1.9], "family": ["pipeline", "1f1b"]}
    judged = pd.DataFrame(steps).assign(experiment="real training", source="recorded")
    simulator_predictions(judged, tmp_path / "judged")
    words = words_of(tmp_path / "judged")
    assert {"real training (recorded)", "measured step, s", "simulated, s", "1f1b"} <= set(words)
    assert "Shaded: 3 % either way." in words
    parts = {"computing_s": 0.1, "exposed_communication_s": 0.05, "bubble_s": 0.0, "step_s": 0.15}
    row = {"platform": "hc2", "network": "vgg16", "nodes": 1, "rests_on": "simulated"} | parts
    forecast = pd.DataFrame([row, row | {"nodes": 2}, row | {"rests_on": "measured"}])
    step_by_node_count(forecast, tmp_path / "steps")
    words = words_of(tmp_path / "steps")
    assert {"vgg16 on hc2", "milliseconds of a step", "2 nodes"} <= set(words)
    assert "Bars are simulated; dots were measured." in words
    step_by_node_count(forecast.assign(rests_on="fitted"), tmp_path / "none")
    assert "Nothing to show: no platform could be simulated." in words_of(tmp_path / "none")


def test_replayed_policies_are_drawn_for_every_setting(tmp_path):
    traces(tmp_path)
    settings = read_settings(tmp_path, ["cifar100"], ["v100"])
    replays = {policy: replayed(settings, policy, 2, 6) for policy in ("zeus", "curve")}
    cumulative_cost(replays, settings, 0.5, tmp_path / "costs")
    words = words_of(tmp_path / "costs")
    assert {"cifar100, v100", "cost so far / default", "zeus", "curve"} <= set(words)
    assert any("(replayed)" in word for word in words)
    configuration_maps(replays, settings, 0.5, tmp_path / "maps")
    words = words_of(tmp_path / "maps")
    assert {"cifar100, v100: curve", "power limit, W", "cost / default", "1024"} <= set(words)


def test_a_training_that_was_tuned_live(tmp_path):
    row = {"number": 0, "cost": 2.0, "batch_size": 32, "phase": "prune", "energy_j": None}
    rows = [row, row | {"number": 1, "cost": None, "batch_size": 64}]
    record = {"network": "lenet5", "policy": "zeus", "cost_unit": "s", "recurrences": rows}
    live_cost(record, tmp_path / "live")
    words = words_of(tmp_path / "live")
    assert {"lenet5, tuned live by zeus", "cost, s", "mean so far", "32", "64"} <= set(words)
    assert "Cost is time only, since no energy was measured." in words
    joules = {"cost_unit": "J", "energy_source": "measured"}
    live_cost(record | joules, tmp_path / "joules")
    assert "Cost is energy and time, weighed. Energy is measured." in words_of(tmp_path / "joules")
    live_cost(record | {"recurrences": rows[1:]}, tmp_path / "none")
    assert "no training that was tuned live" in " ".join(words_of(tmp_path / "none"))
