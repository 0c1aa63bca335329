"""Forecasts that were kept, against what ran later."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
from conftest import make_observed
from typer.testing import CliRunner

import joulecast
from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.logs.mlperf import import_mlperf
from joulecast.runs.files.shipped import recorded_folder
from joulecast.runs.record import write_record


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Metered runs, three of each setting: all of them, and those on one node."""
    folder = tmp_path_factory.mktemp("ledger")
    import_mlperf(recorded_folder(Path("recorded/mlperf-power")), folder / "imported")
    for record in (folder / "imported").glob("resnet-*"):
        if not re.search(r"-0[1-3]$", record.name):
            continue
        shutil.copytree(record, folder / "all" / record.name)
        if "-n1-" in record.name:
            shutil.copytree(record, folder / "before" / record.name)
    return folder


def test_a_forecast_is_judged_once_its_setting_ran(runs, tmp_path):
    ledger, asked = tmp_path / "ledger.jsonl", {"nodes": [8], "price": 0.3, "co2": 300}
    foretold = joulecast.forecast(runs / "before", keep=ledger, **asked)
    before = joulecast.evaluate(runs / "before", ledger=ledger)
    assert before["settings"] == [] and len(before["waiting"]) == len(foretold["forecasts"])
    later = joulecast.evaluate(runs / "all", ledger=ledger)
    assert later["settings"] and len(later["settings"]) + len(later["waiting"]) == len(
        before["waiting"]
    )
    rows = {row["workload"]: row for row in foretold["forecasts"]}
    for judged in later["settings"]:
        row = rows[judged["workload"]]
        # One question has one answer: the forecast of the same question, now that it ran.
        (answer,) = (
            each
            for each in joulecast.forecast(
                runs / "all",
                **asked,
                batch=round(row["batch_size"]),
                **{row["work_unit"]: row["work"]},
            )["forecasts"]
            if each["workload"] == judged["workload"]
        )
        assert answer["basis"] == "measured"
        for name in ("time_s", "energy_j", "cost", "co2_kg"):
            quantity, _, unit = name.partition("_")
            was = judged["_".join(filter(None, (quantity, "was", unit)))]
            assert judged[name] == row[name] and was == pytest.approx(answer[name])
            error = 100 * (row[name] / answer[name] - 1)
            assert judged[f"{quantity}_error_percent"] == pytest.approx(error)
    by_quantity = {row["quantity"]: row for row in later["summary"]}
    missed = sum(row["cost_was"] - row["cost"] for row in later["settings"])
    assert by_quantity["cost"]["missed"] == pytest.approx(missed)
    inside = [row["energy_inside"] for row in later["settings"]]
    assert by_quantity["energy"]["covered_percent"] == pytest.approx(
        100 * sum(inside) / len(inside)
    )


def test_what_had_run_is_no_forecast(runs, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    rows = joulecast.forecast(runs / "before", nodes=[1, 8], keep=ledger)["forecasts"]
    judged = joulecast.evaluate(runs / "all", ledger=ledger)
    unseen = [row for row in rows if row["basis"] != "measured"]
    assert len(judged["settings"]) + len(judged["waiting"]) == len(unseen) < len(rows)


def test_folders_in_another_order_are_the_same_records(runs):
    folders = sorted((runs / "all").iterdir())
    one, other = (joulecast.forecast(each, [4]) for each in (folders, folders[::-1]))
    assert one["forecasts"] == other["forecasts"]


def test_a_training_to_a_target_is_judged_whatever_work_it_took(runs, tmp_path):
    ledger, asked = tmp_path / "ledger.jsonl", {"nodes": [8], "to_target": True}
    joulecast.forecast(runs / "before", keep=ledger, **asked)
    entry = json.loads(ledger.read_text())
    for row in entry["forecasts"]:
        row["work"] *= 1.2
    ledger.write_text(json.dumps(entry) + "\n")
    (judged,) = joulecast.evaluate(runs / "all", ledger=ledger)["settings"]
    (took,) = joulecast.forecast(runs / "all", **asked)["forecasts"]
    assert judged["time_was_s"] == took["time_s"] and took["basis"] == "measured"


def test_ranks_on_other_hosts_are_another_setting(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    for ranks in (1, 2, 4):
        record = make_observed(ranks)
        for folder in ("all", "before")[: 2 if ranks < 4 else 1]:
            write_record(tmp_path / folder / record.info.spec.run, record)
    for per_host in (4, 2, 1):
        joulecast.forecast(tmp_path / "before", gpus=[4], gpus_per_node=per_host, keep=ledger)
    judged = joulecast.evaluate(tmp_path / "all", ledger=ledger)
    # It ran on four ranks of one host.
    assert (len(judged["settings"]), len(judged["waiting"])) == (1, 2)


def test_the_commands_keep_and_judge(runs, tmp_path):
    ledger = str(tmp_path / "ledger.jsonl")
    for currency in ("EUR", "JPY"):
        words = ["forecast", "--records", str(runs / "before"), "--nodes", "8", "--keep", ledger]
        words += ["--price", "0.3", "--currency", currency, "--co2", "300"]
        assert CliRunner().invoke(app, words).exit_code == 0
    assert len(Path(ledger).read_text().splitlines()) == 2
    words = ["evaluate", "--records", str(runs / "all"), "--ledger", ledger]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0 and "inside the 90 % interval" in said.output
    verdict = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert re.search(r"^co2: .* k?g (more|less) than", said.output, re.MULTILINE)
    # Money of two currencies is not added.
    costs = [row for row in verdict["summary"] if row["quantity"] == "cost"]
    assert [row["currency"] for row in costs] == ["EUR", "JPY"] and "cost in JPY: " in said.output
    assert costs[0]["missed"] == pytest.approx(costs[1]["missed"])
    # Each setting was forecast twice, and ran once.
    workloads = {row["workload"] for row in verdict["settings"]}
    assert len(verdict["settings"]) == 2 * len(workloads)
    assert {row["settings"] for row in verdict["summary"]} == {len(workloads)}


@pytest.mark.long
def test_intervals_widen_once_forecasts_that_were_kept_missed_what_ran(runs, tmp_path):
    ledger, asked = tmp_path / "ledger.jsonl", {"nodes": [8], "price": 0.3}
    plain = joulecast.forecast(runs / "before", keep=ledger, **asked)
    entry = json.loads(ledger.read_text())
    # Nine settings, each forecast at half of what it will take.
    (row,) = (r for r in entry["forecasts"] if r["basis"] != "measured")
    lines = []
    for times in range(1, 10):
        work = row["work"] * (1 - 1e-4 * times)
        (took,) = joulecast.forecast(runs / "all", nodes=[8], **{row["work_unit"]: work})[
            "forecasts"
        ]
        assert took["basis"] == "measured"
        said = took | {"basis": "fitted", "work": work}
        for name in ("time_s", "energy_j"):
            quantity, _, unit = name.partition("_")
            said |= {name: took[name] / 2}
            said |= {
                f"{quantity}_low_{unit}": took[name] / 2.2,
                f"{quantity}_high_{unit}": took[name] / 1.8,
            }
        lines.append(json.dumps(entry | {"forecasts": [said]}))
    ledger.write_text("\n".join(lines) + "\n")
    before, half = {name: plain["forecasts"][0][name] for name in row}, 2 / 1.8
    again = joulecast.forecast(runs / "before", keep=ledger, **asked)
    # None of them ran, as far as these records tell.
    assert again["forecasts"][0]["time_high_s"] == pytest.approx(before["time_high_s"])
    assert len(ledger.read_text().splitlines()) == 10
    wider = joulecast.forecast(runs / "all", nodes=[32], keep=ledger, price=0.3)
    same = joulecast.forecast(runs / "all", nodes=[32], price=0.3)
    (wide,), (narrow,) = wider["forecasts"], same["forecasts"]
    factor = math.log(2) / math.log(half)
    for name in ("time{}_s", "energy{}_j"):
        value, high = narrow[name.format("")], narrow[name.format("_high")]
        assert wide[name.format("")] == value
        assert wide[name.format("_high")] == pytest.approx(value * (high / value) ** factor)
    assert wide["cost_high"] > narrow["cost_high"]
    assert any("times as wide" in note for note in wider["notes"])
    # Intervals that were widened when they were kept say as much of the model's.
    ledger.write_text("\n".join(_widened(line, wider["widths"]) for line in lines) + "\n")
    (again,) = joulecast.forecast(runs / "all", nodes=[32], keep=ledger, price=0.3)["forecasts"]
    assert again["time_high_s"] == pytest.approx(wide["time_high_s"])
    assert again["energy_low_j"] == pytest.approx(wide["energy_low_j"])


def _widened(line, widths):
    """A line of a ledger as if its intervals had been widened before it was kept."""
    entry = json.loads(line)
    (row,) = entry["forecasts"]
    for name, factor in (("time{}_s", widths["time"]), ("energy{}_j", widths["energy"])):
        value = row[name.format("")]
        for end in (name.format("_low"), name.format("_high")):
            row[end] = value * (row[end] / value) ** factor
    return json.dumps(entry | {"widths": widths})


@pytest.mark.parametrize("line", ["{", "[]", '{"at": "x", "prices": {}, "forecasts": []}'])
def test_a_ledger_that_is_none_is_named_with_its_line(runs, tmp_path, line):
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text(f"{line}\n")
    with pytest.raises(JoulecastError, match=r"ledger\.jsonl, line 1"):
        joulecast.evaluate(runs / "before", ledger=ledger)
    with pytest.raises(JoulecastError, match="no such"):
        joulecast.evaluate(runs / "before", ledger=tmp_path / "none.jsonl")


def test_a_record_that_cannot_be_read_is_an_error(runs, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    joulecast.forecast(runs / "before", keep=ledger, nodes=[8])
    broken = tmp_path / "records/run1"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{}")
    with pytest.raises(JoulecastError, match="run1"):
        joulecast.evaluate(tmp_path / "records", ledger=ledger)
