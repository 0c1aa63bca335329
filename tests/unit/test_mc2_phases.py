"""MC2 on phases: it finds the truth back, carries it to what it has not seen, and knows how well."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.energy.evaluation import evaluate
from joulecast.energy.mc2_phases import PhaseMC2
from joulecast.energy.mc2_terms import ABLATIONS, Terms, duty
from joulecast.energy.models import Evidence, MC2OnPhases
from joulecast.runs.judging import judge

IDLE_W = 2600.0


def run_row(network, nodes, kappa=1.0, rho=0.06, excess_w=4200.0, alone_s=1000.0, **changes):
    """A run that obeys the model exactly: training, evaluations of a tenth, 10 s of standing still."""
    slower = 1 + rho * (nodes - 1)
    training_s = alone_s / nodes * slower
    evaluating_s = training_s / 10
    total_s = training_s + evaluating_s + 10
    fall = float(duty(1 / slower, kappa))
    floor_j = nodes * IDLE_W
    training_j = training_s * (floor_j + nodes * excess_w * fall)
    evaluating_j = evaluating_s * (floor_j + nodes * 0.5 * excess_w * fall)
    return {
        "run": f"{network}-{nodes}",
        "folder": f"{network}-{nodes}",
        "kind": "imported",
        "platform": "box",
        "network": network,
        "workload": f"{network} on box",
        "submitter": "lab",
        "accelerator": None,
        "series": f"lab: {network} on box",
        "work_unit": "epochs",
        "nodes": nodes,
        "ranks": nodes,
        "repeat": 1,
        "batch": 256.0,
        "batch_per_rank": np.nan,
        "steps": 0,
        "samples": 10,
        "total_s": total_s,
        "training_s": training_s,
        "evaluating_s": evaluating_s,
        "both_s": 0.0,
        "evaluators": np.nan,
        "stalled_s": 10.0,
        "stalled_training_s": 0.0,
        "starts": 1,
        "energy_j": training_j + evaluating_j + 10 * floor_j,
        "training_j": training_j,
        "evaluating_j": evaluating_j,
        "idle_w": IDLE_W,
        "lowest_w": IDLE_W,
        "steady_w": training_j / training_s / nodes,
        "metered_units": nodes,
        "u_cpu": np.nan,
        "memory_bytes": np.nan,
        "network_bytes_per_s": np.nan,
        "energy_source": "imported",
        "why_no_energy": None,
        "nodes_are": "hosts",
        "left_out": "",
    } | changes


def runs(*rows):
    return pd.DataFrame(list(rows))


def test_a_workload_seen_on_two_counts_is_predicted_on_a_third():
    seen = runs(*(run_row("a", n, kappa=0.7, rho=0.05) for n in (1, 8)))
    model = PhaseMC2().fit(seen)
    assert model.idle_w == {"box": IDLE_W}
    # One workload's own evidence weighs far more than the prior, which keeps the rest.
    assert 0.69 < model.kappa["a on box"].mean < 0.8
    unseen = runs(run_row("a", 64, kappa=0.7, rho=0.05))
    assert model.predict_energy(unseen).iloc[0] == pytest.approx(
        unseen["energy_j"].iloc[0], rel=0.01
    )
    times = model.predict_times(unseen)
    assert times["total_s"].iloc[0] == pytest.approx(unseen["total_s"].iloc[0], rel=0.05)


def test_a_workload_calibrated_on_one_node_inherits_from_the_others():
    seen = runs(
        *(run_row("a", n, excess_w=4000) for n in (1, 8)),
        *(run_row("b", n, alone_s=300) for n in (1, 8)),
        run_row("c", 1, excess_w=4400, alone_s=2000),
    )
    unseen = runs(run_row("c", 8, excess_w=4400, alone_s=2000))
    model = PhaseMC2().fit(seen)
    assert model.predict_energy(unseen).iloc[0] == pytest.approx(
        unseen["energy_j"].iloc[0], rel=1e-3
    )
    known = unseen.drop(
        columns=["training_s", "evaluating_s", "both_s", "stalled_s", "starts", "total_s"]
    )
    times = model.predict_times(known)
    assert times["total_s"].iloc[0] == pytest.approx(unseen["total_s"].iloc[0], rel=0.02)


def test_larger_counts_tell_smaller_ones():
    seen = runs(*(run_row(w, n) for w in ("a", "b") for n in (8, 16)))
    model = PhaseMC2().fit(seen)
    one = runs(run_row("a", 1))
    assert model.predict_energy(one).iloc[0] == pytest.approx(one["energy_j"].iloc[0], rel=0.03)


def test_a_workload_that_nobody_ran_draws_what_the_others_draw():
    model = PhaseMC2().fit(runs(run_row("a", 1, excess_w=4000), run_row("b", 1, excess_w=4400)))
    unseen = runs(run_row("c", 1, excess_w=4200))
    assert not model.knows("c on box")
    assert model.predict_energy(unseen).iloc[0] == pytest.approx(
        unseen["energy_j"].iloc[0], rel=1e-6
    )
    bounds = model.intervals(unseen, "given").iloc[0]
    assert bounds["energy_low_j"] < unseen["energy_j"].iloc[0] < bounds["energy_high_j"]
    assert model.predict_times(unseen)["total_s"].isna().all()


def test_a_batch_that_grows_with_the_nodes_still_waits_for_them():
    grown = run_row("a", 8, rho=0.0, batch=2048.0)
    for part in ("training_s", "evaluating_s"):
        grown[part] *= 1.05
    grown["total_s"] = grown["training_s"] + grown["evaluating_s"] + 10
    model = PhaseMC2().fit(runs(run_row("a", 1), grown))
    again = model.predict_times(runs(grown))["total_s"].iloc[0]
    assert again == pytest.approx(grown["total_s"], rel=0.01)
    # Each node keeps its samples, so 64 nodes wait hardly longer than 8 do.
    more = runs(grown | {"nodes": 64, "ranks": 64, "batch": 256.0 * 64})
    assert model.predict_times(more)["training_s"].iloc[0] * 64 == pytest.approx(
        8 * grown["training_s"], rel=0.03
    )


def test_work_that_divides_perfectly_is_not_taken_for_unseen():
    seen = runs(*(run_row("a", n, rho=0.0) for n in (1, 8)))
    model = PhaseMC2().fit(seen)
    times = model.predict_times(seen)["total_s"]
    assert times.to_numpy() == pytest.approx(seen["total_s"].to_numpy(), rel=0.03)


def test_a_batch_that_the_log_does_not_tell_counts_as_kept():
    known = runs(*(run_row("a", n) for n in (1, 8)))
    unknown = known.assign(batch=[256.0, np.nan])
    times = [PhaseMC2().fit(k).predict_times(k)["total_s"].to_numpy() for k in (known, unknown)]
    assert times[0] == pytest.approx(times[1])


def test_the_same_work_never_costs_less_on_more_nodes():
    """Not even where starting after every evaluation takes as long as the training between them."""
    seen = runs(*(run_row("a", n, starts=16) for n in (1, 8)))
    lost_j = 16 * 0.4 * 4200.0
    for part in ("energy_j", "training_j"):
        seen[part] -= lost_j * seen["nodes"]
    model = PhaseMC2().fit(seen)
    assert model.ramp_s > 0.2
    counts = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    for batch in (256.0, None):
        asked = runs(*(run_row("a", n, batch=batch or 256.0 * n) for n in counts))
        times = model.predict_times(asked)
        known = asked.drop(columns=list(times.columns)).join(times)
        assert model.predict_energy(known).is_monotonic_increasing, batch


def test_an_interval_does_not_depend_on_what_else_is_asked():
    model = PhaseMC2().fit(runs(*(run_row("a", n) for n in (1, 8))))
    asked = runs(run_row("a", 16), run_row("a", 32), run_row("a", 16))
    together = model.intervals(asked, "predicted")
    alone = model.intervals(asked.iloc[[2]], "predicted")
    assert together.iloc[0].tolist() == together.iloc[2].tolist() == alone.iloc[0].tolist()


def test_a_platform_lends_its_watts_to_no_other():
    other = {"platform": "big", "workload": "a on big", "idle_w": 5000.0}
    big = run_row("a", 1, excess_w=9000) | other
    big["energy_j"] += (5000 - IDLE_W) * big["total_s"]
    big["training_j"] += (5000 - IDLE_W) * big["training_s"]
    big["evaluating_j"] += (5000 - IDLE_W) * big["evaluating_s"]
    seen = runs(run_row("a", 1), run_row("b", 1), big)
    model = PhaseMC2().fit(seen)
    assert model.idle_w == {"box": IDLE_W, "big": 5000.0}
    assert model.predict_energy(seen).to_numpy() == pytest.approx(
        seen["energy_j"].to_numpy(), rel=1e-3
    )
    cold = runs(run_row("c", 1) | {"platform": "big", "workload": "c on big"})
    assert model.predict_energy(cold).iloc[0] > 1.5 * cold["energy_j"].iloc[0]
    elsewhere = runs(run_row("c", 1) | {"platform": "third", "workload": "c on third"})
    assert model.predict_energy(elsewhere).isna().all()


@settings(max_examples=50)
@given(st.floats(0.05, 1.0), st.floats(0.0, 1.5))
def test_partial_duty_lies_between_idle_and_full(share, kappa):
    fall = float(duty(np.asarray(share), kappa))
    assert share - 1e-12 <= fall <= 1.0 + 1e-12
    assert float(duty(np.asarray(1.0), kappa)) == pytest.approx(1)


def ramped(network, nodes, kappa, rho, node_idle_w=0.0):
    """A run whose five starts each lose 2 s of excess power, on nodes that idle above the others."""
    made = run_row(network, nodes, kappa, rho, starts=5)
    lost_j = 5 * 2.0 * nodes * 4200.0 * float(duty(1 / (1 + rho * (nodes - 1)), kappa))
    idle_j = nodes * node_idle_w
    made["idle_w"] += node_idle_w
    made["energy_j"] += idle_j * made["total_s"] - lost_j
    made["training_j"] += idle_j * made["training_s"] - lost_j
    made["evaluating_j"] += idle_j * made["evaluating_s"]
    made["steady_w"] += node_idle_w
    return made


@pytest.mark.parametrize("name", sorted(ABLATIONS))
def test_every_ablation_is_worse_where_its_term_is_at_work(name):
    """A workload that divides worse than the others, calibrated on a node that idles higher."""
    seen = runs(
        *(ramped(w, n, 1.0, rho) for w, rho in (("a", 0.03), ("b", 0.04)) for n in (1, 8)),
        *(ramped("d", n, 1.0, 0.03) for n in (1, 8)),
        ramped("c", 1, 1.0, 0.2, node_idle_w=200.0),
    )
    unseen = runs(ramped("c", 8, 1.0, 0.2))

    def error(terms):
        model = PhaseMC2(terms).fit(seen)
        return abs(model.predict_energy(unseen).iloc[0] / unseen["energy_j"].iloc[0] - 1)

    assert error(Terms()) < 0.03
    assert error(ABLATIONS[name]) > 1.2 * error(Terms())


@pytest.mark.long
def test_intervals_hold_what_they_promise():
    """Clusters drawn from what the model believes: kappas and paces of workloads, and unequal nodes."""
    random = np.random.default_rng(5)
    inside = {"given": [], "predicted": []}
    for _ in range(30):
        rows = []
        for network in ("a", "b", "c"):
            kappa, rho = random.normal(1, 0.3), np.exp(random.normal(np.log(0.06), 0.3))
            for nodes in (1, 8):
                made = run_row(network, nodes, kappa, rho)
                for part in ("energy_j", "training_j", "evaluating_j"):
                    made[part] *= random.normal(1, 0.008 / np.sqrt(nodes))
                rows.append(made)
        everything = runs(*rows)
        for network in ("a", "b", "c"):
            out = (everything["network"] == network) & (everything["nodes"] == 8)
            model, truth = PhaseMC2().fit(everything[~out]), everything[out].iloc[0]
            for time, hits in inside.items():
                bounds = model.intervals(everything[out], time).iloc[0]
                hits.append(bounds["energy_low_j"] <= truth["energy_j"] <= bounds["energy_high_j"])
    assert 0.8 <= np.mean(inside["given"]) <= 0.98
    # The time of a workload that ran on one node is hardly known: its intervals are wider than these clusters
    # differ.
    assert np.mean(inside["predicted"]) >= 0.9


def test_a_workload_on_one_count_only_is_judged_where_it_can_be():
    everything = runs(*(run_row(w, n) for w in ("a", "b") for n in (1, 8)), run_row("c", 1))
    judged = evaluate(everything, pd.DataFrame(columns=["platform", "nodes"]), {})
    times, energies = (judge(judged.predictions, everything, of) for of in ("time", "energy"))
    assert times["predicted"].notna().sum() > 20
    assert times[times["model"] == "MC2"]["predicted"].notna().all()
    alone = energies[(energies["network"] == "c") & (energies["model"] == "MC2")]
    assert {("leave-one-workload-out", "given"), ("leave-one-node-count-out", "given")} <= set(
        zip(alone["split"], alone["time"], strict=True)
    )


def test_times_are_predicted_where_no_run_has_energy():
    dark = runs(*(run_row("a", n, energy_j=np.nan) for n in (1, 8)))
    model = PhaseMC2().fit(dark)
    asked = runs(run_row("a", 4))
    assert model.predict_times(asked)["total_s"].iloc[0] == pytest.approx(
        asked["total_s"].iloc[0], rel=0.1
    )
    assert model.predict_energy(asked).isna().all()


def test_an_interval_is_not_narrower_than_mc2_is_off_on_its_own_runs():
    """Nodes that draw more the more they wait: no device of MC2's does, and a reader must know it."""
    rows = [run_row("a", n, kappa=1.0) for n in (1, 2, 4)]
    odd = [
        row
        | {
            name: row[name] * row["nodes"] ** 0.15
            for name in ("energy_j", "training_j", "evaluating_j")
        }
        for row in rows
    ]
    nodes = runs(run_row("a", 8))
    halves = []
    for own in (rows, odd):
        model = MC2OnPhases().fit(Evidence(runs(*own), pd.DataFrame(), pd.DataFrame(), {}))
        answer = model.predict(nodes, "given").iloc[0]
        halves.append(np.log(answer["energy_high_j"] / answer["energy_j"]))
        off = np.log(
            model.predict(runs(own[-1]), "given")["energy_j"].iloc[0] / own[-1]["energy_j"]
        )
        assert halves[-1] >= abs(off)
    assert halves[1] > 1.2 * halves[0]
    assert any("more power" in remark for remark in model.remarks)
