"""How much of an op's backward is the gradient of its weights: what a zero-bubble schedule does later."""

from joulecast.graphs.opgraph import KINDS, Op, OpGraph


def weights_share(graph: OpGraph, op: Op) -> float:
    """The share of an op's backward that gives the gradients of its weights.

    A matrix product has one product for its weights and one for its input, unless that is data; all that a
    lookup has is the gradient of its table. What else has weights (norms) gives both in one pass.
    """
    if op.kind == "timed":
        return float(op.attributes.get("weights_share", 0.0))
    roles = {graph.tensors[access.tensor].role for access in op.reads}
    if "parameter" not in roles:
        return 0.0
    if KINDS[op.kind] == "lookup" or "activation" not in roles:
        return 1.0
    return 0.5 if KINDS[op.kind] == "matmul" else 0.0
