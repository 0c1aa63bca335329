"""Reads networks by numbers: ``gpt:layers=36,hidden=1280,heads=20`` or ``llama-7b:sequence=2048``.

A name is a family, a preset, or ``hf:`` and the path of a network's ``config.json`` from the Hugging Face
hub. A colon and keys may follow. :mod:`joulecast.graphs.transformer` makes the op graph.

The sizes of the presets were published with the networks: GPT-2 (Radford et al. 2019), GPT-3 (Brown et al.
2020, table 2.1), BERT (Devlin et al. 2019), OPT (Zhang et al. 2022), Llama 2 and 3 (Touvron et al. 2023,
Grattafiori et al. 2024), Mixtral (Jiang et al. 2024), Qwen3 (Yang et al. 2025), DeepSeek-V3 (DeepSeek-AI
2024, without its prediction of further tokens), gpt-oss (OpenAI 2025, here with attention over the whole
sequence in place of windows), MPT (MosaicML's llm-foundry), ViT (Dosovitskiy et al. 2021).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, cast, get_args

from joulecast.errors import JoulecastError
from joulecast.graphs.hugging_face import read_hugging_face

Family = Literal["gpt", "opt", "bert", "llama", "vit"]
MlpKind = Literal["gelu", "relu", "swiglu"]
Gelu = Literal["auto", "fused", "written"]
Loss = Literal["auto", "eager", "fused", "no"]
Head = Literal["lm", "mlm", "pretraining", "pooler", "classes", "none"]
_MOST = 10**9
"""Largest number in a name."""
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class TransformerSize:
    """The numbers of a transformer. A number that is 0 follows from the others."""

    family: Family
    layers: int = 0
    hidden: int = 0
    heads: int = 0
    sequence: int = 0
    """Tokens of a sample. For a ``vit``, the number follows from image and patch."""
    vocabulary: int = 0
    kv_heads: int = 0
    """Number of heads of keys and values (grouped-query attention); 0: the same number as ``heads``."""
    head_dim: int = 0
    """Width of a head; 0: hidden / heads."""
    ffn: int = 0
    """Inner size of the MLP, or of an expert; 0: four times hidden."""
    positions: int = 0
    """Number of rows in the table of learned positions; 0: the length of the sequence."""
    embedding: int = 0
    """Width of the token embedding; 0: hidden. If it differs from hidden, it is projected (OPT-350M)."""
    qk_norm: bool = False
    """Whether each head of queries and keys is normalised."""
    tied: bool = True
    """Whether the output layer and the token embedding share a weight."""
    bias: bool = True
    """Whether products and norms have biases."""
    qkv_bias: bool = False
    """Whether the products that make queries, keys and values have biases, even if ``bias`` is no (Qwen2)."""
    out_bias: bool = False
    """Whether the product behind attention has a bias, even if ``bias`` is no."""
    mlp_bias: bool = False
    """Whether the products of an MLP, of its experts and of their router have biases, even if ``bias`` is no
    (gpt-oss)."""
    prenorm: bool = True
    """Whether a norm stands before attention, before the MLP and at the end of the network."""
    dropout: float = 0.1
    attention_dropout: float | None = None
    """Probability of dropout of attention's shares; ``None``: the same as ``dropout``."""
    head: Head = "lm"
    gelu: Gelu = "auto"
    """GPT's GELU, in one kernel or in the eight of Hugging Face's code. ``auto``: see ``transformer``."""
    loss: Loss = "auto"
    """Cross entropy. With ``eager`` it is torch's, which keeps shares at fp32. With ``fused`` it keeps
    logits. With ``no`` there is none. With ``auto`` it is fused if attention is fused and the weights have
    half precision."""
    metrics: int = 0
    """Number of losses that torch computes again for a log, without gradients."""
    experts: int = 0
    """Number of experts of a mixture, in every MLP; 0: no mixture."""
    top_k: int = 2
    """Number of experts that a token goes to."""
    shared: int = 0
    """Number of further experts, which every token goes to."""
    dense: int = 0
    """Number of first layers that have an MLP in place of experts."""
    dense_ffn: int = 0
    """Inner size of the MLP in these first layers (``dense``); 0: ffn."""
    q_rank: int = 0
    """Width that the queries of latent attention come from; 0: they come directly from the layer's input."""
    kv_rank: int = 0
    """Width that keys and values come from (multi-head latent attention, DeepSeek); 0: plain attention."""
    rope: int = 0
    """Width of the part with rotary positions in each head of latent attention. It is added to ``head_dim``,
    the width of the part without."""
    patch: int = 0
    image: int = 0
    classes: int = 0

    @property
    def mlp(self) -> MlpKind:
        """What the MLP computes."""
        by_family: dict[str, MlpKind] = {"opt": "relu", "llama": "swiglu"}
        return by_family.get(self.family, "gelu")


_DEFAULTS: dict[str, TransformerSize] = {
    "gpt": TransformerSize("gpt", sequence=1024, vocabulary=50257),
    "opt": TransformerSize("opt", sequence=2048, vocabulary=50272),
    "bert": TransformerSize("bert", sequence=512, vocabulary=30522, prenorm=False, head="mlm"),
    "llama": TransformerSize(
        "llama", sequence=4096, vocabulary=32000, tied=False, bias=False, dropout=0.0
    ),
    "vit": TransformerSize("vit", dropout=0.0, head="classes", patch=16, image=224, classes=1000),
}
"""Numbers of each family that apply if a name does not give them."""
_HEADS: dict[str, tuple[Head, ...]] = {
    "bert": ("mlm", "pretraining", "pooler", "none"),
    "vit": ("classes", "none"),
}
_NEEDED = ("layers", "hidden", "heads")


_GPT3 = "gpt:sequence=2048"
# OPT's table of positions has two rows more than tokens.
_OPT = "opt:positions=2050"
_LLAMA3 = "llama:kv_heads=8,vocabulary=128256,sequence=8192"
_QWEN3 = "llama:kv_heads=4,head_dim=128,qk_norm=yes,vocabulary=151936,experts=128,top_k=8"
# Composer's MPT logs cross entropy and perplexity of every micro-batch (`use_train_metrics`).
_MPT = "gpt:sequence=2048,vocabulary=50368,dropout=0,gelu=fused,metrics=2"
PRESETS = {
    "gpt2": "gpt:layers=12,hidden=768,heads=12",
    "gpt2-medium": "gpt:layers=24,hidden=1024,heads=16",
    "gpt2-large": "gpt:layers=36,hidden=1280,heads=20",
    "gpt2-xl": "gpt:layers=48,hidden=1600,heads=25",
    "gpt3-1.3b": f"{_GPT3},layers=24,hidden=2048,heads=16",
    "gpt3-2.7b": f"{_GPT3},layers=32,hidden=2560,heads=32",
    "gpt3-6.7b": f"{_GPT3},layers=32,hidden=4096,heads=32",
    "gpt3-13b": f"{_GPT3},layers=40,hidden=5120,heads=40",
    "gpt3-175b": f"{_GPT3},layers=96,hidden=12288,heads=96",
    "bert-base": "bert:layers=12,hidden=768,heads=12",
    "bert-large": "bert:layers=24,hidden=1024,heads=16",
    "opt-125m": f"{_OPT},layers=12,hidden=768,heads=12",
    "opt-350m": f"{_OPT},layers=24,hidden=1024,heads=16,embedding=512,prenorm=no",
    "opt-1.3b": f"{_OPT},layers=24,hidden=2048,heads=32",
    "opt-2.7b": f"{_OPT},layers=32,hidden=2560,heads=32",
    "opt-6.7b": f"{_OPT},layers=32,hidden=4096,heads=32",
    "opt-13b": f"{_OPT},layers=40,hidden=5120,heads=40",
    "llama-7b": "llama:layers=32,hidden=4096,heads=32,ffn=11008",
    "llama-13b": "llama:layers=40,hidden=5120,heads=40,ffn=13824",
    "llama-70b": "llama:layers=80,hidden=8192,heads=64,kv_heads=8,ffn=28672",
    "llama3-8b": f"{_LLAMA3},layers=32,hidden=4096,heads=32,ffn=14336",
    "llama3-70b": f"{_LLAMA3},layers=80,hidden=8192,heads=64,ffn=28672",
    "llama3-405b": f"{_LLAMA3},layers=126,hidden=16384,heads=128,ffn=53248",
    "mixtral-8x7b": "llama:layers=32,hidden=4096,heads=32,ffn=14336,kv_heads=8,experts=8,sequence=8192",
    "qwen3-30b-a3b": f"{_QWEN3},layers=48,hidden=2048,heads=32,ffn=768",
    "qwen3-235b-a22b": f"{_QWEN3},layers=94,hidden=4096,heads=64,ffn=1536",
    "gpt-oss-120b": "llama:layers=36,hidden=2880,heads=64,ffn=2880,kv_heads=8,head_dim=64,experts=128,"
    "top_k=4,vocabulary=201088,qkv_bias=yes,out_bias=yes,mlp_bias=yes",
    "deepseek-v3": "llama:layers=61,hidden=7168,heads=128,ffn=2048,head_dim=128,q_rank=1536,kv_rank=512,"
    "rope=64,experts=256,top_k=8,shared=1,dense=3,dense_ffn=18432,vocabulary=129280",
    "mpt-125m": f"{_MPT},layers=12,hidden=768,heads=12",
    "mpt-350m": f"{_MPT},layers=24,hidden=1024,heads=16",
    "mpt-760m": f"{_MPT},layers=24,hidden=1536,heads=12",
    "mpt-1b": f"{_MPT},layers=24,hidden=2048,heads=16",
    "mpt-3b": f"{_MPT},layers=32,hidden=2560,heads=20",
    "mpt-7b": f"{_MPT},layers=32,hidden=4096,heads=32",
    "mpt-13b": f"{_MPT},layers=40,hidden=5120,heads=40",
    "mpt-30b": f"{_MPT},layers=48,hidden=7168,heads=56",
    "mpt-70b": f"{_MPT},layers=80,hidden=8192,heads=64",
    "vit-s": "vit:layers=12,hidden=384,heads=6",
    "vit-b": "vit:layers=12,hidden=768,heads=12",
    "vit-l": "vit:layers=24,hidden=1024,heads=16",
}
"""Networks by their usual names. ``llama-`` is Llama 2."""


def nearest(name: str, known: list[str]) -> str:
    """A hint with the nearest known names, ``; did you mean ...?``. It is empty if none is near."""
    near = get_close_matches(name.lower(), known, n=3)
    return f"; did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else ""


def is_by_numbers(name: str) -> bool:
    """Whether a name is a preset or a family, with or without keys."""
    return ":" in name or name.lower() in PRESETS or name.lower() in _DEFAULTS


_KEYS = [field.name for field in fields(TransformerSize) if field.name != "family"]


def _value(name: str, size: TransformerSize, key: str, value: str) -> Any:
    if key not in _KEYS:
        raise JoulecastError(
            f"network `{name}`: `{key}` is no key{nearest(key, _KEYS)} (keys: {', '.join(_KEYS)})"
        )
    is_flag = isinstance(getattr(size, key), bool)
    words = {
        "head": _HEADS.get(size.family, ("lm", "none")),
        "gelu": get_args(Gelu),
        "loss": get_args(Loss),
    }.get(key, ("yes", "no") if is_flag else ())
    if value in words:
        return value == "yes" if is_flag else value
    if words:
        raise JoulecastError(
            f"network `{name}`: {key}={value} is not known (known: {', '.join(words)})"
        )
    if key.endswith("dropout"):
        with suppress(ValueError):
            if 0 <= float(value) < 1:
                return float(value)
        raise JoulecastError(
            f"network `{name}`: {key}={value}: give a probability from 0 to below 1"
        )
    if value.isdecimal() and int(value) <= _MOST:
        return int(value)
    raise JoulecastError(f"network `{name}`: {key}={value}: give a whole number from 0")


def _checked(name: str, size: TransformerSize) -> TransformerSize:
    for key in _NEEDED:
        if not getattr(size, key):
            raise JoulecastError(
                f"network `{name}`: it needs {key}, as in "
                f"{size.family}:layers=12,hidden=768,heads=12"
            )
    if size.layers > _MOST_LAYERS:
        raise JoulecastError(f"network `{name}`: layers={size.layers}: at most {_MOST_LAYERS}")
    for whole, part in (("hidden", "heads"), ("heads", "kv_heads"), ("image", "patch")):
        divided, by = getattr(size, whole), getattr(size, part)
        if by and divided % by and not (part == "heads" and size.head_dim):
            raise JoulecastError(
                f"network `{name}`: {whole}={divided} does not divide by {part}={by}"
            )
    if size.family == "vit":
        if not size.image or not size.patch:
            raise JoulecastError(f"network `{name}`: it needs image and patch above 0")
        size = replace(size, sequence=(size.image // size.patch) ** 2 + 1)
    elif not size.sequence or not size.vocabulary:
        raise JoulecastError(f"network `{name}`: it needs sequence and vocabulary above 0")
    head_dim = size.head_dim or size.hidden // size.heads
    if size.family == "llama" and head_dim % 2:
        raise JoulecastError(f"network `{name}`: rotary positions need heads of an even width")
    if size.experts and not 1 <= size.top_k <= size.experts:
        raise JoulecastError(
            f"network `{name}`: top_k={size.top_k}: from 1 to experts={size.experts}"
        )
    if (size.q_rank or size.rope) and not size.kv_rank:
        raise JoulecastError(f"network `{name}`: q_rank and rope go with kv_rank")
    if size.kv_rank and size.family != "llama":
        raise JoulecastError(f"network `{name}`: latent attention (kv_rank) is of a llama")
    return replace(
        size,
        kv_heads=size.kv_heads or size.heads,
        attention_dropout=size.dropout
        if size.attention_dropout is None
        else size.attention_dropout,
        head_dim=head_dim,
        dense_ffn=size.dense_ffn or size.ffn or 4 * size.hidden,
        ffn=size.ffn or 4 * size.hidden,
        positions=max(size.positions, size.sequence),
        embedding=size.embedding or size.hidden,
    )


def parse_network(name: str, also: Sequence[str] = ()) -> TransformerSize:
    """The numbers of a name, for example of ``gpt:layers=36,hidden=1280,heads=20`` or ``llama-7b``.

    Args:
        name: a family or a preset, and keys after a colon.
        also: other known names. The hint of an error has them, too.

    Raises:
        JoulecastError: name or key are unknown (the error has the nearest), or the numbers do not fit
            together.
    """
    if name.startswith("hf:"):
        return _hugging_face(name)
    base, _, keys = name.partition(":")
    base = base.lower()
    family, _, numbers = PRESETS.get(base, base).partition(":")
    if family not in _DEFAULTS:
        names = list(dict.fromkeys([*_DEFAULTS, *PRESETS, *also]))
        hint = (
            nearest(base, names)
            or f"; by name: {', '.join(n for n in names if n not in _DEFAULTS)}"
        )
        raise JoulecastError(
            f"network `{base}` is not known{hint} (families, which take numbers: "
            f"{', '.join(_DEFAULTS)}; or the path of an op graph, or the name of a training that `joulecast "
            "measure --capture` ran from this folder)"
        )
    return _checked(name, _with_keys(name, _with_keys(base, _DEFAULTS[family], numbers), keys))


_LONG = 8192
"""Largest number of tokens in a configuration that is taken as the length of a sample. A larger number is a
limit, and not the length in training."""


def _hugging_face(name: str) -> TransformerSize:
    path, _, keys = name.removeprefix("hf:").partition(".json")
    family, sizes = read_hugging_face(Path(f"{path}.json"))
    size = replace(_DEFAULTS[cast("Family", family)], **sizes)
    if size.sequence > _LONG and "sequence=" not in keys:
        raise JoulecastError(
            f"network `{name}`: it allows samples of {size.sequence} tokens; say how many a sample has, as "
            f"hf:{path}.json:sequence=4096"
        )
    return _checked(name, _with_keys(name, size, keys.removeprefix(":")))


def _with_keys(name: str, size: TransformerSize, keys: str) -> TransformerSize:
    given: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in keys.split(","))):
        key, sign, value = word.partition("=")
        if not sign:
            raise JoulecastError(f"network `{name}`: `{word}`: give it as key=value")
        if key in given:
            raise JoulecastError(f"network `{name}`: {key} is given twice")
        given[key] = _value(name, size, key, value)
    if "sequence" in given and size.family == "vit":
        raise JoulecastError(
            f"network `{name}`: the sequence of a vit follows from image and patch"
        )
    return replace(size, **given)
