"""Makes op graphs of transformers (decoders, encoders, vision) from their numbers, without torch.

The ops are the ops of Hugging Face's code of GPT-2, OPT, BERT, Llama and ViT. Blocks are ``blocks.0``,
``blocks.1``, ...; columns and rows of their products can be split in turn (Megatron, Shoeybi et al. 2019).
Attention is one fused kernel, or written out op by op ("eager").
"""

from dataclasses import replace
from typing import Any, Literal

from joulecast.graphs.kernels import STRIDED
from joulecast.graphs.network_builder import (
    FLOAT_BYTES,
    TOKEN_BYTES,
    Axes,
    NetworkBuilder,
)
from joulecast.graphs.network_names import TransformerSize
from joulecast.graphs.opgraph import Dim, DimKind, OpGraph
from joulecast.graphs.written_attention import CORE, write_out_attention

BATCH, OTHER, REDUCE, OPAQUE = DimKind.BATCH, DimKind.OTHER, DimKind.REDUCE, DimKind.OPAQUE


Attention = Literal["eager", "fused", "cudnn"]


def attention_of(graph: OpGraph) -> Attention | None:
    """How a graph computes attention; ``None`` if it has no attention."""
    if any(op.attributes.get("cudnn") for op in graph.ops):
        return "cudnn"
    kinds = {op.kind for op in graph.ops}
    return "fused" if "attention" in kinds else "eager" if "matmul" in kinds else None


def in_cudnn(graph: OpGraph) -> OpGraph:
    """The same graph, but with cuDNN's kernels for its fused attention."""
    ops = tuple(
        replace(op, attributes={**op.attributes, "cudnn": True}) if op.kind == "attention" else op
        for op in graph.ops
    )
    return replace(graph, ops=ops)


def _products(net: NetworkBuilder, module: str, x: str, size: TransformerSize) -> list[str]:
    """Queries, keys and values. GPT computes them in one product, and the others in three."""
    narrow = size.head_dim * size.kv_heads
    widths = {"query": size.head_dim * size.heads, "key": narrow, "value": narrow}
    bias = size.bias or size.qkv_bias
    if size.family == "gpt":
        parts = {f"{module}.{name}": width for name, width in widths.items()}
        net.linear(f"{module}.qkv", x, sum(widths.values()), bias=bias, parts=parts)
        return list(parts)
    return [net.linear(f"{module}.{name}", x, width, bias=bias) for name, width in widths.items()]


def _latent(net: NetworkBuilder, module: str, x: str, size: TransformerSize) -> list[str]:
    """Queries, keys and values of latent attention. They pass through narrow products and a norm."""
    made = []
    heads = size.heads * size.head_dim
    for source, rank, also, targets in (
        ("q", size.q_rank, 0, {"query": heads + size.heads * size.rope}),
        ("kv", size.kv_rank, size.rope, {"key": heads, "value": heads}),
    ):
        inner, name = x, f"{module}.{source}"
        if rank:
            widths = {f"{name}_latent": rank} | ({f"{name}_rotary": also} if also else {})
            bias = size.bias or size.qkv_bias
            net.linear(f"{name}_down", x, rank + also, bias=bias, parts=widths)
            weight = net.tensor(f"{name}_norm.weight", (rank,))
            inner = net.normalised("rms_norm", f"{name}_norm", f"{name}_latent", [weight])
        made += [net.linear(f"{module}.{n}", inner, w, bias=size.bias) for n, w in targets.items()]
    return made


def _rotated(net: NetworkBuilder, module: str, x: str, size: TransformerSize, written: bool) -> str:
    """Rotary positions (Su et al. 2021), in one kernel or as x cos + (x with halves exchanged) sin."""
    if "cos" not in net.tensors:
        for table in ("cos", "sin"):
            net.tensor(table, (size.sequence, size.head_dim), "buffer", FLOAT_BYTES)
    cos, sin = (("cos", ("sequence", None)), ("sin", ("sequence", None)))
    if not written:
        return net.pointwise("rotary", f"{x}/rotary", x, cos, sin, module=module)
    # The axes of heads and tokens were exchanged before.
    given: dict[str, Any] = {"module": module, STRIDED: True}
    along = net.pointwise("multiply", f"{x}/multiply", x, cos, **given)
    turned = net.pointwise("copy", f"{x}/turned", x, **given)
    across = net.pointwise("multiply", f"{x}/multiply#2", turned, sin, **given)
    return net.pointwise("add", f"{x}/add", along, across, module=module)


def _written_norm(net: NetworkBuilder, name: str, x: str, weight: str, rows: int = 1) -> str:
    """RMSNorm, one operation at a time: x / sqrt(mean(x^2) + eps) at fp32, times its weights.

    With ``rows``, the last axis has this number of rows side by side (heads). Each is normalised alone.
    """
    *leading, last = net.axes[x]
    shape = net.shape(x)
    wide: dict[str, Any] = {"module": name, "wide": True}
    square = net.pointwise("pow", f"{name}/pow", x, **wide)
    read = [(square, net.axes[x])]
    if rows == 1:
        sizes: dict[str, int | Dim] = {**shape, last: Dim(last, shape[last], REDUCE)}
        mean = net.add("other", f"{name}/mean", sizes, read, sums=True, **wide)
    else:
        written = [(f"{name}/mean", net.axes[x], {**shape, last: rows})]
        mean = net.add("other", f"{name}/mean", dict(shape), read, written, sums=True, **wide)
    inverse = net.pointwise("scale", f"{name}/eps", mean, **wide)
    inverse = net.pointwise("pow", f"{name}/rsqrt", inverse, **wide)
    along: Axes = net.axes[x] if rows > 1 else tuple(leading)
    repeated: dict[str, Any] = {**wide, STRIDED: True}
    scaled = net.pointwise("multiply", f"{name}/scaled", x, (inverse, along), **repeated)
    of_weight = last if rows == 1 else None
    given: dict[str, Any] = {"module": name, STRIDED: True}
    return net.pointwise("multiply", name, scaled, (weight, (of_weight,)), **given)


def _normalised_heads(net: NetworkBuilder, name: str, x: str, size: TransformerSize) -> str:
    """RMSNorm of each head of queries or keys (Qwen3)."""
    weight = net.tensor(f"{name}.weight", (size.head_dim,))
    if net.fuses:
        # Each head is normalised alone. So it can be split like a product with its weights.
        return net.pointwise("multiply", name, x, (weight, (None,)))
    return _written_norm(net, name, x, weight, net.shape(x)["features"] // size.head_dim)


def attention(
    net: NetworkBuilder, module: str, x: str, size: TransformerSize, how: Attention
) -> str:
    """Add the attention of a block, with the products before and after it. Returns the name of its output."""
    q, k, v = (_latent if size.kv_rank else _products)(net, module, x, size)
    if size.qk_norm:
        q = _normalised_heads(net, f"{module}.q_norm", q, size)
        k = _normalised_heads(net, f"{module}.k_norm", k, size)
    if size.family == "llama":
        written = how == "eager" or not net.fuses
        q, k = (_rotated(net, module, part, size, written) for part in (q, k))
    context = _core(net, module, (q, k, v), size)
    return net.linear(f"{module}.out", context, size.hidden, bias=size.bias or size.out_bias)


def _core(net: NetworkBuilder, module: str, qkv: tuple[str, ...], size: TransformerSize) -> str:
    """Add fused attention."""
    name, rows, columns = f"{module}.{CORE}", ("batch", "query", "heads"), ("batch", "key", "heads")
    dims = {
        "batch": 1,
        "heads": size.heads,
        "query": size.sequence,
        "key": size.sequence,
        # In latent attention, the products of the scores are wider than the products of the values.
        "head_dim": size.head_dim + size.rope // 2,
    }
    # These facts count if attention is written out. OPT's code scales the queries in place of the scores, and
    # limits the scores from below.
    facts: dict[str, Any] = {}
    if size.family == "opt":
        facts |= {"scales_queries": True, "clamps": True}
    if size.family == "bert":
        facts["padded"] = True
    if size.kv_heads < size.heads:
        facts["grouped"] = True
    return net.add(
        "attention",
        name,
        dict(dims),
        [(qkv[0], rows), (qkv[1], columns), (qkv[2], columns)],
        [
            (
                name,
                rows,
                {"batch": 1, "sequence": size.sequence, "features": size.heads * size.head_dim},
            )
        ],
        causal=size.family not in ("bert", "vit"),
        dropout=size.attention_dropout,
        **facts,
    )


class _Network:
    """A network while its graph is made."""

    def __init__(
        self, size: TransformerSize, how: Attention, written_gelu: bool, fuses: bool
    ) -> None:
        self.size, self.how, self.written_gelu = size, how, written_gelu
        self.net = NetworkBuilder(fuses=fuses)

    def norm(self, name: str, x: str) -> str:
        """Add LayerNorm or RMSNorm, with its weights."""
        net, hidden = self.net, self.size.hidden
        vectors = [net.tensor(f"{name}.weight", (hidden,))]
        if self.size.family == "llama":
            if not net.fuses:
                return _written_norm(net, name, x, vectors[0])
            return net.normalised("rms_norm", name, x, vectors)
        if self.size.bias:
            vectors.append(net.tensor(f"{name}.bias", (hidden,)))
        return net.normalised("layer_norm", name, x, vectors)

    def drop(self, name: str, x: str, in_next: bool = False) -> str:
        """Add dropout, unless its probability is 0."""
        p = self.size.dropout
        return self.net.pointwise("dropout", name, x, p=p, in_next=in_next) if p else x

    def activation(self, module: str, x: str) -> str:
        """Add the MLP's nonlinearity: ReLU, or GELU in one kernel or in the eight of Hugging Face's code."""
        net = self.net
        if self.size.mlp == "relu":
            return net.pointwise("relu", f"{module}.relu", x)
        if not self.written_gelu:
            form = "tanh" if self.size.family == "gpt" else "none"
            return net.pointwise("gelu", f"{module}.gelu", x, approximate=form)
        # 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), one operation at a time.
        act = f"{module}.gelu"
        half = net.pointwise("scale", f"{act}/half", x, module=act)
        cube = net.pointwise("pow", f"{act}/pow", x, module=act)
        cube = net.pointwise("scale", f"{act}/scale", cube, module=act)
        inner = net.pointwise("add", f"{act}/add", x, cube, module=act)
        inner = net.pointwise("scale", f"{act}/scale#2", inner, module=act)
        inner = net.pointwise("tanh", f"{act}/tanh", inner, module=act)
        inner = net.pointwise("scale", f"{act}/plus_one", inner, module=act)
        return net.pointwise("multiply", f"{act}/multiply", half, inner, module=act)

    def mlp(self, module: str, x: str, ffn: int, experts: bool = False) -> str:
        """Add a linear layer, a nonlinearity, and a second linear layer. Megatron splits the first layer by
        columns, and the second one by rows.

        Args:
            experts: whether each expert has its own layers. Then ``x`` has the tokens of every expert.
        """
        net, size = self.net, self.size
        bias = size.bias or size.mlp_bias

        def linear(name: str, x: str, out: int) -> str:
            each = ("experts",) if experts else ()
            return net.linear(f"{module}.{name}", x, out, bias=bias, each=each)

        if size.mlp == "swiglu":
            gate, up = linear("gate", x, ffn), linear("up", x, ffn)
            gated = net.pointwise("silu", f"{module}.silu", gate, in_next=True)
            inner = net.pointwise("multiply", f"{module}/multiply", gated, up, module=module)
        else:
            inner = self.activation(module, linear("up", x, ffn))
        return linear("down", inner, size.hidden)

    def experts(self, module: str, x: str) -> str:
        """Add a mixture of experts. A token goes to ``top_k`` of them, evenly spread (Fedus et al. 2022)."""
        net, size = self.net, self.size
        router = net.linear(f"{module}.router", x, size.experts, bias=size.mlp_bias)
        gates = net.normalised(
            "softmax", f"{module}.router/softmax", router, (), f"{module}.router"
        )
        tokens = -(-size.sequence * size.top_k // size.experts)
        there = {"batch": 1, "experts": size.experts, "sequence": tokens, "features": size.hidden}
        given = net.add(
            "copy",
            f"{module}.dispatch",
            dict(there),
            # Each device gives the tokens of its part of the sequence to all experts.
            [(x, ("batch", "sequence", "features"))],
            top_k=size.top_k,
        )
        done = self.mlp(module, given, size.ffn, experts=True)
        shape = {"batch": 1, "sequence": size.sequence, "features": size.hidden}
        combined = net.add(
            "multiply",
            f"{module}.combine",
            {**shape, "experts": Dim("experts", size.experts, OPAQUE)},
            [
                (done, ("batch", "experts", "sequence", "features")),
                (gates, ("batch", "sequence", "experts")),
            ],
            [(f"{module}.combine", tuple(shape), shape)],
        )
        if not size.shared:
            return combined
        always = self.mlp(f"{module}.shared", x, size.shared * size.ffn)
        return net.pointwise("add", f"{module}/add", combined, always, module=module)

    def block(self, number: int, x: str) -> str:
        """Add a layer: attention and MLP. The output of each is added to its input."""
        net, size, module = self.net, self.size, f"blocks.{number}"
        for place, part in enumerate(("attention", "mlp"), start=1):
            inside = self.norm(f"{module}.ln_{place}", x) if size.prenorm else x
            if part == "attention":
                done = attention(net, f"{module}.attention", inside, size, self.how)
            elif size.experts and number >= size.dense:
                done = self.experts(f"{module}.mlp", inside)
            else:
                done = self.mlp(f"{module}.mlp", inside, size.dense_ffn)
            done = self.drop(f"{module}.drop_{place}", done, in_next=True)
            x = net.pointwise("add", f"{module}/add_{place}", x, done, module=module)
            if not size.prenorm:
                x = self.norm(f"{module}.ln_{place}", x)
        return x

    def tokens(self) -> str:
        """Add the embedding of tokens, and also of positions, unless these are rotary."""
        net, size = self.net, self.size
        ids = net.tensor("input", (1, size.sequence), "input", TOKEN_BYTES)
        x = net.embedding("token", ids, size.vocabulary, size.embedding, size.sequence)
        if size.embedding != size.hidden:
            x = net.linear("project_in", x, size.hidden, bias=False)
        if size.family == "bert":
            kinds = net.tensor("kinds", (1, size.sequence), "input", TOKEN_BYTES)
            kind = net.embedding("token_type", kinds, 2, size.hidden, size.sequence)
            x = net.pointwise("add", "token_type/add", x, kind, module="token_type")
        if size.family != "llama":
            x = self.positions(x)
        if size.family == "bert":
            x = self.norm("ln_embedding", x)
        # OPT drops nothing here.
        return x if size.family == "opt" else self.drop("drop", x)

    def positions(self, x: str) -> str:
        """Add learned positions to every sample."""
        table = self.net.tensor("position.weight", (self.size.positions, self.size.hidden))
        return self.net.pointwise(
            "add", "position", x, (table, ("sequence", "features")), module="position"
        )

    def patches(self) -> str:
        """Add a convolution that cuts an image into patches, and put the class token in front."""
        net, size = self.net, self.size
        side, hidden = size.image // size.patch, size.hidden
        image = net.tensor("input", (1, 3, size.image, size.image), "input")
        weight = net.tensor("patches.weight", (hidden, 3, size.patch, size.patch))
        bias = net.tensor("patches.bias", (hidden,))
        dims: dict[str, int | Dim] = {
            "n": Dim("n", 1, BATCH),
            "cout": Dim("cout", hidden, OTHER),
            "h": Dim("h", side, OPAQUE),
            "w": Dim("w", side, OPAQUE),
            "cin": Dim("cin", 3, REDUCE),
            "k1": Dim("k1", size.patch, OPAQUE),
            "k2": Dim("k2", size.patch, OPAQUE),
        }
        reads = [(image, ("n", "cin", "h", "w")), (weight, ("cout", "cin", "k1", "k2"))]
        maps = {"n": 1, "features": hidden, "h": side, "w": side}
        net.add(
            "conv2d",
            "patches",
            dims,
            [*reads, (bias, ("cout",))],
            [("patches", ("n", "cout", "h", "w"), maps)],
            kernel=[size.patch] * 2,
            stride=[size.patch] * 2,
            groups=1,
        )
        token = net.tensor("class_token", (1, 1, hidden))
        x = net.add(
            "concat",
            "class",
            {"batch": 1, "sequence": Dim("sequence", size.sequence, OPAQUE), "features": hidden},
            [(token, (None, None, "features")), ("patches", ("batch", "features", None, None))],
        )
        return self.drop("drop", self.positions(x))

    def first(self, x: str) -> str:
        """Take the first token of each sample."""
        shape = {"batch": 1, "features": self.size.hidden}
        return self.net.add("copy", "first", shape, [(x, ("batch", None, "features"))])

    def output(self, x: str) -> str:
        """Add the ops from the output of the last block to the logits, for the given head."""
        net, size = self.net, self.size
        if size.head == "none":
            return x
        if size.head == "classes":
            return net.linear("head", self.first(x), size.classes, bias=True)
        if size.head in ("pooler", "pretraining"):
            pooled = net.linear("pooler", self.first(x), size.hidden, bias=True)
            pooled = net.pointwise("tanh", "pooler/tanh", pooled, module="pooler")
            if size.head == "pooler":
                return pooled
        if size.family == "bert":
            x = net.linear("transform", x, size.hidden, bias=size.bias)
            x = net.pointwise("gelu", "transform/gelu", x, module="transform", approximate="none")
            x = self.norm("ln", x)
        if size.embedding != size.hidden:
            x = net.linear("project_out", x, size.embedding, bias=False)
        tied = "token.weight" if size.tied else None
        # BERT's decoder has a bias of its own.
        bias = size.family == "bert" and size.bias
        return net.linear("head", x, size.vocabulary, bias=bias, weight=tied)


def transformer(
    size: TransformerSize, name: str, attention: Attention = "fused", half: bool = False
) -> OpGraph:
    """The op graph of a transformer for one sample, at fp32.

    Args:
        size: numbers of the transformer.
        name: name of the graph.
        attention: with ``fused``, attention is one kernel, and the scores are never in memory. With
            ``eager``, it is written out, as in Hugging Face's eager code.
        half: whether the weights have half precision, as in Megatron, DeepSpeed and llm-foundry. Their code
            has one kernel each for RMSNorm, rotary positions and GELU (``gelu=auto``). Scale and mask run
            inside the kernel of the softmax, dropout inside the kernel of the addition, and SiLU inside the
            product of gate and up. Otherwise the code is Hugging Face's, which runs one operation at a time.
    """
    written = {"fused": False, "written": True, "auto": not half}
    network = _Network(size, attention, size.family == "gpt" and written[size.gelu], fuses=half)
    x = network.patches() if size.family == "vit" else network.tokens()
    for place in range(size.layers):
        x = network.block(place, x)
    if size.prenorm:
        x = network.norm("ln", x)
    x = network.output(x)
    if size.loss != "no" and size.head not in ("pooler", "none"):
        auto = attention if half else "eager"
        how = auto if size.loss == "auto" else size.loss
        network.net.cross_entropy(x, how == "fused", size.metrics)
    graph = network.net.graph(name)
    return write_out_attention(graph, fuses=half) if attention == "eager" else graph
