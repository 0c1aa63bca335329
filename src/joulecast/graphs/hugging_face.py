"""Reads the numbers of a transformer from its ``config.json`` on the Hugging Face hub."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import read_json_object, validated

_FAMILIES = {
    "gpt2": "gpt",
    "opt": "opt",
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert"), "bert"),
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"), "llama"),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "gpt_oss"), "llama"),
}
_MIXTURES = ("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss")


def _named(*names: str, default: Any = None) -> Any:
    return Field(default, validation_alias=AliasChoices(*names))


_Count = Annotated[int, Field(ge=0)] | None
_Size = Annotated[int, Field(ge=1)]
_Share = Annotated[float, Field(ge=0, lt=1)] | None


class _Config(BaseModel):
    """The sizes in ``config.json``, by their names in :class:`TransformerSize`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model_type: str
    architectures: list[str] | None = None
    layers: _Size = _named("num_hidden_layers", "n_layer", default=...)
    hidden: _Size = _named("hidden_size", "n_embd", default=...)
    heads: _Size = _named("num_attention_heads", "n_head", default=...)
    kv_heads: _Count = _named("num_key_value_heads")
    ffn: _Count = _named("moe_intermediate_size", "intermediate_size", "ffn_dim", "n_inner")
    dense_ffn: _Count = _named("intermediate_size")
    vocabulary: _Size = _named("vocab_size", default=...)
    positions: _Count = _named("max_position_embeddings", "n_positions")
    embedding: _Count = _named("word_embed_proj_dim")
    head_dim: _Count = _named("v_head_dim", "head_dim")
    experts: _Count = _named("num_experts", "num_local_experts", "n_routed_experts")
    top_k: _Count = _named("num_experts_per_tok", "experts_per_token")
    shared: _Count = _named("n_shared_experts")
    dense: _Count = _named("first_k_dense_replace")
    q_rank: _Count = _named("q_lora_rank")
    kv_rank: _Count = _named("kv_lora_rank")
    rope: _Count = _named("qk_rope_head_dim")
    tied: bool | None = _named("tie_word_embeddings")
    prenorm: bool | None = _named("do_layer_norm_before")
    qkv_bias: bool | None = _named("attention_bias")
    out_bias: bool | None = _named("attention_bias")
    mlp_bias: bool | None = _named("mlp_bias")
    dropout: _Share = _named("resid_pdrop", "hidden_dropout_prob", "dropout")
    attention_dropout: _Share = _named(
        "attn_pdrop", "attention_probs_dropout_prob", "attention_dropout"
    )
    gelu: str | None = _named("activation_function", "hidden_act")


_ACTIVATIONS = {
    "gpt": {"gelu_new": "auto", "gelu": "fused", "gelu_pytorch_tanh": "fused"},
    "opt": {"relu": "auto"},
    "bert": {"gelu": "auto"},
    "llama": {"silu": "auto"},
}
"""For each family: the activation functions that have ops here, by their names in ``config.json``. With each,
the value of ``gelu`` in :class:`TransformerSize`."""
_ONLY = {
    **{"decoder_sparse_step": 1, "moe_layer_freq": 1, "mlp_only_layers": []},
    **{"enable_bias": True, "layer_norm_elementwise_affine": True, "add_cross_attention": False},
}
"""Keys of ``config.json`` that may have only this value. So all blocks are of one kind. OPT has all its
biases and weights of norms. A decoder that attends to an encoder (GPT-2, BERT) is refused."""
_HEADS = {
    **{
        f"{name}{head}": "pooler"
        for name in ("Bert", "Roberta", "XLMRoberta", "Camembert")
        for head in ("Model", "ForSequenceClassification", "ForMultipleChoice")
    },
    "BertForNextSentencePrediction": "pooler",
    **{"BertForPreTraining": "pretraining", "GPT2DoubleHeadsModel": "lm"},
}
"""Heads of the architectures without ``LM`` in their names. Others have a small head, which is left out."""
_WAY_OUT = "capture the module itself with `joulecast capture MODULE:FUNCTION`"


def read_hugging_face(path: Path) -> tuple[str, dict[str, Any]]:
    """The family of a network and the numbers that its ``config.json`` gives.

    Raises:
        JoulecastError: the file does not exist, a value is no number, or the architecture is unknown.
    """
    given = read_json_object(path, "Hugging Face configuration")
    # A key without a value must not hide another name of the same size.
    content = {key: value for key, value in given.items() if value is not None}
    # Other families have other names for their sizes.
    family = _FAMILIES.get(str(content.get("model_type")))
    if family is None:
        raise JoulecastError(
            f"{path}: model_type `{content.get('model_type')}` is not known (known: "
            f"{', '.join(_FAMILIES)}); {_WAY_OUT}"
        )
    found = validated(TypeAdapter(_Config), content, str(path))
    # In latent attention, the parts of queries and keys without positions are as wide as the values.
    only = _ONLY | ({"qk_nope_head_dim": found.head_dim} if found.kv_rank else {})
    for key, value in only.items():
        if content.get(key, value) != value:
            raise JoulecastError(
                f"{path}: {key}: {content[key]}: only {value} is known here; {_WAY_OUT}"
            )
    forms = _ACTIVATIONS[family]
    if found.gelu is not None and found.gelu not in forms:
        raise JoulecastError(
            f"{path}: the activation {found.gelu} is not known for {found.model_type} (known: "
            f"{', '.join(forms)}); {_WAY_OUT}"
        )
    needed = {
        "num_experts": found.experts or found.model_type not in _MIXTURES,
        # The MLP of a GPT-2 is four times as wide as its layers, if no number is given.
        "intermediate_size": found.ffn or family == "gpt",
    }
    for key, is_known in needed.items():
        if not is_known:
            raise JoulecastError(f"{path}: {found.model_type} needs {key}, which is missing")
    sizes = found.model_dump(exclude={"model_type", "architectures"}, exclude_none=True)
    if not found.experts:
        # All layers have the same MLP, and a key behind the path may give it another size.
        sizes.pop("dense_ffn", None)
    sizes["gelu"] = forms[found.gelu or next(iter(forms))]
    sizes["sequence"] = sizes.get("positions", 0)
    if found.model_type == "qwen2":
        sizes["qkv_bias"] = True
    if found.model_type == "gpt_oss":
        sizes["mlp_bias"] = True
    sizes["qk_norm"] = found.model_type.startswith("qwen3")
    for architecture in (found.architectures or [])[:1]:
        if "LM" not in architecture.removeprefix("XLM"):
            sizes["head"] = _HEADS.get(architecture, "none")
    # The table of positions has two rows more than tokens. Only RoBERTa's configuration counts them.
    if family == "opt":
        sizes["positions"] = sizes["sequence"] + 2
        sizes.setdefault("attention_dropout", 0.0)
    elif family == "bert" and found.model_type != "bert":
        sizes["sequence"] = max(0, sizes["sequence"] - 2)
    return family, sizes
