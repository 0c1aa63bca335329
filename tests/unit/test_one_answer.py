"""One question has one answer: tables, page and commands ask the same functions."""

import html
import inspect
import itertools
import json
import math
import re
import shlex
import shutil
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT, make_imported, make_record, make_spec
from pages_fixtures import write_answered
from typer.testing import CliRunner

import joulecast
from joulecast.app.cli.main import app
from joulecast.app.cli.planning import tune as command
from joulecast.energy.campaign_fit import fit_campaign
from joulecast.energy.forecast import work_of
from joulecast.energy.prices import from_wall
from joulecast.energy.whole_job import NODE_HOURS_A_FAILURE, job_terms
from joulecast.errors import JoulecastError
from joulecast.logs.mlperf import import_mlperf
from joulecast.quantities import consumptions, times
from joulecast.report.campaign import campaign_answers
from joulecast.report.figures.inline import inline_svg
from joulecast.report.pages.overview import page_context, rendered
from joulecast.report.results_folder import read_results
from joulecast.report.tables.checks import check_results
from joulecast.report.tables.errors import (
    energy_summary,
    error_sentences,
    judged_energies,
    judged_times,
    time_error,
)
from joulecast.report.tables.published import PublishedErrors
from joulecast.runs.files.shipped import recorded_folder
from joulecast.runs.folders import record_folders
from joulecast.runs.meter_choice import MeterInfo
from joulecast.runs.observations import metered_units
from joulecast.runs.platforms import Platform
from joulecast.runs.record import write_record
from joulecast.runs.spec import Observed, RunSpec
from joulecast.tune.request import TuneRequest

NODES = (1, 2, 4)


def _steps(nodes: int, batch: int) -> dict[str, float]:
    """Stages that last longer with more nodes and larger batches."""
    return {
        "materials": 0.01,
        "computing": 0.1 * batch / nodes + 0.05,
        "communicating_copy": 0.02 * (nodes - 1) + 1e-4,
        "update": 0.02,
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of a small campaign: records and fits."""
    folder = tmp_path_factory.mktemp("results")
    cells = [*((n, 4 * n, r) for n in NODES for r in (1, 2)), (1, 8, 1), (1, 2, 1)]
    for nodes, batch, repeat in cells:
        training = {"global_batch_size": batch, "steps": 4}
        spec = make_spec(f"r-n{nodes}-b{batch}-r{repeat}", nodes, repeat=repeat, training=training)
        write_record(folder / "records" / spec.run, make_record(spec, _steps(nodes, batch)))
    fit = fit_campaign(record_folders(folder / "records"), series_splits=1, series_period_s=0.1)
    fit.save(folder / "fits")
    return write_answered(folder), fit


def plain(page: str) -> str:
    """The text of a page."""
    text = re.sub(r"<(script|style)>.*?</\1>|<[^>]+>", " ", page, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(text))


def texts_of(chart) -> list[str]:
    """What stands in a chart to be read, without pointing at anything."""
    return [
        html.unescape(t)
        for t in re.findall(r"<(?:text|tspan)[^>]*>([^<]+)</", inline_svg(chart, "c"))
    ]


def _command(*arguments) -> dict:
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_a_forecast_of_the_command_and_of_advise_agree(results):
    folder, _ = results
    answer = _command("forecast", "--records", folder / "records", "--nodes", "8")["forecasts"][0]
    asked = {"nodes": [8], "batch": [32], "samples": answer["work"]}
    advice = joulecast.advise("vit_ti", records=folder / "records", **asked)
    (candidate,) = advice["candidates"]
    assert candidate["basis"] == "fitted" and answer["batch_size"] == 32
    for figure in ("time_s", "time_low_s", "time_high_s", "energy_j", "energy_low_j"):
        assert candidate[figure] == pytest.approx(answer[figure], rel=1e-6)


@pytest.fixture(scope="module")
def metered_runs(tmp_path_factory):
    """Runs of others, whose times stand beside those of more submitters."""
    folder = tmp_path_factory.mktemp("metered")
    import_mlperf(recorded_folder(ROOT / "recorded/mlperf-power"), folder)
    for record in list(folder.iterdir()):
        if "llama2_70b_lora" not in record.name:
            shutil.rmtree(record)
    return folder


def test_advice_weighs_runs_of_others_as_the_forecast_does(metered_runs):
    asked = {"records": metered_runs, "batch": 8, "samples": 1e6}
    (forecast,) = joulecast.forecast(nodes=[16], **asked)["forecasts"]
    advice = joulecast.advise("llama2_70b_lora", nodes=[16], **asked | {"batch": [8]})
    (candidate,) = advice["candidates"]
    for figure in ("time_s", "time_low_s", "time_high_s", "energy_j", "energy_low_j"):
        assert candidate[figure] == pytest.approx(forecast[figure], rel=1e-6)


def test_a_forecast_that_keeps_a_small_batch_begins_with_what_others_do(metered_runs):
    told = joulecast.forecast(metered_runs, nodes=[64])
    (first,) = told["first"]
    batch = re.search(r"--batch (\d+) --target", first)[1]
    asked = joulecast.forecast(metered_runs, nodes=[64], batch=int(batch), to_target=True)
    (kept,), (usual,) = told["forecasts"], asked["forecasts"]
    assert usual["batch_size"] > kept["batch_size"] == 8 and not asked["first"]
    both = [
        *times(kept["time_s"], usual["time_s"]),
        *consumptions(kept["energy_j"], usual["energy_j"]),
    ]
    assert all(amount in first for amount in both)
    out = CliRunner().invoke(app, ["forecast", "--records", str(metered_runs), "--nodes", "64"])
    assert out.exit_code == 0 and out.output.startswith(first)


def _whole_job(records, **asked):
    told = joulecast.forecast(records, samples=1e8, whole_job=True, **asked)
    (row,) = told["forecasts"]
    terms = {term["name"]: term for term in row["whole_job"]}
    assert all(term["source"] and term["energy_j"] > 0 for term in terms.values())
    assert sum("the whole job on" in note for note in told["notes"]) == 1
    return row, terms


def test_the_whole_job_is_the_training_and_terms_with_their_sources(metered_runs):
    _, alone = _whole_job(metered_runs, nodes=[1])
    row, unsaved = _whole_job(metered_runs, nodes=[64])
    _, saved = _whole_job(metered_runs, nodes=[64], checkpoint_s="30s")
    # One node has no switch, and a start-up is as long as the logs say.
    assert {*alone} == {"start-up", "restarts"} and 60 < alone["start-up"]["time_s"] < 120
    switched = saved["switches"]["energy_j"] / row["energy_j"]
    assert 0.19 <= switched < 0.25 and saved["switches"]["time_s"] == 0
    # What checkpoints save of restarts is more than they cost.
    lost = [sum(term["time_s"] for term in terms.values()) for terms in (saved, unsaved)]
    assert 0 < lost[0] < lost[1]
    plain = joulecast.forecast(metered_runs, samples=1e8, nodes=[64])["forecasts"][0]
    assert plain["energy_j"] == row["energy_j"] and "whole_job" not in plain


def test_restarts_take_as_long_as_random_failures_show():
    """Jobs without checkpoints, and with them. Failures come at random, also after a restart."""
    random, nodes, start_s = np.random.default_rng(0), 512, 600.0
    mean_s = 3600 * NODE_HOURS_A_FAILURE / nodes
    for checkpoint_s in (None, 60.0):
        row = {"hosts": nodes, "time_s": 1.5 * mean_s, "energy_j": 1e9}
        terms = {term.name: term for term in job_terms(row, start_s, None, checkpoint_s)}
        part_s = row["time_s"]
        if checkpoint_s is not None:
            part_s = row["time_s"] / math.floor(
                row["time_s"] / math.sqrt(2 * checkpoint_s * mean_s)
            )
        lost_s = []
        for _ in range(2000):
            lost_s.append(0.0)
            for _ in range(round(row["time_s"] / part_s)):
                while (fails_s := random.exponential(mean_s)) < part_s:
                    lost_s[-1] += fails_s + start_s
        assert terms["restarts"].time_s == pytest.approx(np.mean(lost_s), rel=0.1)


def test_a_term_that_is_nearly_nothing_has_a_unit_of_its_own():
    told = joulecast.forecast("one-h100", whole_job=True)
    jobs = [note for note in told["notes"] if "the whole job on" in note]
    assert len(jobs) == 3 and not [note for note in jobs if re.search(r"\de[-+]\d", note)]


def test_gpus_of_a_campaign_idle_by_their_number():
    # No run exchanged gradients, so a sample costs the same on each number of GPUs.
    told = joulecast.forecast("one-h100", samples=1e6, nodes=[2, 8])["forecasts"]
    by_workload = [list(rows) for _, rows in itertools.groupby(told, lambda row: row["workload"])]
    assert len(by_workload) == 3
    for two, eight in by_workload:
        assert two["energy_j"] == pytest.approx(eight["energy_j"], rel=0.01)


def test_checkpoints_are_a_part_of_the_whole_job(metered_runs):
    with pytest.raises(JoulecastError, match="whole job"):
        joulecast.forecast(metered_runs, nodes=[64], checkpoint_s=30)


def test_what_is_metered_behind_the_supplies_costs_what_the_wall_gives(metered_runs):
    asked = {"nodes": [16], "samples": 1e4, "price": 0.3}
    told = joulecast.forecast(metered_runs, **asked)
    (row,) = told["forecasts"]
    advice = joulecast.advise("llama2_70b_lora", records=metered_runs, **asked)
    ends = ("", "_low", "_high")
    wall = [row[f"energy{end}_kwh"] * 3.6e6 / row[f"energy{end}_j"] for end in ends]
    assert row["supply"] == "DC" and 1 < wall[1] < wall[0] < wall[2] < 1.15
    assert any("DC" in note for note in told["notes"])
    assert row["energy_kwh"] in {candidate["energy_kwh"] for candidate in advice["candidates"]}


@pytest.mark.parametrize(
    ("supply", "efficiency", "wall"),
    [("AC", 0.9, 1.0), (None, None, 1.0), ("DC", 0.8, 1.25), ("DC", float("nan"), 1 / 0.95)],
)
def test_an_efficiency_that_a_log_has_goes_before_the_usual_one(supply, efficiency, wall):
    expected, low, high = from_wall(supply, efficiency)
    assert expected == pytest.approx(wall)
    assert (low < expected < high) == (supply == "DC" and efficiency != 0.8)


def test_advice_weighs_the_batch_that_the_forecast_has(metered_runs):
    (forecast,) = joulecast.forecast(metered_runs, nodes=[16], samples=1e6)["forecasts"]
    advice = joulecast.advise("llama2_70b_lora", records=metered_runs, nodes=[16], samples=1e6)
    assert forecast["batch_size"] in {row["batch_size"] for row in advice["candidates"]}


@pytest.mark.parametrize("covers", ["node", "gpu"])
def test_runs_on_another_platform_change_no_forecast(tmp_path, covers):
    def add(name, platform, load_w, covers):
        for nodes in (1, 2):
            record = make_imported(
                f"{name}-n{nodes}",
                name,
                nodes,
                stop_s=170 - 50 * nodes,
                platform=platform,
                watts=lambda t: load_w if t >= 20 else load_w / 3,
            )
            meters = [m.model_copy(update={"covers": covers}) for m in record.info.meters]
            info = record.info.model_copy(update={"meters": meters})
            write_record(tmp_path / name / info.spec.run, replace(record, info=info))

    add("net", "8xbox", 3000.0, "node")
    alone = joulecast.forecast(tmp_path / "net", nodes=[1, 2, 4])["forecasts"]
    add("other", "4xboard", 100.0, covers)
    both = joulecast.forecast(tmp_path, nodes=[1, 2, 4])["forecasts"]
    assert [row["energy_covers"] for row in both] == 3 * ["node"] + 3 * [covers]
    for row, again in zip(alone, both[:3], strict=True):
        assert all(again[key] == value for key, value in row.items() if key != "rests_on")


def test_a_setting_that_was_not_run_is_not_better_known_than_one_that_was(tmp_path):
    for nodes, samples in ((1, 1000), (2, 1900)):
        log = tmp_path / f"n{nodes}.csv"
        rows = [f"{t},n{k},{500 + t % 7}" for t in range(0, 601, 2) for k in range(nodes)]
        log.write_text("t,node,w\n" + "\n".join(rows) + "\n")
        options = [
            "--map",
            "time=t,watts=w,node=node",
            "--covers",
            "node",
            "--time-unit",
            "s",
            "--timezone",
            "UTC",
        ]
        said = [*options, "--network", "net", "--platform", "box", "--batch-size", "10"]
        asked = ["import", "csv", log, tmp_path / "out", *said, "--samples", samples]
        done = CliRunner().invoke(app, [str(a) for a in [*asked, "--run", f"n{nodes}"]])
        assert done.exit_code == 0, done.output
    upper = 0.0
    for samples in range(1500, 2501, 100):
        answer = joulecast.forecast(tmp_path / "out", nodes=[2], samples=samples)
        (row,) = answer["forecasts"]
        # More work is not done earlier, whether a run or the model says it.
        assert row["time_high_s"] > upper
        upper = row["time_high_s"]
        if row["basis"] == "measured":
            assert row["width_is_assumed"] and row["rests_on"] == "1 run of this setting"
            assert any("no repeats show" in note for note in answer["notes"])


@pytest.fixture(scope="module")
def partly_dark(tmp_path_factory):
    """A campaign of which one repeat has no energy; the others are measured, and repeats differ."""
    folder = tmp_path_factory.mktemp("dark")
    for nodes, repeat in itertools.product(NODES, (1, 2)):
        spec = make_spec(f"d-n{nodes}-r{repeat}", nodes, repeat=repeat, training={"steps": 4})
        step = {name: s * (1 + 0.1 * repeat) for name, s in _steps(nodes, 4 * nodes).items()}
        record = make_record(spec, step)
        meters = [each.model_copy(update={"source": "measured"}) for each in record.info.meters]
        if (nodes, repeat) == (2, 1):
            gone = {"available": False, "reason": "no RAPL"}
            meters = [each.model_copy(update=gone) for each in meters]
            record = replace(record, power=record.power.iloc[:0])
        info = record.info.model_copy(update={"meters": meters})
        write_record(folder / "records" / spec.run, replace(record, info=info))
    return write_answered(folder)


def test_a_repeat_without_energy_is_of_the_same_setting(partly_dark):
    found = read_results(partly_dark)
    table = time_error(found.fit.judged("time"))
    ours = table[(table["model"] == "MC2") & (table["split"] == "leave-one-node-count-out")]
    assert len(ours) == len(NODES)
    assert f"over {len(NODES)} settings" in error_sentences(found.fit)[0]
    answer = joulecast.evaluate(partly_dark / "records")
    (told,) = (row for row in answer["time_summary"] if row["model"] == "MC2")
    assert told["settings"] == len(NODES)
    assert told["mape_percent"] == pytest.approx(ours["error_percent"].abs().mean())


def test_the_page_and_evaluate_tell_the_error_of_the_same_split(partly_dark):
    found = read_results(partly_dark)
    answer = joulecast.evaluate(partly_dark / "records")
    assert set(judged_times(found.fit)["split"]) == {answer["split"]}
    ((source, cells),) = judged_energies(found.fit)
    cells = cells[cells["model"] == "MC2"]
    (told,) = (row for row in answer["summary"] if row["model"] == "MC2")
    assert told["source"] == source
    assert told["mape_percent"] == pytest.approx(cells["difference_percent"].abs().mean())
    published = PublishedErrors.read(ROOT / "config/published/mc2.yaml")
    summary = energy_summary(found.fit, published)
    (mine,) = summary[
        (summary["model"] == "MC2")
        & (summary["split"] == answer["split"])
        & (summary["time"] == answer["time"])
    ].to_dict("records")
    assert answer["against_best_rival"]["rival"] == mine["best_rival"]
    assert f"The best rival, {mine['best_rival']}," in error_sentences(found.fit)[1]


def test_the_page_says_what_the_command_says_that_it_prints(results):
    folder, _ = results
    context = page_context(folder)
    page = plain(rendered(context))
    (printed,) = context["advise_commands"]
    assert printed in page
    answer = _command(*shlex.split(printed)[2:])
    (told,) = context["advice"].content
    assert told.answer == answer
    said, take = context["answer"], context["take"]
    setting = answer["best"]["setting"]
    assert setting in said and answer["verdict"]["in_words"] in page
    assert ("No clear winner" in take) == (answer["verdict"]["clear_winner"] is False)
    assert plain(CliRunner().invoke(app, shlex.split(printed)[2:]).output).strip() in page
    # What is advised is drawn; charts of forecasts name their work and batch.
    assert any(setting in texts_of(chart) for chart in context["front"].content.charts)
    for chart in context["forecast"].content.charts.values():
        text = " ".join(texts_of(chart))
        assert "1,000,000 samples" in text and "batch 4 a node" in text


def test_the_page_the_table_and_the_commands_charge_the_same_whole_steps(results):
    folder, _ = results
    found = read_results(folder)
    records = folder / "records"
    answers = campaign_answers(found)
    drawn = answers.forecast.content.rows
    scales = ",".join(str(row["nodes"]) for row in drawn)
    asked = drawn[0]["work"]
    said = _command("forecast", "--records", records, "--nodes", scales, "--samples", asked)
    names = (
        "nodes",
        "batch_size",
        "work",
        "time_s",
        "energy_j",
        "energy_high_j",
        "basis",
        "runs",
    )
    for mine, theirs in zip(drawn, said["forecasts"], strict=True):
        assert {name: mine[name] for name in names} == {name: theirs[name] for name in names}
    answer = _command("advise", "--records", records, "--network", "vit_ti", "--samples", asked)
    unasked = _command("advise", "--records", records, "--network", "vit_ti")
    assert answer["candidates"] == unasked["candidates"]
    ran = {(row.nodes, row.batch): row.time_s for row in answers.costs.content.itertuples()}
    for row in answer["candidates"]:
        if row["basis"] == "measured":
            assert row["time_s"] == pytest.approx(ran[row["nodes"], row["batch_size"]])
    tested = {(row["nodes"], row["batch_size"]): row for row in answer["candidates"]}
    for row in drawn:
        advised = tested[row["nodes"], row["batch_size"]]
        same = ("nodes", "nodes_are", "hosts", "gpus", "basis", "runs", "time_s", "time_high_s")
        same += ("energy_j", "energy_low_j", "energy_source")
        assert {name: row[name] for name in same} == {name: advised[name] for name in same}


@pytest.mark.parametrize(
    ("nodes", "units", "source", "hosts", "asked", "expected"),
    [
        (4, 4, "measured", None, 8, 8),
        (4, 1, "measured", 1, 8, 1),
        (4, 4, "estimated", 1, 64, 64),
        (1, 1, "measured", None, 8, 8),
        (1, 1, "measured", 1, 8, 1),
        (1, 1, "estimated", 1, 8, 8),
    ],
)
def test_units_that_idle_are_counted_by_one_rule(nodes, units, source, hosts, asked, expected):
    example = {"nodes": nodes, "metered_units": units, "energy_source": source}
    assert metered_units(example, asked, hosts) == expected


@pytest.fixture(scope="module")
def own_training(tmp_path_factory):
    """Records of a command: one rank, and two that a launcher calls nodes, all on one host with a meter."""
    folder = tmp_path_factory.mktemp("own")
    for ranks, repeat in ((1, 1), (1, 2), (2, 1), (2, 2)):
        spec = make_spec(f"letters-n{ranks}-r{repeat}", ranks, repeat=repeat).model_copy(
            update={
                "observed": Observed(
                    name="letters", command=("train",), samples_per_step=4 * ranks
                ),
                "workload": None,
            }
        )
        record = make_record(spec, _steps(ranks, 4 * ranks))
        info = record.info
        info = info.model_copy(
            update={
                "nodes": ["host/0"],
                "node_of_rank": ranks * ["host/0"],
                "meters": [info.meters[0].model_copy(update={"source": "measured"})],
            }
        )
        shared = {
            "power": record.power[record.power["node"] == "host/0"],
            "activity": record.activity[record.activity["node"] == "host/0"],
        }
        write_record(folder / "records" / spec.run, replace(record, info=info, **shared))
    fit = fit_campaign(record_folders(folder / "records"), series_splits=1, series_period_s=0.1)
    fit.save(folder / "fits")
    return folder, fit


def test_a_loss_that_was_not_logged_is_no_warning(own_training):
    folder, fit = own_training
    findings = check_results(record_folders(folder / "records"), fit)
    assert "loss" not in set(findings["check"])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_host_s_meter_counts_once_however_many_ranks_share_the_host(own_training, ranks):
    folder, _ = own_training
    records = folder / "records"
    (row,) = _command("forecast", "--records", records, "--gpus", ranks)["forecasts"]
    assert row["runs"] == 2
    assert row["fitted_energy_j"] == pytest.approx(row["energy_j"], rel=0.05)
    assert (row["nodes"], row["nodes_are"], row["hosts"], row["gpus"]) == (ranks, "ranks", 1, None)


def test_who_knows_how_many_gpus_a_node_has_is_believed(own_training):
    """At most two ranks ran on a host, so four are taken to be two hosts; unless somebody knows better."""
    asked = {"records": own_training[0] / "records", "gpus": [4]}
    (two,) = joulecast.forecast(**asked)["forecasts"]
    answer = joulecast.forecast(**asked, gpus_per_node=4)
    (one,) = answer["forecasts"]
    assert (two["hosts"], one["hosts"]) == (2, 1)
    assert one["time_s"] == two["time_s"] and one["energy_j"] < 0.6 * two["energy_j"]
    assert not any("the forecast assumes that" in note for note in answer["notes"])
    nodes = {"nodes": [1], "gpus_per_node": 4, "samples": one["work"]}
    (advised,) = joulecast.advise("letters", records=asked["records"], **nodes)["candidates"]
    assert (advised["nodes"], advised["energy_j"]) == (4, one["energy_j"])


def test_gpus_that_were_all_in_use_draw_by_their_number_also_in_one_host(tmp_path):
    gpu = {"node": "host/0", "meter": "estimated", "source": "measured", "covers": "gpu"}
    meter = MeterInfo(**gpu, available=True, counter=True)
    step = {"computing": 0.1, "update": 0.01}
    _own(tmp_path, "tiny-n1-r1", 1, step, meters=[meter])
    asked = {"records": tmp_path / "records", "gpus": [1, 8], "samples": 1e4, "gpus_per_node": 8}
    one, eight = joulecast.forecast(**asked)["forecasts"]
    assert eight["hosts"] == 1 and one["time_s"] > 7 * eight["time_s"]
    assert eight["energy_j"] == pytest.approx(one["energy_j"], rel=0.01)


def test_strong_scaling_keeps_the_batch_of_all_nodes(tmp_path):
    """Also where smaller batches were swept on one node."""
    cells = [*((n, 16, r) for n in NODES for r in (1, 2)), *((1, b, 1) for b in (2, 4, 8))]
    for nodes, batch, repeat in cells:
        training = {"global_batch_size": batch, "steps": 2}
        spec = make_spec(f"s-n{nodes}-b{batch}-r{repeat}", nodes, repeat=repeat, training=training)
        write_record(tmp_path / "records" / spec.run, make_record(spec, _steps(nodes, batch)))
    answer = _command("forecast", "--records", tmp_path / "records", "--nodes", "2,8")
    assert [row["batch_size"] for row in answer["forecasts"]] == [16, 16]
    assert answer["forecasts"][0]["time_s"] == pytest.approx(2 * sum(_steps(2, 16).values()))
    assert [row["basis"] for row in answer["forecasts"]] == ["measured", "fitted"]


def test_a_batch_that_is_kept_at_a_larger_scale_is_told(tmp_path):
    for nodes in NODES:
        spec = make_spec(f"s-n{nodes}", nodes, training={"global_batch_size": 16, "steps": 2})
        write_record(tmp_path / "records" / spec.run, make_record(spec, _steps(nodes, 16)))
    records = tmp_path / "records"
    kept = _command("forecast", "--records", records, "--nodes", "2,8")
    assert any("batch of 16 on 8 nodes" in note and "--batch" in note for note in kept["first"])
    for quiet in (["--nodes", "2,4"], ["--nodes", "8", "--batch", "64"]):
        notes = _command("forecast", "--records", records, *quiet)["notes"]
        assert not any("--batch" in note for note in notes)
    # A rank without a sample cannot train.
    large = _command("forecast", "--records", records, "--nodes", "8,32")
    assert [row["nodes"] for row in large["forecasts"]] == [8]
    assert any("32 nodes" in note and "less than one" in note for note in large["notes"])
    done = CliRunner().invoke(app, ["forecast", "--records", str(records), "--nodes", "32"])
    assert done.exit_code != 0 and "less than one sample" in done.output
    asked = ["advise", "--records", str(records), "--network", "vit_ti"]
    advised = CliRunner().invoke(app, [*asked, "--nodes", "32", "--batch", "16"])
    assert advised.exit_code == 2 and "less than one sample" in advised.output


def test_less_than_a_sample_a_gpu_is_marked_where_others_ran(tmp_path):
    """Others may divide the network over GPUs, so that a few of them share a sample."""
    for nodes in (1, 2):
        write_record(tmp_path / f"n{nodes}", make_imported(f"n{nodes}", nodes=nodes))
    answer = _command("forecast", "--records", tmp_path, "--nodes", "512")
    (row,) = answer["forecasts"]
    assert row["batch_size"] < (row["gpus"] or row["nodes"])
    assert any("less than one" in note and "512 nodes" in note for note in answer["notes"])
    advice = _command("advise", "--records", tmp_path, "--network", "net", "--nodes", "512")
    assert any("less than one" in mark for mark in advice["best"]["extrapolation"])


def _refusals(records, network, scale, asked) -> tuple[str, str]:
    """What the forecast and the advice say, in one line each, of what cannot be asked."""
    said = []
    for words in (("forecast", "--records"), ("advise", "--network", network, "--records")):
        given = [*words, records, *scale, *asked]
        done = CliRunner().invoke(app, [str(word) for word in given])
        assert done.exit_code == 2 and len(done.output.splitlines()) == 1, done.output
        said.append(done.output)
    return said[0], said[1]


def _observed(folder, name, ranks, repeat, unit="samples", steps=4):
    """Record a command on ranks of one host; without the samples of its steps, one of them counts as one."""
    per_step = 4 * ranks if unit == "samples" else 1
    spec = make_spec(
        f"{name}-n{ranks}-run{repeat}", ranks, repeat=repeat, training={"steps": steps}
    ).model_copy(
        update={
            "observed": Observed(
                name=name,
                command=("train",),
                samples_per_step=per_step if unit == "samples" else None,
            ),
            "workload": None,
        }
    )
    record = make_record(spec, _steps(ranks, 4 * ranks))
    outcome = record.info.outcome.model_copy(
        update={"work_unit": unit, "samples": per_step * steps}
    )
    hosts = {"nodes": ["host/0"], "node_of_rank": ranks * ["host/0"]}
    info = record.info.model_copy(update={"outcome": outcome, **hosts})
    write_record(folder / spec.run, replace(record, info=info))


def test_what_is_counted_in_another_unit_is_refused_in_the_same_words(metered_runs, tmp_path):
    record = make_imported()
    imported = record.info.spec.imported.model_copy(update={"work_unit": "epochs"})
    spec = record.info.spec.model_copy(update={"imported": imported})
    info = record.info.model_copy(update={"spec": spec, "spec_sha256": spec.digest()})
    write_record(tmp_path / "epochs/r", replace(record, info=info))
    said = _refusals(tmp_path / "epochs", "net", ("--nodes", 1), ("--samples", 1e6))
    for each in said:
        assert "is not forecast: its work is counted in epochs, not in samples" in each
    asked = {"records": tmp_path / "epochs", "nodes": [1], "epochs": 5}
    (row,) = joulecast.advise("net", **asked)["candidates"]
    (forecast,) = joulecast.forecast(**asked)["forecasts"]
    # It ran 10 epochs, which do not show what its start takes of 5.
    assert forecast["basis"] == "fitted" and row["time_s"] == forecast["time_s"]
    said = _refusals(metered_runs, "llama2_70b_lora", ("--nodes", 1), ("--epochs", 1))
    for each in said:
        assert "is not forecast: its work is counted in samples, not in epochs" in each


def test_a_training_whose_steps_are_counted_has_a_forecast_and_an_advice(tmp_path):
    for ranks, repeat in itertools.product((1, 2), (1, 2)):
        _observed(tmp_path, "loop", ranks, repeat, "steps")
    for asked in (("--samples", 1e6), ("--batch", 8)):
        for each in _refusals(tmp_path, "loop", ("--gpus", 1), asked):
            assert "loop is not forecast: its" in each and "--samples-per-step" in each
    advice = joulecast.advise("loop", records=tmp_path, gpus=[1, 2])
    assert advice["work"]["samples"] == work_of("steps") == 1000
    assert advice["work"]["unit"] == "steps"
    assert {row["batch_size"] for row in advice["candidates"]} == {None}
    rows = joulecast.forecast(tmp_path, gpus=[1, 2])["forecasts"]
    assert [row["work"] for row in rows] == [4, 4]
    assert {row["batch_size"] for row in rows} == {None}
    for row, candidate in zip(
        rows, sorted(advice["candidates"], key=lambda c: c["nodes"]), strict=True
    ):
        assert candidate["time_s"] == pytest.approx(row["time_s"] * 1000 / 4)


def test_a_kept_forecast_is_compared_with_as_many_steps_as_it_has(tmp_path):
    for ranks in (1, 2):
        _observed(tmp_path / "runs", "loop", ranks, 1, "steps")
    ledger = tmp_path / "ledger.jsonl"
    joulecast.forecast(tmp_path / "runs", gpus=[4], keep=ledger)
    _observed(tmp_path / "runs", "loop", 4, 1, "steps", steps=2)
    (ran,) = joulecast.forecast(tmp_path / "runs", gpus=[4])["forecasts"]
    (row,) = joulecast.evaluate(tmp_path / "runs", ledger=ledger)["settings"]
    assert (row["work"], ran["work"], ran["basis"]) == (4, 2, "measured")
    assert row["time_was_s"] == pytest.approx(2 * ran["time_s"])


def test_a_batch_outside_of_the_runs_is_as_far_off_in_the_forecast_as_in_the_advice(results):
    folder, _ = results
    asked = {"records": folder / "records", "samples": 1e6}

    def both(nodes, batch):
        told = joulecast.forecast(nodes=[nodes], batch=batch, **asked)
        (candidate,) = joulecast.advise("vit_ti", nodes=[nodes], batch=[batch], **asked)[
            "candidates"
        ]
        return told, told["forecasts"][0], candidate

    inside, outside = both(8, 32), both(8, 256)
    for _, forecast, candidate in (inside, outside):
        for figure in ("time_s", "time_low_s", "time_high_s", "energy_low_j", "energy_high_j"):
            assert forecast[figure] == pytest.approx(candidate[figure], rel=1e-6)
        assert forecast["extrapolation"] == candidate["extrapolation"]
    told, forecast, candidate = outside
    batch = "batch 32 of a rank: the runs had 2 to 8"
    assert candidate["extrapolation"] == ["8 nodes: the runs had 1 to 4", batch]
    assert f"vit_ti on 8 nodes: {batch}" in told["notes"]

    def width(row):
        return row["time_high_s"] / row["time_low_s"]

    assert width(forecast) > width(inside[1])


def test_what_the_runs_do_not_tell_is_refused_or_marked_alike(tmp_path):
    _observed(tmp_path, "one", 1, 1)
    _observed(tmp_path, "one", 1, 2)
    forecast, advice = _refusals(tmp_path, "one", ("--gpus", 1), ("--batch", 128))
    for each in (forecast, advice):
        assert "all runs have 4 samples a rank" in each
        assert "measure a second batch: change it in the training" in each
    asked = {"records": tmp_path, "gpus": [2], "samples": 1e4}
    told = joulecast.forecast(**asked)
    (row,) = told["forecasts"]
    (candidate,) = joulecast.advise("one", **asked)["candidates"]
    for figure in ("time_s", "time_low_s", "time_high_s", "energy_low_j", "energy_high_j"):
        assert row[figure] == pytest.approx(candidate[figure], rel=1e-6)
    (words,) = (each for each in candidate["extrapolation"] if "exchanged" in each)
    assert f"one on 2 ranks: {words}" in told["notes"]


def test_rows_of_a_forecast_do_the_same_work_and_say_where_it_was_recorded(tmp_path):
    """Also where the runs of one scale did more of it than those of another."""
    for ranks, steps in ((1, 8), (2, 5)):
        for repeat in (1, 2):
            _observed(tmp_path, "tiny", ranks, repeat, steps=steps)
    rows = joulecast.forecast(tmp_path, gpus=[1, 2, 4])["forecasts"]
    assert [row["work"] for row in rows] == 3 * [40]
    assert {row["work_is"] for row in rows} == {"as recorded on 2 ranks"}
    # One rank takes ten steps of four samples.
    assert rows[0]["time_s"] == pytest.approx(10 * sum(_steps(1, 4).values()))
    for repeat in (3, 4):
        _observed(tmp_path, "tiny", 2, repeat, steps=7)
    (row,) = joulecast.forecast(tmp_path, gpus=[2])["forecasts"]
    assert (row["work"], row["work_is"]) == (48, "as recorded on 2 ranks (mean)")


def test_a_name_that_no_training_has_is_answered_with_those_that_there_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _observed(tmp_path / "results/measured", "tiny", 1, 1)
    done = CliRunner().invoke(app, ["forecast", "other", "--gpus", "2"])
    assert done.exit_code == 2 and len(done.output.splitlines()) == 1
    assert "other: no such folder" in done.output and "has tiny" in done.output


def test_tuning_has_the_same_defaults_as_a_function_a_command_and_in_a_configuration():
    fields = TuneRequest.model_fields
    for function in (joulecast.tune_training, command):
        parameters = inspect.signature(function).parameters
        for name in ("policy", "recurrences", "eta", "criterion", "max_slowdown"):
            assert parameters[name].default == fields[name].default, (function, name)


def _own(folder, run, ranks, step, **changes):
    """A record of a command `tiny` on so many ranks of one host."""
    observed = Observed(name="tiny", command=("train",), samples_per_step=4 * ranks)
    spec = make_spec(run, ranks).model_copy(update={"observed": observed, "workload": None})
    record = make_record(spec, step)
    info = record.info.model_copy(update=changes)
    write_record(folder / "records" / run, replace(record, info=info))


def test_the_exchange_of_a_single_rank_is_in_its_forecast(tmp_path):
    """DDP copies its buckets also where there is nobody to exchange with."""
    step = {"computing": 0.1, "communicating_copy": 0.03, "update": 0.01}
    _own(tmp_path, "tiny-n1-r1", 1, step)
    (row,) = joulecast.forecast(tmp_path / "records", gpus=[1])["forecasts"]
    assert row["time_s"] == pytest.approx(3 * 0.14)
    assert row["fitted_time_s"] == pytest.approx(row["time_s"], rel=0.01)
    assert row["fitted_energy_j"] == pytest.approx(row["energy_j"], rel=0.01)


@pytest.mark.parametrize("slower", [1.0, 1.3])
def test_ranks_that_compute_slower_beside_each_other_do_so_on_more_of_them(tmp_path, slower):
    for ranks in (1, 2):
        step = {"computing": 0.1 * (slower if ranks > 1 else 1.0), "update": 0.01}
        _own(tmp_path, f"tiny-n{ranks}-r1", ranks, step)
    (row,) = joulecast.forecast(tmp_path / "records", gpus=[4], samples=48)["forecasts"]
    assert row["time_s"] == pytest.approx(3 * (0.1 * slower + 0.01), rel=0.01)


def test_where_the_model_and_the_runs_differ_the_forecast_and_the_advice_say_so(tmp_path):
    """Two ranks took twice the time of the others: no model of a rank's batch says that."""
    for ranks, repeat in itertools.product((1, 2, 4), (1, 2)):
        step = {"computing": (0.2 if ranks == 2 else 0.1) + 0.001 * repeat, "update": 0.01}
        _own(tmp_path, f"tiny-n{ranks}-r{repeat}", ranks, step)
    asked = {"records": tmp_path / "records", "gpus": [1, 2, 4], "samples": 1e4}
    forecast, advice = joulecast.forecast(**asked), joulecast.advise("tiny", **asked)
    (said,) = (note for note in forecast["notes"] if "MC2's time is more than" in note)
    assert re.search(r"in \d of the 3 forecast settings", said) and "2 ranks, batch 8: " in said
    assert said.replace("forecast settings", "compared settings") in advice["warnings"]
    alike = joulecast.forecast(**asked | {"gpus": [8]})["notes"]
    assert not any("is more than" in note for note in alike)


def test_an_exchange_of_one_size_grows_with_its_bytes_and_may_be_latency(tmp_path):
    for ranks in (1, 2):
        step = {"computing": 0.1, "update": 0.01}
        step |= {"communicating_copy": 0.1} if ranks > 1 else {}
        for repeat in (1, 2):
            _own(tmp_path, f"tiny-n{ranks}-r{repeat}", ranks, step)
    asked = {"gpus": [2, 4, 64], "samples": 1e6}
    rows = joulecast.forecast(tmp_path / "records", **asked)["forecasts"]
    copies = [row["time_s"] * 4 * row["nodes"] / 1e6 - 0.11 for row in rows]
    assert copies[0] == pytest.approx(0.1, rel=0.02)
    # A ring moves 2 (N - 1) / N of the gradients.
    assert copies[1] == pytest.approx(0.15, rel=0.02)
    assert copies[2] == pytest.approx(0.2 * 63 / 64, rel=0.02)
    assert rows[2]["time_high_s"] > 2 * rows[2]["time_s"], "or it is latency, for all that is known"


def test_two_networks_of_one_name_are_refused(tmp_path):
    step = {"computing": 0.1, "update": 0.01}
    _own(tmp_path, "tiny-n1-r1", 1, step, parameters=1000)
    _own(tmp_path, "tiny-n1-r2", 1, step, parameters=250_000)
    with pytest.raises(joulecast.JoulecastError, match=r"tiny: .*tiny-n1-r2 250,000.*--name"):
        joulecast.forecast(tmp_path / "records", gpus=[1])


def test_runs_of_two_machines_that_nobody_named_are_refused(tmp_path):
    step = {"computing": 0.1, "update": 0.01}
    for repeat, memory in ((1, 16), (2, 16.02), (3, 64)):
        host = {"cpu": "Xeon", "cores": 2, "memory_bytes": int(memory * 2**30)}
        _own(tmp_path, f"tiny-n1-r{repeat}", 1, step, hosts=[host])
        for path in (tmp_path / "records").glob("*/run.json"):
            path.write_text(path.read_text().replace('"name": "test"', '"name": "this-machine"'))
            info = json.loads(path.read_text())
            info["spec_sha256"] = RunSpec.model_validate(info["spec"]).digest()
            path.write_text(json.dumps(info))
        if repeat == 2:
            joulecast.forecast(tmp_path / "records", gpus=[1])
    with pytest.raises(joulecast.JoulecastError, match=r"tiny-n1-r3 on Xeon, 64 GiB.*--platform"):
        joulecast.forecast(tmp_path / "records", gpus=[1])


def test_machines_of_other_gpus_are_two_machines(tmp_path):
    platform = Platform(name="this-machine", hosts=1, idle_w=10, full_w=30)
    for repeat, gpu in ((1, "NVIDIA H100 80GB HBM3"), (2, "NVIDIA H200")):
        host = {"cpu": "Xeon", "cores": 2, "memory_bytes": 2**30, "gpus": [gpu]}
        spec = make_spec(f"r{repeat}", repeat=repeat).model_copy(update={"platform": platform})
        record = make_record(spec)
        info = record.info.model_copy(update={"hosts": [host]})
        write_record(tmp_path / f"r{repeat}", replace(record, info=info))
    with pytest.raises(joulecast.JoulecastError, match=r"r2 on Xeon, 1 GiB, 1 x NVIDIA H200"):
        joulecast.forecast(tmp_path, nodes=[1])


def test_the_name_of_a_training_is_taken_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, repeat in itertools.product("abcde", (1, 2)):
        _observed(tmp_path / "results/measured", name, 1, repeat)
    assert joulecast.advise("a")["candidates"] == _command("advise", "a")["candidates"]
    done = CliRunner().invoke(app, ["status", "a"])
    assert done.exit_code == 0 and done.output == "a: 2 of 2 runs done\n"
    unknown = CliRunner().invoke(app, ["forecast", "other", "--gpus", "2"])
    assert "results/measured has a, b, c and 2 more" in unknown.output
    said = CliRunner().invoke(app, ["forecast", "a", "--gpus", "2", "--epochs", "1"])
    assert said.exit_code == 2 and "results/measured" not in said.output, said.output
    campaign = CliRunner().invoke(app, ["status"])
    assert campaign.output.endswith("give the name: a, b, c, d and e\n")
    missing = CliRunner().invoke(app, ["status", "other"])
    assert missing.exit_code == 2 and "NAME" in missing.output


def test_a_note_names_its_scale_once(tmp_path):
    _observed(tmp_path, "a", 1, 1)
    notes = joulecast.forecast(tmp_path, gpus=[16])["notes"]
    assert "a on 16 ranks: the runs had 1. This is 16 times as many" in notes


def test_steps_and_samples_of_one_training_are_not_mixed(tmp_path):
    """As after a first run without `--samples-per-step`, whose samples were not seen."""
    _observed(tmp_path, "loop", 1, 1, "steps")
    _observed(tmp_path, "loop", 1, 2, "samples")
    _observed(tmp_path, "loop", 2, 1, "samples")
    asked = {"records": tmp_path, "samples": 1e5}
    forecast, advice = joulecast.forecast(**asked), joulecast.advise("loop", **asked)
    for answer in (forecast, advice):
        (out,) = answer["left_out"]
        assert out["kind"] == "another unit of work" and "counted in steps" in out["reason"]
    times = {row["nodes"]: row["time_s"] for row in advice["candidates"]}
    assert {row["nodes"]: row["time_s"] for row in forecast["forecasts"]} == times


def test_an_odd_repeat_widens_the_intervals_within_reason(tmp_path):
    """A run that was disturbed is no reason to know nothing: with one pair of repeats alone, Student's
    quantile would be a factor of 16."""
    highs = []
    for name, seconds in (("none", {}), ("odd", {"tiny-n2-r2": 0.155})):
        for run, step in {"tiny-n1-r1": 0.1, "tiny-n2-r1": 0.1, **seconds}.items():
            step = {"computing": step, "update": 0.01}
            _own(tmp_path / name, run, int(run[6]), step)
        answer = joulecast.forecast(tmp_path / name / "records", gpus=[2, 4], samples=1e4)
        highs.append([row["time_high_s"] / row["time_s"] for row in answer["forecasts"]])
        assert all(row["energy_high_j"] < 8 * row["energy_j"] for row in answer["forecasts"])
    assert highs[0][0] == pytest.approx(1.06, abs=0.005)
    assert highs[0][0] < highs[1][0] < 2 and highs[1][1] < 4


def test_a_slack_budget_of_estimates_changes_no_advice(tmp_path):
    for ranks in (1, 2):
        _own(tmp_path, f"tiny-n{ranks}-r1", ranks, {"computing": 0.1, "update": 0.01})
    asked = {"records": tmp_path / "records", "samples": 1e4}
    free = joulecast.advise("tiny", **asked)
    slack = joulecast.advise("tiny", **asked, energy_budget_j="1GJ")
    assert free["best"]["setting"] == slack["best"]["setting"]
    assert not slack["best"]["extrapolation"]
