"""Placement of every op by a strategy tree: its stage, and the mesh axis along which each dim is split.

Settings go down the tree; what is left open is inferred: columns and rows of matrix products along the
tensor axis, an even cut into stages along the pipeline axis, and for all other ops the placement of the
tensors that they read.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs
from joulecast.graphs.opgraph import Dim, DimKind, Op, OpGraph
from joulecast.simulate.cost_cache import cached
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
from joulecast.simulate.pipeline_stages import cut_stages, unit_of
from joulecast.simulate.recomputation import attention_cores
from joulecast.simulate.strategy import REPLICAS, Node, Strategy

Placement = Mapping[str, str]
"""The dim that is split along each mesh axis; axes that are not named hold copies."""


@dataclass(frozen=True)
class PlacedOp:
    """An op, and what one device does of it."""

    op: Op
    stage: int
    placement: Placement
    unit: str
    """The repeated block that it belongs to: what is recomputed, gathered and cut as a whole."""
    recompute: str
    """What it is computed again with for its backward; empty: it is not."""
    zero: int

    def parts(self, mesh: Mapping[str, int]) -> dict[str, float]:
        """Into how many parts each split dim is divided."""
        found: dict[str, float] = {}
        for axis, dim in self.placement.items():
            found[dim] = found.get(dim, 1) * mesh[axis]
        return found


def _named_dims(graph: OpGraph, op: Op, name: str) -> list[Dim]:
    exact = [dim for dim in op.dims if dim.name == name]
    if exact:
        return exact
    if name == "batch":
        return [dim for dim in op.dims if dim.kind is DimKind.BATCH]
    if op.kind in ("linear", "conv2d", "embedding"):
        if name == "out":
            return column_dims(graph, op)[:1]
        if name == "in":
            return row_dims(graph, op)[:1]
    return []


def _within(module: str, path: str) -> bool:
    return not path or module == path or module.startswith(f"{path}.")


def _settle_splits(graph: OpGraph, strategy: Strategy) -> tuple[list[dict[str, str]], list[Node]]:
    """What the tree says of each op: dims by mesh axis, and the inherited rest."""
    placements: list[dict[str, str]] = [{} for _ in graph.ops]
    settings = [strategy.tree for _ in graph.ops]

    def apply(node: Node, path: str) -> None:
        inside = [i for i, op in enumerate(graph.ops) if _within(op.module, path)]
        where = f"strategy: node `{path or 'the root'}`"
        if not inside:
            near = sorted({op.module for op in graph.ops if op.module})[:4]
            raise JoulecastError(
                f"{where}: {graph.name} has no such module (as {', '.join(near)}, ...)"
            )
        for name, axis in node.split.items():
            if axis == "pipeline":
                raise JoulecastError(
                    f"{where}: split.{name}: no dim is split along `pipeline`; `stage` places a node on it"
                )
            if axis not in strategy.mesh:
                raise JoulecastError(
                    f"{where}: split.{name}: the mesh has no axis `{axis}` (it has: "
                    f"{', '.join(strategy.mesh)})"
                )
            found = False
            for i in inside:
                for dim in _named_dims(graph, graph.ops[i], name):
                    found = True
                    if dim.kind is DimKind.OPAQUE:
                        raise JoulecastError(
                            f"{where}: split.{name}: dim `{dim.name}` of op `{graph.ops[i].name}` is "
                            "opaque and cannot be split"
                        )
                    placements[i][axis] = dim.name
            if not found:
                dims = sorted({d.name for i in inside for d in graph.ops[i].dims})
                raise JoulecastError(
                    f"{where}: split.{name}: no op in it has that dim (dims: {', '.join(dims)})"
                )
        given = node.model_dump(
            include={"stage", "recompute", "zero"}, exclude_none=True, exclude_unset=True
        )
        # Ops under the same nodes share one object; what it was made of is kept, so that ids stay unique.
        merged: dict[int, tuple[Node, Node]] = {}
        for i in inside:
            before = settings[i]
            if id(before) not in merged:
                merged[id(before)] = before, before.model_copy(update=given)
            settings[i] = merged[id(before)][1]
        for name, child in node.children.items():
            apply(child, f"{path}.{name}" if path else name)

    apply(strategy.tree, "")
    return placements, settings


def _axes_of_tree(node: Node) -> set[str]:
    axes = set(node.split.values())
    for child in node.children.values():
        axes |= _axes_of_tree(child)
    return axes


def _check_parts(graph: OpGraph, placed: list[PlacedOp], mesh: Mapping[str, int]) -> None:
    for item in placed:
        for name, parts in item.parts(mesh).items():
            dim = item.op.dim(name)
            if dim.size < parts:
                hint = "; a larger batch, or fewer replicas" if dim.kind is DimKind.BATCH else ""
                raise JoulecastError(
                    f"strategy: op `{item.op.name}` (node `{item.op.module or 'the root'}`): dim "
                    f"`{name}` of size {dim.size} cannot be split into {parts:g} parts{hint}"
                )


def check_heads(placed: list[PlacedOp], size: int) -> None:
    """Refuse a tensor-parallel size that leaves some devices more heads than others, or none.

    Raises:
        JoulecastError: names the heads and the op.
    """
    for item in placed:
        dim = item.placement.get("tensor")
        if dim is None and item.op.kind in ("attention", "softmax"):
            # More parts than heads: nothing was split.
            dim = next((d.name for d in item.op.dims if d.name == "heads" and d.size < size), None)
        if dim is not None and "head" in dim and item.op.dim(dim).size % size:
            raise JoulecastError(
                f"strategy: tp={size} does not divide the {item.op.dim(dim).size} heads of "
                f"`{item.op.name}`; take a size that does"
            )


def _check_stages(graph: OpGraph, placed: list[PlacedOp], count: int) -> None:
    for item in placed:
        if item.stage >= count:
            raise JoulecastError(
                f"strategy: node `{item.op.module or 'the root'}`: stage {item.stage}, but the "
                f"mesh has {count} (axis pipeline)"
            )
    stage = {item.op.name: item.stage for item in placed}
    for item in placed:
        for access in item.op.reads:
            producer = graph.producer.get(access.tensor)
            if producer is not None and stage[producer.name] > item.stage:
                raise JoulecastError(
                    f"strategy: node `{item.op.module or 'the root'}` is on stage {item.stage}, but reads "
                    f"`{access.tensor}` of stage {stage[producer.name]}: stages must follow the data"
                )
    empty = set(range(count)) - {item.stage for item in placed}
    if empty:
        raise JoulecastError(f"strategy: no node is on stage {min(empty)}")


def _placed(
    graph: OpGraph, stages: list[int], placements: list[dict[str, str]], settings: list[Node]
) -> list[PlacedOp]:
    selective = any(setting.recompute == "selective" for setting in settings)
    cores = attention_cores(graph) if selective else {}
    placed = []
    for op, stage, placement, setting in zip(graph.ops, stages, placements, settings, strict=True):
        unit = unit_of(op.module)
        # What stands before and behind the blocks is kept, as training frameworks do.
        again = unit if setting.recompute and unit[-1:].isdigit() else ""
        if setting.recompute == "selective":
            again = cores.get(op.name, "")
        zero = setting.zero or 0
        placed.append(PlacedOp(op, stage, placement, unit or op.name, again, zero))
    return placed


def place(
    graph: OpGraph, strategy: Strategy, costs: Costs, send_s_per_byte: float = 0.0
) -> list[PlacedOp]:
    """Place every op of a graph (at the batch of all replicas of one micro-batch).

    Args:
        graph: the network.
        strategy: settings of its modules.
        costs: seconds of ops, to cut stages evenly.
        send_s_per_byte: seconds that a byte takes between stages, for the same.

    Raises:
        JoulecastError: names the node of the tree: an unknown module, dim or axis, an opaque dim, more parts
            than a dim has, stages against the flow of data.
    """
    tree = strategy.tree
    if tree.children or tree.split or tree.stage is not None:
        placements, settings = _settle_splits(graph, strategy)
        placements = _split(graph, strategy, placements)
        stages = _cut(graph, strategy, costs, send_s_per_byte, placements, settings)
        return _placed(graph, stages, placements, settings)
    settings = [tree] * len(graph.ops)
    mesh, known = tuple(strategy.mesh.items()), cached(costs)
    once = known.op_cache.once

    def split() -> Placements:
        return _split(graph, strategy, [{} for _ in graph.ops])

    # What a strategy shards and computes again changes nothing here, nor does what ops cost where they split.
    key = (mesh, strategy.sequence_parallel)
    placements = once(graph, ("split", *key), split)

    def cut() -> list[int]:
        return _cut(graph, strategy, costs, send_s_per_byte, placements, settings)

    stages = once(graph, ("cut", *key, strategy.virtual, send_s_per_byte, known), cut)
    return _placed(graph, stages, placements, settings)


def _split(graph: OpGraph, strategy: Strategy, placements: Placements) -> Placements:
    """Infer what the settings leave open of the placements, in place."""
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
    return placements


def _cut(
    graph: OpGraph,
    strategy: Strategy,
    costs: Costs,
    send_s_per_byte: float,
    placements: Placements,
    settings: list[Node],
) -> list[int]:
    """The stage of each op: as the settings have it, or even ones."""
    numbers = [setting.stage for setting in settings]
    if strategy.stages > 1 and any(stage is None for stage in numbers):
        if any(stage is not None for stage in numbers):
            missing = next(op.module for op, s in zip(graph.ops, numbers, strict=True) if s is None)
            raise JoulecastError(
                f"strategy: node `{missing or 'the root'}` has no stage; give all of them one, or none"
            )
        stages = cut_stages(graph, placements, strategy, costs, send_s_per_byte)
    else:
        stages = [stage or 0 for stage in numbers]
    placed = _placed(graph, stages, placements, settings)
    _check_parts(graph, placed, strategy.mesh)
    _check_stages(graph, placed, strategy.stages)
    return stages
