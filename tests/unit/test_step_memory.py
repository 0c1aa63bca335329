"""Memory of a training step: activations against published formulas, state of optimizers and precisions."""

from pathlib import Path

import pytest
from conftest import benchmark

import joulecast
from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Roofline, op_work
from joulecast.graphs.network_graphs import op_graph
from joulecast.graphs.precision import PRECISIONS, at_precision, for_inference, training_of
from joulecast.runs.platforms import Cluster, Device, Link, Platform
from joulecast.simulate.correction import memory_width
from joulecast.simulate.measured_step import read_steps
from joulecast.simulate.simulate import Assumptions, prepare, simulate
from joulecast.simulate.strategy import parse_strategy

LAYERS, HIDDEN, HEADS, SEQUENCE, BATCH = 24, 1024, 16, 1024, 4
SBH = SEQUENCE * BATCH * HIDDEN
NETWORK = f"gpt:layers={LAYERS},hidden={HIDDEN},heads={HEADS},sequence={SEQUENCE},vocabulary=1000"
GB = 1e9


def a_cluster(memory_bytes=None):
    return Platform(
        name="test",
        cluster=Cluster(
            nodes=None,
            devices_per_node=8,
            device=Device(
                name="device",
                peak_flops={"fp32": 1e13},
                memory_bytes_per_s=1e12,
                memory_bytes=memory_bytes,
            ),
            links=(
                Link(name="bus", joins=8, bytes_per_s=1e11, latency_s=0.0),
                Link(name="nic", bytes_per_s=1e10, latency_s=0.0),
            ),
        ),
    )


def memory(network, strategy, batch=1, precision="bf16", optimizer="adam", attention=None):
    training = training_of(precision, optimizer)
    graph = at_precision(op_graph(network, attention, training.precision.half), training.precision)
    asked = parse_strategy(strategy)
    return prepare(graph, a_cluster(), asked, batch, Roofline(1e13, 1e12), training).memory


def a_layer(strategy, attention="eager"):
    """Bytes of activations that one layer adds at the peak."""
    many = memory(NETWORK, strategy, BATCH, attention=attention)[0].activations_bytes
    less = NETWORK.replace(f"layers={LAYERS}", f"layers={LAYERS // 2}")
    few = memory(less, strategy, BATCH, attention=attention)[0].activations_bytes
    return (many - few) / (LAYERS - LAYERS // 2)


SCORES = 5 * HEADS * SEQUENCE / HIDDEN


@pytest.mark.parametrize(
    ("strategy", "published"),
    [
        ("dp=1", 34 + SCORES),
        ("tp=2", 10 + 24 / 2 + SCORES / 2),
        ("tp=8", 10 + 24 / 8 + SCORES / 8),
        ("recompute", 2),
        ("recompute=selective", 34),
        ("tp=8,recompute=selective", 10 + 24 / 8),
    ],
)
def test_a_layer_keeps_what_korthikanti_says(strategy, published) -> None:
    """Korthikanti et al. 2022, equations 1, 2 and table 2: bytes a layer over s b h, at 16 bit."""
    assert a_layer(strategy) / SBH == pytest.approx(published, rel=0.01)


def test_the_peak_is_within_a_tenth_of_korthikanti() -> None:
    for strategy, published in (("dp=1", 34 + SCORES), ("tp=4", 10 + 24 / 4 + SCORES / 4)):
        peak = memory(NETWORK, strategy, BATCH, attention="eager")[0].activations_bytes
        assert peak == pytest.approx(LAYERS * published * SBH, rel=0.1)


def test_what_sequence_parallelism_gathers_is_there_for_a_moment() -> None:
    plain, split = (memory(NETWORK, text, BATCH)[0] for text in ("tp=8", "tp=8,sp"))
    kept = LAYERS * a_layer("tp=8,sp", "fused")
    # The input of a product is gathered, and its gradient is whole before it is scattered.
    assert split.activations_bytes < plain.activations_bytes
    assert split.activations_bytes - kept >= 2 * 2 * SBH * 7 / 8


def test_fused_attention_keeps_no_scores() -> None:
    # As without the scores, and with the output of attention, which is kept once.
    assert a_layer("dp=1", "fused") / SBH == pytest.approx(34, rel=0.01)


@pytest.mark.parametrize(
    ("precision", "optimizer", "bytes_each"),
    [
        ("fp32", "none", 8),
        ("fp32", "sgd", 8),
        ("fp32", "momentum", 12),
        ("fp32", "adam", 16),
        ("tf32", "adam", 16),
        ("bf16", "none", 4),
        ("bf16", "sgd", 8),
        ("bf16", "adam", 16),
        ("fp16", "adam", 16),
        ("fp64", "adam", 32),
    ],
)
def test_state_of_a_parameter(precision, optimizer, bytes_each) -> None:
    graph = op_graph(NETWORK)
    found = memory(NETWORK, "dp=2", precision=precision, optimizer=optimizer)[0]
    parameters = sum(t.elements for t in graph.parameters)
    assert found.state_bytes == bytes_each * parameters


@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_plain_pytorch_on_one_gpu_makes_its_gradients_anew(precision) -> None:
    """While activations are most, gradients are few: one GPU alone needs less than one of two."""
    alone, with_another = (memory(NETWORK, f"dp={n}", precision=precision)[0] for n in (1, 2))
    parameters = sum(t.elements for t in op_graph(NETWORK).parameters)
    assert alone.peak_bytes < with_another.peak_bytes
    # Weights, gradients and Adam's states are all there when they are updated.
    assert alone.peak_bytes >= 16 * parameters


def test_data_have_no_gradient_and_the_peak_is_at_its_op() -> None:
    """Of one image, AlexNet needs most at its first ReLU: the large layers have made their gradients."""
    found = memory("alexnet", "dp=1", precision="fp32")[0]
    image, outputs, first_layer = 4 * 3 * 224**2, 4 * 64 * 55**2, 4 * 64 * (3 * 11**2 + 1)
    assert found.at_op == "features.1"
    assert found.activations_bytes == image + 3 * outputs
    assert found.gradients_bytes == found.weights_bytes - first_layer


def test_gradients_at_fp32_take_18_bytes_a_parameter_and_twice_the_messages() -> None:
    parameters = sum(t.elements for t in op_graph(NETWORK).parameters)
    sent = {}
    for gradients in (None, "fp32"):
        training = training_of("bf16", "adam", gradients=gradients)
        graph = at_precision(op_graph(NETWORK, None, True), training.precision)
        costs, asked = Roofline(1e13, 1e12), parse_strategy("dp=4")
        assumed = Assumptions(training=training)
        step = simulate(graph, a_cluster(), asked, 1, costs, assumed)
        state = step.memory[0].state_bytes / parameters
        assert state == pytest.approx(18 if gradients else 16)
        tasks = step.activities
        sent[gradients] = sum(t.work for t in tasks if t.label.startswith("gradients"))
    assert sent["fp32"] == pytest.approx(2 * sent[None])
    assert training_of("bf16", "adam", gradients="fp32").update_bytes(2) == 14 + 16


def test_state_of_175b_on_tp8_pp8() -> None:
    stages = memory("gpt3-175b", "tp=8,pp=8,micro=8", 8)
    most = max(m.weights_bytes + m.gradients_bytes + m.optimizer_bytes for m in stages)
    assert 43.6 * GB <= most <= 49.1 * GB


def test_bytes_of_an_update() -> None:
    of = {name: training_of("fp32", name) for name in ("none", "sgd", "momentum", "adam")}
    # Weights and gradients read, weights written; each state read and written.
    assert [t.update_bytes(4) for t in of.values()] == [0, 12, 20, 28]
    # Gradient 2, copy 4, two states 8 read; the last two and a weight of 2 written.
    assert training_of("bf16", "adam").update_bytes(2) == 14 + 14
    assert training_of("bf16", "adam", inference=True).update_bytes(2) == 0


@pytest.mark.parametrize("wrong", ["precision: int8", "optimizer: adan"])
def test_a_measured_step_with_an_unknown_name_is_refused(wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "step.yaml"
    file.write_text(f"network: gpt2\nbatch: 1\nstep_s: 1.0\n{wrong}\n")
    with pytest.raises(JoulecastError, match=f"{wrong.split(':')[0]}: Input should be"):
        read_steps(file)


def test_a_precision_leaves_ids_and_losses() -> None:
    half = at_precision(op_graph("gpt2-medium:layers=1", "eager"), PRECISIONS["bf16"])
    assert half.tensors["input"].itemsize == 8
    assert half.tensors["target"].itemsize == 8
    assert half.tensors["mask"].itemsize == 1
    assert half.tensors["cross_entropy"].itemsize == 4
    assert half.tensors["token.weight"].itemsize == 2
    assert half.tensors["head"].itemsize == 2


def test_inference_keeps_nothing() -> None:
    graph = for_inference(op_graph(NETWORK))
    assert {"dropout", "cross_entropy"}.isdisjoint(op.kind for op in graph.ops)
    asked = parse_strategy("tp=2")
    training = training_of("fp32", inference=True)
    ready = prepare(graph, a_cluster(), asked, 8, Roofline(1e13, 1e12), training)
    found = ready.memory[0]
    half = sum(t.bytes for t in graph.parameters) / 2
    assert found.weights_bytes == pytest.approx(half, rel=0.02)
    assert found.gradients_bytes == found.optimizer_bytes == 0
    # Three of the widest tensors, at most, and the residual: GELU is written out.
    assert found.activations_bytes < 8 * SEQUENCE * 4 * (3 * 4 * HIDDEN + HIDDEN)


def test_two_activations_have_two_backward_products() -> None:
    graph = op_graph("gpt:layers=1,hidden=64,heads=4,sequence=32,vocabulary=100", "eager")
    scores = next(op for op in graph.ops if op.name.endswith("/scores"))
    forward, backward = (op_work(graph, scores, {}, d) for d in ("forward", "backward"))
    assert forward.flops == 2 * 32 * 32 * 64
    assert backward.flops == 2 * forward.flops


def test_a_first_layer_has_one_backward_product() -> None:
    graph = op_graph("vgg16")
    first = graph.ops[0]
    assert op_work(graph, first, {}, "backward").flops == op_work(graph, first, {}, "forward").flops


@pytest.mark.parametrize(
    ("network", "strategy", "batch", "precision", "attention", "limit"),
    [
        ("mpt-3b:sequence=8192", "dp=8,zero=3,micro=6", 18, "bf16", "fused", 80),
        ("mpt-760m", "dp=16,zero=3", 24, "bf16", "fused", 80),
        ("mpt-350m", "dp=16,zero=3", 18, "bf16", "fused", 40),
        ("mpt-125m", "dp=16,zero=3", 26, "bf16", "fused", 40),
        (
            "gpt:layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200",
            "dp=8,tp=8,pp=8,micro=8,recompute",
            192,
            "fp16",
            "eager",
            80,
        ),
    ],
)
def test_what_ran_fits(network, strategy, batch, precision, attention, limit) -> None:
    """Of the measured steps of llm-foundry and vTrain, those that fill their GPUs most."""
    stages = memory(network, strategy, batch, precision, attention=attention)
    assert 0.5 * limit * GB < max(stage.peak_bytes for stage in stages) <= limit * GB


def test_a_peak_has_an_interval_and_a_step_near_the_limit_may_not_fit() -> None:
    """The upper end counts: a device that has less than it, and more than the peak, may be too small."""
    asked = {"network": "gpt2-medium", "strategy": "dp=1", "batch": 4, "precision": "amp"}
    step = joulecast.simulate_step(platform="h100-sxm", optimizer="adam", **asked)
    low, peak, high = (step[f"peak_memory{end}_bytes"] for end in ("_low", "", "_high"))
    assert low < peak < high and not step["near_memory_limit"]
    full = joulecast.simulate_step(platform="l4", optimizer="adam", **(asked | {"batch": 6}))
    assert not full["out_of_memory"] and full["near_memory_limit"]
    assert "probably fits" in full["verdict"]


@pytest.mark.long
def test_nine_of_ten_measured_peaks_are_inside_their_interval() -> None:
    peaks = benchmark("simulator_gpus").judge_memory()
    for one, rows in peaks.groupby(peaks["devices"] == 1):
        assert len(rows) >= 15
        inside = rows["off"].abs() <= memory_width(1 if one else 4)
        assert 0.8 <= inside.mean() <= 1
