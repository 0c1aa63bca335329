"""Placement of every op by a strategy tree: its stage, and the mesh axis along which each dim is split.

A setting of a node of the tree also holds below it. The rest is inferred. Along the tensor axis, matrix
products are split by columns and rows. Along the pipeline axis, the network is cut evenly into stages. All
other ops are placed like the tensors that they read.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, get_args

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Direction
from joulecast.graphs.opgraph import Dim, DimKind, Op, OpGraph
from joulecast.simulate.cost_cache import CachedCosts
from joulecast.simulate.inferred_splits import (
    Placements,
    column_dims,
    follow,
    row_dims,
    split_batch,
    split_context,
    split_experts,
    split_products,
    split_sequence,
)
from joulecast.simulate.pipeline_stages import blocks_of, cut_stages, unit_of
from joulecast.simulate.recomputation import attention_cores, recomputed_ops
from joulecast.simulate.strategy import REPLICAS, Node, Strategy

Placement = Mapping[str, str]
"""The dim that is split along each mesh axis. An axis that is not named holds copies."""


_PADDED_FROM = 1000
"""Least elements of a part for which a dim is padded to equal parts, as Megatron pads vocabularies."""


def remainder(size: int, parts: int) -> int:
    """Number of parts of a dim that have one element more; 0 if the dim divides evenly or is padded."""
    return size % parts if size // parts < _PADDED_FROM else 0


@dataclass(frozen=True, eq=False)
class Split:
    """How a mesh divides an op. Ops that differ only in their names share one object."""

    op: Op
    """One of the ops that are divided in this way."""
    placement: Placement
    parts: Mapping[str, float]
    """Number of parts of each split dim."""
    uneven: tuple[tuple[str, int], ...]
    """Axes along which the first places have one more element, and the number of these places."""
    has_backward: bool

    def directions(self, inference: bool) -> tuple[Direction, ...]:
        """The directions in which the op runs in a step."""
        return ("forward", "backward") if self.has_backward and not inference else ("forward",)

    def parts_at(self, places: Mapping[str, int], mesh: Mapping[str, int]) -> dict[str, float]:
        """For each split dim: its size divided by the size of the part at this place of the mesh. If a dim
        does not divide evenly, the first places get one element more."""
        parts = dict(self.parts)
        for axis, dim in self.placement.items():
            size, count = self.op.dim(dim).size, mesh[axis]
            if size % count:
                more = remainder(size, count)
                mine = size // count + (places[axis] < more if more else 1)
                parts[dim] *= size / mine / count
        return parts


class PlacedOp(NamedTuple):
    """An op, and the part of it that one device computes."""

    op: Op
    stage: int
    split: Split
    unit: str
    """The repeated block of the op. It is recomputed, gathered and cut as a whole."""
    recompute: str
    """The group of ops that is recomputed with this op for the backward; empty: none."""
    zero: int

    @property
    def placement(self) -> Placement:
        """The dim that is split along each axis."""
        return self.split.placement

    @property
    def parts(self) -> Mapping[str, float]:
        """The number of parts of each split dim."""
        return self.split.parts


def _splits_of(
    graph: OpGraph, placements: Placements, mesh: Mapping[str, int], numbers: Mapping[str, int]
) -> list[Split]:
    """The split of each op. Ops that are divided in the same way share an object."""
    known: dict[Hashable, Split] = {}
    found = []
    for op, placement in zip(graph.ops, placements, strict=True):
        has_backward = graph.has_backward(op)
        key = numbers[op.name], has_backward, *placement.items()
        if key not in known:
            parts: dict[str, float] = defaultdict(lambda: 1)
            for axis, name in placement.items():
                parts[name] *= mesh[axis]
            more = {
                axis: remainder(op.dim(name).size, mesh[axis]) for axis, name in placement.items()
            }
            uneven = tuple((axis, count) for axis, count in more.items() if count)
            known[key] = Split(op, placement, dict(parts), uneven, has_backward)
        found.append(known[key])
    return found


def runs_again(graph: OpGraph, placed: Iterable[PlacedOp]) -> Counter[Split]:
    """How often recomputation runs each part of an op again for a micro-batch."""
    blocks: dict[str, list[PlacedOp]] = defaultdict(list)
    for item in placed:
        if item.recompute:
            blocks[item.recompute].append(item)
    again: dict[tuple[Split, ...], int] = {}
    found = Counter[Split]()
    for block in blocks.values():
        splits = tuple(item.split for item in block)
        if splits not in again:
            again[splits] = recomputed_ops(graph, [item.op for item in block])
        found.update(splits[: again[splits]])
    return found


def _named_dims(graph: OpGraph, op: Op, name: str) -> list[Dim]:
    """The dims of an op that a tree means by a name."""
    found = [dim for dim in op.dims if dim.name == name]
    if not found and name == "batch":
        found = [dim for dim in op.dims if dim.kind is DimKind.BATCH]
    if not found and name in ("out", "in") and op.kind in ("linear", "conv2d", "embedding"):
        found = (column_dims if name == "out" else row_dims)(graph, op)[:1]
    return found


def _settle_splits(graph: OpGraph, strategy: Strategy) -> tuple[list[dict[str, str]], list[Node]]:
    """What the tree says for each op, inherited from above: dims by mesh axis, and the other settings."""
    placements: list[dict[str, str]] = [{} for _ in graph.ops]
    settings = [strategy.tree for _ in graph.ops]

    def apply(node: Node, path: str) -> None:
        inside = [
            i
            for i, op in enumerate(graph.ops)
            if not path or f"{op.module}.".startswith(f"{path}.")
        ]
        where = f"strategy: node `{path or 'the root'}`"
        if not inside:
            near = sorted({op.module for op in graph.ops if op.module})[:4]
            raise JoulecastError(
                f"{where}: {graph.name} has no such module (as {', '.join(near)}, ...)"
            )
        for name, axis in node.split.items():
            wrong = None
            if axis == "pipeline":
                wrong = "no dim is split along `pipeline`; `stage` places a node on it"
            elif axis not in strategy.mesh:
                wrong = f"the mesh has no axis `{axis}` (it has: {', '.join(strategy.mesh)})"
            dims = [(i, dim) for i in inside for dim in _named_dims(graph, graph.ops[i], name)]
            for i, dim in dims:
                placements[i][axis] = dim.name
                if dim.kind is DimKind.OPAQUE:
                    what = f"dim `{dim.name}` of op `{graph.ops[i].name}`"
                    wrong = wrong or f"{what} is opaque and cannot be split"
            if not dims:
                known = sorted({dim.name for i in inside for dim in graph.ops[i].dims})
                wrong = wrong or f"no op in it has that dim (dims: {', '.join(known)})"
            if wrong:
                raise JoulecastError(f"{where}: split.{name}: {wrong}")
        given = node.model_dump(
            include={"stage", "recompute", "zero"}, exclude_none=True, exclude_unset=True
        )
        for i in inside:
            settings[i] = settings[i].model_copy(update=given)
        for name, child in node.children.items():
            apply(child, f"{path}.{name}" if path else name)

    apply(strategy.tree, "")
    return placements, settings


def _axes_of_tree(node: Node) -> set[str]:
    axes = set(node.split.values())
    for child in node.children.values():
        axes |= _axes_of_tree(child)
    return axes


def _check_parts(splits: list[Split]) -> None:
    for split in dict.fromkeys(splits):
        for name, parts in split.parts.items():
            dim, op = split.op.dim(name), split.op
            if dim.size < parts:
                hint = "; a larger batch, or fewer replicas" if dim.kind is DimKind.BATCH else ""
                raise JoulecastError(
                    f"strategy: op `{op.name}` (node `{op.module or 'the root'}`): dim "
                    f"`{name}` of size {dim.size} cannot be split into {parts:g} parts{hint}"
                )


def check_heads(placed: list[PlacedOp], size: int) -> None:
    """Refuse a tensor-parallel size with which some devices have more heads than others, or none.

    Raises:
        JoulecastError: the heads do not divide evenly. The error names the heads and the op.
    """
    for split in dict.fromkeys(item.split for item in placed):
        op, dim = split.op, split.placement.get("tensor")
        if dim is None and op.kind in ("attention", "softmax"):
            # More parts than heads: nothing was split.
            dim = next((d.name for d in op.dims if d.name == "heads" and d.size < size), None)
        if dim is not None and "head" in dim and op.dim(dim).size % size:
            raise JoulecastError(
                f"strategy: tp={size} does not divide the {op.dim(dim).size} heads of "
                f"`{op.name}`; take a size that does"
            )


def _check_stages(graph: OpGraph, stages: list[int], count: int) -> None:
    stage_of = {op.name: stage for op, stage in zip(graph.ops, stages, strict=True)}
    for op in graph.ops:
        stage, where = stage_of[op.name], f"strategy: node `{op.module or 'the root'}`"
        if stage >= count:
            raise JoulecastError(
                f"{where}: stage {stage}, but the mesh has {count} (axis pipeline)"
            )
        for access in op.reads:
            producer = graph.producer.get(access.tensor)
            if producer is not None and stage_of[producer.name] > stage:
                raise JoulecastError(
                    f"{where} is on stage {stage}, but reads `{access.tensor}` of stage "
                    f"{stage_of[producer.name]}: stages must follow the data"
                )
    empty = set(range(count)) - set(stages)
    if empty:
        raise JoulecastError(f"strategy: no node is on stage {min(empty)}")


def place(
    graph: OpGraph, strategy: Strategy, costs: CachedCosts, send_s_per_byte: float = 0.0
) -> list[PlacedOp]:
    """Place every op of a graph. The batch of the graph is one micro-batch of all replicas together.

    ``costs``, and the seconds that a byte takes between stages, are used to cut the network into even stages.

    Raises:
        JoulecastError: the tree has an unknown module, dim or axis; a dim is opaque, or has more parts than
            elements; or stages run against the flow of data. The error names the node of the tree.
    """
    numbers = costs.op_cache.numbers(graph)
    if strategy.is_inferred:
        settings = [strategy.tree] * len(graph.ops)
        # Sharding, recomputation and the costs of ops do not change the placement.
        splits = graph.once(
            ("split", *strategy.mesh.items(), strategy.sequence_parallel),
            lambda: _split(graph, strategy, [{} for _ in graph.ops], numbers),
        )
    else:
        placements, settings = _settle_splits(graph, strategy)
        splits = _split(graph, strategy, placements, numbers)
    stages = _cut(graph, strategy, costs, send_s_per_byte, splits, settings)
    units = graph.once("units", lambda: [unit_of(op.module) for op in graph.ops])
    names = [unit or op.name for op, unit in zip(graph.ops, units, strict=True)]
    zero = [setting.zero or 0 for setting in settings]
    return list(
        map(PlacedOp, graph.ops, stages, splits, names, _recomputed(graph, units, settings), zero)
    )


def _recomputed(graph: OpGraph, units: list[str], settings: list[Node]) -> list[str]:
    """For each op, the group of ops that is recomputed with it; empty: none."""
    how = [setting.recompute for setting in settings]
    if not any(how):
        return [""] * len(how)
    cores = attention_cores(graph) if "selective" in how else {}
    # Ops before and behind the blocks are not recomputed, as in training frameworks.
    blocks = [unit if unit[-1:].isdigit() else "" for unit in units]
    return [
        cores.get(op.name, "") if recompute == "selective" else block if recompute else ""
        for op, recompute, block in zip(graph.ops, how, blocks, strict=True)
    ]


def _split(
    graph: OpGraph, strategy: Strategy, placements: Placements, numbers: Mapping[str, int]
) -> list[Split]:
    """The split of each op. It is inferred where ``placements``, from the settings, leaves it open."""
    used = _axes_of_tree(strategy.tree)
    for axis, size in strategy.mesh.items():
        if axis == "pipeline" or size == 1:
            continue
        if axis in used:
            follow(graph, placements, axis)
        elif axis == "expert":
            split_experts(graph, placements, axis, size)
        elif axis == "context":
            split_context(graph, placements, axis, size)
        elif axis in REPLICAS:
            split_batch(graph, placements, axis)
        elif axis == "tensor":
            split_products(graph, placements, axis, size, strategy.spreads_experts)
            if strategy.sequence_parallel:
                split_sequence(graph, placements, axis, size)
        else:
            raise JoulecastError(f"strategy: mesh.{axis}: no node of the tree splits along it")
    for axis, size in strategy.mesh.items():
        if size > 1 and axis != "pipeline" and all(axis not in p for p in placements):
            raise JoulecastError(
                f"strategy: {axis}={size}: no op of {graph.name} can be split into so many parts"
            )
    for placement in placements:
        for axis in [a for a in placement if strategy.mesh[a] == 1]:
            del placement[axis]
    return _splits_of(graph, placements, strategy.mesh, numbers)


def _cut(
    graph: OpGraph,
    strategy: Strategy,
    costs: CachedCosts,
    send_s_per_byte: float,
    splits: list[Split],
    settings: list[Node],
) -> list[int]:
    """The stage of each op, from the settings or by an even cut."""
    given = [setting.stage for setting in settings]
    if strategy.stages == 1 and strategy.is_inferred:
        stages = [0] * len(splits)
    elif strategy.stages > 1 and None in given:
        if set(given) != {None}:
            missing = next(op.module for op, s in zip(graph.ops, given, strict=True) if s is None)
            raise JoulecastError(
                f"strategy: node `{missing or 'the root'}` has no stage; give all of them one, or none"
            )
        blocks = graph.once("blocks", lambda: blocks_of(graph))
        seconds = {
            split: sum(
                costs.cost(graph, split.op, split.parts, direction).seconds
                for direction in get_args(Direction)
            )
            for split in dict.fromkeys(splits)
        }
        op_s = [seconds[split] for split in splits]
        stages = cut_stages(graph, *blocks, op_s, strategy, send_s_per_byte)
    else:
        stages = [stage or 0 for stage in given]
        _check_stages(graph, stages, strategy.stages)
    _check_parts(splits)
    return stages
