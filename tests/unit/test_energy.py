"""MC2 and its rivals on runs whose truth is known."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import make_record, make_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.energy.allreduce_cost import FORMS, choose_form
from joulecast.energy.evaluation import evaluate
from joulecast.energy.intervals import conformal_width, outside_of, width_of_counts
from joulecast.energy.mc2_stages import StageMC2
from joulecast.energy.proportional_models import MODELS, Context
from joulecast.energy.splits import SPLITS
from joulecast.energy.timeseries import forecast_errors, resampled_power, series_models
from joulecast.runs.integration import EnergyCurve
from joulecast.runs.judging import SETTING, compare, judge, run_to_run_cv, summarise
from joulecast.runs.judging import by_setting as cells_of

POWERS = {
    "computing": 80.0,
    "communicating_wait": 30.0,
    "communicating_copy": 50.0,
    "update": 60.0,
    "materials": 0.0,
}
IDLE_W = 100.0
SIZES = (1e4, 1e6, 1e7, 3e7, 1e8, 3e8)


def run_row(network, nodes, batch, repeat, steps=10, **changes):
    """A run that obeys MC2 exactly: ring all-reduce, two networks, no noise."""
    tau, c, size = {"big": (0.2, 0.02, 5e8), "small": (0.05, 0.01, 1e8)}[network]
    copy = 0.0
    if nodes > 1:
        copy = 2 * (nodes - 1) * 1e-4 + 2 * (nodes - 1) / nodes * size * 1e-10
    times = {
        "materials": 1e-5 * batch,
        "computing": tau + c * batch,
        "communicating_wait": 1.5 * 0.01 * np.sqrt(2 * np.log(nodes)),
        "communicating_copy": copy,
        "update": 1e-3 + 5 * size * 2e-11,
        "other": 0.002,
    }
    total = steps * sum(times.values())
    energy = nodes * total * IDLE_W
    energy += sum(nodes * steps * times[s] * POWERS[s] for s in POWERS)
    row = {
        "run": f"{network}-{nodes}-{batch}-{repeat}",
        "folder": f"{network}-{nodes}-{batch}-{repeat}",
        "kind": "training",
        "platform": "cluster",
        "network": network,
        "workload": network,
        "nodes": nodes,
        "ranks": nodes,
        "repeat": repeat,
        "batch": batch * nodes,
        "batch_per_rank": float(batch),
        "steps": steps,
        "samples": steps * batch * nodes,
        "gradient_bytes": size,
        "total_s": total,
        "sigma_computing_s": 0.01,
        "nodes_are": "hosts",
        "left_out": "",
        "overlap": False,
        "algorithm": "mpi",
        "energy_source": "measured",
        "why_no_energy": None,
        "energy_j": energy,
        "metered_units": nodes,
        "u_cpu": 0.8,
        "memory_bytes": 1e9,
        "network_bytes_per_s": 1e6,
    }
    return row | {f"t_{stage}_s": seconds for stage, seconds in times.items()} | changes


def campaign():
    rows = [
        run_row(network, nodes, batch, repeat)
        for network in ("big", "small")
        for nodes, batch, repeat in [
            *itertools.product((1, 2, 4, 8), (8,), (1, 2)),
            (1, 4, 1),
            (1, 16, 1),
        ]
    ]
    idle = run_row("big", 1, 1, 1) | {"run": "idle", "kind": "idle", "total_s": 60.0, "steps": 0}
    idle |= {f"t_{s}_s": 0.0 for s in POWERS} | {"energy_j": 60 * IDLE_W, "network": None}
    points = [
        {
            "platform": "cluster",
            "nodes": n,
            "ranks": n,
            "bytes": size,
            "copy_s": 2 * (n - 1) * 1e-4 + 2 * (n - 1) / n * size * 1e-10,
            "algorithm": "mpi",
        }
        for n in (2, 4, 8)
        for size in SIZES
    ]
    return pd.DataFrame([*rows, idle]), pd.DataFrame(points)


def test_mc2_finds_the_truth_back():
    observations, points = campaign()
    training = observations[observations["kind"] == "training"]
    calibration = observations[observations["kind"] == "idle"]
    model = StageMC2().fit(training, points, calibration)
    assert model.time.copy_form == "ring"
    values = model.time.values
    assert values["c:big"] == pytest.approx(0.02) and values["tau:big"] == pytest.approx(0.2)
    assert values["alpha"] == pytest.approx(1e-4) and values["k"] == pytest.approx(1e-10)
    assert values["w"] == pytest.approx(1.5)
    powers = model.power.values
    assert powers["P0"] == pytest.approx(IDLE_W, rel=1e-3)
    assert powers["dP:computing"] == pytest.approx(80, rel=1e-2)


def test_stages_that_few_runs_cannot_tell_apart_draw_alike():
    observations, points = campaign()
    is_few = (observations["network"] == "big") & (observations["nodes"] <= 2)
    few = observations[is_few & (observations["batch_per_rank"] == 8)]
    powers = StageMC2().fit(few, points, few.iloc[:0]).power.values
    assert powers["dP:update"] == pytest.approx(powers["dP:computing"], rel=0.1)
    assert powers["P0"] == pytest.approx(IDLE_W, rel=0.2)
    # One batch cannot tell the joules of samples from the power of computing.
    assert not any(powers.get(name) for name in powers if name.startswith("e:"))
    # One node count cannot tell the idle power of a machine from the power of computing.
    noise = np.array([1.01, 0.99])
    for one in (few[few["nodes"] == 1], few[few["nodes"] == 1][::-1]):
        noisy = one.assign(energy_j=one["energy_j"] * noise)
        powers = StageMC2().fit(noisy, points, few.iloc[:0]).power.values
        assert powers["P0"] == pytest.approx(powers["dP:computing"], rel=0.1)


def test_one_disturbed_run_changes_no_forecast_of_what_was_left_out():
    observations, points = campaign()
    first = observations["run"] == "big-1-8-1"
    disturbed = observations.assign(
        sigma_computing_s=observations["sigma_computing_s"].mask(first, 10.0)
    )
    training = disturbed["kind"] == "training"
    held_out = disturbed[training & (disturbed["nodes"] == 8)]
    model = StageMC2().fit(
        disturbed[training & (disturbed["nodes"] < 8)], points, disturbed[~training]
    )
    assert model.predict_times(held_out)["total_s"].to_numpy() == pytest.approx(
        held_out["total_s"].to_numpy(), rel=0.02
    )


def test_intervals_widen_with_each_doubling_beyond_what_was_run():
    counts = width_of_counts(pd.Series([4.0, 8.0, 16.0]), [1, 2, 4])
    assert counts.tolist() == pytest.approx([0.0, 0.05, 0.1])
    one = pd.DataFrame([run_row("big", 2, 8, 1)])
    asked = run_row("big", 2, 8, 1) | {
        "work_unit": "samples",
        "nodes": 2,
        "hosts": 2.0,
        "gpus": None,
    }
    for times, widens in ((1, 0.0), (2, 0.05), (4, 0.1)):
        setting = asked | {"batch": 16 * times, "batch_per_rank": 8.0 * times}
        assert outside_of(one, setting, True).widens == pytest.approx(widens)


def test_unseen_node_counts_are_predicted_and_beat_the_rivals():
    observations, points = campaign()
    predicted = evaluate(
        observations, points, {"cluster": {"tdp_w": 400.0, "full_w": 200.0}}
    ).predictions
    times = cells_of(judge(predicted, observations, "time"), [*SETTING, "split", "model"])
    times = summarise(times, ["split", "model"]).set_index(["split", "model"])
    for split in ("leave-one-node-count-out", "extrapolation"):
        assert times.loc[(split, "MC2"), "mape_percent"] < 1
        assert times.loc[(split, "perfect-scaling"), "mape_percent"] > 3
    energies = cells_of(
        judge(predicted, observations, "energy"), [*SETTING, "split", "time", "model"]
    )
    energies = summarise(energies, ["split", "time", "model"])
    energies = energies.set_index(["split", "time", "model"])["mape_percent"]
    held = energies["leave-one-node-count-out"]["predicted"]
    assert held["MC2"] < 1 and held["MC2"] == held.min()
    transferred = energies["leave-one-workload-out"]["given"]
    assert transferred["MC2"] < 1 and transferred["MC2"] == transferred.min()


def test_a_split_never_fits_what_it_judges():
    observations, _ = campaign()
    training = observations[observations["kind"] == "training"].reset_index(drop=True)
    seen = {name: list(split(training)) for name, split in SPLITS.items()}
    for name in ("leave-one-node-count-out", "extrapolation", "leave-one-workload-out"):
        for split in seen[name]:
            assert not (split.fitted & split.judged).any()
            fitted, judged = training[split.fitted], training[split.judged]
            if name == "leave-one-workload-out":
                own = fitted[fitted["network"].isin(judged["network"])]
                assert set(own["nodes"]) == {1} and 1 not in set(judged["nodes"])
            else:
                assert set(fitted["nodes"]).isdisjoint(judged["nodes"])
    assert len(seen["leave-one-node-count-out"]) == 4
    assert len(seen["leave-one-workload-out"]) == 2
    (extrapolation,) = seen["extrapolation"]
    assert training.loc[extrapolation.fitted, "nodes"].max() <= 8 / 4


@pytest.mark.long  # as test_the_judged_runs_energy_never_reaches_a_fit, on staged runs
def test_the_held_out_calibration_is_not_used():
    observations, points = campaign()
    poisoned = points.copy()
    poisoned.loc[poisoned["nodes"] == 8, "copy_s"] *= 50
    rows = {}
    for name, used in (("clean", points), ("poisoned", poisoned)):
        times = judge(evaluate(observations, used, {}).predictions, observations, "time")
        held = times[(times.split == "leave-one-node-count-out") & (times.model == "MC2")]
        rows[name] = held[held["nodes"] == 8]["predicted"].to_numpy()
    assert rows["clean"] == pytest.approx(rows["poisoned"])


def test_taking_a_term_away_is_seen_in_the_ablation():
    observations, points = campaign()
    judged = evaluate(observations, points, {}, splits=["leave-one-node-count-out"])
    cells = cells_of(
        judge(judged.predictions, observations, "ablation"), [*SETTING, "time", "model"]
    )
    table = summarise(cells, ["time", "model"]).set_index(["time", "model"])["mape_percent"]
    given = table["given"]
    assert given["MC2"] < 0.1 and given["one power"] > 1
    assert given["no wait/copy split"] > given["MC2"]


def test_intervals_of_staged_runs_cover_noise_of_their_width():
    observations, points = campaign()
    random = np.random.default_rng(3)
    noisy = observations.assign(
        energy_j=observations["energy_j"] * random.normal(1, 0.03, len(observations))
    )
    predicted = evaluate(noisy, points, {}, splits=["leave-one-node-count-out"]).predictions
    judged = judge(predicted, noisy, "energy")
    mc2 = judged[judged["model"] == "MC2"]
    inside = (mc2["lower"] <= mc2["measured"]) & (mc2["measured"] <= mc2["upper"])
    width = ((mc2["upper"] - mc2["lower"]) / mc2["predicted"]).median()
    assert 0.7 < inside.mean() <= 1 and 0.03 < width < 0.3


def test_the_best_rival_comes_first_and_a_tie_is_no_gain():
    rows = [
        {
            **{"platform": "c", "network": w, "nodes": n, "batch": 1, "nodes_are": "hosts"},
            **{"model": m, "difference_percent": d},
        }
        for w, n in (("a", 2), ("a", 4), ("b", 2), ("b", 4), ("c", 2))
        for m, d in (("MC2", 1.0), ("same", -1.0), ("worse", 3.0))
    ]
    best, worst = compare(pd.DataFrame(rows))
    assert (best.rival, best.better_by_points) == ("same", 0) and best.better_share == 0
    assert (worst.rival, worst.better_by_points) == ("worse", 2) and worst.lower_points == 2
    assert compare(pd.DataFrame(rows).query("model != 'MC2'")) == []
    few = compare(pd.DataFrame(rows[:6]))
    assert few[1].better_by_points == 2 and few[1].lower_points is None, (
        "two settings tell no interval"
    )


def test_repeats_that_do_different_work_vary_by_their_pace():
    runs = pd.DataFrame([run_row("big", 2, 8, r) for r in (1, 2)])
    runs.loc[1, ["energy_j", "samples"]] *= 3
    assert run_to_run_cv(runs, "energy_j") == pytest.approx(0)


def test_one_node_neither_waits_nor_copies():
    observations, points = campaign()
    training = observations[observations["kind"] == "training"]
    model = StageMC2().fit(training, points, observations[observations["kind"] == "idle"])
    alone = model.predict_times(training[training["nodes"] == 1])
    assert (alone[["t_communicating_wait_s", "t_communicating_copy_s"]] == 0).all(axis=None)


def test_strong_scaling_keeps_the_energy_of_computing():
    """With c alone (flat eta) N nodes with b/N samples each compute as many joules as one."""
    observations, points = campaign()
    training = observations[observations["kind"] == "training"]
    model = StageMC2().fit(training, points, observations[observations["kind"] == "idle"])
    model.time.values["tau:big"] = 0.0
    settings_ = pd.DataFrame([run_row("big", n, 16 // n, 1) for n in (1, 2, 4)])
    computing = settings_["nodes"] * model.predict_times(settings_)["t_computing_s"]
    assert computing.to_numpy() == pytest.approx(computing[0])


def test_energy_is_left_out_where_there_is_none():
    observations, points = campaign()
    without = observations.assign(energy_j=np.nan, energy_source=None)
    judged = evaluate(without, points, {})
    assert judge(judged.predictions, without, "energy").empty
    assert len(judge(judged.predictions, without, "time"))
    assert judged.full_fits[0].mc2.power is None


@settings(max_examples=30)
@given(st.sampled_from(sorted(FORMS)), st.floats(1e-6, 1e-3), st.floats(1e-11, 1e-9))
def test_the_form_of_an_allreduce_is_recognised_by_its_times(form, alpha, per_byte):
    ranks = np.repeat([2.0, 4.0, 8.0, 16.0], len(SIZES))
    size = np.tile(SIZES, 4)
    latency, moved = FORMS[form](ranks, size)
    points = pd.DataFrame({"ranks": ranks, "bytes": size, "algorithm": "mpi"})
    points["copy_s"] = alpha * latency + per_byte * moved
    best = choose_form(points)
    latency, moved = FORMS[best](ranks, size)
    system = np.column_stack([latency, moved]) / points["copy_s"].to_numpy()[:, None]
    fitted = np.linalg.lstsq(system, np.ones(len(points)), rcond=None)[0]
    assert system @ fitted == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("algorithm", ["mpi", "ring:openmpi", "shared", "two_level"])
def test_forms_that_fit_alike_are_told_apart_by_the_algorithm_and_not_by_rounding(algorithm):
    """On one and two ranks most forms are the same: what is left of each is rounding alone."""
    prior = choose_form(pd.DataFrame({"ranks": [2.0], "bytes": [1.0], "algorithm": [algorithm]}))
    points = pd.DataFrame({"ranks": [2.0] * 6 + [4.0] * 6, "bytes": [*SIZES, *SIZES]})
    latency, moved = FORMS[prior](points["ranks"].to_numpy(), points["bytes"].to_numpy())
    for scale in (1.0, 1 / 3, 0.7):
        points["copy_s"] = scale * (1e-4 * latency + 3e-10 * moved)
        assert choose_form(points.assign(algorithm=algorithm)) == prior


def test_the_four_linear_models_by_hand():
    runs = pd.DataFrame([run_row("big", 2, 8, 1, u_cpu=0.5, total_s=10.0)])
    context = Context(runs.assign(energy_j=2 * 10 * 130.0), 100.0, 200.0, 400.0)
    got = {
        name: float(model(context, runs, runs["total_s"]).iloc[0]) for name, model in MODELS.items()
    }
    assert got["LP1"] == 2 * 10 * 400
    assert got["LP2"] == 2 * 10 * 200 * 0.5
    assert got["LP3"] == 2 * 10 * (100 + 100 * 0.5)
    assert got["LP4"] == pytest.approx(2 * 10 * 130)
    assert got["Fan"] == pytest.approx(2 * 10 * (100 + 100 * (1 - 0.5**1.4)))
    assert got["node-hours"] == pytest.approx(2 * 10 * 130)
    assert got["work"] == got["mean-J/sample"] == pytest.approx(2 * 10 * 130)
    assert got["energy power law"] == pytest.approx(2 * 10 * 130)


def test_watts_of_a_node_are_not_taken_for_those_of_its_gpus():
    observations, points = campaign()
    watts = {"cluster": {"idle_w": 20.0, "full_w": 45.0, "tdp_w": 60.0}}

    def lp1(covers, known):
        runs = observations.assign(energy_covers=covers)
        predicted = evaluate(runs, points, known, splits=["in-sample"], times=["given"]).predictions
        return predicted.loc[predicted["model"] == "LP1", "energy_j"].tolist()

    assert lp1("gpu", watts) == lp1("gpu", {}) != lp1("node", watts)


def test_series_models_on_traces_that_they_know():
    models = series_models()
    rising = np.arange(30.0)
    assert models["MEAN"](rising, 3) == pytest.approx([14.5] * 3)
    assert models["LAST"](rising, 3) == pytest.approx([29.0] * 3)
    wave = 100 + 10 * np.sin(np.arange(120) / 3)
    rest = 100 + 10 * np.sin(np.arange(120, 130) / 3)
    assert models["AR"](wave, 10) == pytest.approx(rest, abs=0.5)
    noise = 50 + np.random.default_rng(0).normal(0, 1, 80)
    for name in ("AR", "SES", "ARIMA"):
        assert np.abs(models[name](noise, 10) - 50).max() < 3, name


def test_forecasts_are_judged_on_five_splits_and_never_on_traces_too_short():
    errors = forecast_errors(100 + np.random.default_rng(1).normal(0, 1, 60), 5)
    assert set(errors["model"]) == {"AR", "SES", "ARIMA", "MEAN", "LAST"}
    assert (errors.groupby("model")["split"].nunique() == 5).all()
    assert errors["difference_percent"].abs().max() < 5
    assert forecast_errors(np.ones(10), 5).query("split < 0.7").empty


def test_what_overlap_hides_is_fitted():
    observations, points = campaign()
    training = observations[observations["kind"] == "training"].assign(overlap=True)
    # A tenth of the backward pass hides copying; the rest of the copy is exposed.
    hidden = 0.1 * 2 / 3 * training["t_computing_s"]
    shorter = (training["t_communicating_copy_s"] - hidden).clip(lower=0)
    saved = training["t_communicating_copy_s"] - shorter
    training = training.assign(
        t_communicating_copy_s=shorter, total_s=training["total_s"] - saved * training["steps"]
    )
    model = StageMC2().fit(training, points, observations[observations["kind"] == "idle"])
    assert model.time.values["phi"] == pytest.approx(0.1, abs=0.005)
    predicted = model.predict_times(training)["total_s"]
    assert predicted.to_numpy() == pytest.approx(training["total_s"].to_numpy(), rel=0.01)


def test_bins_of_a_trace_add_up_to_the_energy_of_the_run():
    """Watts that jump between two bins' centres, and a counter that lacks a value."""
    record = make_record(make_spec("spikes"))
    t_s = np.arange(0.0, 3.05, 0.1)
    watts = np.where(np.arange(len(t_s)) % 10 == 5, 300.0, 100.0)
    missing = 2.0 * np.arange(len(t_s))
    missing[7] = np.nan
    for columns in ({"watts": watts, "joules": np.nan}, {"watts": 20.0, "joules": missing}):
        power = pd.DataFrame({"node": "host/0", "meter": "estimated", "t_s": t_s, **columns})
        found = resampled_power(replace(record, power=power), 1.0)
        curve = EnergyCurve.of(power)
        expected = [float(curve.between(k, k + 1)) for k in range(len(found))]
        assert len(found) == 2 and found == pytest.approx(expected)


def test_sums_of_two_sizes_tell_the_latency_of_an_exchange():
    cells = [run_row("big", nodes, 4, repeat) for nodes in (1, 2) for repeat in (1, 2)]
    training = pd.DataFrame(cells).assign(overlap=True)
    points = pd.DataFrame({"ranks": [2, 2], "bytes": [1e6, 1e8], "algorithm": "mpi"})
    points = points.assign(copy_s=1e-4 + 1e-9 * points["bytes"])
    more = training.assign(ranks=64, nodes=64, gradient_bytes=1e3)
    fit = StageMC2().fit(training, points, training.iloc[:0])
    assert (fit.latency_s(more) == 0).all()


def test_batches_are_held_out_where_there_is_one_node_count():
    several = campaign()[0].query("kind == 'training'")
    assert not [*SPLITS["leave-one-batch-out"](several)]
    of_one = several[several["nodes"] == 1]
    splits = [*SPLITS["leave-one-batch-out"](of_one)]
    assert all((split.fitted != split.judged).all() for split in splits)
    held_out = [set(of_one["run"][split.judged]) for split in splits]
    assert held_out[:3] == [{"big-1-4-1"}, {"big-1-8-1", "big-1-8-2"}, {"big-1-16-1"}]
    assert len(held_out) == 6
    assert not [*SPLITS["leave-one-batch-out"](of_one[of_one["batch"] > 4])]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60))
def test_a_width_holds_nine_of_ten_errors_and_one_more_and_is_the_least_that_does(sizes):
    width, needed = conformal_width(sizes), 0.9 * (len(sizes) + 1)
    if len(sizes) < 9:
        assert width == max(sizes)
    else:
        assert sum(size <= width for size in sizes) >= needed
        assert sum(size < width for size in sizes) < needed
