"""When to run a training, by prices and CO2 of the hour."""

import itertools
import json
import re
import shlex

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import joulecast
from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError

HOUR = 3600.0
DAY = "2026-11-27T00:00"


def written(folder, values, name="price"):
    rows = [f"2026-11-27T{hour:02d}:00:00,{value}" for hour, value in enumerate(values)]
    file = folder / "hours.csv"
    file.write_text("\n".join([f"time,{name}", *rows]) + "\n")
    return file


def chosen(file, hours, **options):
    asked = {"duration_s": hours * HOUR, "energy_j": hours * 3.6e6, "after_s": DAY} | options
    return joulecast.choose_start(file, **asked)


prices = st.lists(st.integers(1, 50), min_size=4, max_size=9)


@given(prices=prices, quarters=st.integers(1, 16), deadline=st.integers(4, 9))
def test_no_start_is_cheaper(tmp_path_factory, prices, quarters, deadline):
    """1 kW: the money is the integral of the price; held against every quarter of an hour."""
    hours, by = quarters / 4, min(deadline, len(prices))
    if hours > by:
        return
    file = written(tmp_path_factory.mktemp("hours"), prices)
    answer = chosen(file, hours, deadline_s=by * HOUR)
    by_quarter = np.repeat(prices, 4) / 4
    sums = [by_quarter[k : k + quarters].sum() for k in range(4 * by - quarters + 1)]
    assert answer["best"]["cost"] == pytest.approx(min(sums))
    assert answer["now"]["cost"] == pytest.approx(sums[0])


@given(
    prices=st.lists(st.integers(1, 50), min_size=4, max_size=6),
    hours=st.integers(1, 4),
    restart=st.sampled_from([0, 1]),
)
def test_no_way_to_pause_is_cheaper(tmp_path_factory, prices, hours, restart):
    """Held against every set of whole hours: a restart of an hour takes the first of each later span."""
    file = written(tmp_path_factory.mktemp("hours"), prices)
    answer = chosen(file, hours, restart_s=restart * HOUR)
    least = min(
        sum(prices[k] for k in hours_run)
        for count in range(hours, len(prices) + 1)
        for hours_run in itertools.combinations(range(len(prices)), count)
        if count == hours + restart * sum(b - a > 1 for a, b in itertools.pairwise(hours_run))
        and (not restart or _restarts_work(hours_run))
    )
    assert answer["paused"]["cost"] <= least * (1 + 1e-9)
    assert answer["paused"]["cost"] <= answer["best"]["cost"] * (1 + 1e-9)
    runs = [[np.datetime64(each.rstrip("Z")) for each in pair] for pair in answer["paused"]["runs"]]
    seconds = sum((end - start) / np.timedelta64(1, "s") for start, end in runs)
    assert seconds == pytest.approx(hours * HOUR + (len(runs) - 1) * restart * HOUR)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(runs))


@pytest.mark.parametrize(("hours", "restart_s"), [(0.01, 0), (1.51, 0), (1.51, 100), (1.99, 700)])
def test_a_run_that_may_pause_takes_no_longer_than_its_work_and_its_restarts(
    tmp_path, hours, restart_s
):
    answer = chosen(written(tmp_path, [3, 1, 9, 1, 9, 9]), hours, restart_s=restart_s)
    restarts = len(answer["paused"]["runs"]) - 1
    assert restarts == (hours > 1)
    assert answer["paused"]["energy_kwh"] == pytest.approx(hours + restarts * restart_s / HOUR)
    assert answer["paused"]["cost"] <= answer["best"]["cost"] * (1 + 1e-9)


def test_pauses_follow_the_hours_of_a_month(tmp_path):
    """Every second hour is cheap. A restart takes ten minutes of each, so 12 of them have the work of 10."""
    start, file = np.datetime64(DAY), tmp_path / "hours.csv"
    rows = [f"{start + np.timedelta64(hour, 'h')},{1 + 8 * (hour % 2)}" for hour in range(720)]
    file.write_text("\n".join(["time,price", *rows]) + "\n")
    assert chosen(file, 10, restart_s=600)["paused"]["cost"] == pytest.approx(10 + 11 / 6)


def test_a_pause_is_one_also_where_power_earns_money(tmp_path):
    file = written(tmp_path, [-2, -1, 3, 3, -2])
    answer = chosen(file, 2, restart_s=600)
    runs = [[np.datetime64(each.rstrip("Z")) for each in pair] for pair in answer["paused"]["runs"]]
    assert all(a[1] < b[0] for a, b in itertools.pairwise(runs))
    assert answer["best"]["cost"] == pytest.approx(-3)
    # No restart without work, although it would earn money.
    assert [(end - start) / np.timedelta64(1, "m") for start, end in runs] == pytest.approx(
        [70, 60]
    )


def test_a_pause_is_worth_its_restart(tmp_path):
    flat = chosen(written(tmp_path, [-0.2] * 14), 1.75, after_s="2026-11-27T00:04:08", restart_s=0)
    assert len(flat["paused"]["runs"]) == 1
    # The restart takes the first minute at 1.2, and the last minute of the work is at 2.
    paused = chosen(written(tmp_path, [1, 1, 3, 1.2, 2]), 3, restart_s=60)["paused"]
    assert paused["cost"] == pytest.approx(2 + 1.2 + 2 / 60)


def _restarts_work(hours_run):
    """Whether each span after a pause has more than its restart."""
    later = [k for k, (a, b) in enumerate(itertools.pairwise(hours_run), start=1) if b - a > 1]
    return all(k + 1 < len(hours_run) and hours_run[k + 1] == hours_run[k] + 1 for k in later)


def test_both_columns_are_paid_and_the_objective_says_which_counts(tmp_path):
    file = tmp_path / "hours.csv"
    file.write_text(
        "time,price,co2\n2026-11-27T00:00+01:00,3,100\n2026-11-27T01:00+01:00,1,300\n"
        "2026-11-27T02:00+01:00,2,200\n"
    )
    asked = {"duration_s": "1h", "energy_j": "2kWh", "after_s": "2026-11-26T23:00"}
    by_cost = joulecast.choose_start(file, **asked)
    by_co2 = joulecast.choose_start(file, **asked, objective="co2")
    assert (by_cost["best"]["cost"], by_cost["best"]["co2_kg"]) == pytest.approx((2, 0.6))
    assert by_cost["best"]["start"] == "2026-11-27T00:00:00Z" and by_cost["paused"] is None
    assert by_co2["best"] == by_co2["now"]
    assert by_co2["best"]["co2_kg"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("time,cents\n2026-11-27T00:00,1\n", {}, "no column price or co2"),
        ("time,price\nnoon,1\nnight,2\n", {}, "column time"),
        ("time,price\n2026-11-27T01:00,1\n2026-11-27T00:00,2\n", {}, "not after the one before"),
        (None, {"after_s": "2026-11-29T00:00"}, "do not contain 2026-11-29"),
        (None, {"deadline_s": "9h"}, "before the deadline"),
        (None, {"duration_s": "5h"}, "the training takes until"),
        (None, {"objective": "co2"}, "no column co2"),
        (None, {"after_s": "noon"}, "no time; give it as"),
    ],
)
def test_what_cannot_be_answered_names_the_way_out(tmp_path, text, more, said):
    file = written(tmp_path, [1, 2, 3, 4])
    if text is not None:
        file.write_text(text)
    with pytest.raises(JoulecastError, match=re.escape(said)):
        chosen(file, 1, **more)


def test_the_page_shows_what_the_command_prints(tmp_path, monkeypatch):
    page = (ROOT / "docs/how-to/choose-the-hour.md").read_text()
    blocks = dict(re.findall(r'```text title="([^"]+)"\n(.*?)```', page, re.S))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hours.csv").write_text(blocks["hours.csv"])
    commands = re.findall(r"^./run joulecast (when .*)$", page, re.M)
    said = [CliRunner().invoke(app, command.split()) for command in commands]
    assert said[0].output == blocks["when prints"]
    assert said[1].exit_code == 0 and "no pause is worth" in said[1].output
    told = json.loads(CliRunner().invoke(app, [*commands[0].split(), "--json"]).output)
    assert joulecast.choose_start(**told["request"]) == told
    again = shlex.split(joulecast.StartRequest(**told["request"]).in_shell())
    assert json.loads(CliRunner().invoke(app, [*again[1:], "--json"]).output) == told


@pytest.mark.parametrize("first", ["0", "-0.2", "0.5"])
def test_a_start_that_costs_nothing_has_no_share_to_save(tmp_path, first):
    file = written(tmp_path, [first, -1, 3, 3])
    said = CliRunner().invoke(
        app, ["when", "--hours", str(file), "--duration", "1h", "--energy", "1kWh", "--after", DAY]
    )
    assert said.exit_code == 0, said.output
    assert "% less" not in said.output and "started later" in said.output
