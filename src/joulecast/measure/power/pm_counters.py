"""Nodes of HPE Cray machines: ``/sys/cray/pm_counters``, of the node, its CPU, memory and accelerators.

The node's energy holds that of its parts, so they are never added. On nodes with two dies to an accelerator
(MI250X) a counter is that of both.
"""

from pathlib import Path

from joulecast.measure.power.kernel_files import MOST_NODE_W, FileMeter
from joulecast.measure.power.meters import Meter, MeteredNodes, MeterUnavailable, ReadFailed
from joulecast.measure.power.register import Limits
from joulecast.runs.covers import Covers

FOLDER = Path("cray/pm_counters")
_RENEWED_S = 0.1
"""The node's controller renews all files ten times a second."""
_NODE = Limits(least_w=1.0, most_w=MOST_NODE_W, renewed_s=0.3, moves_within_s=5.0)
_PART = Limits(least_w=0.2, most_w=10_000.0, renewed_s=0.3, moves_within_s=5.0)
_PARTS: dict[str, Covers] = {"": "node", "cpu": "cpu", "memory": "memory"}


def _covers(part: str) -> Covers | None:
    if part.startswith("accel") and part[5:].isdigit():
        return "gpu"
    return _PARTS.get(part)


def open_meters(nodes: MeteredNodes) -> list[Meter]:
    """The counters of this node: its own first, then those of its parts.

    Raises:
        MeterUnavailable: this is no node of a Cray, or its files may not be read.
    """
    folder = Path(nodes.sysfs_root) / FOLDER
    if not folder.is_dir():
        raise MeterUnavailable(
            f"pm_counters: there is no {folder}",
            "only nodes of HPE Cray machines have it (in a container: mount /sys/cray)",
            elsewhere=True,
        )
    meters: list[Meter] = []
    try:
        for file in sorted(folder.glob("*energy")):
            part = file.name.removesuffix("energy").rstrip("_")
            covers = _covers(part)
            if covers is not None:
                meters.append(
                    FileMeter(
                        f"pm_counters:{part or 'node'}",
                        nodes.host_node,
                        file,
                        counter=True,
                        unit=1.0,
                        covers=covers,
                        limits=_NODE if covers == "node" else _PART,
                        renewed_s=_RENEWED_S,
                    )
                )
    except ReadFailed as error:
        remedy = "ask the site to let users read /sys/cray/pm_counters"
        raise MeterUnavailable(f"pm_counters: {error}", remedy) from None
    if not meters:
        raise MeterUnavailable(
            f"pm_counters: {folder} has no file of energy", "look into that folder"
        )
    return sorted(meters, key=lambda meter: (meter.name != "pm_counters:node", meter.name))
