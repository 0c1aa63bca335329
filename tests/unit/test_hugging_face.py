"""Networks by the ``config.json`` that the Hugging Face hub has of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from joulecast.errors import JoulecastError
from joulecast.graphs.network_graphs import graph_origin, op_graph
from joulecast.graphs.network_names import parse_network

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}


def network(folder: Path, keys: str = "", **config: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA | config))
    return f"hf:{path}{keys}"


def parameters(name: str) -> int:
    return sum(tensor.elements for tensor in op_graph(name).parameters)


def test_a_configuration_is_its_numbers(tmp_path: Path) -> None:
    name = network(tmp_path, ":sequence=64")
    by_numbers = "llama:layers=2,hidden=256,heads=8,kv_heads=2,ffn=512,vocabulary=1000,sequence=64"
    assert parse_network(name) == parse_network(f"{by_numbers},positions=131072")
    assert parameters(name) == parameters(by_numbers)
    assert graph_origin(name) == "numbers"


def test_a_key_behind_the_path_goes_first(tmp_path: Path) -> None:
    wide, narrow = (parameters(network(tmp_path, f":sequence=64,ffn={n}")) for n in (512, 256))
    assert wide - narrow == 2 * 3 * 256 * 256


def test_a_null_is_a_key_that_is_not_there(tmp_path: Path) -> None:
    name = network(tmp_path, ":sequence=64", num_key_value_heads=None, head_dim=None)
    assert parse_network(name).kv_heads == 8
    facts = {"model_type": "opt", "intermediate_size": None, "ffn_dim": 96}
    assert parse_network(network(tmp_path, ":sequence=64", **facts)).ffn == 96


def test_learned_positions_are_those_of_the_file_at_any_length(tmp_path: Path) -> None:
    facts = {"model_type": "gpt2", "max_position_embeddings": 1024}
    short, whole = (parameters(network(tmp_path, keys, **facts)) for keys in (":sequence=64", ""))
    assert short == whole


def test_opt_350m_projects_its_embedding_and_has_norms_behind(tmp_path: Path) -> None:
    name = network(
        tmp_path,
        model_type="opt",
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=None,
        ffn_dim=4096,
        intermediate_size=None,
        vocab_size=50272,
        max_position_embeddings=2048,
        word_embed_proj_dim=512,
        do_layer_norm_before=False,
        tie_word_embeddings=True,
    )
    assert parameters(name) == parameters("opt-350m")


def test_biases_are_those_of_the_file(tmp_path: Path) -> None:
    """In each of two layers: queries, keys and values (256 + 2 x 64), behind attention 256, in the MLP
    2 x 512 + 256."""
    without = parameters(network(tmp_path, ":sequence=64"))
    for facts, more in (
        ({"attention_bias": True}, 256 + 2 * 64 + 256),
        ({"mlp_bias": True}, 2 * 512 + 256),
        ({"model_type": "qwen2"}, 256 + 2 * 64),
    ):
        assert parameters(network(tmp_path, ":sequence=64", **facts)) - without == 2 * more


def test_experts_and_their_router_have_biases_in_gpt_oss_alone(tmp_path: Path) -> None:
    """In each of two layers, four experts have 2 x 512 + 256, and their router 4."""
    mixtral, gpt_oss = (
        parameters(network(tmp_path, ":sequence=64", model_type=kind, num_local_experts=4))
        for kind in ("mixtral", "gpt_oss")
    )
    assert gpt_oss - mixtral == 2 * (4 * (2 * 512 + 256) + 4)


def test_a_classifier_has_no_head_of_a_language_model(tmp_path: Path) -> None:
    """Its own small head is left out. Before it, BERT has a pooler; its language model has a transform."""
    facts = {"model_type": "bert", "num_key_value_heads": None, "hidden_act": "gelu"}

    def of(architecture: str, **more: object) -> int:
        return parameters(network(tmp_path, ":sequence=64", architectures=[architecture], **more))

    body = of("BertForTokenClassification", **facts)
    assert of("BertForSequenceClassification", **facts) - body == 256 * 257
    masked, both = (of(f"BertFor{name}", **facts) for name in ("MaskedLM", "PreTraining"))
    assert masked > body + 256 * 1000
    assert both - masked == of("BertForMultipleChoice", **facts) - body == 256 * 257
    assert of("LlamaForCausalLM") - of("LlamaForSequenceClassification") == 256 * 1000
    roberta = facts | {"model_type": "xlm-roberta", "max_position_embeddings": 66}
    bert = facts | {"max_position_embeddings": 64}
    assert of("XLMRobertaModel", **roberta) - of("BertModel", **bert) == 2 * 256
    facts = {"model_type": "gpt2", "tie_word_embeddings": False}
    assert of("GPT2DoubleHeadsModel", **facts) - of("GPT2Model", **facts) == 256 * 1000


OPT = {
    "model_type": "opt",
    "num_key_value_heads": None,
    "ffn_dim": 512,
    "intermediate_size": None,
    "tie_word_embeddings": True,
}
GPT2 = {"model_type": "gpt2", "num_key_value_heads": None, "intermediate_size": None}


def count(name: str, kind: str) -> int:
    return sum(op.kind == kind for op in op_graph(name, "eager").ops)


def test_dropout_is_that_of_the_file(tmp_path: Path) -> None:
    """In each layer of GPT-2, attention drops once, and what follows twice. The embedding drops, too."""
    none = {"resid_pdrop": 0.0, "attn_pdrop": 0.0}
    for facts, drops in (
        (GPT2, 2 * 3 + 1),
        (GPT2 | {"attn_pdrop": 0.0}, 2 * 2 + 1),
        (GPT2 | none, 0),
        (OPT, 2 * 2),
        (OPT | {"attention_dropout": 0.1}, 2 * 3),
        (OPT | {"dropout": 0.0}, 0),
        ({}, 0),
    ):
        assert count(network(tmp_path, ":sequence=64", **facts), "dropout") == drops, facts


def test_gelu_is_that_of_the_file(tmp_path: Path) -> None:
    for activation, kernels in (("gelu_new", 0), ("gelu", 2)):
        facts = GPT2 | {"activation_function": activation}
        assert count(network(tmp_path, ":sequence=64", **facts), "gelu") == kernels


def test_a_mixture_with_latent_attention(tmp_path: Path) -> None:
    mixture = {
        "model_type": "deepseek_v3",
        "num_key_value_heads": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
    }
    ranked, direct = (
        parse_network(network(tmp_path, ":sequence=64", q_lora_rank=rank, **mixture))
        for rank in (48, None)
    )
    assert (ranked.q_rank, direct.q_rank, direct.kv_rank) == (48, 0, 32)
    second = mixture | {"model_type": "deepseek_v2"}
    assert parse_network(network(tmp_path, ":sequence=64", **second)) == direct
    assert direct.dense_ffn == 512
    assert direct.ffn == 128
    # Queries: 256 x 48 and 48 x 8 x 48 with a norm of 48, or 256 x 8 x 48; in both layers.
    counts = [
        parameters(network(tmp_path, ":sequence=64", q_lora_rank=rank, **mixture))
        for rank in (48, None)
    ]
    assert counts[1] - counts[0] == 2 * (256 * 384 - (256 * 48 + 48 * 384 + 48))
    # Biases: 48 for the queries, 32 + 16 for keys and values, and 256 behind attention.
    mixture |= {"q_lora_rank": 48, "attention_bias": True}
    assert parameters(network(tmp_path, ":sequence=64", **mixture)) - counts[0] == 2 * (96 + 256)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "say how many a sample has"),
        ({"model_type": "mamba"}, "model_type `mamba` is not known"),
        ({"model_type": "t5", "num_hidden_layers": None}, "model_type `t5` is not known"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"model_type": "qwen3_moe"}, "needs num_experts"),
        ({"intermediate_size": None}, "needs intermediate_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"hidden_act": "relu"}, "the activation relu is not known for llama"),
        ({"mlp_only_layers": [1], "model_type": "qwen3_moe"}, "mlp_only_layers.*capture"),
        ({"enable_bias": False}, "enable_bias: False"),
        ({"add_cross_attention": True}, "add_cross_attention: True"),
        ({"kv_lora_rank": 32, "qk_nope_head_dim": 48, "v_head_dim": 32}, "qk_nope_head_dim: 48"),
    ],
)
def test_what_is_not_known_is_refused_with_the_file(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    with pytest.raises(JoulecastError, match=said):
        op_graph(network(tmp_path, **config))
    with pytest.raises(JoulecastError, match="no such Hugging Face configuration"):
        op_graph(f"hf:{tmp_path}/nothing.json")


def test_a_configuration_that_is_given_as_an_op_graph_is_asked_for_by_its_prefix(
    tmp_path: Path,
) -> None:
    path = network(tmp_path).removeprefix("hf:")
    with pytest.raises(JoulecastError, match=f"give it as hf:{path}"):
        op_graph(path)
