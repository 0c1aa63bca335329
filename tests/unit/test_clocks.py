"""Power limits and clocks of simulated steps, from the user's side."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import joulecast
from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.graphs.clocks import gpu_power_of
from joulecast.runs.platforms import find_platform, gpu_names

ASKED = ("gpt:layers=4,hidden=1024,heads=16,sequence=512", "a40", "dp=1")


def step(**options):
    return joulecast.simulate_step(*ASKED, batch=8, **options)


@pytest.mark.parametrize("name", gpu_names())
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_gpu_draws_more_at_a_higher_clock_and_stays_within_its_limit(name, precision):
    power = gpu_power_of(find_platform(name).require_cluster().device, precision)
    watts = [float(power.watts(clock)) for clock in (0.1, 0.5, 0.75, 1.0)]
    assert 0 < power.awake_w < watts[0] and watts == sorted(watts) and watts[0] < power.limit_w
    assert 0.1 < power.clock_at(power.limit_w) <= 1
    assert 1000 < power.boost_mhz < 3000


@pytest.mark.parametrize(
    ("name", "boost_mhz"), [("a40", 1740), ("v100-pcie", 1380), ("a100", 1410), ("l4", 2040)]
)
def test_the_boost_clock_is_that_of_the_data_sheet(name, boost_mhz):
    power = gpu_power_of(find_platform(name).require_cluster().device, "fp32")
    assert power.boost_mhz == pytest.approx(boost_mhz, rel=0.02)


@settings(max_examples=20, deadline=None)
@given(st.floats(110, 300), st.floats(110, 300))
def test_a_lower_limit_never_makes_a_step_faster_nor_its_power_higher(one, other):
    low, high = (step(power_limit=limit) for limit in sorted((one, other)))
    assert low["step_s"] >= high["step_s"] and low["power_w"] <= high["power_w"] * (1 + 1e-9)
    assert low["sm_mhz"] <= high["sm_mhz"] and low["gpus_power_w"] <= max(one, other) * (1 + 1e-9)


def test_some_limit_takes_fewer_joules_of_the_gpus_than_none_and_the_lowest_ones_more():
    steps = {limit: step(power_limit=limit) for limit in (300, 250, 200, 150, 110)}
    joules = {limit: of["gpus_power_w"] * of["step_s"] for limit, of in steps.items()}
    assert step()["step_j"] == pytest.approx(steps[300]["step_j"])
    assert joules[200] < 0.95 * joules[300] and joules[110] > joules[200]
    # The rest of the node pays for each second that a limit adds.
    saved = {limit: joules[300] - of for limit, of in joules.items()}
    assert all(steps[300]["step_j"] - steps[limit]["step_j"] <= saved[limit] for limit in joules)


def test_a_clock_lengthens_products_and_leaves_memory_as_it_is():
    seconds = [step(sm_clock=clock)["step_s"] for clock in (1740, 1200, 800, 400)]
    assert all(longer > shorter for shorter, longer in pairwise(seconds))
    assert seconds[-1] / seconds[0] < 1740 / 400
    # The power limit alone leaves less than boost.
    assert seconds[0] == step()["step_s"] and step(sm_clock=1740)["sm_mhz"] < 1740


def test_a_limit_widens_the_interval_and_metered_nodes_draw_what_gpus_draw_less():
    free, limited = step(), step(power_limit=200)
    rest = {result["power_w"] - result["gpus_power_w"] for result in (free, limited)}
    assert max(rest) == pytest.approx(min(rest)) and free["sm_mhz"] is None
    for result in (free, limited):
        assert result["step_j_low"] < result["step_j"] < result["step_j_high"]
    width = [each["step_high_s"] / each["step_low_s"] for each in (free, limited)]
    assert width[1] > width[0]
    on_metered = [
        joulecast.simulate_step(ASKED[0], "h100", "dp=8", precision="bf16", power_limit=limit)
        for limit in (700, 500)
    ]
    # At the highest limit, the figure is the one without a limit.
    free = joulecast.simulate_step(ASKED[0], "h100", "dp=8", precision="bf16")
    assert on_metered[0]["step_j"] == pytest.approx(free["step_j"])
    assert 0 < on_metered[0]["power_w"] - on_metered[1]["power_w"] < 8 * 200
    assert on_metered[1]["step_j_low"] < on_metered[1]["step_j"] < on_metered[1]["step_j_high"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--power-limit", "301"], "300 W or less"),
        (["--power-limit", "50"], "at its lowest clock; take a limit"),
        (["--sm-clock", "2500"], "(boost); take a clock"),
        (["--sm-clock", "10"], "(boost); take a clock"),
        (["--power-limit", "200", "--mode", "proteus"], "leave out databases"),
        (["--power-limit", "-1"], "power-limit"),
    ],
)
def test_what_a_gpu_cannot_be_set_to_is_refused_with_the_way_out(words, said):
    asked = ["simulate", "--network", ASKED[0], "--platform", ASKED[1], "--strategy", ASKED[2]]
    result = CliRunner().invoke(app, [*asked, *words])
    assert result.exit_code == 2 and said in result.output


def test_the_command_says_clock_joules_and_what_they_are_of():
    asked = ["simulate", "--network", ASKED[0], "--platform", ASKED[1], "--strategy", ASKED[2]]
    result = CliRunner().invoke(app, [*asked, "--power-limit", "200"])
    assert result.exit_code == 0
    assert (
        "MHz" in result.output
        and "W of all nodes (simulated time, described power)\nwatts from " in result.output
    )


def test_a_platform_that_no_description_covers_takes_no_limit():
    with pytest.raises(JoulecastError, match="name a GPU of the catalogue"):
        joulecast.simulate_step(ASKED[0], "hc1", "dp=1", power_limit=100)
