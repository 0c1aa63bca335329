"""The simulator against cases worked out by hand, and properties that hold for every strategy."""

import math
import tracemalloc

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joulecast.errors import JoulecastError
from joulecast.graphs.network_graphs import op_graph
from joulecast.graphs.opgraph import DimKind, OpGraph
from joulecast.runs.platforms import Cluster, Device, Link, Platform, simulated_platform
from joulecast.simulate.event_loop import (
    Activity,
    ActivityGraph,
    Breakdown,
    Slowdown,
    breakdowns,
    execute,
)
from joulecast.simulate.judged.emulated_network import GivenCosts, Layer, timed_chain
from joulecast.simulate.pipeline_stages import even_cut
from joulecast.simulate.shared_links import SharedLinks, fair_rates
from joulecast.simulate.simulate import Assumptions, Simulation, simulate
from joulecast.simulate.strategy import Strategy, parse_strategy

MB = 1_000_000
NIC = 25 * MB


def cluster_of(
    per_node: int = 1,
    inside: float = 1000 * MB,
    nic: float | None = NIC,
    gamma: float = 0.0,
    memory: float | None = None,
    nodes: int | None = None,
    algorithm: str = "ring",
) -> Platform:
    links = [Link(name="nic", bytes_per_s=nic, latency_s=0.0)]
    if per_node > 1:
        links.insert(0, Link(name="bus", joins=per_node, bytes_per_s=inside, latency_s=0.0))
    return Platform(
        name="test",
        cluster=Cluster(
            nodes=nodes,
            devices_per_node=per_node,
            device=Device(
                name="device",
                peak_flops={"fp32": 1e13},
                memory_bytes_per_s=1e12,
                memory_bytes=memory,
            ),
            links=tuple(links),
            collective_algorithm=algorithm,  # type: ignore[arg-type]
            overlap_slowdown=gamma,
        ),
    )


def layer(
    name: str,
    forward_s: float,
    backward_s: float,
    gradient_bytes: int = 0,
    activation_bytes: int = 0,
) -> Layer:
    return Layer.model_construct(
        name=name,
        forward_s=forward_s,
        backward_s=backward_s,
        gradient_bytes=gradient_bytes,
        activation_bytes=activation_bytes,
    )


def chain(
    count: int,
    forward_s: float = 0.01,
    backward_s: float = 0.02,
    gradient_bytes: int = 0,
    activation_bytes: int = 1,
    shards: int = 1,
) -> OpGraph:
    layers = [
        layer(f"layers.{i}", forward_s, backward_s, gradient_bytes, activation_bytes)
        for i in range(count)
    ]
    return timed_chain("chain", layers, shards)


def run(
    graph: OpGraph, platform: Platform, strategy: str | Strategy, **assumed: object
) -> Simulation:
    chosen = parse_strategy(strategy) if isinstance(strategy, str) else strategy
    return simulate(
        graph,
        platform,
        chosen,
        chosen.micro_batches,
        GivenCosts(),
        Assumptions(**assumed),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "micro"), [(2, 4), (4, 4), (4, 9), (3, 1)])
def test_pipeline_takes_m_plus_p_minus_1_slots(schedule: str, stages: int, micro: int) -> None:
    graph = chain(stages, activation_bytes=0)
    text = f"pp={stages},micro={micro},schedule={schedule}"
    simulated = run(graph, cluster_of(), text)
    assert simulated.step_s == pytest.approx((micro + stages - 1) * 0.03, rel=1e-9)
    assert simulated.breakdown.computing_s == pytest.approx(micro * 0.03)


@pytest.mark.parametrize(
    ("stages", "micro", "chunks"), [(2, 4, 2), (4, 4, 3), (4, 16, 2), (3, 6, 4)]
)
def test_interleaving_divides_the_bubble_by_the_chunks(
    stages: int, micro: int, chunks: int
) -> None:
    # Narayanan et al. 2021: a bubble of (p - 1) / (v m) of the work.
    graph = chain(stages * chunks, activation_bytes=0)
    text = f"pp={stages},micro={micro},schedule=interleaved,virtual={chunks}"
    work = micro * chunks * 0.03
    expected = work * (1 + (stages - 1) / (chunks * micro))
    assert run(graph, cluster_of(), text).step_s == pytest.approx(expected, rel=1e-9)
    assert run(graph, cluster_of(), text.replace("schedule=interleaved,virtual", "interleaved"))


@pytest.mark.parametrize(("stages", "micro"), [(2, 4), (4, 4), (4, 13), (8, 16)])
def test_zero_bubble_leaves_a_third_of_the_bubble(stages: int, micro: int) -> None:
    # Qi et al. 2023, ZB-H1: (p - 1) (F + B - W), where 1F1B has (p - 1) (F + B + W).
    layers = [layer(f"layers.{i}", 0.01, 0.02) for i in range(stages)]
    graph = timed_chain("chain", layers, weights_share=0.5)
    steps = [
        run(graph, cluster_of(), f"pp={stages},micro={micro},schedule={schedule}").step_s
        for schedule in ("1f1b", "zb-h1")
    ]
    assert steps == pytest.approx([(micro + stages - 1) * 0.03, micro * 0.03 + (stages - 1) * 0.01])


def _sent(simulation: Simulation, label: str) -> float:
    """Bytes that a device sends in messages of a label."""
    tasks = simulation.activities
    return sum(task.work for task in tasks if task.label.startswith(label))


def test_hybrid_sharding_gathers_in_its_group_and_sums_across() -> None:
    # 8 devices in groups of 2 that shard: weights are gathered twice and scattered in the group, and the
    # shards are summed over the 4 groups.
    graph = chain(3, gradient_bytes=MB)
    simulated = run(graph, cluster_of(per_node=2), "dp=8,zero=3,shard=2")
    assert _sent(simulated, "gather weights") == pytest.approx(2 * 3 * MB / 2)
    sums = 2 * (4 - 1) / 4 * 3 * MB / 2
    assert _sent(simulated, "gradients") == pytest.approx(3 * MB / 2 + sums)
    assert simulated.memory[0].optimizer_bytes == 3 * MB / 2
    assert simulated.batch == 8


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_ring_all_reduce_after_backward(ranks: int) -> None:
    graph = chain(1, gradient_bytes=5 * MB)
    simulated = run(graph, cluster_of(), f"dp={ranks},no-overlap")
    expected = 0.03 + 2 * (ranks - 1) / ranks * 5 * MB / NIC
    assert simulated.step_s == pytest.approx(expected, rel=1e-9)
    assert simulated.breakdown.exposed_communication_s == pytest.approx(expected - 0.03)


def test_buckets_travel_behind_backward_one_after_the_other() -> None:
    # Four layers of 20 ms; gradients of 1 MB take 40 ms each between two ranks.
    graph = chain(4, gradient_bytes=MB)
    step = run(graph, cluster_of(), "dp=2,bucket=1").step_s
    assert step == pytest.approx(0.04 + 0.02 + 4 * 0.04, rel=1e-9)
    # In one bucket nothing overlaps; in buckets of two, half of it.
    assert run(graph, cluster_of(), "dp=2,bucket=1e9").step_s == pytest.approx(0.12 + 0.16)
    assert run(graph, cluster_of(), "dp=2,bucket=2e6").step_s == pytest.approx(0.04 + 0.04 + 0.16)


@pytest.mark.parametrize(("zero", "volume"), [(0, 2.0), (1, 2.0), (2, 2.0), (3, 3.0)])
def test_zero_volumes(zero: int, volume: float) -> None:
    # Bytes through a port, in units of the weights times (R - 1) / R (Rajbhandari et al. 2020, section 7).
    graph = chain(3, gradient_bytes=MB)
    simulated = run(graph, cluster_of(), f"dp=4,zero={zero}")
    sent = sum(task.work for task in simulated.activities if task.usage is not None)
    assert sent == pytest.approx(volume * 3 * MB * 3 / 4)


def test_zero_divides_training_state() -> None:
    graph = chain(4, gradient_bytes=MB)
    by_level = [run(graph, cluster_of(), f"dp=4,zero={level}").memory[0] for level in range(4)]
    assert [m.optimizer_bytes for m in by_level] == [4 * MB, MB, MB, MB]
    assert [m.gradients_bytes for m in by_level] == [4 * MB, 4 * MB, MB + MB, MB + MB]
    # Level 3 keeps a quarter, and gathers two layers at a time. From level 2 on, one layer has its whole
    # gradient until it is scattered.
    assert by_level[3].weights_bytes == MB + 2 * MB
    # A large layer is gathered once, however small its neighbours are.
    whole, gathered = (
        simulate(op_graph("vgg16"), cluster_of(), parse_strategy(f"dp=4,zero={level}"), 4).memory[0]
        for level in (2, 3)
    )
    assert gathered.weights_bytes < 1.25 * whole.weights_bytes


def test_max_min_sharing() -> None:
    # One flow crosses both links: the narrow one leaves it 2, and what is left of the wide one goes on.
    rates = fair_rates({1: {0: 1.0}, 2: {0: 1.0, 1: 1.0}, 3: {1: 1.0}}, [10.0, 4.0])
    assert rates == {1: 8.0, 2: 2.0, 3: 2.0}


def test_a_transfer_speeds_up_when_another_ends() -> None:
    graph = ActivityGraph()
    graph.add(Activity("small", (0,), 10.0, {0: 1.0}))
    graph.add(Activity("large", (1,), 30.0, {0: 1.0}))
    execute(graph, SharedLinks([10.0]))
    assert [activity.end_s for activity in graph] == pytest.approx([2.0, 4.0])


def test_groups_that_share_a_nic_halve_it() -> None:
    # Two tensor shards on each of two nodes: both replicas' groups cross the same NIC.
    graph = chain(1, gradient_bytes=MB, activation_bytes=0, shards=2)
    strategy = Strategy(
        mesh={"data": 2, "tensor": 2},
        overlap=False,
        tree={"split": {"shard": "tensor", "batch": "data"}},
    )
    shared = run(graph, cluster_of(per_node=2), strategy).step_s
    alone = run(graph, cluster_of(per_node=2), strategy, sharing=False).step_s
    assert alone == pytest.approx(0.03 + MB / NIC)
    assert shared == pytest.approx(0.03 + 2 * MB / NIC)


def by_class(simulated: Simulation) -> list[Breakdown]:
    classes = simulated.device_mesh.classes.count
    return [Breakdown(*row) for row in breakdowns(simulated.activities, classes)]


def test_gamma_slows_what_overlaps_for_as_long_as_it_does() -> None:
    # Backward of 20 ms meets a transfer of 4 ms: 4 ms of each take 25 % longer, at 1 / 1.25 of the pace.
    graph = timed_chain("two", [layer("a.0", 0.0, 0.02), layer("a.1", 0.0, 0.01, 100_000)])
    step = run(graph, cluster_of(gamma=0.25), "dp=2,bucket=1").step_s
    assert step == pytest.approx(0.01 + 0.02 + 0.25 * 0.004)


def test_straggler_holds_up_its_group_only_where_they_meet() -> None:
    graph = chain(2, gradient_bytes=MB)
    simulated = run(graph, cluster_of(), "dp=4,no-overlap", stragglers={2: 1.5})
    assert simulated.step_s == pytest.approx(0.06 * 1.5 + 1.5 * 2 * MB / NIC)
    assert simulated.device_mesh.classes.count == 2
    waiting = [part for part in by_class(simulated) if part.bubble_s > 1e-9]
    assert len(waiting) == 1 and waiting[0].bubble_s == pytest.approx(0.03)


def test_tensor_parallel_all_reduces_in_line() -> None:
    graph = chain(3, activation_bytes=MB, shards=2)
    strategy = Strategy(mesh={"tensor": 2}, tree={"split": {"shard": "tensor"}})
    assert run(graph, cluster_of(), strategy).step_s == pytest.approx(0.09 + 6 * MB / NIC)


def test_recomputation_repeats_forward_and_keeps_less() -> None:
    graph = op_graph("vit_b")
    plain = simulate(graph, cluster_of(), parse_strategy("dp=1"), 8)
    again = simulate(graph, cluster_of(), parse_strategy("dp=1,recompute"), 8)
    assert again.step_s > 1.2 * plain.step_s
    assert again.memory[0].activations_bytes < plain.memory[0].activations_bytes


def test_uneven_batches_give_the_first_ranks_one_more() -> None:
    graph = op_graph("alexnet")
    strategy = parse_strategy("dp=4,micro=3")
    # 12 samples a replica over 3 micro-batches divide evenly; 10 do not divide.
    with pytest.raises(JoulecastError, match="does not divide into 3 micro-batches"):
        simulate(graph, cluster_of(), strategy, 10)


def test_even_cut_is_the_best_cut() -> None:
    weights = (3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0)
    owner = even_cut(weights, 3)
    assert list(owner) == sorted(owner) and set(owner) == {0, 1, 2}
    sums = [sum(w for w, o in zip(weights, owner, strict=True) if o == part) for part in range(3)]
    assert max(sums) == 14.0


def _meshes() -> st.SearchStrategy[str]:
    sizes = st.tuples(
        st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3])
    )
    return st.builds(
        lambda s, micro, zero, schedule, overlap, recompute: (
            f"dp={s[0]},tp={s[1]},pp={s[2]},micro={micro},zero={zero},schedule={schedule}"
            + ("" if overlap else ",no-overlap")
            + (",recompute" if recompute else "")
        ),
        sizes,
        st.sampled_from([1, 2]),
        st.sampled_from([0, 1, 2, 3]),
        st.sampled_from(["1f1b", "gpipe"]),
        st.booleans(),
        st.booleans(),
    )


@settings(max_examples=40)
@given(
    text=_meshes(),
    per_node=st.sampled_from([1, 2, 3, 4, 5, 6]),
    algorithm=st.sampled_from(["ring", "nccl", "recursive_doubling", "rabenseifner"]),
    gamma=st.sampled_from([0.0, 0.3]),
    straggler=st.none() | st.tuples(st.integers(0, 35), st.sampled_from([1.3, 2.0])),
)
@example("dp=4,tp=2,no-overlap", 3, "recursive_doubling", 0.0, None)
def test_folded_equals_unfolded(
    text: str,
    per_node: int,
    algorithm: str,
    gamma: float,
    straggler: tuple[int, float] | None,
) -> None:
    strategy = parse_strategy(text)
    slow = {straggler[0] % strategy.devices: straggler[1]} if straggler else {}
    # Slow links, so that whatever is sent shows.
    platform = cluster_of(per_node, inside=2e9, nic=1e9, gamma=gamma, algorithm=algorithm)
    results = [
        simulate(
            op_graph("alexnet"),
            platform,
            strategy,
            8,
            assumptions=Assumptions(stragglers=slow, folded=folded),
        )
        for folded in (True, False)
    ]
    folded, unfolded = results
    of_folded, of_unfolded = map(by_class, results)
    for device, number in enumerate(folded.device_mesh.classes.of_device):
        ours, theirs = of_folded[number], of_unfolded[device]
        assert ours.computing_s == pytest.approx(theirs.computing_s, rel=1e-9)
        assert ours.communication_s == pytest.approx(theirs.communication_s, rel=1e-9, abs=1e-12)
    assert folded.step_s == pytest.approx(unfolded.step_s, rel=1e-9)
    for name in ("computing_s", "exposed_communication_s", "bubble_s", "communication_s"):
        ours, theirs = getattr(folded.breakdown, name), getattr(unfolded.breakdown, name)
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)
    assert (
        folded.device_mesh.classes.count <= unfolded.device_mesh.classes.count == strategy.devices
    )


@pytest.mark.parametrize(("gpus", "text"), [(2, "dp=4,tp=4"), (6, "dp=6,tp=4")])
def test_trees_are_chosen_alike_if_folded(gpus: int, text: str) -> None:
    # Several tensor groups share the cards of a node.
    platform = simulated_platform(f"h100-sxm:gpus={gpus}")
    graph = op_graph("gpt:layers=2,hidden=256,heads=8,sequence=64")
    folded, unfolded = (
        simulate(graph, platform, parse_strategy(text), 4, assumptions=Assumptions(folded=folded))
        for folded in (True, False)
    )
    assert folded.step_s == pytest.approx(unfolded.step_s, rel=1e-9)


@settings(max_examples=25)
@given(text=_meshes(), nic=st.sampled_from([1e8, 1e9, 1e10]))
def test_no_step_is_shorter_than_its_work(text: str, nic: float) -> None:
    strategy = parse_strategy(text)
    simulated = simulate(op_graph("alexnet"), cluster_of(2, nic=nic), strategy, 8)
    busiest = max(part.computing_s for part in by_class(simulated))
    assert simulated.step_s >= busiest - 1e-12
    for part in by_class(simulated):
        adds_up = part.computing_s + part.exposed_communication_s + part.bubble_s
        assert adds_up == pytest.approx(simulated.step_s)


@settings(max_examples=100)
@given(
    flows=st.dictionaries(
        st.integers(0, 9),
        st.dictionaries(
            st.integers(0, 4), st.sampled_from([1.0, 2.0, 0.5]), min_size=1, max_size=3
        ),
        min_size=1,
    ),
    capacity=st.lists(st.floats(1.0, 100.0), min_size=5, max_size=5),
)
def test_fair_rates_fill_a_port_of_every_flow(
    flows: dict[int, dict[int, float]], capacity: list[float]
) -> None:
    rates = fair_rates(flows, capacity)
    loads = [
        sum(rates[f] * usage.get(port, 0.0) for f, usage in flows.items()) for port in range(5)
    ]
    assert all(load <= cap * (1 + 1e-9) for load, cap in zip(loads, capacity, strict=True))
    for flow, usage in flows.items():
        # Somewhere it is held up: that port is full, and nobody there is faster.
        assert any(
            math.isclose(loads[port], capacity[port], rel_tol=1e-6)
            and all(rates[flow] >= rates[f] * (1 - 1e-9) for f, u in flows.items() if port in u)
            for port in usage
        )


def test_an_endless_schedule_is_an_error() -> None:
    graph = ActivityGraph()
    first = graph.add(Activity("first", (0,), 1.0))
    second = graph.add(Activity("second", (0,), 1.0), [first])
    graph.wait(first, second)
    with pytest.raises(JoulecastError, match="never ends: 2 of 2 activities"):
        execute(graph, SharedLinks([]), Slowdown())


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("dp=0", "a whole number above 0"),
        ("dp=2,tq=2", "`tq=2` is not known"),
        ("dp=2,dp=4", "`dp` is there twice"),
        ("dp=two", "dp=two: a whole number above 0"),
        ("dp=2,bucket=inf", "bucket_bytes: Input should be a finite number"),
        ("micro=2.5", "micro=2.5: a whole number above 0"),
        (
            "pp=2,schedule=foo",
            "schedule: Input should be '1f1b', 'gpipe', 'interleaved' or 'zb-h1'",
        ),
        ("dp=2,zero=4", "tree.zero"),
    ],
)
def test_bad_lines(strategy: str, message: str) -> None:
    with pytest.raises(JoulecastError, match=message):
        parse_strategy(strategy)


def test_a_strategy_must_multiply_to_the_devices() -> None:
    with pytest.raises(JoulecastError, match="takes 8 devices, not the 6 requested"):
        parse_strategy("dp=4,tp=2").check(6)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"children": {"nowhere": {}}}, "node `nowhere`: alexnet has no such module"),
        ({"split": {"h": "data"}}, "node `the root`: split.h: dim `h` of op .* is opaque"),
        ({"split": {"colour": "data"}}, "split.colour: no op in it has that dim"),
        ({"split": {"batch": "width"}}, "the mesh has no axis `width`"),
        ({"split": {"batch": "pipeline"}}, "`stage` places a node on it"),
        ({"children": {"classifier": {"stage": 1}}}, "has no stage; give all of them one, or none"),
        (
            {"stage": 1, "children": {"classifier": {"stage": 0}}},
            "node `classifier.*` is on stage 0, but reads .* of stage 1",
        ),
    ],
)
def test_bad_trees_name_their_node(tree: dict[str, object], message: str) -> None:
    strategy = Strategy(mesh={"pipeline": 2, "data": 2}, tree=tree)
    with pytest.raises(JoulecastError, match=message):
        simulate(op_graph("alexnet"), cluster_of(), strategy, 4)


def test_a_dim_smaller_than_its_parts() -> None:
    with pytest.raises(JoulecastError, match="dim `n` of size 4 cannot be split into 8 parts"):
        simulate(
            op_graph("alexnet"),
            cluster_of(),
            Strategy(mesh={"data": 4, "more": 2}, tree={"split": {"batch": "more"}}),
            1,
        )


def test_a_link_without_a_rate_names_its_key() -> None:
    with pytest.raises(
        JoulecastError, match=r"cluster\.links\.0\.bytes_per_s \(`nic`\) is not known"
    ):
        simulate(op_graph("alexnet"), cluster_of(nic=None), parse_strategy("dp=2"), 4)


def test_too_many_devices_names_the_key() -> None:
    with pytest.raises(
        JoulecastError, match=r"3 devices, but it has 2 nodes of 1 \(key cluster.nodes\)"
    ):
        simulate(op_graph("alexnet"), cluster_of(nodes=2), parse_strategy("dp=3"), 4)


def test_out_of_memory_is_a_verdict() -> None:
    simulated = simulate(op_graph("vgg16"), cluster_of(memory=1e9), parse_strategy("dp=2"), 32)
    assert simulated.out_of_memory
    assert simulated.verdict().startswith("out of memory: stage 0 needs")
    assert (
        simulate(op_graph("vgg16"), cluster_of(), parse_strategy("dp=2"), 32).out_of_memory is None
    )


def test_biases_of_row_parallel_layers_need_no_sum() -> None:
    simulated = simulate(op_graph("gpt2"), cluster_of(per_node=8), parse_strategy("tp=4"), 2)
    assert not [task for task in simulated.activities if task.gradient]


def test_zero_keeps_whole_gradients_while_micro_batches_add_up() -> None:
    graph = chain(4, gradient_bytes=MB)
    once = run(graph, cluster_of(), "dp=4,zero=2,micro=4,scatter=once")
    assert once.memory[0].gradients_bytes == 4 * MB
    # FSDP and DeepSpeed scatter after each micro-batch, and add up shards.
    each = run(graph, cluster_of(), "dp=4,zero=2,micro=4")
    assert each.memory[0].gradients_bytes == MB + MB
    sent = [_sent(simulated, "gradients") for simulated in (once, each)]
    assert sent == pytest.approx([4 * MB * 3 / 4, 4 * 4 * MB * 3 / 4])
    # No data axis, nothing to shard.
    alone = Strategy(mesh={"tensor": 2}, tree={"split": {"shard": "tensor"}, "zero": 1})
    assert run(chain(2, gradient_bytes=MB, shards=2), cluster_of(), alone).step_s > 0


def test_more_parts_than_anything_has() -> None:
    with pytest.raises(JoulecastError, match="tensor=100000: no op of alexnet can be split"):
        simulate(op_graph("alexnet"), cluster_of(), parse_strategy("tp=100000"), 1)


def test_tied_weights_of_two_stages_are_exchanged() -> None:
    simulated = simulate(op_graph("gpt2"), cluster_of(), parse_strategy("pp=2,micro=2"), 2)
    tied = [t for t in simulated.activities if "tied" in t.label]
    # The token embedding, on the first stage, is the output layer's weight, on the last.
    assert [t.work for t in tied] == [50257 * 768 * 4] * 2


@pytest.mark.parametrize(("per_node", "parts"), [(4, 2), (1, 1)])
def test_tensor_ranks_of_a_node_send_a_part_each_to_the_next_stage(
    per_node: int, parts: int
) -> None:
    graph = op_graph("gpt2")
    strategy = parse_strategy("tp=2,pp=2,micro=2")
    simulated = simulate(graph, cluster_of(per_node=per_node), strategy, 2)
    # Once forward, of both micro-batches; 1,024 positions of 768 features at fp32.
    whole = 1024 * 768 * 4
    tasks = simulated.activities
    sends = [t for t in tasks if t.label.startswith("send ") and "gradient" not in t.label]
    assert {task.work for task in sends} == {whole / parts}
    gathers = [t.work for t in tasks if t.label.startswith("gather ")]
    # The gradient of what was sent comes back likewise.
    assert gathers == [whole / 2] * (4 if parts == 2 else 0)


def test_megatron_on_gpt2_sums_twice_a_block_and_direction() -> None:
    graph = op_graph("gpt2")
    simulated = simulate(graph, cluster_of(per_node=4), parse_strategy("tp=4"), 2)
    tasks = simulated.activities
    sums = [t for t in tasks if t.label.startswith("all_reduce")]
    # 2 in forward and 2 in backward of each of 12 blocks, the embedding's, and the output layer's.
    assert len(sums) == 12 * 4 + 2
    assert not [t for t in simulated.activities if "gather" in t.label]
    assert all(
        op.dim("classes").kind is DimKind.REDUCE for op in graph.ops if op.kind == "cross_entropy"
    )


def test_a_million_devices_take_little_memory() -> None:
    platform, strategy = cluster_of(per_node=8), parse_strategy("dp=250000,tp=4")
    tracemalloc.start()
    try:
        simulated = simulate(op_graph("gpt2"), platform, strategy, 4)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert simulated.strategy.devices == 1_000_000
    assert peak_bytes < 400 * 1_000_000
