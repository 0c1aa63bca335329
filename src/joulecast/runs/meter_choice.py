"""Choice of the meters that make a run's energy. Every node has to be covered, or there is no figure.

A sum over only those nodes that have a meter would not be the energy of the run, and no value is made up for
the others. Meters are grouped by kind (``gpu``, ``cpu``, ...) and by what they cover. If a group is missing
on some nodes, it is left out on all nodes. So the energy of every node contains the same parts: for example,
GPUs without CPUs if only the GPUs have meters everywhere. If several meters cover the same part, only one
counts: the meter that covers most. Of several such meters, the first in the record counts. Other meters stay
in the record, but their joules are not added.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt

EnergySource = Literal["measured", "estimated", "simulated", "recorded", "imported"]

Supply = Literal["AC", "DC"]

Covers = Literal["node", "module", "socket", "gpu", "cpu", "memory"]
"""The part of a node whose power a meter counts: the whole node; a module of CPU, memory and GPU; a
processor's socket with its memory; or one of these parts."""

PARTS: dict[Covers, frozenset[str]] = {
    "node": frozenset({"cpu", "memory", "gpu", "rest"}),
    "module": frozenset({"cpu", "memory", "gpu"}),
    "socket": frozenset({"cpu", "memory"}),
    "gpu": frozenset({"gpu"}),
    "cpu": frozenset({"cpu"}),
    "memory": frozenset({"memory"}),
}
"""For each part that a meter may cover: the smaller parts in it."""

_BEST_FIRST: tuple[EnergySource, ...] = (
    *("measured", "recorded", "imported", "simulated"),
    "estimated",
)
_METERED: tuple[tuple[EnergySource, ...], ...] = (
    _BEST_FIRST[:3],
    _BEST_FIRST[3:4],
    _BEST_FIRST[4:],
)
"""Groups of sources. Meters may be added up only if their sources are in the same group. The sources of the
first group are real meters, no matter which tool has read them."""
_LEAST_RENEWALS = 10
"""Least number of readings of a slow meter in a run. With fewer, its readings are averages over too long a
time, also over times before and after the run."""
_NAMED = 5
"""The most nodes that a reason names. The table ``checks`` names the others, too."""


class MeterInfo(BaseModel):
    """One meter of one node: what it is and how well it was read."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    node: str
    """Node that the meter belongs to."""
    meter: str
    """Name of the meter, as in ``power.parquet``."""
    available: bool
    """Whether the meter could be opened, and did not fail during the run."""
    source: EnergySource | None = None
    """Source of the figures of the meter."""
    counter: bool = False
    """Whether the device counts joules itself."""
    reason: str | None = None
    """Reason why the meter is not available."""
    readings: NonNegativeInt = 0
    """Number of readings."""
    failed_reads: NonNegativeInt = 0
    """Number of readings that gave no value."""
    missed_deadlines: NonNegativeInt = 0
    """Number of readings that were skipped."""
    longest_gap_s: NonNegativeFloat | None = None
    """Longest time between two good readings."""
    coverage: float | None = Field(None, ge=0, le=1)
    """Share of the run that was read well, without gaps longer than three periods."""
    shared_with: list[str] = []
    """Nodes whose readings come from the same device."""
    supply: Supply | None = None
    """Whether the meter is before a node's power supplies (AC) or behind them (DC), if an imported log says
    this."""
    conversion_eff: float | None = Field(None, gt=0, le=1)
    """Share of AC that becomes DC, if an imported log has it. The readings are as logged."""
    covers: Covers | None = None
    """The part of the node whose power the meter counts. ``module`` is CPU, memory and GPU; ``socket`` is CPU
    and memory."""
    remark: str | None = None
    """A note for readers of the figures of the meter."""
    renewed_s: NonNegativeFloat | None = None
    """Time between two new values, for a meter that is slower than the sampler."""
    trace: bool = True
    """False if the meter gives one figure for the whole run."""


@dataclass(frozen=True)
class Gap:
    """A node (or a host with all of its nodes) that lacks a kind of meter, with the reason.

    ``hosts`` is the number of the run's hosts. ``metered`` is the number of hosts with this kind of meter."""

    node: str
    kind: str
    reason: str
    metered: int
    hosts: int


@dataclass(frozen=True)
class Metering:
    """The meters that make a run's energy.

    ``meters`` are the meters whose joules are added. ``gaps`` are missing meters: because of them, a kind of
    meter is left out. Without a ``source`` there is no energy, and ``why_not`` says why.
    """

    source: EnergySource | None
    meters: tuple[MeterInfo, ...]
    gaps: tuple[Gap, ...]
    why_not: str | None

    @property
    def covers(self) -> str | None:
        """The parts that the energy covers, as ``node`` or ``gpu+cpu+memory``; ``None`` if the record
        does not say."""
        covered = {meter.covers for meter in self.meters}
        if not covered or None in covered:
            return None
        return "+".join(part for part in PARTS if part in covered)

    @property
    def has_trace(self) -> bool:
        """Whether the energy is known also for parts of the run, and not only for the whole."""
        return all(meter.trace for meter in self.meters)


NO_TRACE = "one figure for the whole run: what its parts took is not known"
"""The note of a meter without a trace."""


def kind_of(meter: str) -> str:
    """The kind in the name of a meter: ``cpu`` for ``cpu:package-0``."""
    return meter.split(":")[0]


def host_of(node: str) -> str:
    """The host of a node. Several nodes may share it: ``host`` for ``host/0``."""
    return node.split("/")[0]


Family = tuple[str, Covers | None]
"""Family of meters: their kind, and the part that they cover, as ``("hwmon", "cpu")``. The figures of a
node's meters of one family are added."""


def _gaps(
    family: Family,
    nodes: Sequence[str],
    usable: dict[str, str | None],
    absent: dict[str, str | None],
) -> list[Gap]:
    """The gaps of a family of meters.

    Args:
        usable: for each node or host that has the family: the fault of its meters; ``None`` if there is no
            fault.
        absent: for each node or host that lacks the family: the reason.
    """
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
        gaps += [Gap(node, family[0], why, metered, len(whole)) for node, why in named.items()]
    return gaps


def _named(gaps: Mapping[Family, list[Gap]]) -> dict[Family, list[Gap]]:
    """Name each gap by its kind of meter, and by the missing part if only a part is missing."""
    of_kind: dict[str, list[list[Gap]]] = defaultdict(list)
    for (kind, _), found in gaps.items():
        of_kind[kind].append(found)
    return {
        (kind, covers): found
        if all(other == found for other in of_kind[kind])
        else [replace(gap, kind=f"{kind} ({covers})") for gap in found]
        for (kind, covers), found in gaps.items()
    }


def chosen_families(families: Sequence[Family]) -> tuple[list[Family], frozenset[str]]:
    """The families of meters to add up, so that no part of a node counts twice, and the parts that they
    cover.

    Families that cover more parts are taken first. Between families that cover equally many parts, the first
    one is taken.
    """
    chosen = []
    covered: frozenset[str] = frozenset()
    for family in sorted(families, key=lambda f: -len(PARTS[f[1]]) if f[1] else 0):
        parts = PARTS[family[1]] if family[1] else frozenset()
        if not parts & covered:
            chosen.append(family)
            covered |= parts
    return chosen, covered


def _gaps_in_words(gaps: Sequence[Gap]) -> str:
    """The reasons for each kind of meter, with the number of hosts that are metered."""
    parts = []
    for kind in dict.fromkeys(gap.kind for gap in gaps):
        of_kind = [gap for gap in gaps if gap.kind == kind]
        parts += [f"{gap.node}: {kind}: {gap.reason}" for gap in of_kind[:_NAMED]]
        if len(of_kind) > _NAMED:
            parts.append(f"{len(of_kind) - _NAMED} more without {kind}")
        parts.append(f"{of_kind[0].metered} of {of_kind[0].hosts} hosts are metered")
    return "; ".join(parts)


def too_slow(
    meters: Sequence[MeterInfo], lasts_s: float, period_s: float
) -> dict[tuple[str, str], str]:
    """Meters that are too slow for a run of ``lasts_s`` seconds, by node and name, with reasons. Watts must
    not be read too seldom, either (each ``period_s`` seconds). A counter counts between two readings, too."""
    new_s = {
        (m.node, m.meter): max(m.renewed_s or 0.0, 0.0 if m.counter else period_s) for m in meters
    }
    return {
        (meter.node, meter.meter): (
            f"has something new every {new_s[meter.node, meter.meter]:.3g} s, and the run is shorter than "
            f"{_LEAST_RENEWALS} times this"
        )
        for meter in meters
        if meter.available and _LEAST_RENEWALS * new_s[meter.node, meter.meter] > lasts_s
    }


def _absence(meters: Sequence[MeterInfo]) -> str:
    """Why there is no meter. Each reason appears once, with the kinds of meters for which it holds."""
    kinds: dict[str | None, set[str]] = defaultdict(set)
    for meter in meters:
        if not meter.available:
            kinds[meter.reason].add(meter.meter)
    return "; ".join(
        sorted(f"{', '.join(sorted(of_reason))}: {reason}" for reason, of_reason in kinds.items())
    )


def metered(
    nodes: Sequence[str],
    meters: Sequence[MeterInfo],
    unusable: Mapping[tuple[str, str], str] | None = None,
) -> Metering:
    """The meters whose sum is the energy of a run. They come from the best source. All nodes have them, and
    no part counts twice.

    The source of the sum is the source of its meters. If these have different sources, the weakest one
    counts.

    Args:
        nodes: the nodes that meters have to cover. Each needs a meter of its own, or of its host. If empty,
            any meters are taken.
        meters: meters of the record, the better kind first.
        unusable: faults of meters whose readings cannot be used, by node and meter.
    """
    # A meter that failed still counts as present. So a worse source does not replace it without a remark.
    there = [m for m in meters if m.source is not None and (m.available or nodes)]
    best = next((of for of in _METERED if any(m.source in of for m in there)), None)
    if best is None:
        return Metering(
            None,
            (),
            (),
            _absence(meters) or ("no meter was requested" if nodes else "it has no readings"),
        )
    of_source = [meter for meter in there if meter.source in best]
    if any(meter.covers is None for meter in of_source):
        # A meter of unknown coverage may count what another tool has counted, too.
        first = min((meter.source for meter in of_source if meter.source), key=_BEST_FIRST.index)
        of_source = [meter for meter in of_source if meter.source == first]
    usable: dict[Family, dict[str, str | None]] = defaultdict(dict)
    for meter in of_source:
        why = (unusable or {}).get((meter.node, meter.meter))
        if not meter.available:
            why = f"failed: {meter.reason}"
        kind = kind_of(meter.meter)
        explained = why if why is None or meter.meter == kind else f"{meter.meter} {why}"
        by_node = usable[kind, meter.covers]
        by_node[meter.node] = by_node.get(meter.node) or explained
    gaps: dict[Family, list[Gap]] = {}
    for family, by_node in usable.items():
        absent = {
            m.node: m.reason for m in meters if not m.available and kind_of(m.meter) == family[0]
        }
        gaps[family] = _gaps(family, nodes, by_node, absent)
    gaps = _named(gaps)
    chosen, covered = chosen_families([family for family in usable if not gaps[family]])
    used = tuple(meter for meter in of_source if (kind_of(meter.meter), meter.covers) in chosen)
    # There is no gap if the part is inside another part that counts.
    open_gaps = [
        of_family
        for (_, covers), of_family in gaps.items()
        if covers is None or not PARTS[covers] <= covered
    ]
    found = tuple(dict.fromkeys(gap for of_family in open_gaps for gap in of_family))
    if not used:
        return Metering(None, (), found, _gaps_in_words(found))
    source = max((meter.source for meter in used if meter.source), key=_BEST_FIRST.index)
    return Metering(source, used, found, None)
