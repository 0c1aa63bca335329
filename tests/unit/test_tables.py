"""Tables: sources kept apart, published numbers beside."""

from dataclasses import replace

import pandas as pd
import pytest
from conftest import ROOT, make_record, make_spec

from joulecast.energy.campaign_fit import CampaignFit, fit_campaign
from joulecast.errors import JoulecastError
from joulecast.report.tables.checks import check_results
from joulecast.report.tables.errors import energy_summary, scaling, write_tables
from joulecast.report.tables.published import PublishedErrors
from joulecast.runs.meter_choice import MeterInfo
from joulecast.runs.observations import observe
from joulecast.runs.record import read_record, write_record
from joulecast.runs.spec import Calibration

PUBLISHED = ROOT / "config/published/mc2.yaml"
STEP = {"materials": 0.1, "computing": 0.6, "communicating_copy": 0.05, "update": 0.3}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for nodes in (1, 2):
        for repeat in (1, 2):
            spec = make_spec(f"vit_ti-n{nodes}-r{repeat}", nodes, repeat=repeat)
            step = dict(STEP) if nodes > 1 else {k: v for k, v in STEP.items() if "copy" not in k}
            step["computing"] += 0.001 * repeat
            write_record(folder / spec.run, make_record(spec, step))
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def fit(records):
    return fit_campaign(records, series_splits=1, series_period_s=0.1)


def test_observation_of_a_record_by_hand(records):
    row = observe(make_record(make_spec(nodes=2), STEP))
    assert row["t_computing_s"] == pytest.approx(0.6) and row["t_other_s"] == pytest.approx(0)
    assert row["total_s"] == pytest.approx(3 * 1.05) and row["samples"] == 24
    assert row["energy_j"] == pytest.approx(2 * 20 * 3.15)
    assert row["e_computing_j"] == pytest.approx(2 * 20 * 1.8)


def test_a_meter_that_was_read_once_gives_no_energy():
    record = make_record(make_spec(nodes=2), STEP)
    first = record.power.groupby("node").head(1)
    row = observe(replace(record, power=first))
    assert pd.isna(row["energy_j"]) and row["energy_source"] is None
    assert "fewer than two readings" in row["why_no_energy"]


def test_a_campaign_without_any_energy_of_trainings_has_all_tables(tmp_path):
    for nodes in (1, 2):
        record = make_record(make_spec(f"dark-n{nodes}", nodes), STEP)
        dark = replace(record, power=record.power.groupby("node").head(1))
        write_record(tmp_path / "records" / f"dark-n{nodes}", dark)
    record = make_record(make_spec("idle-n1"))
    spec = record.info.spec.model_copy(
        update={"kind": "idle", "workload": None, "training": None, "calibration": Calibration()}
    )
    idle = record.info.model_copy(update={"spec": spec, "spec_sha256": spec.digest()})
    write_record(tmp_path / "records/idle-n1", replace(record, info=idle))
    fit = fit_campaign(
        sorted((tmp_path / "records").iterdir()), series_splits=1, series_period_s=0.1
    )
    write_tables(tmp_path / "tables", fit, PublishedErrors.read(PUBLISHED))
    assert "fewer than two readings" in (tmp_path / "tables/energy_summary.md").read_text()
    assert len(pd.read_csv(tmp_path / "tables/scaling.csv")) == 2
    assert fit.judged("energy")["predicted"].isna().all()


def test_estimates_are_never_called_errors(fit, tmp_path):
    published = PublishedErrors.read(PUBLISHED)
    write_tables(tmp_path, fit, published)
    table = pd.read_parquet(tmp_path / "energy_error.parquet")
    assert set(table["source"]) == {"estimated"} and table["measured_j"].isna().all()
    assert table["error_percent"].isna().all() and table["difference_percent"].notna().any()
    assert set(table["judges"]) == {"no model"}
    for name in (
        "energy_error",
        "energy_summary",
        "energy_improvement",
        "scaling",
    ):
        assert "no errors of a model" in (tmp_path / f"{name}.md").read_text()
    time = pd.read_parquet(tmp_path / "time_error.parquet")
    assert time["error_percent"].notna().any()


def test_measured_energy_is_judged(fit):
    from joulecast.report.tables.errors import energy_error

    measured = fit.judged("energy").assign(energy_source="measured")
    table = energy_error(measured)
    assert table["error_percent"].equals(table["difference_percent"])
    assert set(table["judges"]) == {"models"}


def test_the_paper_stands_beside(fit):
    table = energy_summary(fit, PublishedErrors.read(PUBLISHED))
    printed = table.drop_duplicates("model").set_index("model")["published_percent"]
    assert printed["MC2"] == 2.84 and printed.drop("MC2").isna().all(), "it prints no other error"


def test_errors_of_rivals_are_computed_from_the_points_and_say_so():
    error, how = PublishedErrors.read(PUBLISHED).implied("LP2")
    assert error == 72.34 and how == "computed from the abstract: 2.84 + 69.50"


def test_scaling_by_hand(fit):
    table = scaling(fit.observations).set_index("nodes")
    assert table.loc[1, "efficiency_percent"] == pytest.approx(100)
    assert table.loc[2, "efficiency_percent"] == pytest.approx(100.15 / 1.0515, rel=1e-3)
    stages = [
        c
        for c in table.columns
        if c.endswith("_percent") and c not in ("cv_percent", "efficiency_percent")
    ]
    assert table[stages].sum(axis=1).to_numpy() == pytest.approx([100, 100])


def test_fits_survive_the_disk(fit, tmp_path):
    fit.save(tmp_path / "fits")
    again = CampaignFit.load(tmp_path / "fits")
    pd.testing.assert_frame_equal(again.predictions, fit.predictions, check_dtype=False)


def test_checks_warn_and_fail(fit, records, tmp_path):
    findings = check_results(records, fit)
    assert "passed" in set(findings["verdict"]) and "error" not in set(findings["verdict"])
    broken = fit.observations.assign(energy_j=fit.observations["energy_j"] * 2)
    found = check_results(records, replace(fit, observations=broken))
    assert "energy split" in set(found[found["verdict"] == "error"]["check"])
    record = read_record(records[0])
    missing = MeterInfo(node="n", meter="command", available=False, reason="command: no answer")
    info = record.info.model_copy(update={"meters": [*record.info.meters, missing]})
    write_record(tmp_path / "estimated", replace(record, info=info))
    found = check_results([tmp_path / "estimated"], fit)
    assert "command: no answer" in str(set(found[found["check"] == "missing meter"]["found"]))


def test_runs_with_a_fault_are_left_out_and_all_of_them_is_an_error(records, tmp_path):
    record = make_record(make_spec("dirty", seed=9))
    dirty = record.info.model_copy(update={"left_out": ["other programs kept 2 cores busy"]})
    write_record(tmp_path / "dirty", replace(record, info=dirty))
    mixed = fit_campaign([*records, tmp_path / "dirty"], series_splits=1, series_period_s=0.1)
    assert "dirty" in set(mixed.observations["run"]) and "dirty" not in set(
        mixed.judged("time")["run"]
    )
    write_tables(tmp_path, mixed, PublishedErrors.read(PUBLISHED))
    said = (tmp_path / "energy_summary.md").read_text()
    assert "1 run is left out (dirty: other programs kept 2 cores busy)" in said
    with pytest.raises(JoulecastError, match="dirty: other programs kept 2 cores busy"):
        fit_campaign([tmp_path / "dirty"], series_splits=1, series_period_s=0.1)
