"""The scale of a run: nodes and their GPUs, in either of which people count."""

from collections.abc import Sequence

import pandas as pd

from joulecast.errors import JoulecastError


def is_observed(of_workload: pd.DataFrame) -> bool:
    """Whether runs are counted in ranks, or GPUs, as observed trainings are."""
    return bool(of_workload.get("ranks_per_host", pd.Series(dtype=float)).notna().any())


def gpus_per_node(of_workload: pd.DataFrame) -> int | None:
    """GPUs of a node (ranks of an observed training without GPUs); ``None`` if the records do not have it."""
    if is_observed(of_workload):
        return int(of_workload["ranks_per_host"].max())
    known = of_workload.get("accelerators_per_node", pd.Series(dtype=float)).dropna()
    return int(known.max()) if len(known) else None


def counts(of_workload: pd.DataFrame, nodes: Sequence[int], gpus: Sequence[int]) -> list[int]:
    """Counts of nodes, or of GPUs, as the records of a workload count them.

    Args:
        nodes, gpus: one of them has the counts.

    Raises:
        JoulecastError: GPUs that fill no nodes, or whose count of a node is not known.
    """
    per_node = gpus_per_node(of_workload)
    if is_observed(of_workload):
        return list(gpus) or [count * (per_node or 1) for count in nodes]
    if not gpus:
        return list(nodes)
    if per_node is None:
        raise JoulecastError("its records do not have the GPUs of a node; give node counts")
    wrong = [count for count in gpus if count % per_node]
    if wrong:
        raise JoulecastError(f"{wrong[0]} GPUs fill no nodes of {per_node}; give a multiple of it")
    return [count // per_node for count in gpus]
