"""Forecasts for hardware that none of the records ran on."""

import pandas as pd
import pytest
from conftest import ROOT
from log_fixtures import run
from typer.testing import CliRunner

import joulecast
from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.logs.mlperf import import_mlperf
from joulecast.runs.files.shipped import recorded_folder
from joulecast.runs.record import read_info
from joulecast.runs.recorded import unpack_all

RESNET = {"graph": {"resnet": "resnet50"}}


def _times(submitter: str, benchmark: str) -> pd.DataFrame:
    """Recorded runs of a submitter on nodes of eight."""
    table = pd.read_csv(recorded_folder(ROOT / "recorded/mlperf-times") / "runs.csv.gz")
    of = (table["org"] == submitter) & (table["benchmark"] == benchmark)
    return table[of & (table["nodes"] == 1) & (table["accelerators_per_node"] == 8)]


def _imported(runs: pd.DataFrame, folder):
    (folder / "table").mkdir(parents=True)
    runs.to_csv(folder / "table/runs.csv.gz", index=False)
    import_mlperf(folder / "table", folder / "records")
    return folder / "records"


@pytest.fixture(scope="module")
def on_l40s(tmp_path_factory):
    runs = _times("Fujitsu", "resnet")
    runs = runs[runs["accelerator"].str.contains("L40S")]
    return _imported(runs, tmp_path_factory.mktemp("l40s"))


@pytest.mark.long
def test_a_submitters_times_on_one_gpu_foretell_those_on_another(on_l40s, tmp_path):
    runs = _times("Fujitsu", "resnet")
    was = runs[runs["accelerator"].str.contains("A100")]
    ledger = tmp_path / "ledger.jsonl"
    asked = {"platform": "a100-80gb-pcie", "batch": 3200, "keep": ledger, **RESNET}
    (row,) = joulecast.forecast(on_l40s, epochs=float(was["work"].mean()), **asked)["forecasts"]
    assert row["basis"] == "simulated" and (row["nodes"], row["gpus"]) == (1, 8)
    assert row["time_s"] == pytest.approx(was["seconds"].mean(), rel=0.3)
    assert row["time_low_s"] < was["seconds"].min() < was["seconds"].max() < row["time_high_s"]
    # As uncertain as the time, and as the power.
    assert row["energy_high_j"] / row["energy_j"] > row["time_high_s"] / row["time_s"]
    times = range(0, round(was["seconds"].mean()), 2)
    readings = "".join(f"{t},{2000 + t % 7}\n" for t in times)
    (tmp_path / "gpus.csv").write_text("t,w\n" + readings)
    words = ["--run", "later", "--network", "resnet", "--platform", str(row["platform"])]
    words += ["--epochs", "35", "--batch-size", "3200", "--accelerators", "8", "--covers", "gpu"]
    words += ["--map", "time=t,watts=w"]
    done = run("import", "csv", tmp_path / "gpus.csv", tmp_path / "there", *words)
    assert done.exit_code == 0, done.output
    (later,) = joulecast.evaluate([on_l40s, tmp_path / "there"], ledger=ledger)["settings"]
    assert later["time_s"] == row["time_s"] and later["time_inside"]
    # The forecast is of whole nodes, but only GPUs had a meter.
    assert row["energy_j"] and later["energy_was_j"] is None


@pytest.mark.long
def test_a_training_that_is_slow_here_is_slow_there(on_l40s, tmp_path):
    slow = pd.read_csv(on_l40s.parent / "table/runs.csv.gz")
    slow["seconds"] *= 2
    asked = {"platform": "h100-sxm", "nodes": [1], "price": 0.3, **RESNET}
    usual, twice = (
        joulecast.forecast(records, **asked)["forecasts"][0]
        for records in (on_l40s, _imported(slow, tmp_path))
    )
    for amount in ("time_s", "time_high_s", "energy_j", "cost"):
        assert twice[amount] == pytest.approx(2 * usual[amount])


@pytest.mark.long
def test_the_work_to_the_target_follows_the_batch(on_l40s):
    asked = {"platform": "h100-sxm", "to_target": True, **RESNET}
    (small,), (large,) = (
        joulecast.forecast(on_l40s, batch=batch, **asked)["forecasts"] for batch in (3200, 64000)
    )
    assert large["work"] > 1.1 * small["work"]
    widths = [row["time_high_s"] / row["time_low_s"] for row in (small, large)]
    assert 1 < widths[0] < widths[1]


def test_what_was_simulated_is_told(on_l40s):
    words = ["--records", str(on_l40s), "--platform", "b200", "--graph", "resnet=resnet50"]
    out = CliRunner().invoke(app, ["forecast", *words, "--nodes", "2"])
    assert out.exit_code == 0
    assert all(word in out.output for word in ("simulated", "8 x l40s", "16 x b200", "resnet50"))


def test_a_count_that_cannot_run_leaves_the_others(on_l40s):
    words = ["--records", str(on_l40s), "--platform", "b200", "--graph", "resnet=resnet50"]
    out = CliRunner().invoke(app, ["forecast", *words, "--gpus", "8192,8,3"])
    assert out.exit_code == 0 and "8192 x b200" in out.output
    # Both are on one node.
    assert "8 GPUs in use" in out.output and "3 GPUs in use" in out.output


@pytest.mark.parametrize(
    ("asked", "way_out"),
    [
        ({"platform": "h100-sxm"}, "--graph resnet="),
        ({"platform": "h100-sxm", **RESNET, "ran_on": "abacus"}, "abacus"),
        ({"platform": "l40s", **RESNET}, "leave out --platform"),
        ({"platform": "h100-sxm", **RESNET, "whole_job": True}, "leave out whole-job"),
        ({"platform": "h100-sxm", **RESNET, "samples": 1e6}, "--epochs"),
        (RESNET, "give platform"),
        ({"precision": "fp32"}, "give platform"),
    ],
)
def test_what_cannot_be_forecast_elsewhere_is_refused_with_a_way_out(on_l40s, asked, way_out):
    with pytest.raises(JoulecastError, match=way_out):
        joulecast.forecast(on_l40s, **asked)


def test_records_say_their_precision_and_that_only_gpus_were_metered():
    """A campaign trains at bf16 by autocast."""
    found = joulecast.forecast("one-h100", platform="h200-sxm")
    assert all(" at amp on 1 x h200-sxm" in row["rests_on"] for row in found["forecasts"])
    assert any("only the GPUs of the nodes had meters" in note for note in found["notes"])
    (asked, *_) = joulecast.forecast("one-h100", platform="h200-sxm", precision="tf32")["forecasts"]
    assert " at tf32 on " in asked["rests_on"]


def test_another_precision_is_of_the_forecast_and_not_of_the_records():
    """The records correct the simulator at their own precision. So the factor stays."""
    factors, times = set(), []
    for precision in ("amp", "bf16", "tf32"):
        forecasts = joulecast.forecast("one-h100", platform="h200-sxm", precision=precision)
        (first, *_) = forecasts["forecasts"]
        factors.add(first["rests_on"].partition("times ")[2])
        times.append(first["time_s"])
    assert len(factors) == 1 and len(set(times)) == 3


def test_a_gpu_needs_the_precision_of_the_records_and_not_bf16(tmp_path):
    unpack_all(ROOT / "recorded/one-h100", tmp_path)
    for file in tmp_path.rglob("run.json"):
        info = read_info(file.parent)
        if info.spec.training is not None:
            training = info.spec.training.model_copy(update={"precision": "fp32"})
            spec = info.spec.model_copy(update={"training": training})
            changed = {"spec": spec, "spec_sha256": spec.digest()}
            file.write_text(info.model_copy(update=changed).model_dump_json())
    found = joulecast.forecast(tmp_path, platform="v100")["forecasts"]
    assert found and all(" at fp32 on 1 x v100" in row["rests_on"] for row in found)
    with pytest.raises(JoulecastError, match="at which amp computes"):
        joulecast.forecast("one-h100", platform="p4")
