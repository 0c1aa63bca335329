"""What torch.autocast makes of a step: sizes of tensors, time, memory, and what was measured on GPUs."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

import joulecast
from joulecast.energy.strategy_energy import simulation_energy
from joulecast.errors import JoulecastError
from joulecast.graphs.autocast import casts_first
from joulecast.graphs.costs import extra_kept, kept_for_backward
from joulecast.graphs.kernel_costs import KernelCosts, plateau
from joulecast.graphs.kernels import Product, kernels_of
from joulecast.graphs.network_graphs import network_for
from joulecast.graphs.precision import training_of
from joulecast.runs.files.shipped import recorded_folder
from joulecast.runs.platforms import Device, as_catalogued, find_platform
from joulecast.simulate.cost_cache import OpCache
from joulecast.simulate.judged.gpu_steps import read_gpu_steps, simulate_steps
from joulecast.simulate.measured_step import simulated_step
from joulecast.simulate.simulate import Assumptions, prepare
from joulecast.simulate.strategy import parse_strategy, text_of
from joulecast.simulate.strategy_search import search

LLAMA = "llama:layers=2,hidden=512,heads=8,ffn=1024,vocabulary=32000,sequence=256"


def simulate(precision: str, **asked):
    given = {"network": LLAMA, "platform": "h100-sxm", "strategy": "dp=1", "batch": 8} | asked
    return joulecast.simulate_step(**given, precision=precision, optimizer="adam")


def test_products_are_narrow_and_weights_and_norms_wide() -> None:
    graph = network_for("gpt2-medium:layers=1", training_of("amp"))
    for op in graph.ops:
        written = {graph.tensors[access.tensor].itemsize for access in op.writes}
        if op.kind in ("linear", "attention"):
            assert written == {2}
        elif op.kind in ("layer_norm", "cross_entropy"):
            assert written == {4}
    assert {tensor.itemsize for tensor in graph.parameters} == {4}
    # The residual stream is the widest of what is added: embeddings are looked up at fp32.
    assert graph.tensors["blocks.0/add_2"].itemsize == 4


def test_a_tied_weight_is_cast_for_the_product_and_its_gradient_once() -> None:
    tied = network_for("gpt2-medium:layers=1", training_of("amp"))
    (head,) = [op for op in tied.ops if op.name == "head"]
    weight = tied.tensors["token.weight"]
    assert tied.readers["token.weight"][0].kind == "embedding"
    for direction in ("forward", "backward"):
        casts = [
            k.bytes
            for k in kernels_of(tied, head, {}, direction)
            if getattr(k, "kind", "") == "mixed"
        ]
        assert 6 * weight.elements in casts
    assert 2 * weight.elements in [extra.bytes for extra in extra_kept(tied, head)]


def test_a_weight_that_products_share_is_cast_once() -> None:
    graph = network_for("gpt2-medium:layers=1", training_of("amp"))
    first = next(op for op in graph.ops if op.name == "head")
    again = replace(first, name="again", writes=(replace(first.writes[0], tensor="again"),))
    written = graph.tensors[first.writes[0].tensor]
    tensors = {**graph.tensors, "again": replace(written, name="again")}
    both = replace(graph, ops=(*graph.ops, again), tensors=tensors)
    assert [casts_first(both, op, op.reads[1]) for op in (first, again)] == [True, False]
    numbers = OpCache().numbers(both)
    assert numbers["head"] != numbers["again"]


def test_a_softmax_keeps_its_output_alone() -> None:
    eager = network_for("gpt2-medium:layers=1", training_of("amp"), "eager")
    (softmax,) = [op for op in eager.ops if op.kind == "softmax"]
    assert eager.tensors[softmax.reads[0].tensor].itemsize == 2
    assert extra_kept(eager, softmax) == []
    assert [access.tensor for access in kept_for_backward(eager, softmax)] == [
        softmax.writes[0].tensor
    ]


def test_copies_of_weights_stay_to_the_end_of_the_forward() -> None:
    """Torch holds them without gradients too, and where blocks are recomputed."""
    network = "gpt:hidden=1024,heads=16,sequence=64,vocabulary=1024"
    one, two = (
        simulate("amp", network=f"{network},layers={layers}", batch=1, inference=True)
        for layers in (24, 12)
    )
    weights = one["parameters"] - two["parameters"]
    # Vectors of norms are not cast.
    assert one["peak_memory_bytes"] - two["peak_memory_bytes"] == pytest.approx(
        6 * weights, rel=0.01
    )


def test_a_norm_that_is_written_out_keeps_no_squares() -> None:
    graph = network_for(LLAMA, training_of("amp"))
    kept = {access.tensor for op in graph.ops for access in kept_for_backward(graph, op)}
    assert "blocks.0.ln_1/pow" not in kept
    # The input, the root of the mean, and what the weights are multiplied by.
    assert {"token", "blocks.0.ln_1/rsqrt", "blocks.0.ln_1/scaled"} <= kept


def test_casts_and_small_kernels_take_time() -> None:
    amp, framework = (simulate(precision) for precision in ("amp", "bf16"))
    assert amp["step_s"] > 1.2 * framework["step_s"]
    assert simulate("fp32")["step_s"] > simulate("amp")["step_s"] or amp["host_stretch"] > 1


def test_a_step_of_short_kernels_takes_the_time_of_its_host() -> None:
    assert (
        simulate("tf32", batch=1)["host_stretch"] > 1 == simulate("bf16", batch=1)["host_stretch"]
    )
    small, large = (simulate("amp", batch=batch) for batch in (1, 256))
    assert small["host_stretch"] > 1 == large["host_stretch"]
    # The host is as slow for eight samples as for one, and the GPU draws less while it waits.
    assert simulate("amp", batch=2)["step_s"] == pytest.approx(small["step_s"], rel=0.05)
    assert small["power_w"] < large["power_w"]


@pytest.mark.parametrize("strategy", ["dp=8", "dp=8,zero=3", "dp=4,micro=2"])
def test_the_host_of_a_device_starts_its_kernels_however_many_replicas_there_are(strategy) -> None:
    batch = 2 if "micro" in strategy else 1
    alone = re.sub(r"dp=\d", "dp=1", strategy)
    one, several = (simulate("amp", strategy=each, batch=batch) for each in (alone, strategy))
    assert several["host_stretch"] == pytest.approx(one["host_stretch"], rel=0.2)
    assert several["step_s"] > one["step_s"]


def test_a_vocabulary_that_does_not_divide_leaves_the_host_its_pace() -> None:
    one, two = (
        joulecast.simulate_step(
            "gpt2", "h100-sxm", each, batch=1, precision="amp", optimizer="none"
        )
        for each in ("dp=1", "tp=2")
    )
    # Each of the two devices has as many kernels to start, whatever their size.
    assert one["host_stretch"] > 1
    assert two["computing_s"] == pytest.approx(one["computing_s"], rel=0.01)


def test_the_optimizer_runs_at_its_own_pace() -> None:
    large = LLAMA.replace("hidden=512,heads=8", "hidden=4096,heads=32")
    step = simulate("amp", network=large, batch=1)
    assert step["host_stretch"] > 1
    without = joulecast.simulate_step(
        network=large,
        platform="h100-sxm",
        strategy="dp=1",
        batch=1,
        precision="amp",
        optimizer="none",
    )
    bytes_moved = 28 * step["parameters"]
    assert step["step_s"] - without["step_s"] == pytest.approx(bytes_moved / 2.98e12, rel=0.01)


def test_a_clock_saves_nothing_while_the_gpu_waits_for_its_host() -> None:
    full, slow = (
        simulate("amp", batch=1, strategy="dp=8", sm_clock=clock) for clock in (None, 1200)
    )
    assert full["host_stretch"] > slow["host_stretch"] > 1
    assert 2579 < slow["power_w"] < full["power_w"]
    assert slow["step_s"] == pytest.approx(full["step_s"], rel=1e-6)


def test_a_tied_weight_whose_chunks_are_on_one_device_is_not_sent() -> None:
    """The unpadded vocabulary is so slow that the last product is the third of four chunks."""
    pipeline = "pp=2,dp=4,micro=2,schedule=interleaved,virtual=2"
    assert simulate("amp", network="gpt2", strategy=pipeline, batch=2)["step_s"] > 0


def test_a_measured_rate_of_bf16_holds_for_autocast() -> None:
    own = as_catalogued({"name": "NVIDIA H100 80GB HBM3", "measured_flops": {"bf16": 3e14}})
    assert own is not None and plateau(Device.model_validate(own), "amp") == 3e14


@pytest.mark.parametrize(("precision", "gpu"), [("amp", "p4"), ("bf16-true", "v100")])
def test_a_gpu_without_that_rate_is_refused_by_the_name_that_was_asked(precision, gpu) -> None:
    with pytest.raises(JoulecastError, match=f"no rate at bf16, at which {precision} computes"):
        simulate(precision, platform=gpu)


@pytest.mark.parametrize("platform", ["v100", "described.yaml"])
def test_autocast_computes_at_fp16_on_a_gpu_without_bf16(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("described.yaml").write_text(
        "name: described\n"
        "cluster: {device: {name: own, peak_flops: {fp32: 1.0e+13, fp16: 8.0e+13}, memory_bytes: 4.0e+10, "
        "memory_bytes_per_s: 9.0e+11}}\n"
    )
    wide, cast, fused = (simulate(name, platform=platform) for name in ("fp32", "amp", "fp16"))
    assert wide["step_s"] > cast["step_s"] > fused["step_s"]


def test_sequence_parallelism_splits_a_norm_that_is_written_out() -> None:
    training, platform = training_of("amp"), find_platform("h100-sxm")
    costs = KernelCosts(platform.require_cluster().device, "amp")
    ready = prepare(
        network_for(LLAMA, training), platform, parse_strategy("tp=2,sp"), 2, costs, training
    )
    norms = [item.parts for item in ready.placed if item.op.module.endswith((".ln_1", ".ln_2"))]
    assert norms
    assert all(parts == {"sequence": 2} for parts in norms)


@pytest.mark.parametrize("precision", ["amp", "bf16"])
def test_a_search_counts_no_passes_over_gradients_that_are_sharded(precision) -> None:
    network = "llama:layers=4,hidden=1024,heads=8,ffn=8192,vocabulary=4096,sequence=64"
    training, platform = training_of(precision, "none"), find_platform("h100-sxm")
    costs = KernelCosts(platform.require_cluster().device, precision)
    graph, assumed = network_for(network, training), Assumptions(training=training)
    asked = (graph, platform, 4, 128, costs, assumed)
    every = {text_of(one.strategy): one.step_s for one in search(*asked).feasible}
    best = search(*asked, top=1)
    assert best.feasible[0].step_s == min(every.values())
    bounds = {text: least_s for text, least_s in best.beaten.items() if text in every}
    assert {zero for zero in (1, 2, 3) for text in bounds if f"zero={zero}" in text} == {1, 2, 3}
    assert all(least_s <= every[text] * (1 + 1e-9) for text, least_s in bounds.items())


def test_unpadded_vocabularies_are_slow() -> None:
    padded, odd = (
        simulate("amp", network=LLAMA.replace("32000", size), batch=64)["step_s"]
        for size in ("50304", "50257")
    )
    assert odd > 1.1 * padded


@pytest.mark.parametrize("gpu", [pytest.param("h100-sxm", marks=pytest.mark.long), "h200-sxm"])
def test_measured_steps_of_plain_pytorch(gpu: str) -> None:
    """18 settings: seconds within 7 % on average, peak memory within 5, none called out of memory."""
    steps = [
        step
        for step in read_gpu_steps(recorded_folder(Path("recorded/training-steps")))
        if step.source == "plain_pytorch" and find_platform(step.platform).name == gpu
    ]
    assert len(steps) == 18
    found = simulate_steps(steps)
    assert fmean(abs(found["predicted_s"] / found["measured_s"] - 1)) < 0.07
    assert not found["out_of_memory"].any()
    platform = find_platform(gpu)
    off = []
    for each in steps:
        costs = KernelCosts(platform.require_cluster().device, each.step.precision)
        memory = simulated_step(each.step, platform, costs).memory[0]
        off.append(abs(memory.peak_bytes / each.step.memory_bytes - 1))
    assert fmean(off) < 0.05


def test_fp32_products_draw_what_was_measured() -> None:
    """Between 629 and 687 W on an H100 and an H200."""
    platform = find_platform("h200-sxm")
    (step, *_) = (
        each.step
        for each in read_gpu_steps(recorded_folder(Path("recorded/training-steps")))
        if each.source == "plain_pytorch" and each.step.precision == "fp32"
    )
    costs = KernelCosts(platform.require_cluster().device, "fp32")
    energy = simulation_energy(simulated_step(step, platform, costs))
    assert energy.gpus_w is not None and 600 < energy.gpus_w < 700


@pytest.mark.parametrize("precision", ["amp", "bf16", "bf16-true"])
def test_norms_of_heads_are_split_with_the_heads(precision) -> None:
    """Qwen3 normalises each head of queries and keys: tensor parallelism sends nothing more for it."""
    normed = f"{LLAMA},kv_heads=4,qk_norm=yes"
    with_norms, without = (
        simulate(precision, network=network, strategy="tp=4")
        for network in (normed, normed.replace("yes", "no"))
    )
    assert with_norms["parameters"] == without["parameters"] + 2 * 2 * 64
    sent, sent_without = (step["exposed_communication_s"] for step in (with_norms, without))
    assert sent == pytest.approx(sent_without, rel=0.05)


def test_grouped_queries_have_no_fused_attention_at_four_bytes() -> None:
    """torch takes its written-out form there, whose scores are in memory."""
    long = LLAMA.replace("=256", "=2048").replace("32000", "1024")
    grouped, equal = (simulate("tf32", network=f"{long},kv_heads={heads}") for heads in (4, 8))
    assert (grouped["attention"], equal["attention"]) == ("eager", "fused")
    assert grouped["peak_memory_bytes"] > 2 * equal["peak_memory_bytes"]
    narrow = simulate("amp", network=f"{LLAMA},kv_heads=4")
    assert narrow["attention"] == "fused"


def test_weights_at_bf16_have_states_at_bf16() -> None:
    """Weight, gradient and two states of 2 bytes; a framework's bf16 has 16 bytes a parameter."""
    large = LLAMA.replace("hidden=512,heads=8", "hidden=2048,heads=32")
    true, framework = (simulate(p, network=large, batch=1) for p in ("bf16-true", "bf16"))
    assert true["memory"][0]["optimizer_bytes"] == 4 * true["parameters"]
    assert framework["memory"][0]["optimizer_bytes"] == 12 * framework["parameters"]


def test_an_interval_knows_that_hosts_differ() -> None:
    """A step whose pace the host sets may be much faster or slower elsewhere; one of large kernels not."""
    small, large = (simulate("amp", batch=batch) for batch in (1, 256))
    ratios = [step["step_high_s"] / step["step_low_s"] for step in (small, large)]
    assert ratios[0] > 2 * ratios[1]


def test_experts_stay_wide_under_autocast() -> None:
    """The products of transformers 5's experts are none that autocast knows."""
    mixture = f"{LLAMA},experts=8"
    graph = network_for(mixture, training_of("amp"))
    written = {
        graph.tensors[op.writes[0].tensor].itemsize
        for op in graph.ops
        if op.kind == "linear" and any(dim.name == "experts" for dim in op.dims)
    }
    assert written == {4}


@pytest.mark.long
@pytest.mark.long
def test_settings_that_were_measured_later() -> None:
    """33 settings of plain PyTorch on another H100, most on a slow host, and 7 on another H200."""
    steps = [
        s
        for s in read_gpu_steps(recorded_folder(Path("recorded/training-steps")))
        if "later" in s.source
    ]
    rows = simulate_steps(steps)
    errors = (rows["predicted_s"] / rows["measured_s"] - 1).abs()
    inside = rows["measured_s"].between(rows["time_low_s"], rows["time_high_s"])
    assert len(rows) == 40
    assert errors.median() < 0.07 and errors.mean() < 0.1
    assert inside.mean() >= 0.8


def test_kernels_that_wait_draw_little() -> None:
    """On an H200 under autocast ResNet50, whose batch norms wait, drew 449 W, and VGG16 646."""
    platform = find_platform("h200-sxm")
    costs = KernelCosts(platform.require_cluster().device, "amp")
    watts = {
        each.step.network: simulation_energy(simulated_step(each.step, platform, costs)).gpus_w
        for each in read_gpu_steps(recorded_folder(Path("recorded/training-steps")))
        if (each.source, each.platform) == ("plain_pytorch", "NVIDIA H200")
        and (each.step.precision, each.step.batch) == ("amp", 128)
    }
    assert watts["resnet50"] == pytest.approx(449, rel=0.25)
    assert watts["vgg16"] == pytest.approx(646, rel=0.2)


def test_a_convolution_writes_no_windows() -> None:
    """Its products, forward and backward, move what it reads and writes, and compute the same."""
    graph = network_for("vgg16", training_of("tf32")).with_batch(4)
    op = next(op for op in graph.ops if op.name == "features.2")
    moved = sum(graph.tensors[access.tensor].bytes for access in (*op.reads[:2], *op.writes))
    products = [
        kernel
        for direction in ("forward", "backward")
        for kernel in kernels_of(graph, op, {}, direction)
        if isinstance(kernel, Product)
    ]
    assert len(products) == 3
    assert {product.bytes for product in products} == {moved}
    assert len({product.flops for product in products}) == 1


@pytest.mark.parametrize(
    ("platform", "precision", "inference", "images_per_s"),
    [
        ("a100-80gb-sxm", "tf32", False, 938),
        ("a100-80gb-sxm", "bf16", False, 2470),
        ("v100", "fp16", False, 1200),
        ("v100", "fp16", True, 3382),
        ("t4", "fp16", True, 1198),
        ("v100", "fp32", True, 1261),
    ],
)
def test_resnet50_of_nvidias_scripts(platform, precision, inference, images_per_s) -> None:
    """Images a second that NVIDIA's DeepLearningExamples publishes for batch 256 (pytorch-21.03)."""
    step = joulecast.simulate_step(
        network="resnet50",
        platform=platform,
        strategy="dp=1",
        batch=256,
        precision=precision,
        optimizer="none" if inference else "momentum",
        inference=inference,
    )
    assert step["samples_per_s"] == pytest.approx(images_per_s, rel=0.2)
    assert 256 / step["step_high_s"] < images_per_s < 256 / step["step_low_s"]


@pytest.mark.parametrize(
    ("network", "images_per_s"), [("vgg16", 154), ("resnet50", 219), ("inception_v3", 142)]
)
def test_convolutions_on_a_p100(network, images_per_s) -> None:
    """What TensorFlow's benchmarks of 2017 have for batch 64 at fp32; cuDNN takes Winograd's algorithm."""
    step = joulecast.simulate_step(
        network=network,
        platform="p100",
        strategy="dp=1",
        batch=64,
        precision="fp32",
        optimizer="sgd",
    )
    assert step["samples_per_s"] == pytest.approx(images_per_s, rel=0.2)
