"""An op for an operator of torch that nothing else is known of: it reads its tensors and writes its results.

So no operator ends a capture; what it computes is taken to cost only its memory traffic. Axes
follow the batch where a size says that they do (networks are traced with a number of samples that is no usual
size); all other axes are taken whole. What depends on no input, parameter or activation (positions, masks) is
a buffer: frameworks make it once, or in no time.
"""

from collections.abc import Sequence

from joulecast.graphs.builder import BATCH, OPAQUE, Call, Groups
from joulecast.graphs.opgraph import Dim
from joulecast.graphs.views import View, units

TRACED_BATCH = 13
"""Samples that a network is traced with: not 1, as axes of size 1 cannot be followed, and no usual size."""


def operands_of(call: Call) -> list[View]:
    """All tensors among the arguments."""
    found: list[View] = []

    def look(value: object) -> None:
        if isinstance(value, View):
            found.append(value)
        elif isinstance(value, list | tuple):
            for part in value:
                look(part)

    for value in call.arguments.values():
        look(value)
    return found


def is_constant(call: Call) -> bool:
    """Whether no operand depends on data or weights."""
    tensors = call.builder.tensors
    return all(tensors[view.tensor].role == "buffer" for view in operands_of(call))


def constants(call: Call, name: str) -> list[View]:
    """Results that depend on no data, as buffers."""
    return [
        call.builder.add_tensor(
            f"constant.{name}.{place}" if place else f"constant.{name}",
            shape,
            call.itemsize,
            "buffer",
            batch=[0] if shape and shape[0] == TRACED_BATCH else (),
        )
        for place, shape in enumerate(call.shapes)
    ]


def _has_batch(view: View) -> bool:
    return any(unit.batch for axis in view.axes for unit in units(axis))


def _batch_merged(operands: Sequence[View], size: int) -> list[int] | None:
    """Sizes that an axis of this size merges with the batch, if an operand has such an axis."""
    for view in operands:
        for axis, length in zip(view.axes, view.shape, strict=True):
            sizes = [unit.size for unit in units(axis)]
            if length == size and units(axis)[0].batch and len(sizes) > 1:
                return sizes
    return None


def _written(shape: Sequence[int], operands: Sequence[View]) -> Groups:
    """Dims of a result: the first axis that can be is the batch."""
    groups: Groups = []
    left = any(_has_batch(view) for view in operands)
    for place, size in enumerate(shape):
        merged = _batch_merged(operands, size) if left else None
        if left and size == TRACED_BATCH:
            groups.append([Dim("batch", size, BATCH)])
            left = False
        elif merged:
            rest = [Dim(f"axis{place}_{i}", n, OPAQUE) for i, n in enumerate(merged[1:], 1)]
            groups.append([Dim("batch", merged[0], BATCH), *rest])
            left = False
        else:
            groups.append([Dim(f"axis{place}", size, OPAQUE)])
    return groups


def any_operator(call: Call, kind: str = "other") -> list[View]:
    """An op that reads all operands and writes the first result, and one for each further result."""
    operands = operands_of(call)
    results: list[View] = []
    for shape in call.shapes:
        written = _written(shape, operands)
        there = {dim.name for group in written for dim in group}
        batched = any(_has_batch(view) for view in operands)
        # What sums over the batch has it as a dim all the same.
        inner = () if "batch" in there or not batched else (Dim("batch", TRACED_BATCH, BATCH),)
        reads = [
            (
                view,
                [
                    (unit.atoms, "batch")
                    for axis in view.axes
                    for unit in units(axis)
                    if unit.batch and (inner or "batch" in there)
                ],
            )
            for view in operands
        ]
        results.append(call.emit(kind, reads, written, inner))
        operands = results[:1]
    return results
