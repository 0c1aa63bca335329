"""A transformer's numbers from the ``config.json`` that the Hugging Face hub has of a network."""

from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import read_json, validated

_FAMILIES = {
    "gpt2": "gpt",
    "opt": "opt",
    "bert": "bert",
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"), "llama"),
    **dict.fromkeys(("deepseek_v3", "gpt_oss"), "llama"),
}


def _named(*names: str) -> Any:
    return Field(0, ge=0, validation_alias=AliasChoices(*names))


class _Config(BaseModel):
    """The keys of ``config.json`` that say a size, by their names in :class:`TransformerSize`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model_type: str
    layers: int = _named("num_hidden_layers", "n_layer")
    hidden: int = _named("hidden_size", "n_embd")
    heads: int = _named("num_attention_heads", "n_head")
    kv_heads: int = _named("num_key_value_heads")
    ffn: int | None = _named("moe_intermediate_size", "intermediate_size", "ffn_dim", "n_inner")
    dense_ffn: int | None = _named("intermediate_size")
    vocabulary: int = _named("vocab_size")
    sequence: int = _named("max_position_embeddings", "n_positions")
    head_dim: int | None = _named("v_head_dim", "head_dim")
    experts: int = _named("num_experts", "num_local_experts", "n_routed_experts")
    top_k: int = _named("num_experts_per_tok", "experts_per_token")
    shared: int = _named("n_shared_experts")
    dense: int = _named("first_k_dense_replace")
    q_rank: int = _named("q_lora_rank")
    kv_rank: int = _named("kv_lora_rank")
    rope: int = _named("qk_rope_head_dim")
    tied: bool | None = Field(None, validation_alias="tie_word_embeddings")


def read_hugging_face(path: Path) -> tuple[str, dict[str, Any]]:
    """The family of a network and the numbers that its ``config.json`` gives.

    Raises:
        JoulecastError: no such file, a key that is no number, or an architecture that is not known here.
    """
    found = validated(
        TypeAdapter(_Config), read_json(path, "Hugging Face configuration"), str(path)
    )
    family = _FAMILIES.get(found.model_type)
    if family is None:
        raise JoulecastError(
            f"{path}: model_type `{found.model_type}` is not known (known: {', '.join(_FAMILIES)}); capture "
            "the module itself with `joulecast capture MODULE:FUNCTION OUT.json`"
        )
    sizes = found.model_dump(exclude={"model_type"}, exclude_unset=True, exclude_none=True)
    return family, sizes
