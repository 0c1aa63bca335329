"""Platforms by the name of their GPU, what kernels take there, and steps that were measured on GPUs."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from conftest import benchmark, make_record, make_spec
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import joulecast
from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.graphs.kernel_costs import (
    KernelCosts,
    kernel_costs_of,
    kernel_rates,
    plateau,
    product_flops,
)
from joulecast.graphs.kernels import Pass, Product, kernels_of
from joulecast.graphs.measure_device import MeasuredDevice, measure_device, write_device
from joulecast.graphs.network_graphs import network_for
from joulecast.graphs.precision import training_of
from joulecast.report.tables.simulator import gpu_error_table
from joulecast.runs.files.shipped import recorded_folder
from joulecast.runs.platforms import find_platform, gpu_in, gpu_names, simulated_platform
from joulecast.runs.record import write_record
from joulecast.simulate.judged.gpu_steps import (
    judge,
    read_gpu_steps,
    simulate_steps,
)
from joulecast.simulate.measured_step import MeasuredStep, corrected, read_steps, simulated_step

LARGE_GPT = "gpt:layers=36,hidden=1280,heads=20,sequence=1024,vocabulary=50257"
STEPS = recorded_folder(Path("recorded/training-steps"))


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_of_the_catalogue_is_a_platform(name: str) -> None:
    device = find_platform(name).require_cluster().device
    for precision, peak in device.peak_flops.items():
        assert 0.1 * peak < plateau(device, precision) <= 1.1 * peak
    assert device.memory_bytes is not None
    assert 5e9 < device.memory_bytes < 4e11


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA_A100-PCIE-40GB", "a100-40gb-pcie"),
        ("Tesla_V100-PCIE-32GB", "v100-pcie"),
        ("AMD Instinct MI210", "mi210"),
        ("H100", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("Quadro RTX 6000", "rtx6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA H800 PCIe", "h800-pcie"),
        ("NVIDIA GeForce RTX 3080 Ti", "rtx3080ti"),
    ],
)
def test_a_gpu_is_found_by_the_names_that_drivers_and_people_use(said: str, name: str) -> None:
    assert find_platform(said).name == name


@pytest.mark.parametrize(
    "said",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "GRID A100-10C",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4080 SUPER",
        "NVIDIA A800 80GB PCIe",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    ],
)
def test_another_variant_of_a_gpu_is_not_taken_for_it(said: str) -> None:
    assert gpu_in(said) is None


def test_a_node_is_described_behind_the_colon() -> None:
    cluster = find_platform("a100-80gb-sxm:gpus=4,link=pcie,nics=2x200").require_cluster()
    inner, outer = cluster.links
    assert (cluster.devices_per_node, inner.name, inner.joins) == (4, "pcie", 4)
    assert outer.bytes_per_s == pytest.approx(2 * 200e9 / 8, rel=0.2)
    assert len(find_platform("l4:gpus=1").require_cluster().links) == 1
    half, whole = (find_platform(name).require_cluster() for name in ("h100:gpus=4", "h100"))
    assert 2 * half.links[-1].bytes_per_s == whole.links[-1].bytes_per_s


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ("h10-sxm", "h100-sxm"),
        ("h100-sxm:gpu=4", "`gpu=4` is not known"),
        ("h100-sxm:gpus=0", "gpus=0"),
        ("l4:link=nvlink", "has no nvlink"),
        ("l4:nics=fast", "as 4x200"),
    ],
)
def test_a_wrong_name_or_option_is_named_with_the_way_out(said: str, part: str) -> None:
    with pytest.raises(JoulecastError, match=part):
        find_platform(said)


def test_a_file_of_ones_own_goes_before_the_gpu_of_that_name() -> None:
    assert find_platform("hc1").require_cluster().device.units is None


def test_a_file_that_describes_no_node_leaves_it_to_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "h200.yaml").write_text("{name: h200, hosts: 1}")
    assert find_platform("h200", tmp_path).cluster is None
    node = find_platform("h200-sxm").cluster
    assert simulated_platform("h200", tmp_path).require_cluster() == node
    for said in ("h200", "NVIDIA H200"):
        assert find_platform(said).require_cluster() == node
    assert find_platform("h200:gpus=4").require_cluster().devices_per_node == 4
    assert simulated_platform("hc2") == find_platform("hc2")


@pytest.mark.parametrize(
    ("file", "gpu", "precision"), [("dgx-h100", "h100-sxm", "bf16"), ("hc2", "v100", "fp16")]
)
def test_a_node_of_a_file_has_the_kernels_of_the_gpu_that_it_names(
    file: str, gpu: str, precision: str
) -> None:
    graph = network_for("GPT2-large", training_of(precision, "adam"))
    in_file, catalogued = (kernel_costs_of(find_platform(name), precision) for name in (file, gpu))
    assert in_file is not None and catalogued is not None
    for op in graph.ops[:40]:
        seconds = in_file.cost(graph, op, {}, "forward").seconds
        assert seconds == pytest.approx(catalogued.cost(graph, op, {}, "forward").seconds, rel=0.01)


def test_the_power_limit_bounds_small_cards_and_not_large_ones() -> None:
    def share(name: str) -> float:
        device = find_platform(name).require_cluster().device
        return plateau(device, "fp32") / device.peak_flops["fp32"]

    assert share("t4") < 0.6
    assert share("l4") < 0.5
    assert share("v100") > 0.9
    assert share("a100-80gb-sxm") > 0.9


def test_a_precision_that_the_gpu_lacks_is_refused() -> None:
    with pytest.raises(JoulecastError, match="bf16"):
        joulecast.simulate_step(LARGE_GPT, "v100", "dp=1", batch=1, precision="bf16")


_SIZES = st.integers(16, 8192)


@given(m=_SIZES, n=_SIZES, k=_SIZES, more=st.integers(2, 4))
def test_a_larger_product_never_takes_less(m: int, n: int, k: int, more: int) -> None:
    for rates in kernel_rates().products.values():
        work = product_flops(Product(1, m, n, k, 4), rates, 108)
        assert work >= 0.99 * 2 * m * n * k
        for larger in (Product(1, more * m, n, k, 4), Product(more, m, n, k, 4)):
            assert product_flops(larger, rates, 108) >= 0.999 * work


@given(size=st.floats(1, 1e11), kind=st.sampled_from(["elementwise", "softmax", "norm", "copy"]))
def test_a_pass_takes_its_bytes_over_the_bandwidth_at_least(size: float, kind: str) -> None:
    device = find_platform("h100-sxm").require_cluster().device
    costs = KernelCosts(device, "bf16")
    assert device.memory_bytes_per_s is not None
    assert costs.seconds(Pass(kind, size)) >= size / device.memory_bytes_per_s


def test_kernels_of_a_network_have_its_operations() -> None:
    """Forward: two operations a parameter and token of the products, and two products of attention."""
    graph = network_for("gpt2-large", training_of("fp32", "none", True), "eager")
    flops = sum(
        kernel.flops
        for op in graph.ops
        for kernel in kernels_of(graph, op, {}, "forward")
        if isinstance(kernel, Product)
    )
    layers, hidden, tokens, words = 36, 1280, 1024, 50257
    expected = (
        2 * tokens * (12 * layers * hidden**2 + words * hidden) + layers * 4 * tokens**2 * hidden
    )
    assert flops == pytest.approx(expected, rel=1e-3)


def test_a_backward_has_twice_the_products_of_its_forward() -> None:
    graph = network_for("gpt2-large", training_of("fp32"), "eager")

    def flops(direction: str) -> float:
        return sum(
            kernel.flops
            for op in graph.ops
            for kernel in kernels_of(graph, op, {}, direction)  # type: ignore[arg-type]
            if isinstance(kernel, Product)
        )

    assert flops("backward") == pytest.approx(2 * flops("forward"), rel=1e-6)


def test_a_simulated_step_says_what_it_rests_on_and_how_sure_it_is() -> None:
    options = {"batch": 4, "precision": "fp32", "attention": "eager", "optimizer": "none"}
    plain = joulecast.simulate_step(LARGE_GPT, "h100-sxm", "dp=4", **options)  # type: ignore[arg-type]
    assert plain["basis"] == "description"
    assert plain["step_low_s"] < plain["step_s"] < plain["step_high_s"]
    paper = joulecast.simulate_step("resnet50", "hc1", "dp=4", batch=32)
    assert paper["basis"] == "other"
    assert paper["step_low_s"] is None


def _with_steps(folder: Path, *factors: tuple[int, float], strategy: str = "dp=4") -> float:
    """How many times as long a step takes after steps at some batches took so many times as long."""
    options = {"precision": "fp32", "attention": "eager", "optimizer": "none"}
    small = LARGE_GPT.replace("layers=36", "layers=4")
    steps = []
    for batch, factor in factors:
        alone = joulecast.simulate_step(small, "h100-sxm", "dp=1", batch=batch, **options)  # type: ignore[arg-type]
        step = {"network": small, "strategy": "dp=1", "batch": batch, **options}
        steps.append(step | {"step_s": factor * alone["step_s"]})
    file = folder / "steps.yaml"
    file.write_text(yaml.safe_dump({"steps": steps}))
    plain = joulecast.simulate_step(small, "h100-sxm", strategy, batch=4, **options)  # type: ignore[arg-type]
    found = joulecast.simulate_step(small, "h100-sxm", strategy, batch=4, calibrate=file, **options)  # type: ignore[arg-type]
    assert found["basis"] == "calibrated"
    return float(found["step_s"] / plain["step_s"])


def test_a_measured_step_corrects_itself_most_and_others_by_what_is_likely(tmp_path: Path) -> None:
    assert _with_steps(tmp_path, (4, 1.5), strategy="dp=1") == pytest.approx(1.5, rel=0.01)
    assert 1.05 < _with_steps(tmp_path, (4, 1.1)) < 1.1
    # One that takes twice as long may be an odd one; three are none.
    assert 1.1 < _with_steps(tmp_path, (1, 2.0)) < 1.8
    assert _with_steps(tmp_path, (1, 2.0), (2, 2.0), (8, 2.0)) == pytest.approx(2.0, rel=0.1)
    assert _with_steps(tmp_path, (1, 1.0), (2, 1.0), (8, 2.0)) == pytest.approx(1.0, rel=0.2)


def test_one_measured_step_far_from_its_simulation_is_said_to_be_odd(tmp_path: Path) -> None:
    asked = {"batch": 8, "precision": "bf16"}
    file = tmp_path / "steps.yaml"

    def remark(*factors: float) -> str | None:
        steps = []
        for batch, factor in zip((1, 2, 4), factors, strict=False):
            alone = joulecast.simulate_step(
                "gpt2-medium", "h100-sxm", "dp=1", batch=batch, precision="bf16"
            )
            step = {
                "network": "gpt2-medium",
                "batch": batch,
                "precision": "bf16",
            }
            steps.append(step | {"step_s": factor * alone["step_s"]})
        file.write_text(yaml.safe_dump({"steps": steps}))
        found = joulecast.simulate_step("gpt2-medium", "h100-sxm", "dp=1", calibrate=file, **asked)  # type: ignore[arg-type]
        said: str | None = found["calibration_remark"]
        return said

    near, odd = remark(1.05), remark(2.0)
    assert near is not None and odd is not None
    for said in (near, odd):
        assert "gpt2-medium" in said and "batch 1" in said
    assert odd.startswith(near) and len(odd) > len(near)
    # Two that are alike are no odd ones; one among others is.
    alike, odd = remark(2.0, 2.0), remark(1.0, 1.0, 2.0)
    assert alike is not None and odd is not None
    assert ";" not in alike and "batch 4" in odd.partition(";")[2]
    plain = joulecast.simulate_step("gpt2-medium", "h100-sxm", "dp=1", **asked)  # type: ignore[arg-type]
    assert plain["calibration_remark"] is None
    best = joulecast.search("gpt2-medium", "h100-sxm", 2, precision="bf16", calibrate=file)
    assert best["feasible"][0]["calibration_remark"] == odd


def test_a_folder_of_records_becomes_the_file_to_write(tmp_path: Path) -> None:
    records = tmp_path / "measured"
    for run in ("a", "b"):
        record = make_record(make_spec(run, nodes=2))
        on_cpu = record.info.outcome.model_copy(update={"device": "cpu"})
        info = record.info.model_copy(update={"outcome": on_cpu})
        write_record(records / run, replace(record, info=info))
    asked = ("simulate", "--network", "vit-s", "--platform", "h100-sxm", "--strategy", "dp=2")
    asked += ("--batch", "4", "--calibrate")
    refused = CliRunner().invoke(app, [*asked, str(records)])
    assert refused.exit_code == 2
    assert str(records) in refused.stderr.splitlines()[0] and "on cpu" in refused.stderr
    file = tmp_path / "steps.yaml"
    written = "\n".join(refused.stderr.splitlines()[1:])
    for place, value in {"NETWORK": "vit-s", "STRATEGY": "dp=2", "PRECISION": "fp32"}.items():
        written = written.replace(place, value)
    file.write_text(written)
    steps = read_steps(file)
    assert [(step.batch, step.step_s) for step in steps] == [(4, pytest.approx(1.0))] * 2


def test_a_campaign_on_gpus_calibrates_its_own_networks() -> None:
    found = joulecast.simulate_step(
        "resnet50", "h100-sxm", "dp=1", batch=128, precision="amp", calibrate="one-h100"
    )
    assert found["basis"] == "calibrated"
    assert found["step_s"] == pytest.approx(0.0706, rel=2e-3)
    with pytest.raises(JoulecastError, match="a step at amp cannot correct costs at bf16"):
        joulecast.simulate_step(
            "resnet50", "h100-sxm", "dp=1", batch=128, precision="bf16", calibrate="one-h100"
        )
    with pytest.raises(JoulecastError, match="ask with --platform h100-sxm"):
        joulecast.simulate_step(
            "resnet50", "l4", "dp=1", batch=128, precision="amp", calibrate="one-h100"
        )
    with pytest.raises(JoulecastError, match="or are not of GPUs"):
        joulecast.simulate_step("resnet50", "h100-sxm", "dp=1", batch=4, calibrate="two-core-vm")


def test_a_corrected_platform_repeats_the_measured_step() -> None:
    platform = find_platform("a100-40gb-sxm")
    step = MeasuredStep(
        network="mpt-1b",
        strategy="dp=8,micro=2,zero=3",
        batch=16,
        precision="bf16",
        attention="fused",
        step_s=1.9,
        memory_bytes=36e9,
    )
    costs = KernelCosts(platform.require_cluster().device, "bf16")
    there, corrections = corrected(platform, costs, [step])
    again = simulated_step(step, there, corrections)
    assert again.step_s == pytest.approx(1.9, rel=5e-3)
    assert again.peak_memory_bytes == pytest.approx(36e9, rel=1e-6)


def test_a_step_that_cannot_be_is_no_correction() -> None:
    platform = find_platform("h100-sxm")
    costs = KernelCosts(platform.require_cluster().device, "fp32")
    step = MeasuredStep(network=LARGE_GPT, batch=4, step_s=1e6)
    with pytest.raises(JoulecastError, match="too far apart"):
        corrected(platform, costs, [step])


def test_the_steps_of_all_sources_are_in_one_table() -> None:
    assert read_gpu_steps(STEPS) == benchmark("training_steps").steps_of_sources()


def test_measured_steps_of_gpus_are_predicted() -> None:
    """The errors that docs/explanation/simulator.md reports, with room: every sixth row, to be quick."""
    steps = read_gpu_steps(STEPS)
    judged = judge([step for step in steps if step.source != "megatron_bridge"][::6])
    table = gpu_error_table(judged).drop_duplicates("data").set_index("data")
    assert table.loc["neusight", "error_percent"] < 12
    assert table.loc["vtrain", "error_percent"] < 12
    assert table.loc["llm_foundry", "one_step_error_percent"] < 10
    assert not judged["out_of_memory"].any()
    widths = benchmark("simulator_gpus").judged_widths(judged)
    assert 0 < widths["calibrated"]["several"] < widths["description"]["several"] < 1


def test_a_device_is_measured_and_simulated_on(tmp_path: Path) -> None:
    """On the CPU of this machine: the same code, without a GPU's numbers."""
    measured = measure_device("cpu", seconds=0.05, copy_bytes=1 << 22)
    assert measured.flops["fp32"] > 1e8
    assert measured.bytes_per_s > 1e7
    file = tmp_path / "gpu.yaml"
    known = MeasuredDevice("NVIDIA L4", "nvidia", 58, 24e9, {"fp32": 12e12, "bf16": 60e12}, 260e9)
    write_device(known, file)
    device = find_platform(str(file)).require_cluster().device
    assert plateau(device, "bf16") == 60e12
    own = joulecast.simulate_step("gpt2-medium", file, "dp=1", batch=2, precision="bf16")
    assert own["basis"] == "description"
    write_device(MeasuredDevice("New GPU", "nvidia", 100, 2e11, {"bf16": 1e15}, 5e12), file)
    new = joulecast.simulate_step("gpt2-medium", file, "dp=1", batch=2, precision="bf16")
    assert new["step_s"] < own["step_s"]


@pytest.mark.long
def test_recipes_at_fp8_are_predicted() -> None:
    """The quick ones: dense networks of one stage, and a mixture of experts; by what is known of the GPU."""
    steps = [
        step
        for step in read_gpu_steps(STEPS)
        if step.source == "megatron_bridge"
        and any(part in step.step.network for part in ("llama3-8b", "deepseek", "llama3-70b"))
        and step.step.batch <= 64
    ]
    found = simulate_steps(steps[::16])
    off = (found["predicted_s"] / found["measured_s"] - 1).abs()
    assert off.groupby([found["gpu"], found["network"]]).mean().max() < 0.3
    assert off.mean() < 0.15
