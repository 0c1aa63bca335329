"""Trainings at fp8 and narrower, parts of a sample on several devices, and exchanges in parts."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import JoulecastError
from joulecast.graphs.network_graphs import network_for
from joulecast.graphs.precision import training_of
from joulecast.runs.platforms import find_platform
from joulecast.simulate.answer import simulate_request
from joulecast.simulate.request import SimulateRequest
from joulecast.simulate.simulate import Assumptions, Simulation, simulate
from joulecast.simulate.strategy import parse_strategy, text_of

LLAMA = "llama:layers=4,hidden=4096,heads=32,ffn=14336,sequence=4096,vocabulary=32000"
MIXTURE = "llama:layers=2,hidden=512,heads=8,ffn=256,sequence=512,vocabulary=512,experts=16,top_k=4"


def simulated(strategy: str, network: str = LLAMA, batch: int = 2, **more: str) -> Simulation:
    settings = {"precision": "bf16", "optimizer": "adam", "platform": "gb200", **more}
    return simulate_request(
        SimulateRequest(network=network, strategy=strategy, batch=batch, **settings)
    )


def sent(simulation: Simulation, word: str) -> float:
    tasks = simulation.activities
    return sum(t.work for t in tasks if t.usage and 0 in t.devices and t.label.startswith(word))


def test_narrower_products_take_less_time_and_memory() -> None:
    steps = [simulated("dp=1", precision=name) for name in ("bf16", "mxfp8", "nvfp4")]
    for wide, narrow in pairwise(steps):
        assert narrow.step_s < wide.step_s
        assert narrow.peak_memory_bytes < wide.peak_memory_bytes
    # The rest of a step stays at bf16.
    assert steps[2].step_s > steps[0].step_s / 4


@pytest.mark.parametrize(
    ("platform", "precision"), [("a100", "fp8"), ("h100-sxm", "nvfp4"), ("h100-sxm", "mxfp8")]
)
def test_a_gpu_that_lacks_a_precision_says_so(platform: str, precision: str) -> None:
    with pytest.raises(JoulecastError, match=f"peak_flops.{precision}"):
        simulated("dp=1", platform=platform, precision=precision)


def test_attention_and_the_vocabulary_stay_wide(tmp_path: Path) -> None:
    """Of a step that is attention alone fp8 saves next to nothing, by kernels and by a roofline."""
    long = "llama:layers=1,hidden=512,heads=4,ffn=512,vocabulary=512,sequence=65536"
    file = tmp_path / "own.yaml"
    file.write_text(
        "name: own\n"
        "cluster: {device: {name: own, peak_flops: {bf16: 1e15, fp8: 2e15}, memory_bytes_per_s: 3e12}}\n"
    )
    for platform in ("h100-sxm", str(file)):
        steps = [
            simulated("dp=1", long, 1, platform=platform, precision=name, attention="cudnn")
            for name in ("bf16", "fp8")
        ]
        assert 0.9 * steps[0].step_s < steps[1].step_s <= steps[0].step_s


def test_positions_on_two_devices_halve_what_each_computes_and_keeps() -> None:
    whole, parts = (simulated(strategy, batch=8) for strategy in ("dp=1", "cp=2"))
    optimizer = whole.optimizer_s
    halved = (whole.breakdown.computing_s - optimizer) / 2
    assert parts.breakdown.computing_s - optimizer == pytest.approx(halved, rel=0.1)
    assert parts.memory[0].activations_bytes < 0.7 * whole.memory[0].activations_bytes
    # Keys and values of the other half come, forward, and their gradients go back; so do those of weights.
    size = 8 * 4096 * 4096 * 2 / 2
    assert sent(parts, "all_gather") == pytest.approx(4 * 2 * size, rel=1e-6)
    assert sent(parts, "reduce_scatter") == pytest.approx(4 * 2 * size, rel=1e-6)
    weights = sum(tensor.bytes for tensor in parts.graph.parameters)
    assert sent(parts, "gradients") == pytest.approx(weights, rel=1e-6)


def test_positions_need_attention_in_one_kernel() -> None:
    with pytest.raises(JoulecastError, match="--attention fused"):
        simulated("cp=2", attention="eager")
    with pytest.raises(JoulecastError, match="cp=3 does not divide the 4096 positions"):
        simulated("cp=3")


def test_exchanges_in_parts_carry_the_same_bytes_and_are_waited_for_less() -> None:
    plain, in_parts = simulated("tp=4,sp"), simulated("tp=4,sp,tp-overlap")
    assert in_parts.step_s < plain.step_s
    assert in_parts.breakdown.computing_s == pytest.approx(plain.breakdown.computing_s)
    for word in ("all_gather", "reduce_scatter"):
        assert sent(in_parts, word) == pytest.approx(sent(plain, word))
    with pytest.raises(JoulecastError, match="add sp"):
        simulated("tp=4,tp-overlap")


def test_tensor_ranks_share_whole_experts_with_sequence_parallelism() -> None:
    cut, spread = (simulated(f"dp=4,tp=2,ep={ep}", MIXTURE) for ep in ("4", "8,sp"))
    assert spread.memory[0].weights_bytes == pytest.approx(cut.memory[0].weights_bytes, rel=0.01)
    with pytest.raises(JoulecastError, match="a multiple of them"):
        simulated("dp=4,tp=2,ep=3,sp", MIXTURE)


def test_a_token_goes_once_to_each_node() -> None:
    def exchange_s(top_k: int, batch: int) -> float:
        network = MIXTURE.replace("top_k=4", f"top_k={top_k}")
        found = simulated("dp=8,ep=8", network, batch, platform="h100-sxm:gpus=4,nics=1x10")
        timed = found.activities
        return sum(t.end_s - t.start_s for t in timed if t.label.startswith("all_to_all"))

    # As many bytes: of four experts on two nodes a token meets both but in one of eight cases.
    assert exchange_s(4, 2) / exchange_s(1, 8) == pytest.approx(2 * (1 - 1 / 16) / 4, rel=0.05)


@given(
    dp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    rest=st.sampled_from(["tp=1", "tp=2,sp", "tp=2,sp,tp-overlap"]),
    zero=st.sampled_from(["", ",zero=1", ",zero=3"]),
)
def test_folded_equals_unfolded_and_a_strategy_is_its_text(
    dp: int, cp: int, rest: str, zero: str
) -> None:
    text = f"dp={dp},cp={cp},{rest}{zero}"
    strategy = parse_strategy(text)
    assert parse_strategy(text_of(strategy)) == strategy
    small = "llama:layers=2,hidden=64,heads=4,sequence=64,vocabulary=128"
    training = training_of("bf16", "adam")
    network = network_for(small, training)
    platform = find_platform("h100-sxm:gpus=4")
    steps = [
        simulate(
            network,
            platform,
            strategy,
            2,
            assumptions=Assumptions(training=training, folded=folded),
        )
        for folded in (True, False)
    ]
    assert steps[0].step_s == pytest.approx(steps[1].step_s, rel=1e-9)
