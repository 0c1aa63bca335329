"""What a certificate of device placement says, against every placement of the nodes.

The enumeration here reads the file's content and nothing of the planner: every node on every device, with
colours, kinds of devices, memory and the forward order checked afterwards.
"""

import itertools
import json
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_partition import placement
from typer.testing import CliRunner

from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.graphs.device_placement import placement_graph
from joulecast.partition import planner
from joulecast.partition.planner import Plan, best_plan
from joulecast.partition.problem import placement_problem


class Weighed(NamedTuple):
    """Placements, a row each: the largest load; whether it is allowed; whether in mirrored order, too."""

    load: np.ndarray
    is_allowed: np.ndarray
    is_mirrored: np.ndarray


def every_placement(content: dict) -> np.ndarray:
    devices = content["maxFPGAs"] + content["maxCPUs"]
    return np.array(list(itertools.product(range(devices), repeat=len(content["nodes"]))))


def is_chain(on: np.ndarray, devices: int, pairs: list[tuple[int, int]]) -> np.ndarray:
    """Whether the devices can run one after the other, if the first of each pair has to come first."""
    before = np.zeros((devices, devices, len(on)), bool)
    for earlier, later in pairs:
        for a, b in itertools.permutations(range(devices), 2):
            before[a, b] |= (on[:, earlier] == a) & (on[:, later] == b)
    for via, a, b in itertools.product(range(devices), repeat=3):
        before[a, b] |= before[a, via] & before[via, b]
    return ~np.any([before[a, a] for a in range(devices)], axis=0)


def weighed(content: dict, on: np.ndarray) -> Weighed:
    """The definition, written down once more; a row of ``on`` has the device of each node."""
    nodes, accelerators = content["nodes"], content["maxFPGAs"]
    devices = accelerators + content["maxCPUs"]
    at = {node["id"]: place for place, node in enumerate(nodes)}
    edges = [(at[e["sourceId"]], at[e["destId"]], e["cost"]) for e in content["edges"]]
    color = [node.get("colorClass") for node in nodes]
    is_back = [bool(node["isBackwardNode"]) for node in nodes]
    is_allowed = np.ones(len(on), bool)
    for a, b in itertools.combinations(range(len(nodes)), 2):
        if color[a] is not None and color[a] == color[b]:
            is_allowed &= on[:, a] == on[:, b]
    loads = []
    for device in range(devices):
        mine = on == device
        if device >= accelerators:
            loads.append(mine @ np.array([node["cpuLatency"] for node in nodes], float))
            continue
        load = mine @ np.array([node["fpgaLatency"] for node in nodes], float)
        for source in range(len(nodes)):
            costs = {cost for a, _, cost in edges if a == source}
            assert len(costs) <= 1
            crosses = [mine[:, source] != mine[:, b] for a, b, _ in edges if a == source]
            if crosses:
                load += costs.pop() * np.any(crosses, axis=0)
        loads.append(load)
        is_allowed &= mine @ np.array([node["size"] for node in nodes]) <= content["maxSizePerFPGA"]
        for place, node in enumerate(nodes):
            if not node["supportedOnFpga"]:
                is_allowed &= ~mine[:, place]
    forward = [(a, b) for a, b, _ in edges if not is_back[a] and not is_back[b]]
    is_allowed &= is_chain(on, devices, forward)
    with_mate = {c for c, back in zip(color, is_back, strict=True) if not back and c is not None}
    orphans = {n for n, back in enumerate(is_back) if back and color[n] not in with_mate}
    mirrored = [(b, a) for a, b, _ in edges if is_back[a] and is_back[b] and {a, b} & orphans]
    is_mirrored = is_allowed & is_chain(on, devices, forward + mirrored)
    return Weighed(np.max(loads, axis=0), is_allowed, is_mirrored)


def rows_of(plan: Plan, content: dict) -> np.ndarray:
    """The plan as a placement: each of its stages on the next device of its kind."""
    free = {
        "accelerator": iter(range(content["maxFPGAs"])),
        "cpu": iter(range(content["maxFPGAs"], content["maxFPGAs"] + content["maxCPUs"])),
    }
    device = {}
    for stage in plan.stages:
        number = next(free[stage.move.kind])
        assert not device.keys() & set(stage.nodes)
        device |= dict.fromkeys(stage.nodes, number)
    return np.array([[device[str(node["id"])] for node in content["nodes"]]])


DEVICES = [(1, 0), (2, 0), (2, 0), (3, 0), (3, 0), (1, 1), (2, 1), (1, 2), (0, 2)]


@st.composite
def training_graphs(draw: st.DrawFn) -> dict:
    """Up to ten nodes of both kinds: colours, orphans, edges of all kinds, nodes without load."""
    accelerators, cpus = draw(st.sampled_from(DEVICES))
    size = draw(st.integers(1, 10))
    loads = st.integers(0, 9)
    is_back = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    # Backward nodes run back, or as the forward ones do.
    runs_back = draw(st.booleans())
    nodes, edges = [], []
    costs = [draw(st.sampled_from([0, 0, 1, 2, 5])) for _ in range(size)]
    for i in range(size):
        nodes.append(
            {
                "isBackwardNode": int(is_back[i]),
                "colorClass": draw(st.one_of(st.none(), st.integers(0, 9))),
                "fpgaLatency": draw(loads),
                "cpuLatency": draw(loads),
                "size": draw(loads),
                "supportedOnFpga": draw(st.sampled_from([1] * 9 + [0] * bool(cpus))),
            }
        )
        for j in draw(st.lists(st.integers(0, i - 1), max_size=2, unique=True)) if i else []:
            a, b = (i, j) if runs_back and is_back[i] and is_back[j] else (j, i)
            edges.append((a, b, costs[a]))
    top = {"maxFPGAs": accelerators, "maxCPUs": cpus}
    return placement(nodes, edges, **top, maxSizePerFPGA=draw(st.sampled_from([20, 40, 100])))


def in_unit(content: dict, unit: float) -> dict:
    """The same with its times in another unit: sums of fractions depend on the order of their terms."""
    nodes = [
        node | {key: node[key] * unit for key in ("fpgaLatency", "cpuLatency")}
        for node in content["nodes"]
    ]
    edges = [edge | {"cost": edge["cost"] * unit} for edge in content["edges"]]
    return content | {"nodes": nodes, "edges": edges}


def check(content: dict, most_ideals: int) -> Plan | None:
    """No placement is below what is certified, nor below the lower bound; the plan costs what it says."""
    all_of_them = weighed(content, every_placement(content))
    try:
        graph = placement_graph(Path("drawn.json"), content)
        plan = best_plan(placement_problem(graph), most_ideals)
    except JoulecastError as error:
        told = str(error)
        assert any(m in told for m in ("needs a CPU", "has a size of", "no pipeline on"))
        assert "not all could be tried" in told or not all_of_them.is_allowed.any()
        return None
    least = all_of_them.load[all_of_them.is_allowed].min()
    near = 1e-9 * max(least, 1e-12)
    own = weighed(content, rows_of(plan, content))
    assert own.is_allowed[0] and own.load[0] == pytest.approx(plan.bottleneck, rel=1e-9)
    assert plan.lower_bound <= least + near and plan.bottleneck >= least - near
    if plan.is_certified:
        assert plan.bottleneck <= least + near and plan.given_nodes == 0
        assert "certified" not in plan.proof
    elif plan.given_nodes:
        kept = all_of_them.load[all_of_them.is_mirrored].min()
        assert plan.bottleneck == pytest.approx(kept, rel=1e-9)
        assert f"certified given the placement of {plan.given_nodes} nodes" in plan.proof
    else:
        assert plan.proof.startswith("not certified")
    return plan


@given(training_graphs(), st.sampled_from([1, 0.1]))
def test_no_placement_of_the_nodes_is_below_a_certified_value(content, unit):
    plan = check(in_unit(content, unit), planner.MOST_IDEALS)
    assert plan is None or plan.is_certified  # so few nodes are never too many


@given(training_graphs(), st.sampled_from([1, 0.1]), st.sampled_from([1, 3, 10, 30]))
def test_nor_where_there_are_too_many_ideals(content, unit, most_ideals):
    with patch.multiple(planner, _FEW_IDEALS=1, _HANDFUL=1):
        check(in_unit(content, unit), most_ideals)


# The orphan, node 2, has an edge to node 0, whose device is full: 10 + 4 there, 4 + 5 on the other.
LONELY = placement(
    [
        {"fpgaLatency": 10},
        {"fpgaLatency": 4},
        {"fpgaLatency": 4, "isBackwardNode": 1, "colorClass": 9},
    ],
    [(0, 1, 1), (2, 0, 1)],
)


def test_an_orphan_is_not_bound_to_its_neighbour():
    plan = check(LONELY, planner.MOST_IDEALS)
    # 10, and what is sent to both: node 0's output leaves, node 2's enters.
    assert plan is not None and plan.bottleneck == 12 and plan.is_certified
    assert sorted(len(stage.nodes) for stage in plan.stages) == [1, 2]


def test_orphans_may_have_no_neighbour_and_no_forward_node_at_all():
    orphan = {"isBackwardNode": 1, "colorClass": None}
    for nodes in ([{}, orphan], [orphan, orphan], [orphan]):
        plan = check(placement(nodes, []), planner.MOST_IDEALS)
        assert plan is not None and plan.bottleneck == 1 and plan.is_certified


def many_orphans(load: int) -> dict:
    """Four forward nodes in a row, and 40 backward ones in another that have no mates."""
    nodes = [{"fpgaLatency": 20} for _ in range(4)]
    nodes += [{"isBackwardNode": 1, "colorClass": None, "fpgaLatency": load} for _ in range(40)]
    rows = [(i, i + 1, 1) for i in range(3)] + [(i, i + 1, 1) for i in range(4, 43)]
    return placement(nodes, rows, maxSizePerFPGA=1000)


def test_where_the_places_of_orphans_are_too_many_the_certificate_says_what_it_is_given(tmp_path):
    file = tmp_path / "many.json"
    file.write_text(json.dumps(many_orphans(load=1)))
    told = json.loads(invoked(file, "--json", "--ideals", "300").stdout)
    assert told["bottleneck"] == 61 and not told["certified"]  # three of a row, and an edge
    assert told["certificate"]["given_nodes"] == 40
    assert told["certificate"]["infeasible_below"] is None
    # 120 of work on two devices are 60. No more is known without the order.
    assert told["lower_bound"] == 60 and told["gap_percent"] == pytest.approx(100 / 60)
    shown = invoked(file, "--ideals", "300").stdout
    assert "lower bound 60: certified given the placement of 40 nodes" in shown
    assert "Over all placements not certified" in shown


def test_orphans_without_load_leave_the_bound_of_the_others():
    plan = best_plan(placement_problem(placement_graph(Path("x"), many_orphans(load=0))), 300)
    assert plan.bottleneck == 41 and plan.is_certified and plan.given_nodes == 0
    assert "without the others" in plan.proof


def invoked(file: Path, *options: str):
    return CliRunner().invoke(app, ["partition", str(file), *options])


def test_as_many_devices_as_the_file_says_are_accepted(tmp_path):
    file = tmp_path / "small.json"
    file.write_text(json.dumps(LONELY | {"maxCPUs": 1}))
    told = [json.loads(invoked(file, *o, "--json").stdout) for o in ([], ["--devices", "2"])]
    for each in told:
        del each["planning_cpu_s"], each["request"]
    assert told[0] == told[1] and told[0]["devices"] == 2
    for number, why in (
        ("3", "small: --devices 3 is not what the file says (maxFPGAs 2, maxCPUs 1)"),
        ("0", "--devices"),
    ):
        refused = invoked(file, "--devices", number)
        assert refused.exit_code == 2 and not refused.stdout
        assert refused.stderr.count("\n") == 1 and why in refused.stderr
    refused = invoked(file, "--devices", "2", "--memory", "5")
    assert refused.exit_code == 2 and "leave --memory away" in refused.stderr
