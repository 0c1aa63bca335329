"""Choice of the meters that make a run's energy: every node has to be covered, or there is no figure.

A sum over the nodes that happen to have a meter is no energy of the run, and nothing is filled in for
the others. Meters go by kind (``nvml``, ``rapl``, ...): a kind that is missing on some nodes is left out
on all of them, so that every node's energy holds the same parts. What is counted is thus what every
node can count: GPUs without CPUs where only the GPUs have meters everywhere.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt

EnergySource = Literal["measured", "estimated", "simulated", "recorded", "imported"]

Supply = Literal["AC", "DC"]

_BEST_FIRST: tuple[EnergySource, ...] = (
    *("measured", "recorded", "imported", "simulated"),
    "estimated",
)
MEASURED_SWITCH, ESTIMATED_SWITCH = "switch_power", "interconnect_power_est"
_NETWORK = (MEASURED_SWITCH, ESTIMATED_SWITCH)
"""Kinds of meters of the network: kept, and never a part of what the nodes draw."""
_NAMED = 5
"""A reason names this many nodes; the others are in ``checks.csv``."""


class MeterInfo(BaseModel):
    """One meter of one node: what it is and how well it was read.

    ``shared_with`` names the nodes whose readings are of the same device: containers of one machine,
    whose readings are each the whole device's, or, in an imported run, nodes that got equal shares of
    it. ``coverage`` is the share of the run between its first and last good reading that has no gap
    longer than three periods. A meter that is absent has ``available`` false, a reason, and no source; one
    that was there and failed during the run has ``available`` false, a reason, and its source.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    node: str
    meter: str
    available: bool
    source: EnergySource | None = None
    counter: bool = False
    reason: str | None = None
    readings: NonNegativeInt = 0
    failed_reads: NonNegativeInt = 0
    missed_deadlines: NonNegativeInt = 0
    longest_gap_s: NonNegativeFloat | None = None
    coverage: float | None = Field(None, ge=0, le=1)
    shared_with: list[str] = []
    supply: Supply | None = None
    conversion_eff: float | None = Field(None, gt=0, le=1)


@dataclass(frozen=True)
class Gap:
    """A node (or a host with all of its nodes) without a kind of meter that others have, and why;
    ``metered`` of ``hosts`` have it."""

    node: str
    kind: str
    reason: str
    metered: int
    hosts: int


@dataclass(frozen=True)
class Metering:
    """What a run's energy is made of.

    ``meters`` are those that are summed, ``gaps`` the meters for whose lack a kind is left out;
    without a ``source`` there is no energy, and ``why_not`` says why.
    """

    source: EnergySource | None
    meters: tuple[MeterInfo, ...]
    gaps: tuple[Gap, ...]
    why_not: str | None


def kind_of(meter: str) -> str:
    """``rapl`` of ``rapl:package-0``."""
    return meter.split(":")[0]


def host_of(node: str) -> str:
    """The host of a node, several of which may share it (``host/0``)."""
    return node.split("/")[0]


def _gaps(
    kind: str,
    nodes: Sequence[str],
    usable: dict[str, str | None],
    absent: dict[str, str | None],
) -> list[Gap]:
    """Args: ``usable``: nodes and hosts that have the kind, and what is wrong with it there."""
    missing: dict[str, dict[str, str]] = defaultdict(dict)
    whole = dict.fromkeys(map(host_of, nodes), True)
    covered = set()
    for node in nodes:
        host = host_of(node)
        found = [usable[name] for name in dict.fromkeys((node, host)) if name in usable]
        wrong = next((reason for reason in found if reason is not None), None)
        if found and wrong is None:
            covered.add(host)
            continue
        whole[host] = False
        missing[host][node] = wrong or absent.get(node) or absent.get(host) or "there is none"
    metered = sum(whole.values())
    gaps = []
    for host, of_host in missing.items():
        named = of_host if host in covered else {host: next(iter(of_host.values()))}
        gaps += [Gap(node, kind, why, metered, len(whole)) for node, why in named.items()]
    return gaps


def _told(gaps: Sequence[Gap]) -> str:
    """Reasons kind by kind, each with how many hosts are metered."""
    parts = []
    for kind in dict.fromkeys(gap.kind for gap in gaps):
        of_kind = [gap for gap in gaps if gap.kind == kind]
        parts += [f"{gap.node}: {kind}: {gap.reason}" for gap in of_kind[:_NAMED]]
        if len(of_kind) > _NAMED:
            parts.append(f"{len(of_kind) - _NAMED} more without {kind}")
        parts.append(f"{of_kind[0].metered} of {of_kind[0].hosts} hosts are metered")
    return "; ".join(parts)


def metered(
    nodes: Sequence[str],
    meters: Sequence[MeterInfo],
    unusable: Mapping[tuple[str, str], str] | None = None,
) -> Metering:
    """The meters that a run's energy is the sum of: of the best source, kinds that all nodes have.

    Args:
        nodes: that have to be covered, each by a meter of its own or of its host; none to take
            whatever meters there are.
        unusable: what is wrong with the readings of a meter, by node and meter.
    """
    # A meter that failed counts as there: a worse source does not take its place unseen.
    of_nodes = [m for m in meters if kind_of(m.meter) not in _NETWORK]
    there = [m for m in of_nodes if m.source is not None and (m.available or nodes)]
    source = next((s for s in _BEST_FIRST if any(m.source == s for m in there)), None)
    if source is None:
        reasons = sorted({f"{m.meter}: {m.reason}" for m in of_nodes if not m.available})
        return Metering(None, (), (), "; ".join(reasons) or "no meter was asked for")
    of_source = [meter for meter in there if meter.source == source]
    usable: dict[str, dict[str, str | None]] = defaultdict(dict)
    for meter in of_source:
        why = (unusable or {}).get((meter.node, meter.meter))
        if not meter.available:
            why = f"failed: {meter.reason}"
        kind = kind_of(meter.meter)
        explained = why if why is None or meter.meter == kind else f"{meter.meter} {why}"
        usable[kind][meter.node] = usable[kind].get(meter.node) or explained
    gaps: dict[str, list[Gap]] = {}
    for kind, by_node in usable.items():
        absent = {m.node: m.reason for m in meters if not m.available and kind_of(m.meter) == kind}
        gaps[kind] = _gaps(kind, nodes, by_node, absent)
    used = tuple(meter for meter in of_source if not gaps[kind_of(meter.meter)])
    found = tuple(gap for of_kind in gaps.values() for gap in of_kind)
    return Metering(source, used, found, None) if used else Metering(None, (), found, _told(found))
