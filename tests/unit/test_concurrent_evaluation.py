"""Energy of runs that evaluate on nodes of their own while the others train, from log lines to predictions.

The runs are generated: node powers are made of a known idle power, excess powers and ramps, and fall with the
share of the step that computes as Fan's curve does. MC2 knows none of that.
"""

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from log_shapes import START_S, Script, imported
from mlperf_fixtures import line

from joulecast.energy.evaluation import evaluate
from joulecast.energy.mc2_phases import PhaseMC2
from joulecast.energy.priors import UNSEEN
from joulecast.runs.judging import judge
from joulecast.runs.observations import allreduce_points, observe
from joulecast.runs.spans import union

IDLE_W = 2500.0
RAMP_S = 5.0
SAMPLES = 3360


@dataclass(frozen=True)
class Network:
    """What a network takes: seconds of a block and of an evaluation on one node, the share of a step that
    computes on 8 nodes, excess watts in both, and the blocks in front of the first evaluation."""

    name: str
    block_s: float = 90.0
    evaluation_s: float = 12.0
    computes: float = 0.75
    training_w: float = 4000.0
    evaluating_w: float = 2600.0
    evaluated_from: int = 8
    blocks: int = 20


OTHERS = (
    Network("alpha", computes=0.8, training_w=4300.0, evaluating_w=3000.0, evaluated_from=0),
    Network("beta", block_s=60.0, computes=0.7, training_w=3800.0, evaluating_w=1800.0),
    Network("gamma", block_s=120.0, evaluation_s=6.0, computes=0.9, training_w=4100.0),
)
APART = Network("delta")


def power_of(lit, excess_w, seed):
    """Readings of a node with ``excess_w`` above idle in the intervals ``lit``, reached by a ramp."""
    noise = random.Random(seed)
    scale = 1 + noise.gauss(0, 0.01)
    # A break of less than half a second leaves a node as it is.
    joined = [[(a, b - 0.5) for a, b in union([(a, b + 0.5) for a, b in parts])] for parts in lit]
    edges = sorted((a, b, w) for parts, w in zip(joined, excess_w, strict=True) for a, b in parts)
    readings, above_w, each_s = [], 0.0, 0.1
    for step in range(int((max(b for _, b, _ in edges) + 20) / each_s)):
        t_s = step * each_s
        while edges and edges[0][1] <= t_s:
            edges.pop(0)
        asked_w = edges[0][2] if edges and edges[0][0] <= t_s else 0.0
        # Power falls at once, and climbs as fast as to the top within the ramp.
        above_w = min(asked_w, above_w + max(excess_w) * each_s / RAMP_S)
        if step % 10 == 0:
            watts = IDLE_W + scale * above_w + noise.gauss(0, 20)
            readings.append((round(t_s, 3), round(watts, 1)))
    return readings


def sequential(network: Network, nodes: int, repeat: int):
    """A run on nodes that all train, then all evaluate."""
    share = 1.0 if nodes == 1 else network.computes
    script, trains, evaluates = Script(), [], []
    jitter = random.Random(f"{network.name} {nodes} {repeat}")
    script.spend("stalled", 3.0)
    for number in range(network.blocks):
        block = {"first_epoch_num": number * SAMPLES, "epoch_count": SAMPLES}
        script.log("block_start", **block)
        begun_s = script.at_s
        script.spend("training", network.block_s / nodes / share * jitter.uniform(0.998, 1.002))
        trains.append((begun_s, script.at_s))
        script.log("block_stop", **block)
        if number >= network.evaluated_from:
            script.log("eval_start", epoch_num=(number + 1) * SAMPLES)
            begun_s = script.at_s
            script.spend("evaluating", network.evaluation_s / nodes)
            evaluates.append((begun_s, script.at_s))
            script.log("eval_stop", epoch_num=(number + 1) * SAMPLES)
    fall = share + (share - share**1.4)
    excess_w = (network.training_w * fall, network.evaluating_w)
    return _imported(network, nodes, repeat, script, lambda node: ((trains, evaluates), excess_w))


def apart(
    network: Network,
    training: int,
    evaluating: int,
    repeat: int,
    computes: float | None = None,
    slower: float = 1.0,
):
    """A run on nodes that train all the time, and others that evaluate meanwhile, slower than alone."""
    share = network.computes if computes is None else computes
    script, trains, evaluates = Script(), [], []
    jitter = random.Random(f"{network.name} {training} {repeat}")
    script.spend("stalled", 3.0)
    evaluation_s = slower * network.evaluation_s / evaluating
    for number in range(network.blocks + 1):
        block = {"first_epoch_num": number * SAMPLES, "epoch_count": SAMPLES}
        script.log("block_start", **block)
        begun_s = script.at_s
        block_s = network.block_s / training / share * jitter.uniform(0.998, 1.002)
        if number > network.evaluated_from:
            script.log("eval_start", 0.01, epoch_num=number * SAMPLES)
            script.log("eval_stop", 0.01 + evaluation_s, epoch_num=number * SAMPLES)
            evaluates.append((begun_s + 0.01, begun_s + 0.01 + evaluation_s))
        if number == network.blocks:
            # The last evaluation reaches the target.
            script.spend("training", evaluation_s + 0.01)
            trains.append((begun_s, script.at_s))
            break
        script.spend("training", block_s)
        trains.append((begun_s, script.at_s))
        script.log("block_stop", **block)
        script.spend("stalled", 0.05)
    fall = share + (share - share**1.4)
    excess_w = (network.training_w * fall, network.evaluating_w)

    def lit(node):
        return (
            trains if node < training else [],
            evaluates if node >= training else [],
        ), excess_w

    return _imported(network, training + evaluating, repeat, script, lit)


def _imported(network, nodes, repeat, script, lit):
    system = {"number_of_nodes": nodes, "accelerators_per_node": 8}
    lines = [line("init_start", 0.0), f":::SYSJSON {json.dumps(system)}"]
    lines.append(line("global_batch_size", 1.0, 64))
    lines += [line("init_stop", START_S), line("run_start", START_S), *script.lines]
    lines.append(line("run_stop", script.at_s, status="success"))
    record = imported(
        lines,
        nodes,
        network.name,
        stem=f"result_{repeat}",
        power=lambda node: power_of(*lit(node), f"{network.name} {nodes} {repeat} {node}"),
    )
    assert record.info.left_out == []
    return observe(record) | {"network_bytes_per_s": np.nan}


@pytest.fixture(scope="module")
def others():
    """Runs of other networks on 1 and on 8 nodes."""
    runs = [sequential(n, nodes, r) for n in OTHERS for nodes in (1, 8) for r in range(3)]
    return pd.DataFrame(runs)


@pytest.fixture(scope="module")
def alone():
    """Runs of the network on one node."""
    return pd.DataFrame([sequential(APART, 1, r) for r in range(3)])


def predicted(runs: pd.DataFrame, split: str = "leave-one-workload-out") -> pd.DataFrame:
    """MC2's predictions of the network's runs on several nodes, times given."""
    runs = runs.assign(folder=[f"{number}" for number in range(len(runs))])
    result = evaluate(runs, allreduce_points([]), {}, splits=[split], times=["given"])
    rows = judge(result.predictions, runs, "energy")
    mine = rows[(rows["model"] == "MC2") & (rows["network"] == APART.name) & (rows["nodes"] > 1)]
    return mine.assign(error=mine["predicted"] / mine["measured"] - 1)


# Nodes that train and that evaluate, the share of a step that computes (less on more nodes), and
# how much slower an evaluation is than on one node.
SETTINGS = {
    "8 + 1 nodes": (8, 1, 0.75, 1.0),
    "8 + 1 nodes, faster": (8, 1, 0.75, 0.6),
    "64 + 8 nodes": (64, 8, 0.6, 1.0),
}


def meanwhile(name):
    """Two runs that evaluate while they train."""
    training, evaluating, computes, slower = SETTINGS[name]
    runs = [apart(APART, training, evaluating, r, computes, slower) for r in range(2)]
    return pd.DataFrame(runs)


@pytest.mark.parametrize(
    "name",
    [next(iter(SETTINGS)), *(pytest.param(n, marks=pytest.mark.long) for n in list(SETTINGS)[1:])],
)
def test_the_energy_of_evaluating_meanwhile_is_predicted(others, alone, name):
    runs = meanwhile(name)
    assert (runs["both_s"] > 0).all() and (runs["evaluating_s"] < 0.1).all()
    assert runs["evaluators"].tolist() == [SETTINGS[name][1]] * 2
    rows = predicted(pd.concat([others, alone, runs], ignore_index=True))
    assert len(rows) == 2
    assert rows["error"].abs().max() < 0.04, rows["error"].tolist()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_workload_that_evaluates_meanwhile_leaves_what_all_share(others, alone, name):
    without = PhaseMC2().fit(others).kappa[UNSEEN]
    with_it = PhaseMC2().fit(pd.concat([others, alone, meanwhile(name)], ignore_index=True))
    assert abs(with_it.kappa[UNSEEN].mean - without.mean) < without.sd / 3
    assert not with_it.bounded


@pytest.mark.long
def test_a_calibration_may_evaluate_meanwhile(others):
    # The smallest run of the network has nodes of its own for evaluations, too.
    runs = pd.concat([meanwhile("8 + 1 nodes"), meanwhile("64 + 8 nodes")])
    rows = predicted(pd.concat([others, runs], ignore_index=True))
    assert rows["nodes"].unique().tolist() == [72]
    assert rows["error"].abs().max() < 0.04, rows["error"].tolist()
