"""A plan: one search over platforms, devices, strategies, batches, precisions and power limits."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import joulecast
from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError

PLATFORMS = Path(__file__).resolve().parents[2] / "config/platforms"
SMALL = "gpt:layers=2,hidden=512,heads=8,sequence=128,vocabulary=1000"


def plan(*platforms, network=SMALL, **options):
    asked = {"samples": 1e5, "devices": "1:4", "batch": 64} | options
    return joulecast.plan(network, ",".join(platforms), **asked)


def test_every_setting_is_weighed_and_priced_by_its_platform():
    planned = plan(
        "h100-sxm",
        "a100-80gb-sxm",
        precision="bf16,tf32",
        power_limits="100,70",
        price=0.3,
        co2=300,
        price_gpu_hour="h100-sxm=2.5,a100-80gb-sxm=1.2",
    )
    rows = planned["candidates"]
    settings = {
        (row["platform"], row["gpus"], row["precision"], row["power_limit_w"]) for row in rows
    }
    assert len(settings) == len(rows) == 2 * 3 * 2 * 2
    for row in rows:
        assert (
            row["basis"] == "simulated" and row["time_low_s"] < row["time_s"] < row["time_high_s"]
        )
        hours = row["time_s"] / 3600 * row["gpus"]
        rent = hours * {"h100-sxm": 2.5, "a100-80gb-sxm": 1.2}[row["platform"]]
        assert row["cost"] == pytest.approx(rent + 0.3 * row["energy_kwh"])
        assert row["co2_kg"] == pytest.approx(0.3 * row["energy_kwh"])
    # With prices, money is what is to be least.
    assert planned["best"]["cost"] == min(row["cost"] for row in rows)
    assert planned["best"]["on_front"]


def test_the_price_of_a_gpu_may_stand_in_a_file(tmp_path):
    file = tmp_path / "prices.yaml"
    file.write_text("prices: {price: 0.3, price_gpu_hour: 2}\n")
    planned, asked = (
        plan("h100-sxm", prices=file),
        plan("h100-sxm", price=0.3, price_gpu_hour=2),
    )
    for one, other in zip(planned["candidates"], asked["candidates"], strict=True):
        assert one["cost"] == pytest.approx(other["cost"])
        rent = one["time_s"] / 3600 * one["gpus"] * 2
        assert one["cost"] == pytest.approx(rent + 0.3 * one["energy_kwh"])
    assert planned["prices"]["price_gpu_hour"] == asked["prices"]["price_gpu_hour"] == 2


def test_a_gpu_in_two_sizes_of_node_is_two_platforms_each_with_its_price():
    prices = {"l40s:gpus=2": 1, "l40s:gpus=4": 3}
    text = ",".join(f"{name}={price}" for name, price in prices.items())
    planned = plan(*prices, devices="4", power_limits="100", price_gpu_hour=text)
    rows = {row["platform"]: row for row in planned["candidates"]}
    assert [rows[name]["nodes"] for name in prices] == [2, 1]
    for name, price in prices.items():
        assert rows[name]["cost"] == pytest.approx(rows[name]["time_s"] / 3600 * 4 * price)


def test_a_plan_says_by_which_prices_and_that_metered_nodes_lack_the_loss_of_their_supplies():
    options = ["--samples", "1e5", "--devices", "1", "--batch", "64", "--power-limits", "100"]
    asked = ["plan", "--network", SMALL, "--platform", "h100-sxm,a100-80gb-sxm", *options]
    prices = ["--price", "0.3", "--price-gpu-hour", "h100-sxm=2.5,a100-80gb-sxm=1.25"]
    said = CliRunner().invoke(app, [*asked, *prices], catch_exceptions=False).output
    assert all(number in said for number in ("EUR 2.5 ", "EUR 1.25 ", "EUR 0.3 ", "1.05 times"))
    asked = ["search", "--network", SMALL, "--platform", "h100-sxm", "--devices", "2"]
    for prices, is_said in (["--price", "0.3"], True), ([], False):
        said = CliRunner().invoke(app, [*asked, *prices], catch_exceptions=False).output
        assert ("1.05 times" in said) == is_said, said


def test_the_front_is_told_whole_with_the_choice_in_it():
    limits = ",".join(map(str, range(60, 101, 2)))
    asked = ["plan", "--network", "gpt2-xl", "--platform", "h100-sxm", "--samples", "1e6"]
    options = ["--devices", "8", "--power-limits", limits, "--objective", "energy"]
    said = CliRunner().invoke(app, [*asked, *options], catch_exceptions=False).output
    front = [
        row
        for row in plan(
            "h100-sxm", network="gpt2-xl", samples=1e6, devices="8", batch=512, power_limits=limits
        )["candidates"]
        if row["on_front"]
    ]
    rows = re.findall(r"^[*x ] +8 +h100-sxm .*$", said, re.M)
    assert len(rows) == len(front) > 16 and sum(row[0] == "*" for row in rows) == 1


@pytest.mark.parametrize("devices", ["4:4", pytest.param("64:64", marks=pytest.mark.long)])
def test_a_choice_that_may_not_fit_says_so(devices):
    planned = plan("a100-80gb-sxm", network="llama-7b", devices=devices, batch=512)
    said = any("may not fit" in warning for warning in planned["warnings"])
    assert said == planned["best"]["near_memory_limit"] == (devices == "4:4")


def test_a_setting_is_the_step_that_simulate_gives():
    for row in plan("h100-sxm", "a100-80gb-sxm", power_limits="100,70")["candidates"]:
        step = joulecast.simulate_step(
            SMALL,
            row["platform"],
            row["strategy"],
            batch=_of_replica(row),
            precision=row["precision"],
            optimizer="adam",
            power_limit=row["power_limit_w"],
        )
        steps = -(-100_000 // 64)
        assert row["time_s"] == pytest.approx(steps * step["step_s"])
        assert row["energy_j"] == pytest.approx(steps * step["step_j"])


def _of_replica(row):
    replicas = next((int(part[3:]) for part in row["strategy"].split(",") if part[:3] == "dp="), 1)
    return row["batch_size"] // replicas


def test_a_lower_limit_takes_longer_and_less_energy():
    planned = plan("a100-80gb-sxm", network="gpt2-xl", devices="8", power_limits="100,80,60")
    rows = sorted(planned["candidates"], key=lambda row: row["time_s"])
    limits = [row["power_limit_w"] for row in rows]
    assert limits == [None, pytest.approx(0.8 * 400), pytest.approx(0.6 * 400)]
    assert [row["energy_j"] for row in rows] == sorted((r["energy_j"] for r in rows), reverse=True)


def test_a_limit_that_a_gpu_does_not_reach_is_no_setting():
    """Plain FP32 on an A100 draws less than 85 % of its limit."""
    planned = plan("a100-80gb-sxm", devices="1", precision="fp32", power_limits="85,100,20")
    highest, low = sorted(planned["candidates"], key=lambda row: row["time_s"])
    assert highest["power_limit_w"] is None and low["power_limit_w"] == pytest.approx(0.2 * 400)
    assert low["time_s"] > highest["time_s"]


def test_what_does_not_fit_is_said():
    planned = plan("v100-16gb-sxm", network="gpt2-xl", devices="1,8", precision="fp16")
    assert {row["gpus"] for row in planned["candidates"]} == {8}
    (refused,) = planned["refused"]
    assert refused["setting"].startswith("1 x v100") and "out of memory" in refused["why"]
    with pytest.raises(JoulecastError, match=r"nothing can be advised: 1 x v100.*out of memory"):
        plan("v100-16gb-sxm", network="gpt2-xl", devices="1", precision="fp16")


def test_a_precision_that_a_platform_lacks_is_no_candidate():
    planned = plan("v100", "h100-sxm", precision="fp16,fp8", devices="1", power_limits="100")
    there = {(row["platform"], row["precision"]) for row in planned["candidates"]}
    assert {name for name, precision in there if precision == "fp8"} == {"h100-sxm"}
    assert len(there) == 3 and planned["refused"][0]["setting"] == "v100 at fp8"
    with pytest.raises(JoulecastError, match="no rate at"):
        plan("v100", precision="fp8", devices="1")


def test_plan_simulate_and_search_choose_the_same_precision():
    rows = plan("v100", "h100-sxm", precision=None, devices="1", power_limits="100")["candidates"]
    assert {row["precision"] for row in rows} == {"fp16", "bf16"}
    for row in rows:
        step = joulecast.simulate_step(SMALL, row["platform"], row["strategy"], batch=16)
        ranking = joulecast.search(SMALL, row["platform"], devices=1, global_batch=16, top=1)
        assert step["precision"] == ranking["precision"] == row["precision"]


def test_limits_and_objectives_choose():
    rows = plan("h100-sxm")["candidates"]
    fastest = min(rows, key=lambda row: row["time_s"])
    assert plan("h100-sxm", objective="time")["best"]["setting"] == fastest["setting"]
    deadline_s = 1.01 * fastest["time_high_s"]
    within = plan("h100-sxm", deadline_s=deadline_s)
    assert within["best"]["time_high_s"] <= deadline_s
    assert plan("h100-sxm", deadline_s=1e-3)["best"] is None
    with pytest.raises(JoulecastError, match="no price is known"):
        plan("h100-sxm", objective="cost")


def test_a_platform_of_ones_own_without_watts_says_so():
    planned = plan("hc1", network="alexnet", devices="1,2", precision="fp32", platforms=PLATFORMS)
    assert all(row["energy_j"] is None and row["why_no_energy"] for row in planned["candidates"])
    assert planned["best"] is None and "no energy is known" in planned["why_none"]
    fastest = plan(
        "hc1",
        network="alexnet",
        devices="1,2",
        precision="fp32",
        platforms=PLATFORMS,
        objective="time",
    )
    assert fastest["best"]["time_s"] == min(row["time_s"] for row in fastest["candidates"])


def test_a_measured_step_corrects_the_plan(tmp_path):
    step = joulecast.simulate_step(
        SMALL, "h100-sxm", "dp=4", batch=16, precision="bf16", optimizer="adam"
    )
    measured = tmp_path / "step.yaml"
    measured.write_text(
        f"network: {SMALL}\nstrategy: dp=4\nbatch: 16\nprecision: bf16\nstep_s: {2 * step['step_s']}\n"
    )
    before = plan("h100-sxm", devices="4", power_limits="100", objective="time")["best"]
    after = plan("h100-sxm", devices="4", power_limits="100", objective="time", calibrate=measured)[
        "best"
    ]
    assert after["time_s"] > 1.3 * before["time_s"]
    with pytest.raises(JoulecastError, match="corrects one platform"):
        plan("h100-sxm", "a100-80gb-sxm", calibrate=measured)


def test_a_pipeline_has_enough_micro_batches():
    """Of a batch that is no multiple of the stages: more micro-batches leave a shorter bubble."""
    network = "gpt:layers=12,hidden=768,heads=12"
    asked = {"devices": "3", "batch": 64, "power_limits": "100", "objective": "time"}
    best = plan("a40", network=network, **asked)["best"]
    few = joulecast.simulate_step(
        network, "a40", "pp=3,micro=8", batch=64, precision="bf16", optimizer="adam"
    )
    assert best["time_s"] < 0.95 * few["step_s"] * -(-100_000 // 64)


def test_a_batch_with_more_samples_than_a_step_has_micro_batches_is_planned():
    planned = plan("h100-sxm", devices="1", batch=[80_000], network="resnet50")
    assert planned["best"]["batch_size"] == 80_000


def test_what_is_asked_twice_is_one_setting():
    planned = plan("h100-sxm", "h100-sxm", devices="2,2", batch=[64, 64], power_limits="100,100")
    assert len(planned["candidates"]) == 1
    own = plan("hc1", network="alexnet", devices="1", precision="fp32", objective="time")
    assert len(own["candidates"]) == 1


def test_the_choice_has_its_money_where_prices_differ_between_platforms():
    words = ["plan", "--network", SMALL, "--platform", "h100-sxm,a40", "--samples", "1e5"]
    words += ["--devices", "1", "--batch", "64", "--price-gpu-hour", "h100-sxm=2.5,a40=1"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    choice, front = said.output.split("the front, ")
    assert re.search(r"^  cost    EUR \d", choice, re.M) and "EUR" in front


@pytest.mark.parametrize(
    "prices", [{"price_gpu_hour": 2.0, "currency": "USD"}, {}], ids=["cost", "energy"]
)
def test_a_page_shows_time_against_money_or_energy(tmp_path, prices):
    page = tmp_path / "plan.html"
    planned = plan("h100-sxm", "a100-80gb-sxm", html=page, **prices)
    # A quantity's number and unit stay on one line.
    text = page.read_text().replace("\u00a0", " ")
    (chart,) = re.findall(r'<div class="chart" role="img" tabindex="0" aria-label="([^"]*)">', text)
    name, value = ("cost", "cost") if prices else ("energy", "energy_j")
    left, unbeaten = float("inf"), 0
    for row in sorted(planned["candidates"], key=lambda row: row["time_s"]):
        # A mark of each setting, and its place in the spoken text where no faster one takes as little.
        assert f'data-tip="setting: {row["setting"]} · time: ' in text
        if row[value] < left:
            left, unbeaten = row[value], unbeaten + 1
            assert f"{row['setting']}: " in chart
    assert chart.startswith(f"Time and {name}. The choice: {planned['best']['setting']}: ")
    assert chart.count(" to ") >= 2 * (1 + unbeaten)  # their intervals
    assert "choose " in text and "joulecast plan --network" in text


def test_of_two_settings_that_take_as_long_the_dearer_is_not_on_the_front(tmp_path):
    page, few = tmp_path / "plan.html", "h100-sxm:gpus=2"
    hours = {"h100-sxm": 1.0, few: 3.0}
    asked = {"objective": "energy", "devices": "1", "power_limits": "100", "html": page}
    planned = plan("h100-sxm", few, price_gpu_hour=hours, **asked)
    chosen, cheaper = planned["candidates"]
    assert chosen["platform"] == few and chosen["time_s"] == cheaper["time_s"]
    front = page.read_text().replace("\u00a0", " ").partition("both time and cost: ")[2]
    front = front.partition('"')[0]
    assert cheaper["setting"] in front and chosen["setting"] not in front


def test_a_page_says_why_it_has_no_chart(tmp_path):
    asked = {"network": "alexnet", "devices": "1", "precision": "fp32", "objective": "time"}
    plan("hc1", platforms=PLATFORMS, html=tmp_path / "plan.html", **asked)
    text = (tmp_path / "plan.html").read_text()
    assert "There is no chart: no setting has a cost or an energy" in text and "<svg" not in text


def test_the_command_prints_the_choice_and_the_front():
    words = ["plan", "--network", SMALL, "--platform", "h100-sxm", "--samples", "1e5"]
    said = CliRunner().invoke(app, [*words, "--devices", "1:2", "--batch", "64"])
    assert said.exit_code == 0, said.output
    assert "choose " in said.output and "* the choice" in said.output
    told = CliRunner().invoke(app, [*words, "--devices", "1:2", "--batch", "64", "--json"])
    again = joulecast.plan(**json.loads(told.output)["request"])
    assert again["best"] == json.loads(told.output)["best"]
    for wrong, message in (
        (["--devices", "8:2"], "--devices '8:2': give the least and the most"),
        (["--power-limits", "120"], "--power-limits"),
        (["--price-gpu-hour", "b200=1"], "b200 is none of the platforms"),
        (["--platform", "a40,b200", "--price-gpu-hour", "b200=1"], "a40 has none; give one"),
        (["--precision", "bf17"], "--precision"),
    ):
        refused = CliRunner().invoke(app, [*words, *wrong])
        assert refused.exit_code == 2 and message in refused.output, refused.output
