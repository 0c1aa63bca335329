"""Expert parallelism: what is sent, kept and summed, by formula, on mixtures made of numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_simulator import cluster_of

from joulecast.errors import JoulecastError
from joulecast.graphs.network_graphs import network_for
from joulecast.graphs.precision import training_of
from joulecast.simulate.simulate import Assumptions, Simulation, simulate
from joulecast.simulate.strategy import parse_strategy, text_of
from joulecast.simulate.strategy_search import search

LAYERS, HIDDEN, FFN, SEQUENCE, EXPERTS, TOP_K = 2, 64, 96, 32, 8, 2
MIXTURE = (
    f"llama:layers={LAYERS},hidden={HIDDEN},heads=4,ffn={FFN},sequence={SEQUENCE},vocabulary=512,"
    f"experts={EXPERTS},top_k={TOP_K}"
)
OF_EXPERTS = LAYERS * EXPERTS * 3 * HIDDEN * FFN
TRAINING = training_of("fp32", "adam")


def mixture(strategy: str, batch: int = 2, per_node: int = 4, folded: bool = True) -> Simulation:
    return simulate(
        network_for(MIXTURE, TRAINING),
        cluster_of(per_node),
        parse_strategy(strategy),
        batch,
        assumptions=Assumptions(training=TRAINING, folded=folded),
    )


def sent(simulation: Simulation, word: str) -> float:
    """Bytes that the first device sends in transfers whose label begins with a word."""
    tasks = simulation.activities
    return sum(t.work for t in tasks if t.usage and 0 in t.devices and t.label.startswith(word))


def test_groups_of_one_replica_are_no_expert_parallelism() -> None:
    plain, alone = mixture("dp=8"), mixture("dp=8,ep=1")
    assert alone.step_s == pytest.approx(plain.step_s, rel=1e-12)
    assert alone.peak_memory_bytes == plain.peak_memory_bytes
    assert alone.breakdown.communication_s == pytest.approx(plain.breakdown.communication_s)


@pytest.mark.parametrize(
    ("size", "rest"), [(2, ""), (4, ""), (8, ""), (4, ",zero=1"), (4, ",micro=2")]
)
def test_tokens_go_all_to_all_before_and_behind_the_experts(size: int, rest: str) -> None:
    simulated = mixture(f"dp=8,ep={size}{rest}")
    tokens = 2 * SEQUENCE * TOP_K * HIDDEN * 4
    # Forward and backward; of what a device has it keeps the part of its own experts.
    assert sent(simulated, "all_to_all") == pytest.approx(LAYERS * 4 * tokens * (size - 1) / size)


def test_tokens_go_to_their_experts_once_also_with_sequence_parallelism() -> None:
    simulated = mixture("dp=4,tp=2,ep=4,sp")
    # A device has half of the sequence. Tokens go over two replicas, and over two tensor ranks.
    tokens = 2 * SEQUENCE / 2 * TOP_K * HIDDEN * 4
    assert sent(simulated, "all_to_all") == pytest.approx(LAYERS * 4 * tokens * (1 / 2 + 1 / 2))
    # Only attention and the output layer need whole sequences: forward, and twice backward. Routers do not.
    whole = 2 * SEQUENCE * HIDDEN * 4
    assert sent(simulated, "all_gather") == pytest.approx(3 * (LAYERS + 1) * whole / 2)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_experts_are_divided_and_summed_over_what_holds_copies(size: int) -> None:
    plain, split = mixture("dp=8"), mixture(f"dp=8,ep={size}")
    all_bytes = 4 * sum(tensor.elements for tensor in plain.graph.parameters)
    experts = 4 * OF_EXPERTS
    dense = all_bytes - experts
    assert split.memory[0].weights_bytes == pytest.approx(dense + experts / size)
    assert split.memory[0].optimizer_bytes == pytest.approx(2 * (dense + experts / size))
    copies = 8 // size
    assert sent(plain, "gradients") == pytest.approx(2 * 7 / 8 * all_bytes)
    # Experts are summed over dp / ep replicas, all else over dp at once.
    assert sent(split, "gradients") == pytest.approx(
        2 * 7 / 8 * dense + 2 * (copies - 1) / copies * experts / size
    )


@pytest.mark.parametrize("zero", [1, 2])
def test_sharded_state_of_experts_lies_on_their_copies(zero: int) -> None:
    split = mixture(f"dp=8,ep=4,zero={zero}")
    dense = 4 * sum(tensor.elements for tensor in split.graph.parameters) - 4 * OF_EXPERTS
    experts = 4 * OF_EXPERTS / 4
    assert split.memory[0].weights_bytes == pytest.approx(dense + experts)
    assert split.memory[0].optimizer_bytes == pytest.approx(2 * (dense / 8 + experts / 2))


def test_sharded_weights_are_gathered_over_their_copies() -> None:
    split = mixture("dp=8,ep=4,zero=3")
    dense = 4 * sum(tensor.elements for tensor in split.graph.parameters) - 4 * OF_EXPERTS
    experts = 4 * OF_EXPERTS / 4
    # Forward and backward.
    assert sent(split, "gather weights") == pytest.approx(2 * (7 / 8 * dense + 1 / 2 * experts))
    # Each expert on one device alone: nothing of it is gathered.
    alone = mixture("dp=8,ep=8,zero=3")
    assert sent(alone, "gather weights") == pytest.approx(2 * 7 / 8 * dense)


@settings(max_examples=15)
@given(
    mesh=st.sampled_from(["dp=4,ep=2", "dp=4,ep=4", "dp=4,ep=2,tp=2", "dp=4,ep=2,pp=2,micro=2"]),
    rest=st.sampled_from(["", ",zero=1", ",zero=2", ",zero=3", ",recompute", ",no-overlap"]),
    per_node=st.sampled_from([2, 4, 8]),
)
def test_folded_equals_unfolded(mesh: str, rest: str, per_node: int) -> None:
    folded, unfolded = (mixture(mesh + rest, per_node=per_node, folded=f) for f in (True, False))
    assert folded.step_s == pytest.approx(unfolded.step_s, rel=1e-9)
    assert folded.breakdown.computing_s == pytest.approx(unfolded.breakdown.computing_s)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("dp=6,ep=4", "ep=4 does not divide the dp=6 replicas"),
        ("dp=6,ep=3", "ep=3 does not divide the 8 experts of op `blocks.0.mlp.gate`"),
        ("dp=8,ep=2,zero=3,shard=4", "ep=2 and shard=4 cannot be combined"),
        ("dp=8,ep=0", "ep=0: a whole number above 0 is needed"),
    ],
)
def test_what_does_not_divide_is_named(strategy: str, message: str) -> None:
    with pytest.raises(JoulecastError, match=message):
        mixture(strategy, batch=6)


def test_a_network_without_experts_has_none_to_split() -> None:
    with pytest.raises(JoulecastError, match="ep=2: bert-base has no experts to split"):
        simulate(network_for("bert-base", TRAINING), cluster_of(4), parse_strategy("dp=4,ep=2"), 2)


@pytest.mark.parametrize("text", ["dp=8,ep=1", "pp=2,dp=8,tp=2,ep=4,micro=2,schedule=1f1b,zero=2"])
def test_a_strategy_is_its_text(text: str) -> None:
    assert parse_strategy(text_of(parse_strategy(text))) == parse_strategy(text)
    assert text_of(parse_strategy(text)) == text


def test_a_search_tries_expert_parallelism() -> None:
    ranking = search(
        network_for(MIXTURE, TRAINING),
        cluster_of(4),
        8,
        64,
        assumptions=Assumptions(training=TRAINING),
    )
    tried = {text_of(each.strategy) for each in ranking.feasible}
    assert {"dp=8", "dp=8,ep=8", "dp=4,tp=2,ep=4", "dp=8,ep=8,zero=2"} <= tried
