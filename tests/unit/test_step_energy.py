"""Joules of simulated steps, from the user's side: what they are, what they rest on, and how they order."""

import json

import pytest
from conftest import ROOT, benchmark
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import joulecast
from joulecast.app.cli.main import app
from joulecast.energy.node_power import MeteredNode, shipped_nodes
from joulecast.energy.prices import from_wall
from joulecast.energy.strategy_energy import rising_joules
from joulecast.errors import JoulecastError
from joulecast.runs.platforms import gpu_in, same_hardware
from joulecast.runs.platforms.gpus import catalogue
from joulecast.runs.platforms.platform import find_platform

NETWORK = "gpt:layers=4,hidden=512,heads=8,sequence=128"


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def step(platform="h100-sxm", strategy="dp=8", **options):
    return joulecast.simulate_step(NETWORK, platform, strategy, **{"precision": "bf16"} | options)


def test_a_node_of_h100_draws_between_idle_and_the_most_that_was_metered():
    (node,) = shipped_nodes()
    result = step()
    assert node.idle_w < result["power_w"] <= 1.05 * node.full_w
    assert result["step_j"] == pytest.approx(result["power_w"] * result["step_s"])
    assert result["step_j_low"] < result["step_j"] < result["step_j_high"]
    # The error of the time is in the interval, too.
    assert result["step_j_high"] / result["step_j"] >= result["step_high_s"] / result["step_s"]
    assert (
        result["energy_source"] == "simulated time, imported power"
        and result["why_no_energy"] is None
    )
    assert "49 metered runs" in result["energy_rests_on"]


@pytest.mark.parametrize("alias", ["h100", "H100-SXM5", "nvidia_h100", "dgx-h100", "h100:gpus=8"])
def test_the_same_hardware_by_another_name_has_joules(alias):
    assert step(alias)["power_w"] == pytest.approx(step()["power_w"], rel=0.1)


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("8xSMC-H100-SXM-80GB", "h100-sxm"),
        ("lenovo-h100-pcie-80gb", "h100-pcie"),
        ("a100-with-h100", None),
        ("two-core-vm", None),
        ("A100 SXM4 40 GB", "a100-40gb-sxm"),
    ],
)
def test_the_gpu_is_told_by_longer_names(name, gpu):
    assert gpu_in(name) == gpu
    assert same_hardware(name, name)


def test_every_way_to_say_a_gpu_is_that_gpu():
    for name, gpu in catalogue().gpus.items():
        assert {gpu_in(said) for said in (name, gpu.title, *gpu.aliases)} == {name}


def test_idle_gpus_of_a_node_are_priced_and_said():
    (node,) = shipped_nodes()
    four, eight = step(strategy="dp=4"), step()
    half = (eight["power_w"] + node.idle_w) / 2
    assert four["power_w"] == pytest.approx(half, rel=0.05)
    assert "4 of the 8 GPUs of a node are idle" in four["energy_rests_on"]
    # Nobody metered that: the interval is wider.
    assert four["step_j_high"] / four["step_j"] > eight["step_j_high"] / eight["step_j"]


@pytest.mark.parametrize(
    ("platform", "said"),
    [
        ("h100-sxm:gpus=4", ("8 GPUs", "4;")),
        ("a100", ("h100-sxm", "8 GPUs")),
        ("h100-pcie", ("no metered run of h100-pcie",)),
    ],
)
def test_where_no_run_was_metered_the_joules_are_of_described_nodes_and_say_why(platform, said):
    result = step(platform, "dp=4")
    limit_w = find_platform(platform).require_cluster().device.power_limit_w
    assert 0.1 < result["gpus_power_w"] / (4 * limit_w) <= 1
    assert 1.2 < result["power_w"] / result["gpus_power_w"] < 6
    assert result["step_j_low"] < result["step_j"] < result["step_j_high"]
    assert all(part in result["energy_rests_on"] for part in ("GPU's description", *said))
    assert result["energy_source"] == "simulated time, described power"


def test_gpus_of_a_described_node_that_are_not_in_use_are_said():
    """One of a node's eight, all eight, and a node with one."""
    platforms = (("h200-sxm", "dp=1"), ("h200-sxm", "dp=8"), ("h200-sxm:gpus=1", "dp=1"))
    said = ["not in use" in step(*each)["energy_rests_on"] for each in platforms]
    assert said == [True, False, False]


def test_a_described_node_draws_what_the_known_nodes_of_h100_draw():
    """Of 8 H200, which have the same power limit and which nobody metered."""
    metered, described = step("h100-sxm"), step("h200-sxm")
    # Another maker's node draws 7.1 kW where the metered one draws 5.8.
    for known_w in (metered["power_w"], metered["power_w"] + 1300):
        assert described["power_w"] == pytest.approx(known_w, rel=0.12)
        known_j = known_w * described["step_s"]
        assert described["step_j_low"] < known_j < described["step_j_high"]


@pytest.mark.parametrize(("platform", "most_w"), [("b200", 14300), ("a100", 6500)])
def test_a_described_node_draws_less_than_its_data_sheet_allows(platform, most_w):
    result = step(platform)
    limit_w = 8 * find_platform(platform).require_cluster().device.power_limit_w
    assert limit_w / 2 < result["power_w"] < most_w


def test_hosts_of_a_rack_that_are_not_used_draw_nothing():
    rack, host = (step(platform, "dp=4") for platform in ("gb200", "gb200:gpus=4"))
    assert rack["power_w"] == pytest.approx(host["power_w"], rel=0.02)


def test_a_node_that_nobody_metered_is_searched_by_energy():
    asked = {"network": "gpt2", "platform": "b200", "devices": 8, "precision": "bf16"}
    rows = joulecast.search(**asked, objective="energy")["feasible"]
    joules = [row["joules_per_sample"] for row in rows]
    assert joules == sorted(joules) and joules[0] > 0


def test_a_platform_without_a_described_gpu_has_no_joules_but_the_reason():
    result = step("hc1", "dp=1", precision="fp32")
    joules = ("step_j", "step_j_low", "step_j_high", "power_w", "energy_source", "gpus_power_w")
    assert {result[name] for name in joules} == {None} and "no metered run" in result[
        "why_no_energy"
    ]


def test_a_time_without_an_interval_is_said_in_that_of_the_joules():
    result = step("dgx-h100", mode="proteus")
    assert result["step_low_s"] is None and result["step_j_low"] < result["step_j"]
    assert "of the power alone" in result["why_no_energy_interval"]


def _node(**changes) -> MeteredNode:
    return MeteredNode.of_plain(shipped_nodes()[0].as_plain() | changes)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=40), st.floats(0, 1), st.floats(0, 1))
def test_power_grows_with_nodes_gpus_and_computing(used, share, other):
    node = _node()
    power = node.power(used, share, 8)
    assert node.idle_w * len(used) <= power.watts <= node.full_w * len(used) * 1.05
    assert power.low_w < power.watts < power.high_w
    assert node.power([*used, 8], share, 8).watts > power.watts + node.idle_w * 0.999
    low, high = sorted((share, other))
    # kappa near 1: the curve rises up to full duty but for its last tenth.
    assert node.power(used, low, 8).watts <= node.power(used, high, 8).watts * 1.01


def test_the_shipped_powers_are_the_fit_and_hold_for_workloads_left_out():
    fit = benchmark("node_power")
    known = fit.shipped_runs()
    (fitted,), (shipped,) = fit.fitted(known), shipped_nodes()
    assert fitted.excess_w == pytest.approx(dict(shipped.excess_w), rel=1e-6)
    assert (fitted.idle_w, fitted.runs) == (pytest.approx(shipped.idle_w), shipped.runs)
    table = fit.held_out(known)
    assert len(table) == 7 and table["error_percent"].abs().mean() < 2
    assert table["metered_w"].between(table["low_w"], table["high_w"]).all()


def _run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


SEARCH = ["search", "--network", NETWORK, "--devices", "16", "--platform"]
PRICES = ["--price", "0.3", "--price-node-hour", "20", "--pue", "1.5", "--co2", "400"]


@pytest.mark.parametrize(
    ("objective", "key"),
    [
        ("time", "step_s"),
        ("energy", "joules_per_sample"),
        ("cost", "step_cost"),
        ("co2", "step_co2_kg"),
        ("edp", "energy_delay_js"),
    ],
)
def test_search_ranks_by_the_objective(objective, key):
    code, text = _run(*SEARCH, "h100-sxm", "--objective", objective, *PRICES, "--json")
    rows = json.loads(text)["feasible"]
    assert code == 0 and len(rows) > 3
    assert [row[key] for row in rows] == sorted(row[key] for row in rows)
    for row in rows:
        assert row["joules_per_sample"] * row["global_batch"] == pytest.approx(row["step_j"])
        # The meters of its nodes read behind the power supplies, as a forecast of such nodes says, too.
        assert row["supply"] == "DC"
        rent, kwh = row["step_s"] / 3600 * 2 * 20, row["step_j"] / 3.6e6 * from_wall("DC", None)[0]
        assert row["step_cost"] == pytest.approx(rent + kwh * 1.5 * 0.3)


@pytest.mark.parametrize(
    "objective", ["energy", *(pytest.param(o, marks=pytest.mark.long) for o in ("cost", "edp"))]
)
def test_the_best_by_an_objective_are_the_first_of_all(objective):
    prices = {"price": 0.3, "price_node_hour": 2.0}
    best, all_of_them = (
        joulecast.search(NETWORK, "h100-sxm", 8, objective=objective, top=top, **prices)
        for top in (4, 1000)
    )
    assert best["feasible"] == all_of_them["feasible"][:4]
    assert not all_of_them["beaten"]
    left = {row["strategy"]: row["step_s"] for row in all_of_them["feasible"][4:]}
    assert best["beaten"].keys() == left.keys()
    assert all(least <= left[text] * (1 + 1e-9) for text, least in best["beaten"].items())


@settings(max_examples=50)
@given(step_s=st.floats(0.1, 10), share=st.floats(0.01, 1), more=st.floats(1, 3))
def test_joules_never_fall_with_time_nor_with_computing(step_s, share, more):
    for platform in ("h100-sxm", "a100-80gb-sxm"):
        joules = rising_joules(find_platform(platform), "bf16", 12)
        least = joules(step_s, share * step_s)
        assert joules(more * step_s, share * step_s) >= least * (1 - 1e-12)
        assert joules(step_s, min(1.0, more * share) * step_s) >= least * (1 - 1e-12)


def test_rent_alone_needs_no_joules():
    priced = ("--objective", "cost", "--price-gpu-hour", "2")
    code, text = _run(*SEARCH, "hc1", "--devices", "8", *priced, "--json")
    row = json.loads(text)["feasible"][0]
    assert code == 0 and row["step_cost"] == pytest.approx(row["step_s"] / 3600 * 8 * 2)
    assert row["cost_rests_on"] == "rent alone"


def test_a_search_has_the_joules_of_its_steps():
    code, text = _run(*SEARCH, "a100", "--objective", "energy", "--top", "1", "--json")
    row = json.loads(text)["feasible"][0]
    step = joulecast.simulate_step(NETWORK, "a100", row["strategy"], batch=row["batch"])
    assert code == 0 and row["step_j"] == pytest.approx(step["step_j"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["hc1", "--devices", "8", "--precision", "fp32", "--objective", "energy"],
            "objective energy: the energy of a step is not known: no",
        ),
        (
            ["h100", "--objective", "cost"],
            "give --price, --price-node-hour or --price-gpu-hour",
        ),
        (["h100", "--objective", "co2"], "no intensity is known; give --co2"),
        (["h100", "--objective", "speed"], "objective 'speed'"),
        (["h100", "--pue", "0.5"], "--pue '0.5': must be at least 1"),
        (["h100", "--price", "-1"], "price"),
    ],
)
def test_an_objective_that_cannot_be_judged_is_an_error(words, said):
    code, text = _run(*SEARCH, *words)
    # A slow machine says first that it still searches.
    error = text.splitlines()[-1]
    assert code == 2 and error.startswith("error: ") and said in error


def test_the_commands_say_joules_and_their_source():
    asked = ["simulate", "--network", NETWORK, "--strategy", "dp=8", "--platform"]
    code, text = _run(*asked, "h100-sxm")
    assert (
        code == 0 and "W of all nodes (simulated time, imported power)\npowers fitted to " in text
    )
    code, text = _run(*asked, "a100")
    assert code == 0 and "W of all nodes (simulated time, described power)\nwatts from " in text
    code, text = _run(*SEARCH, "h100-sxm", "--top", "2")
    assert code == 0 and "energy of the first: simulated time, imported power" in text


def test_an_objective_is_checked_before_anything_is_simulated():
    with pytest.raises(JoulecastError, match="no price is known"):
        joulecast.search("no such network", "h100", 8, objective="cost")
