"""How meters agree that cover the same, or of which one covers the others."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from joulecast.power.load_course import LoadCourse
from joulecast.power.meter_figures import SpanLevels
from joulecast.records.meter_comparison import (
    MOST_APART_PERCENT,
    ComparedMeter,
    MeterAgreement,
)
from joulecast.records.metering import PARTS, Family, chosen_families, kind_of

_SIGMAS = 2.0
"""Standard errors by which meters have to be further apart than they may be."""

Compared = tuple[ComparedMeter, SpanLevels | None]
"""A meter and its levels by span, if they are known."""


@dataclass(frozen=True)
class _Group:
    """Meters of one kind on a node that cover the same: their watts are added."""

    family: Family
    meters: tuple[str, ...]
    levels: SpanLevels | None
    why_not: str | None

    @classmethod
    def together(cls, groups: Sequence["_Group"]) -> "_Group":
        """Several groups as one."""
        names = tuple(name for group in groups for name in group.meters)
        missing = next((g.why_not for g in groups if g.levels is None), None)
        kind = " + ".join(dict.fromkeys(group.family[0] for group in groups))
        levels = [g.levels for g in groups if g.levels is not None]
        whole = None if missing is not None else _added(levels)
        return cls((kind, None), names, whole, missing)

    @property
    def name(self) -> str:
        return " + ".join(self.meters)


def _added(levels: Sequence[SpanLevels]) -> SpanLevels:
    spans = zip(*(each.watts for each in levels), strict=True)
    watts = tuple(
        None if None in span else float(sum(w for w in span if w is not None)) for span in spans
    )
    return SpanLevels(
        watts,
        float(np.sqrt(sum(each.sigma_w**2 for each in levels))),
        float(np.sqrt(sum(each.unit_w**2 for each in levels))),
    )


def _groups(
    compared: Sequence[Compared],
) -> dict[str, list[_Group]]:
    """Groups of the measured meters of each node whose coverage is known, the better kind first."""
    families: dict[tuple[str, Family], list[Compared]] = defaultdict(list)
    for meter, levels in compared:
        info = meter.info
        # An estimate judges no meter, and what is absent none either.
        if info.source == "measured" and info.covers is not None:
            families[info.node, (kind_of(info.meter), info.covers)].append((meter, levels))
    found: dict[str, list[_Group]] = defaultdict(list)
    for (node, family), members in families.items():
        names = tuple(meter.info.meter for meter, _ in members)
        missing = next(
            (f"{m.info.meter} has no level" for m, levels in members if levels is None), None
        )
        known = [levels for _, levels in members if levels is not None]
        found[node].append(_Group(family, names, None if missing else _added(known), missing))
    return found


def agreements_of(compared: Sequence[Compared], course: LoadCourse) -> list[MeterAgreement]:
    """How all groups of meters agree that cover the same, and how each that covers others holds their sum."""
    found = []
    for node, groups in _groups(compared).items():
        for place, group in enumerate(groups):
            for other in groups[place + 1 :]:
                if other.family[1] == group.family[1]:
                    found.append(
                        _agreement(node, "same", group, other, str(other.family[1]), course)
                    )
            inside = [g for g in groups if _lies_inside(g, group)]
            chosen, _ = chosen_families([g.family for g in inside])
            parts = [g for g in inside if g.family in chosen and g.levels is not None] or inside[:1]
            if parts:
                covers = "+".join(dict.fromkeys(str(g.family[1]) for g in parts))
                whole = _Group.together(parts)
                found.append(_agreement(node, "contains", group, whole, covers, course))
    return found


def _lies_inside(part: _Group, whole: _Group) -> bool:
    covers, of_whole = part.family[1], whole.family[1]
    return covers is not None and of_whole is not None and PARTS[covers] < PARTS[of_whole]


def _agreement(
    node: str,
    relation: Literal["same", "contains"],
    one: _Group,
    other: _Group,
    others_cover: str,
    course: LoadCourse,
) -> MeterAgreement:
    base = MeterAgreement(
        node=node,
        relation=relation,
        meters=[*one.meters],
        others=[*other.meters],
        covers=str(one.family[1]),
        others_cover=others_cover,
    )
    if one.levels is None or other.levels is None:
        return base.model_copy(update={"why": one.why_not or other.why_not})
    percents: dict[bool, float] = {}
    apart: list[str] = []
    unsure: list[str] = []
    for load in (True, False):
        found = _apart(one.levels, other.levels, course, load=load)
        if found is None:
            continue
        level_w, others_w, sigma_w = found
        percents[load] = 100 * (others_w - level_w) / level_w
        apart_percent = abs(percents[load]) - MOST_APART_PERCENT
        # What contains others may draw more than they do.
        if apart_percent > 0 and (relation == "same" or percents[load] > 0):
            is_sure = apart_percent > _SIGMAS * 100 * sigma_w / level_w
            (apart if is_sure else unsure).append(
                f"{'under load' if load else 'idle'} {one.name} shows {level_w:.4g} W and {other.name}, "
                f"{'which covers the same' if relation == 'same' else 'a part of it'}, {others_w:.4g} W "
                f"({percents[load]:+.1f} %)"
            )
    if not percents:
        return base.model_copy(update={"why": "they have no level in the same span"})
    return base.model_copy(
        update={
            "load_percent": percents.get(True),
            "idle_percent": percents.get(False),
            "agrees": False if apart else None if unsure else True,
            "why": "; ".join(apart)
            or ("; ".join([*unsure, "the noise may explain it"]) if unsure else None),
        }
    )


def _apart(
    one: SpanLevels, other: SpanLevels, course: LoadCourse, *, load: bool
) -> tuple[float, float, float] | None:
    """Mean watts of both in the spans that both know, and how uncertain their difference is; ``None`` where
    the first one shows none."""
    pairs = np.array(
        [
            (a, b)
            for a, b, span in zip(one.watts, other.watts, course.spans, strict=True)
            if a is not None and b is not None and span.load == load
        ]
    )
    if not len(pairs) or pairs[:, 0].mean() <= 0:
        return None
    difference = pairs[:, 1] - pairs[:, 0]
    count = len(pairs)
    scattered = float(difference.std(ddof=1)) / np.sqrt(count) if count > 1 else 0.0
    noise = np.sqrt((one.sigma_w**2 + other.sigma_w**2) / count)
    rounding = np.sqrt(one.unit_w**2 + other.unit_w**2) / 2
    sigma = float(np.sqrt(max(scattered, noise) ** 2 + rounding**2))
    return float(pairs[:, 0].mean()), float(pairs[:, 1].mean()), sigma
