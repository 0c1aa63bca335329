"""Op graphs of transformers from their numbers: decoders, encoders and vision transformers, without torch.

The ops are those that Hugging Face's code of GPT-2, OPT, BERT, Llama and ViT runs. Blocks are ``blocks.0``,
``blocks.1``, ...; columns and rows of their products can be split in turn (Megatron, Shoeybi et al. 2019).
How attention is computed is in :mod:`joulecast.graphs.attention`.
"""

from joulecast.graphs.attention import Attention, attention
from joulecast.graphs.network_names import TransformerSize
from joulecast.graphs.opgraph import Dim, DimKind, OpGraph
from joulecast.graphs.sheet import TOKEN_BYTES, Sheet

BATCH, OTHER, REDUCE, OPAQUE = DimKind.BATCH, DimKind.OTHER, DimKind.REDUCE, DimKind.OPAQUE


class _Network:
    """One network while it is written."""

    def __init__(
        self, size: TransformerSize, how: Attention, written_gelu: bool, fuses: bool
    ) -> None:
        self.size, self.how, self.written_gelu = size, how, written_gelu
        self.sheet = Sheet(fuses=fuses)

    def norm(self, name: str, x: str) -> str:
        """LayerNorm, or RMSNorm, with its weights."""
        sheet, hidden = self.sheet, self.size.hidden
        vectors = [sheet.tensor(f"{name}.weight", (hidden,))]
        if self.size.family == "llama":
            return sheet.normalised("rms_norm", name, x, vectors)
        if self.size.bias:
            vectors.append(sheet.tensor(f"{name}.bias", (hidden,)))
        return sheet.normalised("layer_norm", name, x, vectors)

    def drop(self, name: str, x: str, in_next: bool = False) -> str:
        """Dropout; nothing where its probability is 0."""
        p = self.size.dropout
        return self.sheet.pointwise("dropout", name, x, p=p, in_next=in_next) if p else x

    def activation(self, module: str, x: str) -> str:
        """The MLP's nonlinearity: ReLU, or GELU in one kernel or in Hugging Face's eight."""
        sheet = self.sheet
        if self.size.mlp == "relu":
            return sheet.pointwise("relu", f"{module}.relu", x)
        if not self.written_gelu:
            form = "tanh" if self.size.family == "gpt" else "none"
            return sheet.pointwise("gelu", f"{module}.gelu", x, approximate=form)
        # 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), an operation at a time.
        act = f"{module}.gelu"
        half = sheet.pointwise("scale", f"{act}/half", x, module=act)
        cube = sheet.pointwise("pow", f"{act}/pow", x, module=act)
        cube = sheet.pointwise("scale", f"{act}/scale", cube, module=act)
        inner = sheet.pointwise("add", f"{act}/add", x, cube, module=act)
        inner = sheet.pointwise("scale", f"{act}/scale#2", inner, module=act)
        inner = sheet.pointwise("tanh", f"{act}/tanh", inner, module=act)
        inner = sheet.pointwise("scale", f"{act}/plus_one", inner, module=act)
        return sheet.pointwise("multiply", f"{act}/multiply", half, inner, module=act)

    def mlp(self, module: str, x: str) -> str:
        """Columns, a nonlinearity, rows."""
        if self.size.experts:
            return self.experts(module, x)
        sheet, size = self.sheet, self.size
        if size.mlp == "swiglu":
            gate = sheet.linear(f"{module}.gate", x, size.ffn, bias=size.bias)
            up = sheet.linear(f"{module}.up", x, size.ffn, bias=size.bias)
            gated = sheet.pointwise("silu", f"{module}.silu", gate)
            inner = sheet.pointwise("multiply", f"{module}/multiply", gated, up, module=module)
        else:
            up = sheet.linear(f"{module}.up", x, size.ffn, bias=size.bias)
            inner = self.activation(module, up)
        return sheet.linear(f"{module}.down", inner, size.hidden, bias=size.bias)

    def experts(self, module: str, x: str) -> str:
        """A mixture of experts: each token goes to ``top_k`` of them, evenly spread (Fedus et al. 2022)."""
        sheet, size = self.sheet, self.size
        router = sheet.linear(f"{module}.router", x, size.experts, bias=False)
        gates = sheet.normalised("softmax", f"{module}.router/softmax", router, ())
        tokens = -(-size.sequence * size.top_k // size.experts)
        there = {"batch": 1, "experts": size.experts, "sequence": tokens, "features": size.hidden}
        given = sheet.add(
            "copy",
            f"{module}.dispatch",
            dict(there),
            # A token's place in the sequence says nothing of its expert: the axis is taken whole.
            [(x, ("batch", None, "features"))],
        )
        if size.mlp == "swiglu":
            gate = self._of_experts(f"{module}.gate", given, size.ffn)
            up = self._of_experts(f"{module}.up", given, size.ffn)
            gated = sheet.pointwise("silu", f"{module}.silu", gate)
            inner = sheet.pointwise("multiply", f"{module}/multiply", gated, up, module=module)
        else:
            inner = self.activation(module, self._of_experts(f"{module}.up", given, size.ffn))
        done = self._of_experts(f"{module}.down", inner, size.hidden)
        shape = {"batch": 1, "sequence": size.sequence, "features": size.hidden}
        return sheet.add(
            "multiply",
            f"{module}.combine",
            {**shape, "experts": Dim("experts", size.experts, OPAQUE)},
            [
                (done, ("batch", "experts", None, "features")),
                (gates, ("batch", "sequence", "experts")),
            ],
            [(f"{module}.combine", tuple(shape), shape)],
        )

    def _of_experts(self, name: str, x: str, out: int) -> str:
        """A linear layer of every expert, on the tokens that came to it; weight (experts, out, in)."""
        sheet = self.sheet
        shape = sheet.shape(x)
        inner, experts = shape.pop("features"), shape["experts"]
        weight = sheet.tensor(f"{name}.weight", (experts, out, inner))
        reads = [(x, ("batch", "experts", "sequence", "in")), (weight, ("experts", "out", "in"))]
        if self.size.bias:
            reads.append((sheet.tensor(f"{name}.bias", (experts, out)), ("experts", "out")))
        # Columns stand before experts: the tensor axis splits the first dim of the weights.
        dims: dict[str, int | Dim] = {
            "batch": 1,
            "sequence": shape["sequence"],
            "out": Dim("out", out, OTHER),
            "experts": experts,
            "in": Dim("in", inner, REDUCE),
        }
        written = {**shape, "features": out}
        writes = [(name, ("batch", "experts", "sequence", "out"), written)]
        return sheet.add("linear", name, dims, list(reads), writes)

    def block(self, module: str, x: str) -> str:
        """One layer: attention and MLP, each added to what it read."""
        sheet, size = self.sheet, self.size
        for place, part in enumerate(("attention", "mlp"), start=1):
            inside = self.norm(f"{module}.ln_{place}", x) if size.prenorm else x
            if part == "attention":
                done = attention(sheet, f"{module}.attention", inside, size, self.how)
            else:
                done = self.mlp(f"{module}.mlp", inside)
            done = self.drop(f"{module}.drop_{place}", done, in_next=True)
            x = sheet.pointwise("add", f"{module}/add_{place}", x, done, module=module)
            if not size.prenorm:
                x = self.norm(f"{module}.ln_{place}", x)
        return x

    def tokens(self) -> str:
        """Embeddings of tokens and, but for rotary positions, of places."""
        sheet, size = self.sheet, self.size
        ids = sheet.tensor("input", (1, size.sequence), "input", TOKEN_BYTES)
        x = sheet.embedding("token", ids, size.vocabulary, size.embedding, size.sequence)
        if size.embedding != size.hidden:
            x = sheet.linear("project_in", x, size.hidden, bias=False)
        if size.family == "bert":
            kinds = sheet.tensor("kinds", (1, size.sequence), "input", TOKEN_BYTES)
            kind = sheet.embedding("token_type", kinds, 2, size.hidden, size.sequence)
            x = sheet.pointwise("add", "token_type/add", x, kind, module="token_type")
        if size.family != "llama":
            x = self.positions(x)
        if size.family == "bert":
            x = self.norm("ln_embedding", x)
        # OPT drops nothing here.
        return x if size.family == "opt" else self.drop("drop", x)

    def positions(self, x: str) -> str:
        """Learned positions added to every sample."""
        table = self.sheet.tensor("position.weight", (self.size.positions, self.size.hidden))
        return self.sheet.pointwise(
            "add", "position", x, (table, ("sequence", "features")), module="position"
        )

    def patches(self) -> str:
        """An image cut into patches by a convolution, with the class token in front."""
        sheet, size = self.sheet, self.size
        side, hidden = size.image // size.patch, size.hidden
        image = sheet.tensor("input", (1, 3, size.image, size.image), "input")
        weight = sheet.tensor("patches.weight", (hidden, 3, size.patch, size.patch))
        bias = sheet.tensor("patches.bias", (hidden,))
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
        sheet.add(
            "conv2d",
            "patches",
            dims,
            [*reads, (bias, ("cout",))],
            [("patches", ("n", "cout", "h", "w"), maps)],
            kernel=[size.patch] * 2,
            stride=[size.patch] * 2,
            groups=1,
        )
        token = sheet.tensor("class_token", (1, 1, hidden))
        x = sheet.add(
            "concat",
            "class",
            {"batch": 1, "sequence": Dim("sequence", size.sequence, OPAQUE), "features": hidden},
            [(token, (None, None, "features")), ("patches", ("batch", "features", None, None))],
        )
        return self.drop("drop", self.positions(x))

    def first(self, x: str) -> str:
        """The first token of each sample."""
        shape = {"batch": 1, "features": self.size.hidden}
        return self.sheet.add("copy", "first", shape, [(x, ("batch", None, "features"))])

    def output(self, x: str) -> str:
        """From the last block's output to logits, as the head says."""
        sheet, size = self.sheet, self.size
        if size.head == "none":
            return x
        if size.head == "classes":
            return sheet.linear("head", self.first(x), size.classes, bias=True)
        if size.head == "pooler":
            pooled = sheet.linear("pooler", self.first(x), size.hidden, bias=True)
            return sheet.pointwise("tanh", "pooler/tanh", pooled, module="pooler")
        if size.head == "mlm":
            x = sheet.linear("transform", x, size.hidden, bias=size.bias)
            x = sheet.pointwise("gelu", "transform/gelu", x, module="transform", approximate="none")
            x = self.norm("ln", x)
        if size.embedding != size.hidden:
            x = sheet.linear("project_out", x, size.embedding, bias=False)
        tied = "token.weight" if size.tied else None
        # BERT's decoder has a bias of its own.
        return sheet.linear(
            "head", x, size.vocabulary, bias=size.head == "mlm" and size.bias, weight=tied
        )


def transformer(
    size: TransformerSize, name: str, attention: Attention = "fused", half: bool = False
) -> OpGraph:
    """The op graph of a transformer for one sample, at fp32.

    Args:
        size: its numbers.
        name: of the graph.
        attention: ``fused``: one kernel, the scores are never in memory; ``eager``: written out, as Hugging
            Face's eager code does it.
        half: whether it is run in half precision. Then scale and mask run inside the softmax's kernel, and
            dropout inside the addition's. It also decides ``gelu=auto``: networks that are trained in half
            precision have GELU in one kernel (Megatron, DeepSpeed, llm-foundry); eager GPT code in fp32 is
            Hugging Face's, which runs an operation at a time.
    """
    written = {"fused": False, "written": True, "auto": attention == "eager" and not half}
    network = _Network(size, attention, size.family == "gpt" and written[size.gelu], fuses=half)
    x = network.patches() if size.family == "vit" else network.tokens()
    for place in range(size.layers):
        x = network.block(f"blocks.{place}", x)
    if size.prenorm:
        x = network.norm("ln", x)
    x = network.output(x)
    if size.loss != "no" and size.head in ("lm", "mlm", "classes"):
        how = attention if size.loss == "auto" else size.loss
        network.sheet.cross_entropy(x, how == "fused")
    return network.sheet.graph(name)
