"""The planner: against exhaustive search, against a MILP, against the known optima, and on bad input."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from typer.testing import CliRunner

from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.partition import planner
from joulecast.partition.baselines import BASELINES, baseline_ideals, block_cuts, slowest_work
from joulecast.partition.order import (
    PartialOrder,
    TooManyIdeals,
    WeighedOrder,
    WeightRange,
    nodes_in_set,
)
from joulecast.partition.pipedream import compat_plan
from joulecast.partition.planner import best_plan
from joulecast.partition.problem import (
    PARAMETER_COPIES,
    Problem,
    pipeline_problem,
    summable,
)
from joulecast.partition.task_graph_files import read_partitionable
from joulecast.partition.taskgraph import Task, TaskGraph, in_order

PROFILES = Path(__file__).resolve().parents[2] / "recorded/pipedream-profiles"
OPTIMA = {
    "alexnet": (28_721, 28_721, 23),
    "vgg16": (216_450, 159_531, 41),
    "resnet18": (69_523, 35_207, 101),
    "squeezenet1_0": (72_954, 51_094, 100),
    "resnet50": (111_497, 56_684, 241),
    "resnext50": (151_988, 76_095, 241),
    "resnet101": (103_941, 52_125, 411),
    "resnext101": (140_525, 71_010, 411),
    "densenet121": (81_985, 41_615, 431),
    "inception_v3": (177_874, 91_970, 221_565),
}
"""partition.md, section 3: microseconds at 4 and 8 stages, ideals with the empty one."""


def a_graph(edges: dict[int, list[int]], work: list[int], **sizes: list[int]) -> TaskGraph:
    """Nodes n0, n1, ... with work, reading earlier ones."""
    ones = [1] * len(work)
    return TaskGraph(
        "drawn",
        tuple(
            Task(
                name=f"n{i}",
                description="",
                reads=tuple(f"n{j}" for j in edges.get(i, [])),
                forward_us=w // 3,
                backward_us=w - w // 3,
                activation_bytes=sizes.get("activations", ones)[i],
                parameter_bytes=sizes.get("parameters", ones)[i],
            )
            for i, w in enumerate(work)
        ),
    )


@st.composite
def graphs(draw: st.DrawFn, most: int = 8) -> TaskGraph:
    """Any DAG: several sources and sinks, unconnected parts, nodes without work."""
    size = draw(st.integers(2, most))
    numbers = st.lists(st.integers(0, 30), min_size=size, max_size=size)
    edges = {
        i: draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) for i in range(1, size)
    }
    return a_graph(edges, draw(numbers), activations=draw(numbers), parameters=draw(numbers))


def is_ideal(order: PartialOrder, bits: int) -> bool:
    return all(order.before[node] & ~bits == 0 for node in nodes_in_set(bits))


def all_ideals(problem: Problem) -> list[int]:
    order = problem.order
    return [bits for bits in range(order.everything + 1) if is_ideal(order, bits)]


def stage_time(problem: Problem, before: int, after: int, devices: int, used: int) -> float:
    """Time of a stage, written down again from the definition; infinite where memory is short."""
    stage = list(nodes_in_set(after & ~before))
    work = sum(problem.order.weights[stage])
    parameters = sum(problem.parameters[stage])
    if problem.memory is not None:
        stashed = math.ceil((problem.devices - used) / devices)
        if (
            PARAMETER_COPIES * parameters + stashed * sum(problem.activations[stage])
            > problem.memory
        ):
            return math.inf
    time = (work + 4 * (devices - 1) * parameters * problem.reduce_time / devices) / devices
    into = out = 0.0
    for output in problem.outputs:
        readers = set(nodes_in_set(output.consumers))
        if output.producer in stage:
            out += output.cost if readers - set(stage) else 0.0
        else:
            into += output.cost if readers & set(stage) else 0.0
    if problem.cost == "max":
        return max(time, into / devices, out / devices)
    return time + (into + out) / devices


def exhaustive(problem: Problem) -> float:
    """The least bottleneck over all chains of ideals and all replications."""
    ideals = all_ideals(problem)

    def best_from(before: int, used: int) -> float:
        if before == problem.order.everything:
            return 0.0 if used == problem.devices else math.inf
        found = math.inf
        for after in ideals:
            if after == before or before & ~after:
                continue
            for replicas in problem.replicas:
                if used + replicas <= problem.devices:
                    time = stage_time(problem, before, after, replicas, used)
                    if time < found:
                        found = min(found, max(time, best_from(after, used + replicas)))
        return found

    return best_from(0, 0)


def chain_of(plan_nodes: list[tuple[str, ...]], problem: Problem) -> Iterator[tuple[int, int]]:
    done, index = 0, {name: i for i, name in enumerate(problem.node_names)}
    for nodes in plan_nodes:
        after = done
        for name in nodes:
            after |= 1 << index[name]
        yield done, after
        done = after


@settings(max_examples=75)
@given(
    graphs(),
    st.integers(1, 4),
    st.sampled_from(["compute", "max", "sum"]),
    st.booleans(),
    st.one_of(st.none(), st.integers(90, 250)),
)
def test_no_pipeline_is_better_than_the_planned_one(graph, devices, cost, replicate, memory):
    check_against_exhaustive_search(graph, devices, cost, replicate, memory)


@settings(max_examples=80)
@given(
    graphs(),
    st.integers(1, 4),
    st.sampled_from(["compute", "max", "sum"]),
    st.booleans(),
    st.one_of(st.none(), st.integers(90, 250)),
)
def test_nor_where_cuts_are_contracted_and_bottlenecks_tried(
    graph, devices, cost, replicate, memory
):
    with patch.multiple(planner, FEW_IDEALS=1, HANDFUL=1):
        check_against_exhaustive_search(graph, devices, cost, replicate, memory)


def check_against_exhaustive_search(graph, devices, cost, replicate, memory):
    devices = devices if replicate else min(devices, len(graph.tasks))
    try:
        problem = pipeline_problem(graph, devices, cost, 2e6, replicate, memory)
    except JoulecastError as error:
        assert "alone needs" in str(error)
        return
    expected = exhaustive(problem)
    if math.isinf(expected):
        with pytest.raises(JoulecastError, match=r"no pipeline on .* devices keeps within"):
            best_plan(problem)
        return
    plan = best_plan(problem)
    assert plan.bottleneck == pytest.approx(expected, rel=1e-9)
    assert plan.is_certified and plan.lower_bound == pytest.approx(plan.bottleneck)
    used, slowest = 0, 0.0
    for stage, (before, after) in zip(
        plan.stages, chain_of([s.nodes for s in plan.stages], problem), strict=True
    ):
        assert is_ideal(problem.order, after) and stage.nodes
        time = stage_time(problem, before, after, stage.replicas, used)
        assert stage.time == pytest.approx(time)
        slowest = max(slowest, time)
        used += stage.replicas
    assert slowest == pytest.approx(plan.bottleneck) and used == devices


def milp_bottleneck(problem: Problem) -> float:
    """The least bottleneck of a straight pipeline that only computes, as a mixed-integer programme."""
    nodes, stages = problem.order.size, problem.devices
    count = nodes * stages + 1

    def row(entries: dict[int, float]) -> list[float]:
        found = [0.0] * count
        for place, value in entries.items():
            found[place] = value
        return found

    rows, low, high = [], [], []
    for node in range(nodes):
        rows.append(row({node * stages + s: 1.0 for s in range(stages)}))
        low.append(1.0)
        high.append(1.0)
        for earlier in nodes_in_set(problem.order.before[node]):
            numbers = {node * stages + s: float(s) for s in range(stages)}
            rows.append(row(numbers | {earlier * stages + s: -float(s) for s in range(stages)}))
            low.append(0.0)
            high.append(math.inf)
    for stage in range(stages):
        own = {n * stages + stage: float(problem.order.weights[n]) for n in range(nodes)}
        rows.append(row(own | {count - 1: -1.0}))
        low.append(-math.inf)
        high.append(0.0)
    found = milp(
        np.array(row({count - 1: 1.0})),
        constraints=LinearConstraint(np.array(rows), low, high),
        integrality=np.array([1] * (count - 1) + [0]),
        bounds=Bounds(0, [1] * (count - 1) + [math.inf]),
    )
    assert found.success
    return float(found.fun)


@settings(max_examples=12)
@given(graphs(most=18), st.integers(2, 4))
def test_the_planner_agrees_with_a_milp(graph, devices):
    problem = pipeline_problem(graph, min(devices, len(graph.tasks)))
    assert best_plan(problem).bottleneck == pytest.approx(milp_bottleneck(problem), abs=1e-4)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_ideals_of_parallel_chains_are_the_product_of_their_prefixes(lengths):
    before, first = [], 0
    for length in lengths:
        before += [[]] + [[first + i] for i in range(length - 1)]
        first += length
    expected = math.prod(length + 1 for length in lengths)
    order = WeighedOrder(before, [1.0] * first)
    assert len(order.ideals_from(0, 10**6)) == expected
    listed = [ideal for _, ideal in order.ideals_within([WeightRange(0, first)], 10**6)]
    assert len(set(listed)) == len(listed) == expected
    with pytest.raises(TooManyIdeals):
        order.ideals_within([WeightRange(0, first)], expected - 1)


@given(graphs(), st.lists(st.tuples(st.integers(0, 80), st.integers(0, 40)), max_size=3))
def test_ideals_within_windows_are_those_of_such_a_weight(graph, spans):
    problem = pipeline_problem(graph, 1)
    windows = [WeightRange(least, least + width) for least, width in spans]
    expected = {
        ideal
        for ideal in all_ideals(problem)
        if any(w.least <= problem.order.weight(ideal) <= w.most for w in windows)
    }
    assert {i for _, i in problem.order.ideals_within(windows, 10**6)} == expected


def test_antichains_of_a_diamond_with_a_skip():
    order = PartialOrder([[], [0], [0], [1, 2], [3, 0]])
    ideal = 0b0011
    assert order.antichain(ideal) == [1]
    assert order.crossing(ideal) == [0, 1]
    assert order.larger_by_one(ideal) == [0b0111]
    assert order.crossing(0b11111) == []


@pytest.mark.parametrize("network", OPTIMA)
def test_known_optima_are_found_and_certified(network):
    graph = read_partitionable(PROFILES / f"{network}.txt")
    for devices, optimum in zip((4, 8), OPTIMA[network], strict=False):
        plan = best_plan(pipeline_problem(graph, devices))
        assert plan.bottleneck == optimum and plan.is_certified
        assert len(plan.stages) == devices and all(stage.nodes for stage in plan.stages)


def test_numbers_of_ideals_are_the_known_ones():
    for network, (_, _, expected) in OPTIMA.items():
        if network != "inception_v3":
            graph = read_partitionable(PROFILES / f"{network}.txt")
            order = pipeline_problem(graph, 1).order
            assert len(order.ideals_from(0, 10**6)) == expected, network


def reference_rows() -> list[dict]:
    lines = (PROFILES / "reference_results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.long
def test_compat_reproduces_pipedream_and_exact_is_never_worse():
    for row in reference_rows():
        graph = read_partitionable(PROFILES / f"{row['f']}.txt")
        replicate, transfers = not row["straight"], row["comp"] is not None
        theirs = compat_plan(graph, row["n"], row["bw"], replicate, transfers)
        assert theirs.bottleneck_s == pytest.approx(row["pipe"], rel=1e-9), row
        assert theirs.states == row["states"]
        if row["n"] == 4 and len(graph.tasks) > 300:
            continue  # half of the long ones: the planner's time is not what is tested
        ours = best_plan(
            pipeline_problem(
                graph, row["n"], "max" if transfers else "compute", row["bw"], replicate
            )
        )
        assert ours.is_certified
        assert ours.bottleneck / 1e6 <= row["pipe"] * (1 + 1e-9), row


def test_no_baseline_is_below_the_optimum():
    for network, (four, eight, _) in OPTIMA.items():
        graph = read_partitionable(PROFILES / f"{network}.txt")
        for devices, optimum in ((4, four), (8, eight)):
            problem = pipeline_problem(graph, devices)
            for name in BASELINES:
                ideals = baseline_ideals(name, graph, problem)
                assert len(ideals) == devices and ideals[-1] == problem.order.everything
                assert all(a & ~b == 0 and a != b for a, b in pairwise([0, *ideals])), name
                assert slowest_work(problem, ideals) >= optimum, (network, name)


def chains(count: int, length: int) -> TaskGraph:
    """Parallel chains between two nodes; (length + 1) ** count ideals and two."""
    edges: dict[int, list[int]] = {}
    last, number = [], 0
    for _ in range(count):
        for i in range(length):
            number += 1
            edges[number] = [number - 1 if i else 0]
        last.append(number)
    edges[number + 1] = last
    return a_graph(edges, [10 + (7 * i) % 23 for i in range(number + 2)])


def test_too_many_ideals_leave_a_gap_that_is_told():
    graph = chains(9, 9)  # 10^9 ideals
    plan = best_plan(pipeline_problem(graph, 7, "sum", 1e6), most_ideals=2000)
    assert not plan.is_certified and plan.lower_bound < plan.bottleneck
    assert "not certified" in plan.proof
    assert plan.gap == pytest.approx(plan.bottleneck / plan.lower_bound - 1)
    assert sum(len(stage.nodes) for stage in plan.stages) == len(graph.tasks)


def test_a_proof_names_its_reason():
    """Each of the ways in which nothing better can be left."""

    def proof(graph: TaskGraph, devices: int, **options) -> str:
        with patch.multiple(planner, FEW_IDEALS=1, HANDFUL=1):
            plan = best_plan(pipeline_problem(graph, devices, **options))
        assert plan.is_certified
        return plan.proof

    row = {1: [0], 2: [1], 3: [2]}
    assert "heaviest node, average" in proof(a_graph(row, [5, 5, 5, 5]), 2)
    # Every cut but the last costs 2 s: two nodes are left of four, for three stages.
    dear = a_graph(row, [5, 5, 5, 5], activations=[10**6, 10**6, 1, 1])
    assert "fewer nodes left than stages" in proof(dear, 3, cost="max", bandwidth=1e6)
    # Two stages of those two nodes: the heavier one is the bound.
    assert "are not sent. The bottleneck equals the bound of the nodes that are left" in proof(
        dear, 2, cost="max", bandwidth=1e6
    )
    # Work alone would allow 15, a cut in the middle costs 4 more.
    sent = a_graph(row, [5, 10, 10, 5], activations=[1, 2, 1, 1])
    assert "all possible ideals" in proof(sent, 2, cost="sum", bandwidth=1e6)


def test_above_a_bound_of_nothing_no_gap_is_told():
    plan = replace(best_plan(pipeline_problem(a_graph({1: [0]}, [5, 5]), 2)), lower_bound=0.0)
    assert plan.gap is None and replace(plan, bottleneck=0.0).gap == 0.0


@pytest.mark.parametrize("heaviest", [10**16, 10**18, 10**30])
def test_times_further_apart_than_a_microsecond_are_cut(heaviest):
    # Numbers of that size have no half way between neighbours: the search for it did not end.
    graph = a_graph({1: [0], 2: [1], 3: [2]}, [10, heaviest, 20, 30])
    plan = best_plan(pipeline_problem(graph, 3))
    assert plan.bottleneck == pytest.approx(heaviest) and plan.is_certified


def test_graphs_survive_being_written_and_read(tmp_path):
    graph = a_graph({1: [0], 2: [0, 1]}, [5, 6, 7])
    graph.write(tmp_path / "g.json")
    assert read_partitionable(tmp_path / "g.json").tasks == graph.tasks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "a task without a name"),
        ({"forward_us": 10**400}, "task `n1`: forward_us is 1000"),
        ({"forward_us": 10**18}, "task `n1`: forward_us is 1000.*from 0 to 1e\\+15"),
        ({"name": "a\nb"}, "a task without a name"),
        ({"forward_us": "1"}, "task `n1`: forward_us is '1'"),
        ({"backward_us": None}, "task `n1`: backward_us is None"),
        ({"reads": "n0"}, "reads must be a list of names"),
        ({"reads": ["n1"]}, "cycle: n1 -> n1"),
    ],
)
def test_bad_task_graphs_are_refused(change, message, tmp_path):
    file = tmp_path / "g.json"
    a_graph({1: [0]}, [5, 6]).write(file)
    content = json.loads(file.read_text())
    content["tasks"][1] |= change
    file.write_text(json.dumps(content))
    with pytest.raises(JoulecastError, match=message):
        read_partitionable(file)
    file.write_text(json.dumps(content)[:-20])
    with pytest.raises(JoulecastError, match=r"g\.json, line 1: is not JSON, or was cut short"):
        read_partitionable(file)


BAD_PIPEDREAM = {
    "cycle": (
        "a -- x -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1\n"
        "b -- x -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1\n"
        "\ta -- b\n\tb -- a\n",
        "cycle: .* -> ",
    ),
    "unknown node": (
        "a -- x -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1\n"
        "\ta -- b\n",
        "line 2: an edge to the unknown node `b`",
    ),
    "negative time": (
        "a -- x -- forward_compute_time=-1, backward_compute_time=1, activation_size=1, parameter_size=1\n",
        "line 1, a: forward_compute_time is -1",
    ),
    "missing time": (
        "a -- x -- forward_compute_time=1, activation_size=1, parameter_size=1\n",
        "line 1, a: backward_compute_time is missing",
    ),
    "truncated": (
        "a -- x -- forward_compute_time=1, backward_comp",
        "backward_compute_time is missing",
    ),
    "no node line": ("a -- x\n", "line 1: is no `node"),
    "empty": ("", "the graph is empty"),
}


@pytest.mark.parametrize("case", BAD_PIPEDREAM)
def test_bad_profiles_are_refused_in_one_line(case, tmp_path):
    text, message = BAD_PIPEDREAM[case]
    (tmp_path / "bad.txt").write_text(text)
    with pytest.raises(JoulecastError, match=message) as error:
        read_partitionable(tmp_path / "bad.txt")
    assert "bad.txt" in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 5}, "5 stages are more than its 3 nodes"),
        ({"devices": 2, "cost": "sum"}, "--cost sum needs --bandwidth"),
        ({"devices": 2, "replicate": True}, "--replicate needs --bandwidth"),
        ({"devices": 2, "bandwidth": 0.0}, "--bandwidth 0: must be above 0"),
        ({"devices": 2, "memory": 3.0}, "node `n0` alone needs 4 bytes"),
    ],
)
def test_useless_options_are_refused(options, message):
    with pytest.raises(JoulecastError, match=message):
        pipeline_problem(a_graph({1: [0], 2: [1]}, [5, 6, 7]), **options)


@given(st.lists(st.integers(0, 20), min_size=2, max_size=12), st.integers(1, 6))
def test_blocks_are_nearly_even_and_never_empty(weights, stages):
    stages = min(stages, len(weights))
    ends = block_cuts(weights, stages)
    assert ends[-1] == len(weights) and all(a < b for a, b in pairwise([0, *ends]))


def test_orders_follow_branches_and_name_cycles():
    tasks = [Task(n, "", tuple(r), 0, 0, 0, 0) for n, r in (("c", "ab"), ("a", ""), ("b", "a"))]
    assert [task.name for task in in_order("x", tasks)] == ["a", "b", "c"]
    with pytest.raises(JoulecastError, match="reads `z`, which is not in the file"):
        in_order("x", [Task("a", "", ("z",), 0, 0, 0, 0)])


def test_a_graph_that_takes_no_time_is_planned(tmp_path):
    file = tmp_path / "g.json"
    a_graph({1: [0]}, [0, 0]).write(file)
    for options in (["--explain"], ["--mode", "compat"], ["--json"]):
        done = CliRunner().invoke(app, ["partition", str(file), "--devices", "2", *options])
        assert done.exit_code == 0, done.output
    for options in (["--mode", "compat", "--ideals", "9"], ["--bandwidth", "1e9"]):
        done = CliRunner().invoke(app, ["partition", str(file), "--devices", "2", *options])
        assert done.exit_code == 2 and options[-2] in done.stderr, done.output


def test_the_command_prints_the_plan(tmp_path):
    file = tmp_path / "g.json"
    a_graph({1: [0], 2: [1], 3: [2]}, [5, 6, 7, 8]).write(file)
    run = CliRunner().invoke
    told = json.loads(run(app, ["partition", str(file), "--devices", "2", "--json"]).stdout)
    assert told["bottleneck"] == 15 and told["certified"]
    assert [stage["nodes"] for stage in told["stages"]] == [["n0", "n1"], ["n2", "n3"]]
    assert told["stages"][1]["bytes_in"] == 1 and told["certificate"]["infeasible"] == 14
    shown = run(app, ["partition", str(file), "--devices", "2", "--explain"]).stdout
    assert "n2 .. n3" in shown and "lower bound" in shown and "--explain" not in shown
    brief = run(app, ["partition", str(file), "--devices", "2"]).stdout
    assert "--explain shows the stages" in brief
    theirs = run(app, ["partition", str(file), "--devices", "2", "--mode", "compat", "--json"])
    assert json.loads(theirs.stdout)["bottleneck_us"] == pytest.approx(15)
    wrong = run(app, ["partition", str(tmp_path / "none.json"), "--devices", "2", "--json"])
    assert wrong.exit_code == 2 and not wrong.stdout and "no such graph" in wrong.stderr


def test_the_network_of_a_function_is_measured(tmp_path, monkeypatch):
    (tmp_path / "network_of_two.py").write_text(
        "import torch\n\n"
        "def build():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), [torch.randn(2, 8)]\n"
    )
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["partition", "network_of_two:build", "--devices", "2"])
    assert done.exit_code == 0 and "times: measured" in done.output, done.output


# --- rounding -----------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.randoms())
def test_sums_of_weights_are_the_same_in_any_order(weights, chance):
    found, whole = summable(np.array(weights), np.array([3.0, 1e6]))
    assert whole.tolist() == [3.0, 1e6], "whole numbers stay"
    total = math.fsum(weights) + 1e6 + 3
    assert np.abs(found - weights).max() <= 2**-50 * total
    shuffled = found.tolist()
    chance.shuffle(shuffled)
    assert sum(shuffled) == sum(found.tolist()) == math.fsum(found) == found @ np.ones(len(found))
