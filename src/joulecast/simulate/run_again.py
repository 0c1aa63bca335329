"""What recomputation runs of a block before its backward."""

from joulecast.graphs.opgraph import OpGraph
from joulecast.graphs.saved_for_backward import extra_kept, kept_for_backward
from joulecast.simulate.placement import PlacedOp


def run_again(graph: OpGraph, unit: list[PlacedOp]) -> list[PlacedOp]:
    """The ops of a block that recomputation runs: those up to the last tensor that a backward needs.

    What follows it gives nothing that is kept, and torch's checkpoints stop there ("early stop").
    """
    made = {a.tensor: place for place, item in enumerate(unit) for a in item.op.writes}
    last = -1
    for place, item in enumerate(unit):
        if extra_kept(graph, item.op) is not None:
            last = place
        needed = (made[a.tensor] for a in kept_for_backward(graph, item.op) if a.tensor in made)
        last = max(last, *needed, -1)
    return unit[: last + 1]
