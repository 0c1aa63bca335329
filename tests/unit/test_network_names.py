"""Networks by numbers: names and keys, published parameter counts, ops of each way to compute attention."""

from collections import Counter

import pytest

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import op_work
from joulecast.graphs.network_graphs import attention_of, graph_origin, op_graph
from joulecast.graphs.network_names import PRESETS, parse_network
from joulecast.graphs.opgraph import KINDS, DimKind

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-175b": 174_604_259_328,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-13b": 12_853_473_280,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "mpt-13b": 12_853_954_560,
    "mpt-70b": 64_862_437_376,
    "vit-s": 22_050_664,
    "vit-b": 86_567_656,
    "vit-l": 304_326_632,
}
"""Of the published checkpoints (Hugging Face, llm-foundry, timm)."""


def parameters(graph):
    return sum(tensor.elements for tensor in graph.parameters)


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_parameters(name) -> None:
    by_numbers = op_graph(name, "fused" if name != "gpt2" else "eager")
    assert parameters(by_numbers) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("qwen3-30b-a3b", 30.53e9),
        ("qwen3-235b-a22b", 235.1e9),
        ("gpt-oss-120b", 116.8e9),
        ("deepseek-v3", 671.0e9),
    ],
)
def test_mixtures_have_about_the_published_parameters(name, published) -> None:
    # Norms of queries and keys, sinks and biases of routers are left out.
    assert parameters(op_graph(name)) == pytest.approx(published, rel=1e-3)


def test_the_case_of_a_name_does_not_matter() -> None:
    assert parse_network("GPT3-1.3B:layers=4") == parse_network("gpt3-1.3b:layers=4")
    assert op_graph("ResNet50") == op_graph("resnet50")


def test_a_graph_says_where_it_comes_from() -> None:
    assert graph_origin("GPT2") == graph_origin("resnet50") == "shipped"
    assert graph_origin("gpt2", "eager") == graph_origin("gpt:layers=12") == "numbers"
    assert graph_origin("own.json") == "file"


def test_a_preset_takes_other_numbers() -> None:
    longer = op_graph("gpt2-large:sequence=2048")
    assert parameters(longer) == PUBLISHED["gpt2-large"] + 1024 * 1280
    same = op_graph("gpt:layers=36,hidden=1280,heads=20,sequence=1024,vocabulary=50257")
    assert parameters(same) == PUBLISHED["gpt2-large"]
    untied = op_graph("gpt2-xl:tied=no,layers=2")
    assert parameters(untied) - parameters(op_graph("gpt2-xl:layers=2")) == 50257 * 1600
    assert parse_network("gpt3-1.3b:sequence=512").positions == 512


def test_the_shipped_gpt2_has_the_same_products() -> None:
    def products(graph):
        return Counter(
            tuple(sorted(dim.size for dim in op.dims)) for op in graph.ops if op.kind == "linear"
        )

    assert products(op_graph("gpt2")) == products(op_graph("gpt:layers=12,hidden=768,heads=12"))


@pytest.mark.parametrize("name", ["gpt2-medium", "bert-base", "opt-125m", "llama-7b", "vit-s"])
def test_attention_is_fused_or_written_out(name) -> None:
    fused, eager = op_graph(name, "fused"), op_graph(name, "eager")
    assert attention_of(fused) == "fused"
    assert attention_of(eager) == "eager"
    layers = parse_network(name).layers
    kinds = Counter(op.kind for op in eager.ops)
    assert kinds["matmul"] == 2 * layers
    assert "attention" not in kinds
    assert kinds["softmax"] == layers
    scores = [t for t in eager.tensors.values() if t.name.endswith("/scores")]
    size = parse_network(name)
    assert all(t.shape == (1, size.heads, size.sequence, size.sequence) for t in scores)
    square = (1, size.heads, size.sequence, size.sequence)
    assert square not in {t.shape for t in fused.tensors.values()}


def test_a_batch_scales_every_activation() -> None:
    for name in ("gpt2-medium:layers=1", "vit-s:layers=1", "gpt2-medium:layers=1,experts=4"):
        one = op_graph(name, "eager")
        eight = one.with_batch(8)
        for tensor in one.tensors.values():
            times = 8 if tensor.role in ("activation", "input") else 1
            assert eight.tensors[tensor.name].elements == times * tensor.elements, tensor.name


def test_products_say_their_sizes() -> None:
    graph = op_graph("gpt:layers=1,hidden=64,heads=4,sequence=16,vocabulary=100", "eager")
    ops = {op.name: op for op in graph.ops}
    scores = ops["blocks.0.attention.core/scores"]
    assert {d.name: (d.size, d.kind) for d in scores.dims} == {
        "batch": (1, DimKind.BATCH),
        "heads": (4, DimKind.OTHER),
        "query": (16, DimKind.OPAQUE),
        "key": (16, DimKind.OPAQUE),
        "head_dim": (16, DimKind.REDUCE),
    }
    values = ops["blocks.0.attention.core/values"]
    assert values.dim("key").kind is DimKind.REDUCE
    qkv = ops["blocks.0.attention.qkv"]
    assert qkv.dim("out").size == 3 * 64
    assert [access.tensor.rpartition(".")[2] for access in qkv.writes] == ["query", "key", "value"]


def test_grouped_queries_have_fewer_keys() -> None:
    graph = op_graph("llama:layers=1,hidden=64,heads=8,kv_heads=2,sequence=16,ffn=128")
    assert graph.tensors["blocks.0.attention.query"].shape == (1, 16, 64)
    assert graph.tensors["blocks.0.attention.key"].shape == (1, 16, 16)


def test_experts_share_the_tokens() -> None:
    dense = op_graph("gpt:layers=2,hidden=64,heads=4,sequence=16,vocabulary=100")
    sparse = op_graph("gpt:layers=2,hidden=64,heads=4,sequence=16,vocabulary=100,experts=8,top_k=2")
    up = next(op for op in sparse.ops if op.name == "blocks.0.mlp.up")
    assert up.dim("experts").size * up.dim("sequence").size == 2 * 16
    mlp = 2 * 64 * 256 + 256 + 64
    assert parameters(sparse) - parameters(dense) == 2 * (7 * mlp + 8 * 64)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpt2-xxl", "did you mean `gpt2-xl`"),
        ("lama-7b", "llama-7b"),
        ("gpt:layer=3,hidden=8,heads=2", "did you mean `layers`"),
        ("gpt:hidden=8,heads=2", "needs layers"),
        ("gpt:layers=2,hidden=10,heads=4", "hidden=10 does not divide by heads=4"),
        ("llama-7b:kv_heads=5", "heads=32 does not divide by kv_heads=5"),
        ("gpt2:layers=two", "layers=two: give a whole number"),
        ("gpt2:tied=maybe", "known: yes, no"),
        ("gpt2:loss=maybe", "known: auto, eager, fused, no"),
        ("gpt2:dropout=2", "give a probability"),
        ("gpt2:layers=2,layers=3", "given twice"),
        ("gpt2:layers", "give it as key=value"),
        ("bert-base:head=lm", "known: mlm, pretraining, pooler, none"),
        ("gpt2:experts=2,top_k=3", "from 1 to experts=2"),
        ("llama-7b:q_rank=64", "go with kv_rank"),
        ("vit-b:image=225", "image=225 does not divide by patch=16"),
    ],
)
def test_a_wrong_name_says_what_is_known(name, said) -> None:
    with pytest.raises(JoulecastError, match=said):
        op_graph(name)


def test_a_captured_graph_keeps_its_attention() -> None:
    written = op_graph("vit_b", "eager")
    assert attention_of(written) == "eager" and attention_of(op_graph("vit_b")) == "fused"
    flops = [
        sum(
            op_work(graph, op, {}, "forward").flops
            for op in graph.ops
            if KINDS[op.kind] == "matmul"
        )
        for graph in (written, op_graph("vit_b"))
    ]
    assert flops[0] == pytest.approx(flops[1])
    assert op_graph("resnet50", "fused").name == "resnet50"


def test_every_preset_is_sound() -> None:
    assert all(op_graph(f"{name}:layers=1").ops for name in PRESETS)
