"""Which setting to run: chosen within a limit, from records whose truth is known."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, make_imported, make_record, make_spec
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import joulecast
from joulecast.app.cli.main import app
from joulecast.energy.forecast import forecast as forecast_of
from joulecast.energy.intervals import ONE_COUNT
from joulecast.energy.prices import Prices
from joulecast.energy.recorded_times import recorded_times
from joulecast.energy.request import Scales
from joulecast.errors import JoulecastError
from joulecast.report.advice.advise import measure_next
from joulecast.report.advice.candidate import Candidate, dominates
from joulecast.report.advice.choice import choose, overlaps, verdict_on
from joulecast.report.advice.request import Limit
from joulecast.report.advice.text import advice_text
from joulecast.runs.folders import record_folders
from joulecast.runs.record import RunRecord, write_record
from joulecast.runs.recorded import run_records


def advise(records, network, limit=None, *, prices=None, **options):
    for part in (limit, prices):
        options |= {} if part is None else part.model_dump(exclude_unset=True)
    return joulecast.advise(network, records=records, **options)


def step_s(nodes: int, batch: int, slower: float = 1.0) -> dict[str, float]:
    """A step of ``batch`` samples on each node: computing grows with it, communicating with the nodes."""
    parts = {"materials": 0.001 * batch, "computing": 0.05 + 0.01 * batch, "update": 0.02}
    if nodes > 1:
        parts["communicating_copy"] = 0.02 * (nodes - 1) / nodes
    return {stage: slower * seconds for stage, seconds in parts.items()}


def a_run(
    nodes: int, batch: int, repeat: int = 1, slower: float = 1.0, source: str = "measured"
) -> RunRecord:
    spec = make_spec(
        f"vit_ti-n{nodes}-b{batch * nodes}-r{repeat}",
        nodes,
        repeat=repeat,
        training={"global_batch_size": batch * nodes, "steps": 4},
    )
    record = make_record(spec, step_s(nodes, batch, slower))
    meters = [meter.model_copy(update={"source": source}) for meter in record.info.meters]
    return replace(record, info=record.info.model_copy(update={"meters": meters}))


def keep(folder: Path, *records: RunRecord) -> list[Path]:
    for record in records:
        write_record(folder / record.info.spec.run, record)
    return record_folders(folder)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """1, 2 and 8 nodes, three times each with 8 samples a node, and a smaller batch on one node."""
    runs = [
        a_run(nodes, 8, repeat, slower)
        for nodes in (1, 2, 8)
        for repeat, slower in ((1, 0.99), (2, 1.0), (3, 1.01))
    ]
    return keep(tmp_path_factory.mktemp("records"), *runs, a_run(1, 4))


def row_of(advice: dict, nodes: int, batch: int) -> dict:
    return next(c for c in advice["candidates"] if (c["nodes"], c["batch_size"]) == (nodes, batch))


def test_a_record_below_two_of_the_folders_counts_once(campaign):
    above, twice = campaign[0].parent, ROOT / "recorded/one-h100"
    with run_records([above, campaign[0]]) as folders, run_records([twice] * 2) as recorded:
        assert sorted(folders) == sorted(campaign)
        assert len({folder.name for folder in recorded}) == len(recorded)


def test_a_count_or_batch_that_is_given_twice_counts_once(campaign):
    once, twice = (
        advise(campaign[0].parent, "vit_ti", nodes=nodes, batch=batch)
        for nodes, batch in (([1], [8]), ([1, 1], [8, 8]))
    )
    assert twice["candidates"] == once["candidates"] and twice["verdict"] == once["verdict"]
    forecasts = joulecast.forecast(campaign[0].parent, [2, 1, 2])["forecasts"]
    assert [row["nodes"] for row in forecasts] == [2, 1]


# --- limits -------------------------------------------------------------------------------------------------


@st.composite
def candidates(draw) -> list[Candidate]:
    many = []
    for number in range(draw(st.integers(1, 12))):
        seconds, joules = (draw(st.floats(0.1, 1e4)) for _ in range(2))
        wider, known = draw(st.floats(1, 2)), draw(st.booleans())
        many.append(
            Candidate(
                nodes=number + 1,
                batch_size=8,
                strategy="dp",
                basis="fitted",
                time_s=seconds,
                time_low_s=seconds / wider,
                time_high_s=seconds * wider,
                energy_j=joules if known else None,
                energy_low_j=joules / wider if known else None,
                energy_high_j=joules * wider if known else None,
                energy_source="measured" if known else None,
            )
        )
    return many


def chosen(many: list[Candidate], limit: Limit) -> Candidate | None:
    best = choose(many, limit).best
    return None if best is None else many[best]


SAME = 1e-8
"""What is as near as this may stand for the best of all: nine digits decide."""


@given(candidates(), st.floats(0.1, 2e4), st.floats(0.1, 1.0))
def test_a_tighter_deadline_never_costs_less(many, deadline_s, tighter):
    loose = chosen(many, Limit(deadline_s=deadline_s))
    tight = chosen(many, Limit(deadline_s=deadline_s * tighter))
    if loose is None:
        assert tight is None
    elif tight is not None and tight.energy_j is not None:
        assert loose.energy_j is not None and loose.energy_j <= tight.energy_j * (1 + SAME)


@given(candidates(), st.floats(0.1, 2e4), st.floats(0.1, 1.0))
def test_a_smaller_energy_budget_is_never_faster(many, budget_j, smaller):
    large = chosen(many, Limit(energy_budget_j=budget_j))
    small = chosen(many, Limit(energy_budget_j=budget_j * smaller))
    if small is not None:
        assert large is not None and large.time_s <= small.time_s * (1 + SAME)


limits = st.one_of(
    st.just(Limit()),
    st.floats(0.1, 2e4).map(lambda s: Limit(deadline_s=s)),
    st.floats(0.1, 2e4).map(lambda j: Limit(energy_budget_j=j)),
    st.just(Limit(objective="time")),
)


@given(candidates(), limits)
def test_the_best_is_within_the_limit_and_nothing_there_is_better_in_both(many, limit):
    choice = choose(many, limit)
    inside = [c for c, fits in zip(many, choice.within, strict=True) if fits]
    for candidate, fits in zip(many, choice.within, strict=True):
        if limit.deadline_s is not None:
            assert fits == (candidate.time_high_s <= limit.deadline_s)
        if limit.energy_budget_j is not None:
            known = candidate.energy_high_j is not None
            assert fits == (known and candidate.energy_high_j <= limit.energy_budget_j)
    if choice.best is None:
        assert choice.why_none
        assert not inside
        return
    best = many[choice.best]
    assert best in inside
    assert not any(dominates(other, best) for other in inside)


def test_rounding_decides_no_tie():
    """The last bit of a sum is another on another processor; what is chosen and printed is not."""
    tenth = 0.1 + 0.2  # not 0.3
    plain = Candidate(2, 8, "dp=2", "fitted", 0.3, 0.2, 0.4, 3.0, 2.0, 4.0, "measured")
    wider = replace(plain, nodes=4, batch_size=16)
    for other in (wider, replace(wider, time_s=tenth), replace(wider, energy_j=10 * tenth)):
        same = replace(plain, time_s=tenth), replace(plain, energy_j=10 * tenth)
        for many in ([other, plain], [plain, other], *([other, each] for each in same)):
            for limit in (Limit(), Limit(deadline_s=1), Limit(energy_budget_j=5)):
                assert chosen(many, limit).nodes == 2
            for objective in ("time", "edp"):
                assert chosen(many, Limit(objective=objective)).nodes == 2
            assert "closest is 2 nodes" in choose(many, Limit(deadline_s=0.1)).why_none
            assert "closest is 2 nodes" in choose(many, Limit(energy_budget_j=0.1)).why_none
            assert not dominates(many[0], many[1]) and not dominates(many[1], many[0])


def test_energies_are_compared_at_the_wall():
    """A meter behind the power supplies reads 5 % less than one before them."""
    outlet = Candidate(1, 8, "dp=8", "simulated", 1.0, energy_j=102.0, supply="AC")
    behind = replace(outlet, strategy="tp=8", energy_j=100.0, supply="DC")
    for objective in ("energy", "edp"):
        assert chosen([behind, outlet], Limit(objective=objective)).supply == "AC"
    assert dominates(outlet, behind) and not dominates(behind, outlet)
    behind = replace(behind, energy_low_j=99.0, energy_high_j=101.0)
    outlet = replace(outlet, energy_low_j=105.0, energy_high_j=115.0, energy_j=110.0)
    assert overlaps(outlet, behind, "energy")


def test_of_intervals_as_wide_the_cheapest_is_to_be_measured_next():
    best = Candidate(8, 8, "dp=8", "fitted", 1.0, 0.5, 2.0, 1.0, 0.5, 2.0, "measured")
    wide = [
        replace(best, nodes=n, energy_j=j, energy_low_j=j / 2, energy_high_j=j * (2 + bit))
        for n, j, bit in ((1, 1.3, 0.0), (2, 1.1, -1e-15), (4, 1.1, 1e-15))
    ]
    for rivals in (wide, wide[::-1]):
        steps = measure_next([best, *rivals], best, most_nodes=None, others=rivals)
        (told,) = [step["what"] for step in steps if "widest" in step["why"]]
        assert told == "2 nodes, batch 8, dp=8"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"objective": "speed"}, "objective 'speed': give one of time, energy, cost, co2, edp"),
        ({"deadline_s": 0}, "deadline_s 0: must be above 0"),
        ({"energy_budget_j": float("nan")}, "energy_budget_j nan: give a finite number"),
    ],
)
def test_limits_that_nothing_can_meet_are_refused(given, said):
    with pytest.raises(JoulecastError, match=said):
        Limit(**given)


# --- money, CO2, and what is clearly the best ---------------------------------------------------------------

PAID = Prices(price=0.3, price_node_hour=1.0, co2=400.0, pue=1.5)


def test_several_budgets_hold_at_once(campaign):
    rows = advise(campaign, "vit_ti", samples=320, prices=PAID)["candidates"]
    for row in rows:
        kwh = row["energy_j"] / 3.6e6 * 1.5
        assert row["energy_kwh"] == pytest.approx(kwh)
        assert row["cost"] == pytest.approx(0.3 * kwh + row["nodes"] * row["time_s"] / 3600)
        assert row["co2_kg"] == pytest.approx(0.4 * kwh) and row["cost_rests_on"] == "measured"
        assert row["cost_low"] < row["cost"] < row["cost_high"]
    fastest = min(rows, key=lambda row: row["time_high_s"])
    cheapest = min(rows, key=lambda row: row["cost_high"])
    limit = Limit(
        deadline_s=1.01 * fastest["time_high_s"], cost_budget=1.01 * cheapest["cost_high"]
    )
    advice = advise(campaign, "vit_ti", limit, samples=320, prices=PAID)
    assert advice["limit"]["kind"] == "deadline and cost budget" and advice["best"] is None
    assert "nothing stays within" in advice["why_none"] and " EUR " in advice["why_none"]
    most = 1.01 * max(row["cost_high"] for row in rows)
    both = Limit(deadline_s=limit.deadline_s, cost_budget=most)
    kept = advise(campaign, "vit_ti", both, samples=320, prices=PAID)
    assert kept["best"]["setting"] == fastest["setting"]
    assert "the time and the upper end" in kept["limit"]["judged_by"]


@pytest.mark.parametrize(
    ("objective", "key"), [("time", "time_s"), ("cost", "cost"), ("co2", "co2_kg"), ("edp", None)]
)
def test_each_objective_has_its_least_first(campaign, objective, key):
    advice = advise(campaign, "vit_ti", Limit(objective=objective), prices=PAID)
    values = [c[key] if key else c["energy_j"] * c["time_s"] for c in advice["candidates"]]
    assert values == sorted(values) and advice["best"] == advice["candidates"][0]
    assert advice["limit"]["objective"] == objective


def test_a_cost_that_is_not_known_is_never_the_least(campaign):
    rented = Prices(price_gpu_hour=2.0)
    advice = advise(campaign, "vit_ti", Limit(objective="cost"), prices=rented)
    assert advice["best"] is None and "no GPU of it is known" in advice["why_none"]
    assert all(c["cost"] is None and c["why_no_cost"] for c in advice["candidates"])
    limited = advise(campaign, "vit_ti", Limit(cost_budget=5.0), prices=rented)
    assert limited["best"] is None and "give --price-node-hour" in limited["why_none"]


def test_overlapping_intervals_have_no_clear_winner():
    best = Candidate(1, 8, "one node", "fitted", 3.8, 3.6, 4.0, 93.0, 88.0, 98.0, "measured")
    rival = replace(best, nodes=4, strategy="dp=4", time_s=1.0, energy_j=100.0, energy_low_j=95.0)
    far = replace(rival, nodes=8, strategy="dp=8", energy_j=200.0, energy_low_j=190.0)
    rival = replace(rival, energy_high_j=105.0)
    many = [best, rival, far]
    verdict = verdict_on(many, choose(many, Limit()), "EUR")
    assert not verdict["clear_winner"] and verdict["overlapping"] == [rival.setting]
    for part in ("1 node, batch 8", "(93.0 J)", "saves 7.0 % of the energy", "takes 3.80 times"):
        assert part in verdict["in_words"]
    alone = verdict_on([best, far], choose([best, far], Limit()), "EUR")
    assert alone["clear_winner"] and "clear winner" in alone["in_words"]
    assert "of the energy and takes 3.80 times as long as the fastest, 8 nodes" in alone["in_words"]
    paid = [replace(c, energy_source="estimated").priced(PAID) for c in many]
    paid = [replace(c, hosts=c.nodes).priced(PAID) for c in paid]
    said = verdict_on(paid, choose(paid, Limit()), "EUR")["in_words"]
    assert "EUR" in said and "estimated power" in said


def test_money_of_an_estimated_power_says_so(tmp_path):
    folders = keep(tmp_path, *(a_run(n, 8, source="estimated") for n in (1, 2)))
    advice = advise(folders, "vit_ti", prices=PAID)
    assert {c["cost_rests_on"] for c in advice["candidates"]} == {"estimated"}
    lines = [line for line in advice_text(advice).splitlines() if "EUR" in line]
    assert lines and all("estimated" in line for line in lines if "prices:" not in line)


# --- from records -------------------------------------------------------------------------------------------


def test_a_setting_that_was_run_is_the_mean_of_its_runs(campaign):
    advice = advise(campaign, "vit_ti", samples=320)
    row = row_of(advice, 2, 16)
    assert (row["basis"], row["runs"], row["strategy"]) == ("measured", 3, "dp=2")
    seconds = 320 / 16 * sum(step_s(2, 8).values())
    assert row["time_s"] == pytest.approx(seconds)
    # make_record's nodes draw 20 W each.
    assert row["energy_j"] == pytest.approx(2 * 20 * seconds, rel=1e-3)
    assert row["energy_source"] == "measured" and row["why_no_energy"] is None
    # Repeats of three settings differ by 1 %: 1.94 * 0.01 * sqrt(4/3), a little more by what is assumed.
    assert 1.022 < row["time_high_s"] / seconds < 1.026


def test_node_counts_between_are_forecast_with_the_truth_in_the_interval(campaign):
    advice = advise(campaign, "vit_ti", samples=320)
    row = row_of(advice, 4, 32)
    truth_s = 320 / 32 * sum(step_s(4, 8).values())
    assert row["basis"] == "fitted" and row["extrapolation"] == []
    assert row["time_low_s"] <= truth_s <= row["time_high_s"]
    assert row["energy_low_j"] <= 4 * 20 * truth_s <= row["energy_high_j"]


def test_what_was_run_once_has_the_models_interval(campaign):
    row = row_of(advise(campaign, "vit_ti"), 1, 4)
    assert row["runs"] == 1 and row["basis"] == "measured"
    assert row["time_low_s"] < row["time_s"] < row["time_high_s"]
    assert row["energy_low_j"] < row["energy_j"] < row["energy_high_j"]


def test_what_lies_outside_is_marked_and_less_sure(campaign):
    advice = advise(campaign, "vit_ti", nodes=[8, 32], batch=[64, 256, 2048])
    inside, more_nodes = row_of(advice, 8, 64), row_of(advice, 32, 256)
    larger_batch = row_of(advice, 8, 2048)
    assert inside["extrapolation"] == []
    assert more_nodes["extrapolation"] == ["32 nodes: the runs had 1 to 8"]
    assert larger_batch["extrapolation"] == ["batch 256 of a rank: the runs had 4 to 8"]
    assert "extrapolated" in advice_text(advice)

    def width(row: dict) -> float:
        return row["time_high_s"] / row["time_low_s"]

    assert width(more_nodes) > width(inside) and width(larger_batch) > width(more_nodes)


def test_nothing_is_chosen_from_nothing(campaign):
    for limit in (Limit(), Limit(deadline_s=1), Limit(energy_budget_j=1), Limit(objective="time")):
        with pytest.raises(
            JoulecastError, match="nothing can be advised: 8 nodes, batch 1: batch 1 "
        ):
            advise(campaign, "vit_ti", limit, nodes=[8], batch=[1])


def test_a_batch_is_not_forecast_from_one_batch(tmp_path):
    folders = keep(tmp_path, a_run(1, 8), a_run(2, 8))
    advice = advise(folders, "vit_ti", batch=[8, 16])
    settings = {(c["nodes"], c["batch_size"]) for c in advice["candidates"]}
    assert settings == {(1, 8), (2, 16)}
    assert all("second batch" in refused["why"] for refused in advice["refused"])


def test_an_exchange_that_no_run_has_shown_is_not_weighed_unless_it_is_asked_for(tmp_path):
    folders = keep(tmp_path, a_run(1, 4), a_run(1, 8))
    assert advise(folders, "vit_ti")["weighed"]["counts"] == [1]
    advice = advise(folders, "vit_ti", nodes=[1, 2])
    assert any("one node count" in warning for warning in advice["warnings"])
    for row in advice["candidates"]:
        marked = any("no run exchanged gradients" in each for each in row["extrapolation"])
        assert marked == (row["nodes"] == 2)


def test_beyond_one_count_the_intervals_are_as_wide_as_recorded_scales_differ(tmp_path):
    """And nothing there is a clear winner, however few watts it draws."""
    folders = keep(tmp_path, a_run(2, 8), a_run(2, 8, repeat=2), a_run(2, 16))
    advice = advise(folders, "vit_ti", Limit(objective="time"), nodes=[2, 4, 64], batch=[256])
    best = advice["best"]
    assert best["nodes"] == 64 and best["beyond_one_count"]
    assert advice["verdict"]["clear_winner"] is None
    assert "only one" in advice["verdict"]["in_words"]
    four = next(c for c in advice["candidates"] if c["nodes"] == 4)
    assert four["time_high_s"] / four["time_s"] > math.exp(ONE_COUNT)
    assert best["time_s"] / best["time_low_s"] > math.exp(5 * ONE_COUNT)
    assert "64 nodes: the runs had 2. This is 32 times as many" in best["extrapolation"]
    assert any("32 times larger than the largest run" in warning for warning in advice["warnings"])


def test_the_width_beyond_one_count_is_what_recorded_scales_differ_by():
    times = recorded_times()
    times = times[times["samples"] > 0]
    times = times.assign(rate=np.log(times["samples"] / times["total_s"] / times["ranks"]))
    scales = times.groupby(["series", "work_unit", "ranks"])["rate"].mean().reset_index()
    pairs = scales.merge(scales, on=["series", "work_unit"])
    doublings = np.log2(pairs["ranks_y"] / pairs["ranks_x"])
    pairs = pairs[doublings > 0.9]
    a_doubling = (pairs["rate_y"] - pairs["rate_x"]).abs() / doublings
    assert len(pairs) > 150 and pairs["series"].nunique() > 50
    assert a_doubling.quantile(0.9) == pytest.approx(ONE_COUNT, abs=0.005)


def test_a_deadline_is_held_against_the_upper_end(campaign):
    everything = advise(campaign, "vit_ti", samples=320)
    row = row_of(everything, 2, 16)
    between = (row["time_s"] + row["time_high_s"]) / 2
    advice = advise(campaign, "vit_ti", Limit(deadline_s=between), samples=320)
    assert not row_of(advice, 2, 16)["within_limit"]
    assert advice["best"]["within_limit"] and advice["best"]["time_high_s"] <= between
    assert "upper end" in advice["limit"]["judged_by"]
    assert advice["candidates"][0] == advice["best"]


def test_when_nothing_meets_the_limit_the_closest_is_named(campaign):
    advice = advise(campaign, "vit_ti", Limit(deadline_s=1e-3))
    assert advice["best"] is None
    fastest = min(advice["candidates"], key=lambda c: c["time_high_s"])
    assert f"the closest is {fastest['setting']}" in advice["why_none"]
    text = advice_text(advice)
    assert "choose nothing" in text and "* the choice" not in text


def test_energies_that_are_estimated_are_called_that_everywhere(tmp_path):
    folders = keep(tmp_path, *(a_run(n, 8, source="estimated") for n in (1, 2)))
    advice = advise(folders, "vit_ti")
    assert {c["energy_source"] for c in advice["candidates"]} == {"estimated"}
    assert any("estimated" in warning for warning in advice["warnings"])
    assert any("meter" in step["what"] for step in advice["measure_next"])
    table = [line for line in advice_text(advice).splitlines() if "measured" in line[50:]]
    assert table and all("estimated" in line or "rests on" in line for line in table)


def test_estimates_are_not_mixed_with_measurements(tmp_path):
    measured = [a_run(n, 8, r) for n in (1, 2) for r in (1, 2)]
    folders = keep(tmp_path, *measured, a_run(4, 8, source="estimated"))
    advice = advise(folders, "vit_ti")
    row = row_of(advice, 4, 32)
    assert (row["basis"], row["runs"], row["runs_with_energy"]) == ("measured", 1, 0)
    assert {c["energy_source"] for c in advice["candidates"]} == {"measured"}
    assert "one run; energy by MC2" in advice_text(advice)
    (forecast,) = forecast_of(folders, Scales(nodes=[4], samples=advice["work"]["samples"]))[
        "forecasts"
    ]
    assert forecast["energy_source"] == "measured" and forecast["energy_j"] == row["energy_j"] > 0


def test_more_nodes_than_were_run_are_weighed_unless_counts_are_asked_for(tmp_path):
    folders = keep(tmp_path, *(a_run(n, batch) for n in (1, 2) for batch in (4, 8)))
    everything = advise(folders, "vit_ti", samples=1e5)
    assert everything["weighed"]["counts"] == [1, 2, 4, 8]
    assert {c["nodes"] for c in everything["candidates"]} == {1, 2, 4, 8}
    for row in everything["candidates"]:
        assert bool(row["extrapolation"]) == (row["nodes"] > 2)
    # A deadline that no count meets that was run.
    reached_s = row_of(everything, 4, 32)["time_high_s"]
    assert reached_s < min(c["time_s"] for c in everything["candidates"] if c["nodes"] <= 2)
    advice = advise(folders, "vit_ti", Limit(deadline_s=reached_s), samples=1e5)
    assert advice["best"]["nodes"] > 2 and advice["best"]["extrapolation"]
    told = advice_text(advice)
    assert "1, 2, 4 and 8 nodes" in told and "extrapolated" in told
    asked = advise(folders, "vit_ti", nodes=[2, 16])
    assert asked["weighed"]["counts"] == [2, 16]


def test_energy_that_is_only_estimated_does_not_choose(tmp_path):
    runs = [(n, batch) for n in (1, 2) for batch in (4, 8)]
    folders = keep(tmp_path / "a", *(a_run(*run, source="estimated") for run in runs))
    advice = advise(folders, "vit_ti")
    # Nothing that was measured supports a count beyond the runs.
    ran = [c for c in advice["candidates"] if c["times_beyond"] == 1]
    assert max(c["nodes"] for c in ran) == 2 < max(c["nodes"] for c in advice["candidates"])
    assert advice["best"]["time_s"] == min(c["time_s"] for c in ran)
    assert advice["limit"]["objective"] == "time"
    assert advice["limit"]["in_words"] == "time up to the largest scale that was run"
    frugal = min(advice["candidates"], key=lambda c: c["energy_j"])["setting"]
    assert advice["by_energy"] == frugal != advice["best"]["setting"]
    assert frugal in advice_text(advice).split("chosen by")[1].split("rests on")[0]
    # Who asks for it is told, and what a meter measured chooses.
    asked = advise(folders, "vit_ti", Limit(objective="energy"))
    assert asked["best"]["setting"] == frugal and asked["by_energy"] is None
    deadline_s = min(c["time_s"] for c in ran) / 1.2
    within = advise(folders, "vit_ti", Limit(deadline_s=deadline_s))
    assert within["best"]["nodes"] > 2, "where nothing that was run is within it"
    metered = advise(keep(tmp_path / "b", *(a_run(*run) for run in runs)), "vit_ti")
    assert metered["limit"]["objective"] == "energy" and metered["by_energy"] is None


def test_the_work_is_an_amount_also_where_none_is_asked_for(campaign):
    advice = advise(campaign, "vit_ti")
    assert "--samples" in advice["work"]["why"]
    asked = advise(campaign, "vit_ti", samples=advice["work"]["samples"])
    assert asked["candidates"] == advice["candidates"]
    assert asked["work"]["why"] == "as requested"
    assert any("times that of the longest run" in w for w in asked["warnings"])
    assert any("batch size" in warning for warning in asked["warnings"])


def test_imported_runs_are_forecast_by_their_work(tmp_path):
    runs = [
        make_imported(f"net-n{n}-{r}", nodes=n, stop_s=20 + 100 / n, platform=f"{n}xbox")
        for n in (1, 4)
        for r in (1, 2)
    ]
    work = runs[0].info.outcome.samples
    advice = advise(keep(tmp_path, *runs), "net", nodes=[1, 2, 4], samples=work)
    rows = {c["nodes"]: c for c in advice["candidates"]}
    assert rows[1]["time_s"] == pytest.approx(100) and rows[1]["basis"] == "measured"
    assert 25 < rows[2]["time_s"] < 100 and rows[2]["basis"] == "fitted"
    assert rows[2]["energy_source"] == "imported"
    longer = advise(keep(tmp_path / "b", *runs), "net", nodes=[1], samples=9 * work)
    assert "with another amount of work" in longer["measure_next"][0]["why"], "it ran, with less"
    assert advice["best"]["energy_j"] == min(c["energy_j"] for c in rows.values())


def test_what_to_measure_next_follows_from_the_choice(campaign, tmp_path):
    best_alone = advise(keep(tmp_path, a_run(1, 4), a_run(1, 8)), "vit_ti")
    assert any("a repeat of" in step["what"] for step in best_alone["measure_next"])
    forecast = advise(campaign, "vit_ti", nodes=[4], batch=[32])
    first = forecast["measure_next"][0]
    assert first["what"].startswith("4 nodes, batch 32") and "forecast" in first["why"]
    largest = advise(campaign, "vit_ti", nodes=[8], batch=[64])
    assert any(step["what"] == "16 nodes" for step in largest["measure_next"])


def test_everything_is_plain_data(campaign):
    advice = advise(campaign, "vit_ti", Limit(objective="edp"))
    assert json.loads(json.dumps(advice, allow_nan=False)) == advice
    front = [c for c in advice["candidates"] if c["on_front"]]
    assert advice["best"] in front


def test_wrong_questions_are_answered_with_what_there_is(campaign, tmp_path):
    with pytest.raises(JoulecastError, match=r"network vgg \(there are: vit_ti\)"):
        advise(campaign, "vgg")
    with pytest.raises(JoulecastError, match="give --records"):
        advise([], "vit_ti")
    with pytest.raises(JoulecastError, match="nodes 0: must be at least 1"):
        advise(campaign, "vit_ti", nodes=[0])
    with pytest.raises(JoulecastError, match="samples -1: must be above 0"):
        advise(campaign, "vit_ti", samples=-1)
    with pytest.raises(JoulecastError, match="of the platform nowhere"):
        advise(campaign, "vit_ti", platform="nowhere")


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_prints_the_choice_first(campaign):
    folder = str(campaign[0].parent)
    said = CliRunner().invoke(
        app, ["advise", "--network", "vit_ti", "--records", folder, "--deadline", "100000"]
    )
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()
    assert lines[2].startswith("choose 1 node, batch 8")
    assert any(line.startswith("*") for line in lines)


def test_the_command_prints_json_and_plain_errors(campaign):
    folder = str(campaign[0].parent)
    asked = ["advise", "--network", "vit_ti", "--records", folder]
    told = json.loads(CliRunner().invoke(app, [*asked, "--json", "--nodes", "1,2"]).output)
    assert {c["nodes"] for c in told["candidates"]} == {1, 2}
    for wrong, message in (
        ([*asked, "--nodes", "one"], "--nodes 'one': give numbers"),
        (
            [*asked, "--energy-budget", "5 parsecs"],
            "'5 parsecs': no energy; give joules",
        ),
        ([*asked, "--objective", "cost"], "--objective cost: no price is known; give --price"),
        ([*asked, "--cost-budget", "1", "--co2", "3"], "--cost-budget: no price is known"),
        ([*asked, "--co2-budget", "2kg"], "--co2-budget: no intensity is known; give --co2"),
        (["advise", "--network", "vit_ti"], "give --records FOLDER"),
    ):
        said = CliRunner().invoke(app, wrong)
        assert said.exit_code == 2 and message in said.output
        assert "Traceback" not in said.output


def test_repeats_that_trained_otherwise_are_named_by_forecast_and_advice(tmp_path):
    runs = [a_run(nodes, 8, repeat) for nodes in (1, 2) for repeat in (1, 2)]
    spec = runs[0].info.spec
    other = spec.model_copy(
        update={"training": spec.training.model_copy(update={"precision": "bf16"})}
    )
    changed = {"spec": other, "spec_sha256": other.digest()}
    runs[0] = replace(runs[0], info=runs[0].info.model_copy(update=changed))
    folders = keep(tmp_path, *runs)
    notes = forecast_of(folders, Scales())["notes"]
    assert any("differ in precision" in note for note in notes)
    warnings = advise(tmp_path, "vit_ti")["warnings"]
    assert any("differ in precision" in note for note in warnings)
    assert not any("differ in" in note for note in forecast_of(folders[1:], Scales())["notes"])
