"""What strategies of large networks do: sequence parallelism, sharding."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_simulator import MB, chain, cluster_of, run

import joulecast
from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Scaled, roofline_of
from joulecast.graphs.network_graphs import network_for, op_graph
from joulecast.graphs.precision import DEFAULT_TRAINING, training_of
from joulecast.runs.platforms import Platform, simulated_platform
from joulecast.simulate.bounds import least_computing, least_time, stage_seconds
from joulecast.simulate.recomputation import attention_cores
from joulecast.simulate.simulate import (
    Assumptions,
    Simulation,
    compiler_of,
    prepare,
    run_prepared,
    simulate,
)
from joulecast.simulate.strategy import parse_strategy, text_of
from joulecast.simulate.strategy_search import search

PARTS = ("computing_s", "exposed_communication_s", "bubble_s", "communication_s")


def counted(simulation: Simulation, device: int = 0) -> Counter[str]:
    """Transfers of a class by the first word of their label."""
    tasks = simulation.activities
    return Counter(
        task.label.split()[0] for task in tasks if task.usage is not None and device in task.devices
    )


@settings(max_examples=30)
@given(
    network=st.sampled_from(["gpt2", "vit_b", "vgg16"]),
    mesh=st.sampled_from(["dp=2", "tp=4", "dp=2,tp=2", "pp=2,tp=2", "pp=2,dp=2,tp=2", "pp=4"]),
    micro=st.sampled_from([1, 4, 24, 40]),
    rest=st.sampled_from(
        ["", ",recompute", ",recompute=selective", ",zero=2", ",zero=3,scatter=once", ",no-overlap"]
    ),
    schedule=st.sampled_from(["1f1b", "gpipe", "zb-h1", "interleaved"]),
    per_node=st.sampled_from([2, 4, 8]),
    gamma=st.sampled_from([0.0, 0.3]),
    slow=st.booleans(),
)
def test_folded_equals_unfolded_with_many_micro_batches(
    network: str,
    mesh: str,
    micro: int,
    rest: str,
    schedule: str,
    per_node: int,
    gamma: float,
    slow: bool,
) -> None:
    if schedule == "interleaved" and ("pp" not in mesh or micro == 1):
        schedule = "1f1b"
    strategy = parse_strategy(f"{mesh},micro={micro},schedule={schedule}{rest}")
    stragglers = {strategy.devices - 1: 1.3} if slow else {}
    platform = cluster_of(per_node, inside=2e10, nic=4e9, gamma=gamma)
    folded, unfolded = (
        simulate(
            op_graph(network),
            platform,
            strategy,
            micro,
            assumptions=Assumptions(stragglers=stragglers, folded=folded),
        )
        for folded in (True, False)
    )
    assert folded.step_s == pytest.approx(unfolded.step_s, rel=1e-9)
    for name in PARTS:
        ours, theirs = getattr(folded.breakdown, name), getattr(unfolded.breakdown, name)
        assert ours == pytest.approx(theirs, rel=1e-7, abs=1e-9 * unfolded.step_s)
    assert folded.optimizer_s == pytest.approx(unfolded.optimizer_s, rel=1e-9)
    for number in range(folded.device_mesh.classes.count):
        first = int(folded.device_mesh.classes.first[number])
        assert counted(folded, number) == counted(unfolded, first)


# Llama's queries, keys and values are three products of one input.
@pytest.mark.parametrize("network", ["gpt2", "llama:layers=12,hidden=64,heads=4,sequence=64"])
def test_sequence_parallelism_scatters_and_gathers_in_place_of_sums(network: str) -> None:
    plain, split = (
        simulate(op_graph(network), cluster_of(per_node=4), parse_strategy(text), 2)
        for text in ("tp=4", "tp=4,sp")
    )
    sums = counted(plain)["all_reduce"]
    assert sums == 12 * 4 + 2
    # The sum over the output layer's classes has no sequence; every other one is a scatter and a gather.
    sent = counted(split)
    assert sent["reduce_scatter"] == sums
    # What was gathered forward is gathered again backward, for the gradients of weights.
    assert sent["all_gather"] == sums + sums // 2
    # Weights of the norms are whole on every device, and their gradients partial sums.
    assert sent["gradients"] == 1
    assert split.memory[0].activations_bytes < plain.memory[0].activations_bytes
    # What every device did is divided: norms, dropout and the residual sums.
    assert split.breakdown.computing_s < plain.breakdown.computing_s


def test_selective_recomputation_repeats_the_cores_of_attention() -> None:
    graph = op_graph("gpt2")
    cores = attention_cores(graph)
    assert {op.kind for op in graph.ops if op.name in cores} == {"attention"}
    assert len(set(cores.values())) == len(cores) == 12
    computing = [
        simulate(graph, cluster_of(), parse_strategy(text), 2).breakdown.computing_s
        for text in ("dp=1", "recompute=selective", "recompute=full", "recompute")
    ]
    assert computing[0] < computing[1] < computing[2] == computing[3]


def test_a_tied_embedding_is_gathered_once_a_pass() -> None:
    graph = op_graph("gpt2")
    simulated = simulate(graph, cluster_of(), parse_strategy("dp=4,zero=3"), 1)
    tasks = simulated.activities
    gathered = sum(t.work for t in tasks if t.label.startswith("gather weights"))
    whole = sum(tensor.bytes for tensor in graph.parameters)
    assert gathered == pytest.approx(2 * whole * 3 / 4)


def test_full_sharding_gathers_the_next_block_before_it_scatters_gradients() -> None:
    simulated = run(chain(4, gradient_bytes=MB), cluster_of(), "dp=4,zero=3")
    sent = [h for h in simulated.activities if h.usage is not None]
    backward = [h.label.split()[0] for h in sorted(sent, key=lambda h: h.start_s)][4:]
    # Each block's gradients follow the weights of the next, asked for when the block began: they queue.
    assert backward == [*["gather"] * 3, "gradients", "gather", *["gradients"] * 3]
    ends = sorted((h.start_s, h.end_s) for h in sent)
    assert all(end <= start + 1e-12 for (_, end), (start, _) in pairwise(ends))


@pytest.mark.parametrize(
    "text",
    [
        "dp=16,zero=3,shard=8",
        "pp=4,micro=8,schedule=interleaved,virtual=2",
        "pp=4,micro=8,schedule=zb-h1,zero=2,dp=2,scatter=once",
        "tp=4,recompute=selective,sp",
    ],
)
def test_a_strategy_is_its_text(text: str) -> None:
    assert parse_strategy(text_of(parse_strategy(text))) == parse_strategy(text)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("pp=4,micro=6,interleaved=2", "micro=6 is no multiple of the pp=4 stages"),
        (
            "pp=2,micro=2,schedule=1f1b,virtual=2",
            "`interleaved` takes two stages and virtual=2 at least",
        ),
        ("micro=2,interleaved=2", "on 1 pipeline stages: `interleaved` takes two stages"),
        ("dp=6,zero=3,shard=4", "shard=4 does not divide the dp=6 replicas"),
        ("dp=8,shard=4", "shard=4 is for sharded training state; add zero=1, 2 or 3"),
        ("dp=2,recompute=some", "`recompute=some` is not known"),
        ("dp=2,zero=2,scatter=twice", "scatter"),
        ("dp=2,sp", "there is none; give tp=2 or more with it, or leave sp out"),
    ],
)
def test_lines_that_do_not_go_together(strategy: str, message: str) -> None:
    with pytest.raises(JoulecastError, match=message):
        parse_strategy(strategy)


@pytest.mark.parametrize(
    ("network", "strategy", "batch", "message"),
    [
        ("gpt2", "tp=8", 8, "tp=8 does not divide the 12 heads of `blocks.0.attention/attention`"),
        (
            "gpt2",
            "tp=16",
            8,
            "tp=16 does not divide the 12 heads of `blocks.0.attention/attention`",
        ),
        ("vit_b", "tp=4,sp", 8, "sp: tp=4 does not divide the sequence of 197"),
        ("vgg16", "tp=4,sp", 8, "sp: vgg16 has no op with a sequence to split"),
        ("gpt2", "dp=2,micro=3", 8, r"micro=3\); take a number that divides the 8 samples"),
        ("gpt2", "pp=16,micro=8", 8, "16 pipeline stages, but gpt2 has 12 blocks; take 14"),
        ("vgg16", "pp=8,micro=8,interleaved=9", 8, "8 x 9 .* = 72 stages, but vgg16 has"),
    ],
)
def test_what_does_not_divide_is_named(
    network: str, strategy: str, batch: int, message: str
) -> None:
    with pytest.raises(JoulecastError, match=message):
        simulate(op_graph(network), cluster_of(8), parse_strategy(strategy), batch)


def test_a_search_adds_gradients_up_only_as_often_as_memory_needs() -> None:
    graph = op_graph("vgg16")
    one = simulate(graph, cluster_of(), parse_strategy("dp=2"), 32).peak_memory_bytes
    ranking = search(graph, cluster_of(memory=0.8 * one), 2, 64)
    found = {text_of(simulation.strategy) for simulation in ranking.feasible}
    assert "dp=2,micro=2" in found
    assert not {"dp=2", "dp=2,micro=4"} & found
    assert "dp=2" in {
        text_of(s.strategy) for s in search(graph, cluster_of(memory=1.1 * one), 2, 64).feasible
    }


STRATEGIES = st.sampled_from(
    [
        "dp=4",
        "dp=2,tp=2",
        "dp=4,zero=1,no-overlap",
        "dp=2,zero=2,micro=4",
        "dp=4,zero=3,shard=2,micro=2",
        "tp=4,sp,recompute",
        "pp=4,micro=16",
        "pp=2,dp=2,micro=8,schedule=gpipe,zero=2",
        "pp=2,tp=2,micro=8,schedule=zb-h1",
        "pp=2,dp=2,micro=4,virtual=2,zero=3",
        "pp=4,micro=8,recompute,no-overlap",
        "pp=2,tp=2,micro=4,sp,recompute",
        "pp=2,dp=2,micro=4,zero=3,recompute",
        "pp=2,dp=2,micro=8,zero=2,schedule=zb-h1",
        "pp=4,micro=8,schedule=gpipe",
    ]
)


@settings(max_examples=40)
@given(
    network=st.sampled_from(["gpt2", "vgg16"]),
    text=STRATEGIES,
    per_node=st.sampled_from([1, 2, 4]),
    gamma=st.sampled_from([0.0, 0.3, 0.8, 2.0]),
    slow=st.booleans(),
    mode=st.sampled_from(["default", "proteus"]),
)
def test_no_step_takes_less_than_its_least_time(
    network: str,
    text: str,
    per_node: int,
    gamma: float,
    slow: bool,
    mode: Literal["default", "proteus"],
) -> None:
    if ",sp" in text and network == "vgg16":
        text = text.replace(",sp", "")
    graph, strategy = op_graph(network), parse_strategy(text)
    platform = cluster_of(per_node, inside=2e10, nic=4e9, gamma=gamma)
    assumed = Assumptions(mode=mode, stragglers={strategy.devices - 1: 1.3} if slow else {})
    ready = prepare(graph, platform, strategy, 16, uneven_heads=True)
    compiler = compiler_of(ready, assumed)
    simulated = run_prepared(ready, assumed)
    for least in (least_time(compiler), least_computing(stage_seconds(ready), strategy)):
        assert least.step_s <= simulated.step_s * (1 + 1e-9)
        assert least.computing_s <= simulated.breakdown.computing_s * (1 + 1e-9)


def assert_continued(
    network: str,
    platform: Platform,
    text: str,
    within: tuple[float, float],
    slow: dict[int, float] | None = None,
) -> None:
    """A step is that of all its micro-batches, and so are its parts, ``within`` shares of it."""
    graph, strategy = op_graph(network), parse_strategy(text)
    some, every = (
        simulate(
            graph,
            platform,
            strategy,
            strategy.micro_batches,
            assumptions=Assumptions(stragglers=slow or {}, every_micro_batch=every),
        )
        for every in (False, True)
    )
    assert some.step_s == pytest.approx(every.step_s, rel=within[0])
    for name in PARTS:
        ours, theirs = getattr(some.breakdown, name), getattr(every.breakdown, name)
        assert ours == pytest.approx(theirs, abs=within[1] * every.step_s)


@settings(max_examples=15)
@given(
    network=st.sampled_from(["gpt2", "vgg16"]),
    text=st.sampled_from(["pp=4", "pp=2,dp=2,zero=2", "pp=2,tp=2", "dp=4,zero=3"]),
    schedule=st.sampled_from(["1f1b", "zb-h1", "interleaved"]),
    micro=st.sampled_from([44, 60]),
    gamma=st.sampled_from([0.0, 0.6]),
)
def test_very_many_micro_batches_take_the_time_of_all_of_them(
    network: str, text: str, schedule: str, micro: int, gamma: float
) -> None:
    if "pp" not in text:
        schedule = "1f1b"
    platform = cluster_of(4, inside=2e11, nic=2e10, gamma=gamma)
    text = f"{text},micro={micro},schedule={schedule}"
    assert_continued(network, platform, text, (5e-3, 1e-2))


@pytest.mark.parametrize(
    ("network", "gpu", "text", "micro", "slow"),
    [
        # One stage is a little slower: it waits less and less, until it never waits.
        ("resnet50", "h100-sxm", "dp=4,pp=2,schedule=gpipe", 56, {}),
        # The device waits for the slow one in place of a message.
        ("resnet50", "rtx4090", "dp=4,recompute", 7, {0: 1.5}),
    ],
)
def test_steps_are_continued_only_when_nothing_changes_any_more(
    network: str, gpu: str, text: str, micro: int, slow: dict[int, float]
) -> None:
    platform = simulated_platform(gpu)
    assert_continued(network, platform, f"{text},micro={micro}", (1e-3, 3e-3), slow)


def test_one_micro_batch_through_a_pipeline_takes_its_least_time() -> None:
    graph, platform = chain(4, gradient_bytes=MB, activation_bytes=1000), cluster_of()
    strategy = parse_strategy("pp=4")
    ready = prepare(graph, platform, strategy, 8)
    least = least_time(compiler_of(ready, Assumptions()))
    simulated = simulate(graph, platform, strategy, 8)
    assert least.step_s == pytest.approx(simulated.step_s)
    assert least.computing_s == pytest.approx(simulated.breakdown.computing_s)


@settings(max_examples=6)
@given(
    network=st.sampled_from(["gpt2", "vgg16"]),
    devices=st.sampled_from([2, 4]),
    top=st.integers(1, 12),
    gamma=st.sampled_from([0.0, 0.3]),
    memory=st.sampled_from([None, 6e9, 3e9]),
)
def test_the_best_of_a_search_are_the_first_of_all(
    network: str, devices: int, top: int, gamma: float, memory: float | None
) -> None:
    platform = cluster_of(4, inside=2e10, nic=4e9, gamma=gamma, memory=memory)
    asked = op_graph(network), platform, devices, 16
    everything, best = search(*asked), search(*asked, top=top)
    times = {text_of(each.strategy): each.step_s for each in everything.feasible}
    found = [text_of(each.strategy) for each in best.feasible]
    assert found == list(times)[:top]
    alone = search(*asked, top=top, others=False)
    assert [text_of(each.strategy) for each in alone.feasible] == found
    # Whether the rest fits is not always looked at: then its plainest form stands for it.
    assert not set(best.beaten) & set(found)
    known = {text: least for text, least in best.beaten.items() if text in times}
    assert all(least <= times[text] * (1 + 1e-9) for text, least in known.items())
    assert best.out_of_memory.items() <= everything.out_of_memory.items()
    assert best.impossible == everything.impossible


@pytest.mark.parametrize("batch", [1, 2])
def test_a_search_calls_nothing_too_large_that_fits(batch: int) -> None:
    network = "llama:layers=2,hidden=1024,heads=8,ffn=4096,vocabulary=1000,sequence=16"
    graph, platform = network_for(network, DEFAULT_TRAINING), cluster_of(4, memory=2e8)
    too_large = search(graph, platform, 8, batch).out_of_memory
    by_state = [text for text, why in too_large.items() if "alone" in why]
    assert by_state
    for text in by_state:
        strategy = parse_strategy(text)
        found = simulate(graph, platform, strategy, batch // strategy.replicas)
        assert found.out_of_memory, text


@pytest.mark.long
def test_a_search_tries_every_kind_of_strategy() -> None:
    gpt = op_graph("gpt:layers=4,hidden=256,heads=8,sequence=128,vocabulary=1000")
    everything = search(gpt, cluster_of(4), 8, 64)
    tried = {text_of(each.strategy) for each in everything.feasible}
    assert {
        "dp=2,tp=4",
        "dp=2,tp=4,sp",
        "dp=8,zero=3",
        "dp=8,shard=4,zero=3",
        "pp=2,tp=4,micro=8,schedule=interleaved,virtual=2,sp",
        "pp=4,dp=2,micro=16,schedule=zb-h1,zero=2",
    } <= tried
    assert not everything.beaten
    # Where devices outnumber samples, they share the positions of a sample.
    assert not any("cp=" in text for text in tried)
    few = search(gpt, cluster_of(4), 8, 2)
    assert {"dp=2,cp=4", "dp=2,cp=2,tp=2"} <= {text_of(each.strategy) for each in few.feasible}
    alone = search(gpt, cluster_of(4), 8, 1)
    assert {"cp=8", "cp=8,zero=3"} <= {text_of(each.strategy) for each in alone.feasible}
    images = search(op_graph("vgg16"), cluster_of(4), 4, 2)
    assert not any("cp=" in text_of(each.strategy) for each in images.feasible)
    forward = Assumptions(training=training_of("fp32", "none", inference=True))
    others = search(gpt, cluster_of(4), 8, 64, assumptions=forward)
    kept = {text_of(each.strategy) for each in others.feasible}
    assert "pp=2,dp=4,micro=8,schedule=1f1b,zero=3" in kept
    assert not any(word in text for text in kept for word in ("zb-h1", "zero=2", "recompute"))


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.long)])
def test_processes_find_what_one_finds(monkeypatch, processes):
    from joulecast.simulate import strategy_search

    graph, platform = op_graph("gpt2"), cluster_of(4)
    alone = search(graph, platform, 4, 16, top=5)
    monkeypatch.setattr(strategy_search, "WORTH_PROCESSES", 0)
    monkeypatch.setattr(strategy_search, "usable_cores", lambda: processes)
    together = search(graph, platform, 4, 16, top=5)
    assert [text_of(one.strategy) for one in together.feasible] == [
        text_of(one.strategy) for one in alone.feasible
    ]
    assert [one.step_s for one in together.feasible] == [one.step_s for one in alone.feasible]
    assert together.beaten.keys() == alone.beaten.keys()


def test_searches_in_two_threads_answer_their_own_questions() -> None:
    graph, platform = op_graph("gpt2"), cluster_of(4)
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(lambda devices: search(graph, platform, devices, 8, top=1), (2, 4))
        assert [ranking.feasible[0].strategy.devices for ranking in found] == [2, 4]


def test_devices_share_long_sequences_if_that_beats_recomputation() -> None:
    network = "gpt:layers=4,hidden=1024,heads=8,sequence=131072"
    asked = {"network": network, "platform": "a100-40gb-sxm:gpus=4", "precision": "bf16"}
    best = joulecast.search(devices=4, global_batch=4, top=1, **asked)["feasible"][0]
    shared = joulecast.simulate_step(strategy="dp=2,cp=2,micro=2,zero=2", batch=2, **asked)
    assert not shared["out_of_memory"]
    assert best["step_s"] <= shared["step_s"] * (1 + 1e-6)


def test_zero_changes_nothing_where_no_devices_share_the_state() -> None:
    asked = {"network": "gpt2", "platform": "h100-sxm", "precision": "bf16", "batch": 16}
    plain, sharded = (
        joulecast.simulate_step(strategy=f"micro=4{zero}", **asked)["step_s"]
        for zero in ("", ",zero=2")
    )
    assert sharded == pytest.approx(plain)


def test_no_level_of_zero_beats_the_best_of_a_search() -> None:
    asked = {"network": "resnet50", "platform": "h100-sxm", "precision": "bf16"}
    best = joulecast.search(devices=8, global_batch=64, top=1, **asked)["feasible"][0]["step_s"]
    for zero in range(4):
        strategy = f"dp=8,zero={zero}"
        step = joulecast.simulate_step(strategy=strategy, batch=8, devices=8, **asked)
        assert step["step_s"] >= best * (1 - 1e-9), strategy


def test_the_host_also_starts_what_is_recomputed() -> None:
    asked = {"network": "gpt:layers=4,hidden=256,heads=8,sequence=256", "precision": "amp"}
    two, four, slow = (
        joulecast.simulate_step(platform="h100-sxm", strategy="recompute", **asked, **other)
        for other in ({"batch": 2}, {"batch": 4}, {"batch": 2, "sm_clock": 1000})
    )
    assert two["host_stretch"] > four["host_stretch"] > 1
    assert two["step_s"] == pytest.approx(four["step_s"], rel=1e-6)
    assert two["step_s"] <= slow["step_s"] * (1 + 1e-6)


def test_tensor_parallelism_splits_the_vocabulary_in_inference_too() -> None:
    whole, part = (
        joulecast.simulate_step(
            "llama:layers=2,hidden=256,heads=4", "h100-sxm", strategy, batch=1, inference=True
        )
        for strategy in ("dp=1", "tp=4")
    )
    assert part["state_bytes"] == pytest.approx(whole["state_bytes"] / 4, rel=0.01)


def test_a_router_is_no_core_of_attention() -> None:
    mixture = op_graph("llama:layers=2,hidden=64,heads=4,experts=4,top_k=2,ffn=64,sequence=64")
    cores = attention_cores(mixture)
    assert [op.kind for op in mixture.ops if op.name in cores] == ["attention"] * 2


def test_no_rounding_decides_between_equally_good_cuts() -> None:
    graph = op_graph("llama:layers=9,hidden=256,heads=8,sequence=128")
    platform, strategy = (
        cluster_of(4),
        parse_strategy("pp=4,micro=8,schedule=interleaved,virtual=2"),
    )
    costs = roofline_of(platform)
    plain, *others = (
        simulate(graph, platform, strategy, 8, Scaled(costs, factor)).step_s
        for factor in (1.0, 0.999, 1.001)
    )
    assert others == pytest.approx([plain] * 2, rel=2e-3)
