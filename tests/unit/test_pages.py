"""The overview page: numbers in words, figures' data, and what it says of results that lack something."""

import copy
import itertools
import json
import re
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, make_imported, make_record, make_spec
from pages_fixtures import write_answered, write_campaign, write_records
from typer.testing import CliRunner

from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.quantities import NONE, digits, joules, listed, percent, seconds
from joulecast.report.advice.candidate import Candidate, dominates
from joulecast.report.campaign import (
    COSTS,
    campaign_answers,
    costs,
)
from joulecast.report.figures.front import energy_time_front
from joulecast.report.figures.inline import inline_svg, page_colours
from joulecast.report.figures.style import PALETTES, SHADES
from joulecast.report.pages.overview import page_context, rendered, write_overview
from joulecast.report.pages.settings import headline, settings_table, short_table
from joulecast.report.results_folder import NothingToShow, read_results
from joulecast.report.tables.errors import EXTRAPOLATION, error_sentences, judged_times
from joulecast.runs.record import write_record
from joulecast.runs.recorded import unpack_all

PARTS = (
    "forecast",
    "errors",
    "advice",
    "table",
    "papers",
    "metered",
    "front",
    "predicted",
    "stages",
)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "small"
    write_campaign(folder)
    return folder


@cache
def shown(folder):
    """The page's parts, made once of a folder that no test changes."""
    return page_context(folder)


@pytest.fixture
def results(campaign):
    return read_results(campaign)


def text_of(folder):
    """The page without its styles, tags and line breaks."""
    return plain(rendered(page_context(folder)))


def plain(html):
    return re.sub(r"\s+", " ", re.sub(r"<(script|style)>.*?</\1>|<[^>]+>", " ", html, flags=re.S))


def test_numbers_in_words():
    assert [digits(v) for v in (0.01234, 1.0, 12.345, 1234.5, 64.0, 1e9)] == [
        *("0.0123", "1", "12.3", "1,230", "64", "1,000,000,000")
    ]
    assert (
        joules(1234.6) == "1.23 kJ" and joules(0.0456) == "45.6 mJ" and joules(3.2e7) == "32.0 MJ"
    )
    assert (
        seconds(90.5) == "90.5 s"
        and seconds(1234) == "20 min 34 s"
        and seconds(0.0123) == "12.3 ms"
    )
    assert percent(12.4, signed=True) == "+12 %" and percent(-0.456, signed=True) == "-0.46 %"
    assert listed(["a", "b", "c"]) == "a, b and c" and listed([1, 2, 3], 2) == "1, 2 and 1 more"


@pytest.mark.parametrize("told", [digits, joules, seconds, percent])
def test_no_number_is_never_zero(told):
    assert told(None) == told(float("nan")) == told(float("inf")) == NONE


def test_front_by_hand():
    known = [(1.0, 9.0), (2.0, 4.0), (2.0, 5.0), (3.0, 4.0), (1.0, 9.0)]
    settings = [Candidate(1, 4, "dp=1", "fitted", time, energy_j=energy) for time, energy in known]
    on_front = [not any(dominates(other, one) for other in settings) for one in settings]
    assert on_front == [True, True, False, False, True]
    bits = replace(settings[0], time_s=1.0 + 2**-52)
    assert not dominates(settings[0], bits) and not dominates(bits, settings[0]), "rounding"


@pytest.mark.long
def test_a_tooltip_names_the_batch_and_where_energy_is_from(results):
    """What was run is not called measured where no meter measured it; times have no source."""
    found = shown(results.folder)["forecast"].content
    svg = inline_svg(found.charts["energy"], "e")
    assert re.search(
        r"on: 2 nodes · batch: 8 \(4 a node\) · energy: [^·]+ · basis: [^·]+ \(est", svg
    )
    assert "measured:" not in svg and "estimated" not in inline_svg(found.charts["time"], "t")
    assert "Drawn for batch 4 a node." in found.how_to_read


def test_plain_data_parallelism_is_not_named():
    one = Candidate(4, 32, "dp=4", "fitted", 1.0)
    assert one.setting == "4 nodes, batch 32"
    assert replace(one, strategy="dp=8").setting == "4 nodes, batch 32, dp=8"


def test_costs_by_hand(results):
    """Four samples a node and step, 20 W a node: the energy of a sample grows with the step alone."""
    row = costs(results).set_index(["network", "nodes"]).loc[("vit_ti", 2)]
    step_s = 0.1 + 0.6 + 0.003 + 0.3 + 0.04 + 0.1
    assert row["time_s"] == pytest.approx(1e6 * step_s / 8)
    assert row["energy_j"] == pytest.approx(1e6 * step_s * 20 / 4, rel=1e-3)
    assert row["energy_source"] == "estimated" and row["runs"] == 2


def test_error_of_the_unseen_is_that_of_the_fits(results):
    times = results.fit.judged("time")
    unseen = times[(times["model"] == "MC2") & (times["split"] == "leave-one-node-count-out")]
    means = unseen.groupby(["network", "nodes", "batch"])[["measured", "predicted"]].mean()
    expected = 100 * (means["predicted"] / means["measured"] - 1)
    judged = judged_times(results.fit)
    shown = judged[judged["model"] == "MC2"].set_index(["network", "nodes", "batch"])
    assert shown["difference_percent"].sort_index().to_numpy() == pytest.approx(
        expected.sort_index().to_numpy()
    )
    sentence = error_sentences(results.fit)[0]
    assert (
        percent(expected.abs().mean()) in sentence
        and "6 settings that the fit had not seen" in sentence
    )


def test_the_error_stands_next_to_the_best_rival_and_what_the_interval_held(results):
    times = results.fit.judged("time")
    times = times[times["split"] == "leave-one-node-count-out"]
    sizes = (times["predicted"] / times["measured"] - 1).abs()
    assert sizes.notna().all()
    ours = times[times["model"] == "MC2"]
    inside = (
        100 * ((ours["lower"] <= ours["measured"]) & (ours["measured"] <= ours["upper"])).mean()
    )
    rivals = times[times["model"] != "MC2"].assign(repeat=0)
    means = rivals.groupby(["model", "network", "nodes", "batch"])[["measured", "predicted"]].mean()
    errors = (means["predicted"] / means["measured"] - 1).abs().groupby("model").mean()
    sentence = error_sentences(results.fit)[0]
    assert f"The best rival, {errors.idxmin()}, is {percent(100 * errors.min())} off" in sentence
    assert f"{inside:.0f} % of the held-out runs lie inside the 90 % interval" in sentence


def test_forecasts_beyond_the_runs_have_the_error_of_extrapolation(results):
    times = results.fit.judged("time")
    beyond = times[(times["model"] == "MC2") & (times["split"] == "extrapolation")]
    means = beyond.groupby(["network", "nodes", "batch"])[["measured", "predicted"]].mean()
    errors = 100 * (means["predicted"] / means["measured"] - 1).abs()
    sentence = error_sentences(results.fit, EXTRAPOLATION)[0]
    assert f"{percent(errors.mean())} off on average" in sentence
    assert f"{len(means)} setting" in sentence
    page = rendered(shown(results.folder))
    page = page.replace("\xa0", " ")
    assert sentence in page and error_sentences(results.fit)[0] in page


def test_an_estimate_is_no_error_of_the_model(results):
    said = " ".join(error_sentences(results.fit))
    assert "estimated" in said and not re.search(r"Energy.*% off", said)
    observations = results.fit.observations.assign(energy_source="measured")
    fit = replace(results.fit, observations=observations)
    assert "Energy (measured)" in " ".join(error_sentences(fit))


def test_sources_of_energy_are_never_in_one_chart(results):
    advised = copy.deepcopy(shown(results.folder)["answers"].advice.content)
    for one in advised:
        for row in one.answer["candidates"]:
            row["energy_source"] = "measured" if row["nodes"] == 4 else "estimated"
    figure = energy_time_front(advised, "")
    assert len(figure.charts) == 4
    for chart in figure.charts:
        spec = chart.to_dict()
        told = {row["energy_source"] for rows in spec["datasets"].values() for row in rows}
        assert len(told) == 1 and told.pop() in spec["title"]["subtitle"]


def test_a_forecast_is_not_called_a_measurement(results):
    figure = energy_time_front(shown(results.folder)["answers"].advice.content, "")
    drawn = " ".join(inline_svg(chart, "c") for chart in figure.charts)
    assert ", forecast from estimated" in drawn and ", estimated" in drawn


def test_no_energy_has_its_reason(campaign, tmp_path):
    shutil.copytree(campaign, tmp_path / "dark")
    path = tmp_path / "dark/fits/observations.parquet"
    dark = pd.read_parquet(path).assign(
        energy_j=np.nan, energy_source=None, why_no_energy="no RAPL"
    )
    dark.to_parquet(path)
    found = read_results(write_answered(tmp_path / "dark"))
    rows = settings_table(costs(found), found.prices).rows
    assert {row[3] for row in rows} == {"none: no RAPL"} and {row[2] for row in rows} == {NONE}
    with pytest.raises(NothingToShow, match=r"no setting has an energy .no RAPL."):
        energy_time_front(campaign_answers(found).advice.content, "")
    assert "no energy is known" in text_of(tmp_path / "dark")


def advised(results, **changes):
    """Advice on a network of the campaign."""
    one = shown(results.folder)["answers"].advice.content[0]
    return replace(one, answer=one.answer | changes)


def test_the_page_takes_the_setting_that_the_advice_chooses(results):
    one = advised(results)
    answer, take = headline([one])
    best = one.answer["best"]
    least = one.answer["limit"]["in_words"]
    assert "time" in least
    assert answer == f"Take {best['setting']} for {one.label}: the lowest expected {least}"
    assert take == f"Clear winner for {one.label}."
    verdict = one.answer["verdict"] | {"clear_winner": False}
    assert headline([advised(results, verdict=verdict)])[1].startswith("No clear winner")
    (row,) = short_table([one], results.prices).rows
    assert row[:2] == (one.label, best["setting"])
    assert row[-1] == one.answer["verdict"]["in_words"]
    assert f"the lowest expected {least}" in short_table([one], results.prices).caption


def test_without_a_choice_there_is_a_reason(results):
    none = advised(results, best=None, why_none="no setting meets it")
    assert headline([none]) == ("No setting can be recommended yet", "")
    assert short_table([none], results.prices) is None


def test_advice_charges_whole_steps(tmp_path):
    """A million samples are 2,604.2 steps of 384."""
    for nodes in (1, 2):
        spec = make_spec(f"n{nodes}", nodes, training={"global_batch_size": 384})
        write_record(tmp_path / f"records/n{nodes}", make_record(spec))
    found = read_results(write_answered(tmp_path))
    answers = campaign_answers(found)
    (told,) = answers.advice.content
    measured = answers.costs.content.set_index("nodes")
    rows = {row["nodes"]: row for row in told.answer["candidates"] if row["batch_size"] == 384}
    for nodes in (1, 2):
        assert rows[nodes]["time_s"] == pytest.approx(measured.loc[nodes, "time_s"])
        assert rows[nodes]["time_s"] == pytest.approx(2605)
        assert rows[nodes]["energy_j"] == pytest.approx(measured.loc[nodes, "energy_j"])
    assert not [line for line in told.answer["warnings"] if "longest recorded run" in line]


def test_advice_without_energy_is_of_time(tmp_path):
    for nodes in (1, 2):
        record = make_record(make_spec(f"n{nodes}", nodes))
        absent = [
            m.model_copy(update={"available": False, "reason": "no RAPL"})
            for m in record.info.meters
        ]
        info = record.info.model_copy(update={"meters": absent})
        write_record(
            tmp_path / f"records/n{nodes}", replace(record, info=info, power=record.power.iloc[:0])
        )
    found = read_results(write_answered(tmp_path))
    known = campaign_answers(found).advice.content
    assert headline(known)[0].startswith("Take 8 nodes, batch 32")
    (row,) = short_table(known, found.prices).rows
    assert row[2] == NONE and "no RAPL" in row[3]


def test_what_the_fits_do_not_know_is_not_told(campaign, tmp_path):
    shutil.copytree(campaign, tmp_path / "fitted")
    write_record(tmp_path / "fitted/imported/mlperf/box-n1", make_imported("box-n1"))
    context = page_context(write_answered(tmp_path / "fitted"))
    assert "/fitted/records --platform" in context["advise_commands"][0]
    assert "imported" not in dict(context["facts"]["measured"])["Runs"]


@pytest.mark.long
def test_only_imported_runs(tmp_path):
    for nodes in (1, 2):
        record = make_imported(f"box-n{nodes}", nodes=nodes)
        write_record(tmp_path / f"imported/mlperf/box-n{nodes}", record)
    context = page_context(write_answered(tmp_path))
    stages = context["stages"].content
    assert "All runs are imported" in stages.finding and "growing" not in stages.finding
    # A rate would leave out what their starts and ends take.
    forecast = context["forecast"].content
    assert forecast.work_is == "the work that was run" and "energy" in forecast.charts
    assert context["advise_commands"][0].split(" --platform")[0].endswith("/imported")


def test_a_campaign_answers_the_four_questions(campaign):
    context = page_context(campaign, configfile="mine.yaml")
    assert [name for name in PARTS if context[name].why_none] == []
    text = plain(rendered(context))
    for network in ("vit_ti", "resnet18"):
        assert re.search(
            rf"{network} \d+ nodes?, batch \d+[^.]* [\d.]+ kWh \([\d.]+ to [\d.]+ kWh\)", text
        )
    assert "nodes share one machine" in text or "nodes are emulated" in text
    assert "energy is estimated" in text
    assert "no meter measured it (12 trainings)" in text
    assert "./run snakemake --cores all --configfile mine.yaml" in text
    assert "reproduced" in text and "not comparable" in text


def test_errors_on_metered_clusters_are_those_of_what_was_held_out(campaign):
    metered = shown(campaign)["metered"].content
    for said in (
        "2 tests of 3 settings each",
        "1.2 % to 2.5 % off",
        "3.0 % to 4.0 % off",
        "better in 2 of",
    ):
        assert said in metered.in_short
    assert "2.84 %" in metered.how_to_read
    errors = metered.table
    assert errors.columns[2:] == (
        *(
            "larger node counts not seen, time given",
            "by time, time given",
            "end of the run's own trace",
        ),
    )
    assert list(errors.rows) == [
        ("MC2", "2.84 %", "1.2 %", "2.5 %", "—"),
        ("Fan", "—", "3.0 %", "4.0 %", "—"),
        ("AR", "—", "—", "—", "1.2 %"),
    ]


def test_one_run(tmp_path):
    spec = make_spec("only")
    write_record(tmp_path / "records/only", make_record(spec))
    context = page_context(write_answered(tmp_path))
    drawn = [
        name for name in PARTS if context[name].content and hasattr(context[name].content, "charts")
    ]
    assert drawn == ["forecast", "front", "predicted", "stages"]
    text = text_of(tmp_path)
    assert "for 1,000,000 samples" in text and "The fit had seen the same runs" in text
    assert "growth cannot be judged" in text


@pytest.mark.long
def test_gpus_of_one_node_with_their_meters_alone(tmp_path):
    unpack_all(ROOT / "recorded/one-h100", tmp_path / "records")
    text = text_of(write_answered(tmp_path))
    assert "kept as data; only the GPUs had meters (12 runs)" in text
    # Batches were held out, as there is one node count.
    assert "over 9 settings that the fit had not seen" in text and "these very runs" not in text


def test_imported_runs_are_told_apart_from_ours(tmp_path):
    write_records(tmp_path, nodes=(1,), repeats=1)
    for nodes in (1, 2):
        record = make_imported(f"box-n{nodes}", nodes=nodes)
        write_record(tmp_path / f"imported/mlperf/box-n{nodes}", record)
    context = page_context(write_answered(tmp_path))
    assert {row[3] for row in context["table"].content.rows} == {"estimated", "imported"}
    assert len(context["stages"].content.charts) == 2, "of our stages, and of the phases of a log"
    # 100 s at 1 kW a node for ten samples.
    costs = pd.read_parquet(tmp_path / f"{COSTS}.parquet").set_index(["network", "nodes"])
    assert costs.loc[("net", 2), "energy_j"] == pytest.approx(2 * 100 * 1000 * 1e5, rel=0.02)
    # The setting to take is of the work that each training is advised for, from its own folder.
    assert "for 10 samples or 1,000,000 samples:" in context["short"].caption
    assert {amounts.work for amounts in context["short"].amounts} == {10, 1e6}
    assert "/imported --" in " ".join(context["advise_commands"])


def test_names_from_outside_are_text_on_the_page(campaign, tmp_path):
    shutil.copytree(campaign, tmp_path / "marked")
    path = tmp_path / "marked/fits/observations.parquet"
    runs = pd.read_parquet(path)
    runs["left_out"] = np.where(runs["nodes"] == 4, "</script><b>out of memory</b>", "")
    runs.to_parquet(path)
    html = rendered(page_context(tmp_path / "marked"))
    assert "&lt;/script&gt;&lt;b&gt;out of memory" in html and "<b>out" not in html


@pytest.mark.parametrize("name", ["fits/mc2.json", "tables/checks/checks.parquet"])
def test_a_file_that_cannot_be_read_is_named(campaign, tmp_path, name):
    shutil.copytree(campaign, tmp_path / "cut")
    (tmp_path / "cut" / name).write_text("{")
    with pytest.raises(JoulecastError, match=name):
        page_context(tmp_path / "cut")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(JoulecastError, match=r"none/fits"):
        write_overview(tmp_path / "none")


def test_the_page_and_its_answers_are_written(campaign, tmp_path):
    for name in ("records", "fits", "tables/checks", "tables/energy"):
        shutil.copytree(campaign / name, tmp_path / name)
    page = tmp_path / "pages/index.html"
    write_overview(tmp_path, page)
    assert page.stat().st_size < 1_500_000 and "<svg" in page.read_text()
    (first, _) = json.loads((tmp_path / "tables/advice/advice.json").read_text())
    assert first["answer"]["best"]["setting"] in page.read_text()
    assert first["request"]["network"] and "request" not in first["answer"]
    assert json.loads((tmp_path / "tables/advice/forecast.json").read_text())["rows"]
    assert (tmp_path / f"{COSTS}.csv").is_file()
    assert not list(tmp_path.rglob("*.partial"))


def test_charts_in_the_page_have_numbers_and_its_colours(results):
    """Each mark has what hovering shows, ids are the chart's own, and no colour lacks its dark twin."""
    charts = shown(results.folder)["forecast"].content.charts
    first, second = (inline_svg(charts[name], f"c{k}") for k, name in enumerate(("energy", "time")))
    assert re.search(r'data-tip="training: vit_ti · on: 1 node · batch: [^"]+"', first)
    ids = [set(re.findall(r'id="([^"]+)"', svg)) for svg in (first, second)]
    assert not ids[0] & ids[1] and "aria-label" not in first
    for light, _ in (SHADES["ink"], SHADES["soft"]):
        assert f'"{light}"' in first.lower() and f'[fill="{light}" i]' in page_colours()


def test_names_from_outside_are_text_in_charts(results):
    named = replace(advised(results), name="<script>alert(1)</script>")
    chart = energy_time_front([named], "").charts[0]
    assert "<script" not in inline_svg(chart, "x")


def test_the_page_forecasts_what_the_command_forecasts(campaign):
    context = shown(campaign)
    rows = campaign_answers(read_results(campaign)).forecast.content.rows
    asked = [
        "forecast",
        "--records",
        str(campaign / "records"),
        "--nodes",
        "1,16",
        "--samples",
        "1e6",
    ]
    done = CliRunner().invoke(app, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    for one in json.loads(done.output)["forecasts"]:
        (mine,) = (
            row
            for row in rows
            if (row["workload"], row["nodes"]) == (one["workload"], one["nodes"])
        )
        for name in ("time_s", "time_low_s", "energy_j", "energy_high_j", "fitted_energy_j"):
            expected = None if one[name] is None else pytest.approx(one[name])
            assert mine[name] == expected
    assert {row["nodes"] for row in rows} == {1, 2, 4, 8, 16}
    assert context["forecast"].content.work_is == "1,000,000 samples"


def test_a_page_links_only_tables_that_are_there(campaign):
    html = rendered(shown(campaign))
    assert 'href="metered/tables/energy_summary.html"' in html
    for href in re.findall(r'href="((?:tables|metered|checks)[^"]*)"', html):
        assert (campaign / href).is_file(), href


# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750]]
TO_XYZ += [[0.0193339, 0.1191920, 0.9503041]]
LEAST_DISTANCE = 15.0
"""CIE 1976; 2.3 is just noticeable, and these are areas and points of one chart beside each other."""


def lab(colour, blindness):
    """CIE L*a*b* (D65) of a colour as it is seen."""
    parts = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(BLINDNESS[blindness]) @ linear, 0, 1)
    xyz = np.array(TO_XYZ) @ seen / [0.95047, 1, 1.08883]
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("palette", PALETTES)
def test_colours_of_a_chart_can_be_told_apart(palette, blindness):
    for one, other in itertools.combinations(PALETTES[palette], 2):
        distance = np.linalg.norm(lab(one, blindness) - lab(other, blindness))
        assert distance > LEAST_DISTANCE, (one, other)


def test_the_distance_of_colours_sees_confusion():
    red, green = lab("#d62728", "deuteranopia"), lab("#7d7a00", "deuteranopia")
    assert np.linalg.norm(red - green) < LEAST_DISTANCE
    assert lab("#ffffff", "none") == pytest.approx([100, 0, 0], abs=0.1)
