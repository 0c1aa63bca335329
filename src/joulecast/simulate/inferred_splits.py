"""Decides how ops are split if the strategy does not say it: which dim of each op is split along which axis
of the mesh.

The batch is split along replicas. Along ``tensor``, matrix products are split by columns and by rows in turn
(Megatron), and the ops between them by the sequence. The experts of a mixture are split along ``expert``. Any
other op keeps the shards of the tensors that it reads.
"""

from collections.abc import Callable, Container, Mapping

from joulecast.errors import JoulecastError
from joulecast.graphs.opgraph import Dim, DimKind, Op, OpGraph

Placements = list[dict[str, str]]
"""For each op of a graph, the dim that is split along each axis."""


def column_dims(graph: OpGraph, op: Op) -> list[Dim]:
    """Dims of the output. A part of such a dim needs only a part of the weights, and gives a part of the
    output. The dim of experts comes last."""
    axes = _weight_axes(graph, op)
    found = [d for d in op.dims if d.kind is DimKind.OTHER and d.name in axes]
    return sorted(found, key=lambda dim: dim.name == "experts")


def row_dims(graph: OpGraph, op: Op) -> list[Dim]:
    """Dims over which the op sums. A part of such a dim needs only a part of the weights and of the input,
    and gives a partial sum."""
    return [d for d in op.dims if d.kind is DimKind.REDUCE and d.name in _weight_axes(graph, op)]


def _weight_axes(graph: OpGraph, op: Op) -> set[str]:
    return {
        axis
        for access in op.reads
        if graph.tensors[access.tensor].is_weight
        for axis in access.axes
        if axis is not None
    }


def split_batch(graph: OpGraph, placements: Placements, axis: str) -> None:
    """Split the batch."""
    for op, placement in zip(graph.ops, placements, strict=True):
        for dim in op.dims:
            if dim.kind is DimKind.BATCH:
                placement[axis] = dim.name


def _gives_words(graph: OpGraph, op: Op) -> bool:
    """Whether an op is the product with the vocabulary, which Megatron splits by words. Only a loss reads
    it; in inference, nothing does."""
    readers = [reader for access in op.writes for reader in graph.readers[access.tensor]]
    if op.kind != "linear" or any(reader.kind != "cross_entropy" for reader in readers):
        return False
    columns, rows = column_dims(graph, op), row_dims(graph, op)
    return bool(columns and rows) and columns[0].size > rows[0].size


def _feeds_matmul(graph: OpGraph, op: Op) -> bool:
    """Whether a later matrix product reads the output of this op, with only pointwise ops between them."""
    waiting = [access.tensor for access in op.writes]
    seen = set(waiting)
    while waiting:
        for reader in graph.readers[waiting.pop()]:
            if _gives_words(graph, reader):
                continue
            if reader.kind in ("linear", "conv2d", "matmul", "attention", "cross_entropy"):
                return True
            if reader.kind in ("layer_norm", "rms_norm", "softmax"):
                continue
            for access in reader.writes:
                if access.tensor not in seen:
                    seen.add(access.tensor)
                    waiting.append(access.tensor)
    return False


def _sharded_dim(op: Op, shards: Mapping[str, int], graph: OpGraph, *kinds: DimKind) -> str | None:
    """The dim that an op splits if it keeps the shards of its inputs; ``None`` if there are no shards, or if
    the dim is of none of these kinds."""
    for access in op.reads:
        place = shards.get(access.tensor)
        if place is None or graph.tensors[access.tensor].role != "activation":
            continue
        name = access.axes[place]
        if name is not None and op.dim(name).kind in kinds:
            return name
    return None


def _carry(
    graph: OpGraph,
    placements: Placements,
    axis: str,
    choose: Callable[[Op, dict[str, str], dict[str, int]], str | None],
) -> dict[str, int]:
    """Split ops in order. ``choose`` gives the dim of an op from its placement and the shards of tensors that
    earlier ops wrote. Returns all shards."""
    shards: dict[str, int] = {}
    for op, placement in zip(graph.ops, placements, strict=True):
        dim = choose(op, placement, shards)
        if dim is not None:
            placement[axis] = dim
            shards |= {a.tensor: a.axes.index(dim) for a in op.writes if dim in a.axes}
    return shards


def split_products(
    graph: OpGraph, placements: Placements, axis: str, size: int, whole_experts: bool = False
) -> None:
    """Split matrix products as Megatron does: one product by columns, the next one by rows.

    The parts of the second product are then summed. With ``whole_experts``, the devices divide the experts of
    a mixture among themselves, and no expert is split by columns.
    """

    def choose(op: Op, placement: dict[str, str], shards: dict[str, int]) -> str | None:
        dim: str | None = None
        if whole_experts and _experts_of(graph, op):
            dim = "experts"
        elif op.kind == "cross_entropy":
            dim = _sharded_dim(op, shards, graph, DimKind.REDUCE)
        elif op.kind == "embedding":
            # The table is split by its rows. If a row is on another device, its look-up adds zero (Megatron).
            dim = next((d.name for d in row_dims(graph, op) if d.size >= size), None)
        elif op.kind in ("linear", "conv2d") and op.attributes.get("groups", 1) == 1:
            rows = {d.name for d in row_dims(graph, op) if d.size >= size}
            read = {
                a.axes[shards[a.tensor]]
                for a in op.reads
                if a.tensor in shards and graph.tensors[a.tensor].role == "activation"
            }
            usable = [d.name for d in column_dims(graph, op) if d.size >= size]
            if rows & read:
                dim = next(iter(rows & read))
            elif usable and (_gives_words(graph, op) or _feeds_matmul(graph, op)):
                dim = usable[0]
        else:
            dim = _sharded_dim(op, shards, graph, DimKind.OTHER, DimKind.BATCH)
        taken = dim != "experts" and dim in placement.values()
        return None if dim is None or taken or op.dim(dim).size < size else dim

    _carry(graph, placements, axis, choose)


_BETWEEN = ("layer_norm", "rms_norm", "pow", "dropout", "add")
"""Kinds of ops between two products of tensor parallelism. They compute each position alone."""
_FOLLOWING = ("other", "tanh", "scale", "multiply", "softmax")
"""Kinds of ops in a norm that is written out, or behind a router. They keep the split of their inputs."""


def _routes(graph: OpGraph, op: Op) -> bool:
    """Whether an op is the product of a router, which each device computes for its own positions."""
    readers = [reader.kind for access in op.writes for reader in graph.readers[access.tensor]]
    return op.kind == "linear" and "softmax" in readers


def _sequence_of(graph: OpGraph, op: Op, split: Container[str] = ()) -> Dim | None:
    """The dim along which an op between two products can be split by position.

    ``split`` has the tensors that are split in this way.
    """
    dims = [d for d in op.dims if d.name == "sequence" and d.kind is DimKind.OTHER]
    of_experts = any(dim.name == "experts" for dim in op.dims) or _routes(graph, op)
    between = op.kind in _BETWEEN or of_experts
    follows = op.kind in _FOLLOWING and any(access.tensor in split for access in op.reads)
    return dims[0] if dims and (between or follows) else None


_POSITIONS = {
    ("embedding", "sequence"),
    ("attention", "query"),
    ("softmax", "key"),
    ("softmax", "features"),
}
"""Kinds of ops that work on tokens or positions. With each kind: the name of its dim of tokens or
positions."""


def sequence_length(graph: OpGraph) -> int | None:
    """The length of the sequence that sequence parallelism splits; ``None``: there is none.

    A sequence has tokens, or positions among which attention looks. The rows of a feature map are none.
    """
    lengths = {dim.size for op in graph.ops for dim in op.dims if (op.kind, dim.name) in _POSITIONS}
    found = (dim.size for op in graph.ops if (dim := _sequence_of(graph, op)) is not None)
    return next((size for size in found if size in lengths), None)


def split_sequence(graph: OpGraph, placements: Placements, axis: str, size: int) -> None:
    """Split all other ops along the sequence, over the devices of the ``tensor`` axis.

    The results of sums are then shards, which are gathered before the next product. So an all-reduce becomes
    a reduce-scatter and an all-gather (Korthikanti et al. 2022, section 4).

    Raises:
        JoulecastError: there is no sequence, or it does not divide.
    """
    if sequence_length(graph) is None:
        raise JoulecastError(f"strategy: sp: {graph.name} has no op with a sequence to split")
    split: set[str] = set()
    for op, placement in zip(graph.ops, placements, strict=True):
        sequence = _sequence_of(graph, op, split)
        if axis in placement or sequence is None:
            continue
        if sequence.size % size:
            raise JoulecastError(
                f"strategy: sp: tp={size} does not divide the sequence of {sequence.size} of op "
                f"`{op.name}`"
            )
        placement[axis] = "sequence"
        split |= {access.tensor for access in op.writes}


def split_context(graph: OpGraph, placements: Placements, axis: str, size: int) -> None:
    """Split every sample by its positions. In attention, the queries are split, and keys and values are
    gathered.

    Raises:
        JoulecastError: there is no fused attention, or the sequence does not divide.
    """
    if all(op.kind != "attention" for op in graph.ops):
        is_written_out = any(op.kind == "softmax" for op in graph.ops)
        way_out = "take --attention fused, or " if is_written_out else ""
        raise JoulecastError(
            f"strategy: cp: {graph.name} has no attention in one kernel; {way_out}leave cp out"
        )

    def choose(op: Op, placement: dict[str, str], shards: dict[str, int]) -> str | None:
        of_attention = op.kind == "attention"
        name: str | None = "query" if of_attention else "sequence"
        if not of_attention and _experts_of(graph, op) is None:
            # Behind the products, the positions of each head may be another axis than in front of them.
            name = _sharded_dim(op, shards, graph, DimKind.OTHER) or name
        for dim in op.dims:
            if dim.size == 1 or not (of_attention or dim.kind is DimKind.OTHER):
                continue
            if dim.name == name:
                if dim.size % size:
                    raise JoulecastError(
                        f"strategy: cp={size} does not divide the {dim.size} positions of op `{op.name}`"
                    )
                return dim.name
        return None

    _carry(graph, placements, axis, choose)


def follow(graph: OpGraph, placements: Placements, axis: str) -> None:
    """Let ops without a setting keep the shards of the tensors that they read."""

    def choose(op: Op, placement: dict[str, str], shards: dict[str, int]) -> str | None:
        if axis in placement:
            return placement[axis]
        dim = _sharded_dim(op, shards, graph, DimKind.OTHER, DimKind.BATCH)
        return None if dim in placement.values() else dim

    _carry(graph, placements, axis, choose)


def _experts_of(graph: OpGraph, op: Op) -> Dim | None:
    """The dim of the experts, if an op has weights for each expert."""
    if "experts" not in _weight_axes(graph, op):
        return None
    return next((d for d in op.dims if d.name == "experts" and d.kind is DimKind.OTHER), None)


def split_experts(graph: OpGraph, placements: Placements, axis: str, size: int) -> None:
    """Split the experts of a mixture, and the batch of all other ops. Tokens are exchanged between the two by
    all-to-alls.

    Raises:
        JoulecastError: there are no experts, or they do not divide.
    """

    def choose(op: Op, placement: dict[str, str], shards: dict[str, int]) -> str | None:
        experts = _experts_of(graph, op)
        if experts is not None and experts.size % size:
            raise JoulecastError(
                f"strategy: ep={size} does not divide the {experts.size} experts of op `{op.name}`"
            )
        # Element-wise ops between two products of the experts stay with the experts.
        return experts.name if experts else _sharded_dim(op, shards, graph, DimKind.OTHER)

    split_batch(graph, placements, axis)
    shards = _carry(graph, placements, axis, choose)
    if not shards:
        raise JoulecastError(f"strategy: ep={size}: {graph.name} has no experts to split")


def experts_of_token(graph: OpGraph) -> int:
    """Number of experts to which a token goes; 1 if the graph does not say it."""
    return next((op.attributes["top_k"] for op in graph.ops if "top_k" in op.attributes), 1)


def experts_in(graph: OpGraph) -> int:
    """Number of experts in a mixture of the network; 0 if there is no mixture."""
    found = (_experts_of(graph, op) for op in graph.ops)
    return max((dim.size for dim in found if dim is not None), default=0)
