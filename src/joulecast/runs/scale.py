"""The scale of a run, in nodes or in GPUs. People use both."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.quantities import counted, is_number, listed
from joulecast.runs.request import Scale

_UNITS = {"GPUs": "GPU", "ranks": "rank"}
"""The unit of the scale of observed trainings, by ``nodes_are``."""


def unit_of(nodes_are: Any) -> str:
    """The unit of a scale (``node``, ``GPU`` or ``rank``). It follows from ``nodes_are`` of the records."""
    return _UNITS.get(str(nodes_are), "node")


def scale_in_words(count: float, nodes_are: Any) -> str:
    """``4 nodes``, ``4 GPUs`` or ``4 ranks``."""
    return counted(int(count), unit_of(nodes_are))


def scales_are(nodes_are: pd.Series) -> str:
    """The unit of the scale of some runs, in the plural: ``nodes``, ``GPUs`` or ``ranks``."""
    units = sorted({unit_of(each) for each in nodes_are})
    return " or ".join(f"{unit}s" for unit in units) or "nodes"


def hosts_and_gpus(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Nodes and GPUs in use of a run that was observed or forecast; ``None`` if they are not known.

    Args:
        row: ``hosts`` and ``gpus`` of a forecast; or ``nodes`` with ``nodes_are``, and ``ranks_per_host`` and
            ``accelerators_per_node`` if they are known. For ranks without GPUs, no GPUs are known.
    """
    if "hosts" in row:
        return row["hosts"], row["gpus"]
    unit = unit_of(row.get("nodes_are"))
    nodes, per_node, per_host = (
        float(row[name]) if is_number(row.get(name)) else None
        for name in ("nodes", "accelerators_per_node", "ranks_per_host")
    )
    if nodes is None:
        return None, None
    if unit == "node":
        return nodes, None if per_node is None else nodes * per_node
    hosts = None if per_host is None else float(math.ceil(nodes / per_host))
    return hosts, nodes if unit == "GPU" else None


def is_observed(of_workload: pd.DataFrame) -> bool:
    """Whether runs are counted in ranks or GPUs, as observed trainings are."""
    return bool(of_workload.get("ranks_per_host", pd.Series(dtype=float)).notna().any())


def gpus_per_node(of_workload: pd.DataFrame, asked: int | None = None) -> int | None:
    """GPUs in each node, as requested or as in the records; ``None`` if the records do not have it.

    For an observed training without GPUs, it is the number of ranks in each node.

    Raises:
        JoulecastError: the records count nodes with another number of GPUs.
    """
    if is_observed(of_workload):
        return asked or int(of_workload["ranks_per_host"].max())
    column = of_workload.get("accelerators_per_node", pd.Series(dtype=float))
    known = sorted({int(each) for each in column.dropna()})
    if asked is None or not known:
        return asked or (known[-1] if known else None)
    if asked not in known:
        raise JoulecastError(
            f"its runs are on nodes of {listed(known)} {'GPU' if known == [1] else 'GPUs'}, and "
            f"--gpus-per-node says {asked}; leave it out"
        )
    return asked


def counts(of_workload: pd.DataFrame, asked: Scale) -> list[int]:
    """The counts that are requested, in the unit of the workload's records (nodes or GPUs).

    Raises:
        JoulecastError: the GPUs do not fill whole nodes; or the number of GPUs of a node is not known, or is
            another one in the records.
    """
    per_node = gpus_per_node(of_workload, asked.gpus_per_node)
    if is_observed(of_workload):
        return list(asked.gpus) or [count * (per_node or 1) for count in asked.nodes]
    if not asked.gpus:
        return list(asked.nodes)
    if per_node is None:
        raise JoulecastError(
            "its records do not have the GPUs of a node; give node counts, or --gpus-per-node"
        )
    return whole_nodes(asked.gpus, per_node)


BEYOND = 4
"""Without a request for scales, forecasts and advice go up to this multiple of the largest scale that was
run."""


def usual_counts(ran: Iterable[int]) -> list[int]:
    """The counts that were run, and the powers of two between the smallest count and :data:`BEYOND` times the
    largest."""
    found = sorted(set(ran))
    last = BEYOND * found[-1]
    doubled = [2**k for k in range(last.bit_length()) if found[0] < 2**k <= last]
    return sorted({*found, *doubled})


def whole_nodes(gpus: Sequence[int], per_node: int) -> list[int]:
    """For each number of GPUs, the number of nodes that they fill.

    Raises:
        JoulecastError: the GPUs do not fill whole nodes.
    """
    wrong = [count for count in gpus if count % per_node]
    if wrong:
        raise JoulecastError(
            f"{counted(wrong[0], 'GPU')} cannot fill nodes of {per_node}; give a multiple of it"
        )
    return [count // per_node for count in gpus]
