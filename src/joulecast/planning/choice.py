"""What a training may take, and the candidate that meets it best.

A limit is held against the upper end of a candidate's 90 % interval: a deadline that the expected time
just meets is missed every other time. A candidate without an interval is judged by what is expected of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.planning.candidate import Candidate
from joulecast.quantities import energies, steady, times


@dataclass(frozen=True)
class Limit:
    """A deadline in s, or a budget in J, or a weight of energy between 0 and 1; or none of them.

    Raises:
        JoulecastError: more than one is given, or one cannot be met by anything.
    """

    deadline_s: float | None = None
    energy_budget_j: float | None = None
    energy_weight: float | None = None

    def __post_init__(self) -> None:
        given = [name for name, value in self._given().items() if value is not None]
        if len(given) > 1:
            raise JoulecastError(f"{' and '.join(given)} contradict each other; give one of them")
        for name, value in self._given().items():
            if value is None:
                continue
            if not math.isfinite(value):
                raise JoulecastError(f"{name} {value}: give a number")
            if name == "--energy-weight" and not 0 <= value <= 1:
                raise JoulecastError(
                    f"{name} {value:g}: give 0 (only time counts) to 1 (only energy)"
                )
            if name != "--energy-weight" and value <= 0:
                raise JoulecastError(f"{name} {value:g}: give a number above 0")

    def _given(self) -> dict[str, float | None]:
        return {
            "--deadline": self.deadline_s,
            "--energy-budget": self.energy_budget_j,
            "--energy-weight": self.energy_weight,
        }

    @property
    def kind(self) -> str:
        """``deadline``, ``energy budget``, ``weight`` or ``none``."""
        names = {"--deadline": "deadline", "--energy-budget": "energy budget"}
        given = next((name for name, value in self._given().items() if value is not None), None)
        return "none" if given is None else names.get(given, "weight")


@dataclass(frozen=True)
class Choice:
    """The best candidate and which of them are within the limit, by their places in the list."""

    best: int | None
    why_none: str | None
    within: tuple[bool, ...]
    judged_by: str
    references: tuple[float, float] | None = None
    """Joules and seconds that a weight relates to."""

    def as_json(self, limit: Limit) -> dict[str, Any]:
        """The limit and how it was applied."""
        content: dict[str, Any] = {
            "kind": limit.kind,
            "deadline_s": limit.deadline_s,
            "energy_budget_j": limit.energy_budget_j,
            "energy_weight": limit.energy_weight,
            "judged_by": self.judged_by,
        }
        if self.references is not None:
            content |= {"energy_ref_j": self.references[0], "time_ref_s": self.references[1]}
        return content


def choose(candidates: Sequence[Candidate], limit: Limit) -> Choice:
    """The best of the candidates within a limit.

    With a deadline: the least energy among those that keep it; with an energy budget: the least time among
    those that stay within it; with a weight ``w``: the least ``w E/E_ref + (1 - w) T/T_ref``, the cost of
    Zeus (You et al., NSDI 2023, eq. 2) with the least energy and time of the candidates as references;
    without a limit: the least energy. Where no energy is known, time takes its place. Of equals: the faster
    or cheaper, then the one on fewer nodes, with the smaller batch.
    """
    if not candidates:
        return Choice(None, "there are no candidates", (), "nothing: there are no candidates")
    if limit.deadline_s is not None:
        return _by_deadline(candidates, limit.deadline_s)
    if limit.energy_budget_j is not None:
        return _by_budget(candidates, limit.energy_budget_j)
    if limit.energy_weight is not None:
        return _by_weight(candidates, limit.energy_weight)
    everything = tuple(True for _ in candidates)
    best, by = _cheapest(candidates, everything)
    return Choice(best, None, everything, f"the expected {by}; no limit was given")


def _cheapest(candidates: Sequence[Candidate], within: Sequence[bool]) -> tuple[int | None, str]:
    inside = [place for place, fits in enumerate(within) if fits]
    best = min(inside, key=lambda place: candidates[place].cost_order, default=None)
    is_by_energy = any(candidates[place].energy_j is not None for place in inside)
    return best, "energy" if is_by_energy else "time, for no energy is known"


def nearest_deadline(candidates: Sequence[Candidate]) -> Candidate:
    """The candidate that keeps the shortest deadline."""
    return min(candidates, key=lambda c: (steady(c.time_bound_s), *c.simplicity))


def _by_deadline(candidates: Sequence[Candidate], deadline_s: float) -> Choice:
    within = tuple(c.time_bound_s <= deadline_s for c in candidates)
    best, by = _cheapest(candidates, within)
    if best is None:
        by = _cheapest(candidates, [True] * len(candidates))[1]
    why = None
    if best is None:
        closest = nearest_deadline(candidates)
        end = "at most " if closest.time_high_s is not None else "about "
        asked, bound, expected = times(deadline_s, closest.time_bound_s, closest.time_s)
        why = (
            f"nothing ends within {asked}; the closest is {closest.setting} with {end}{bound} "
            f"({expected} expected)"
        )
    judged = f"{_upper('time', candidates)}; among those within it, the least expected {by}"
    return Choice(best, why, within, judged)


def _by_budget(candidates: Sequence[Candidate], budget_j: float) -> Choice:
    bounds = [c.energy_bound_j for c in candidates]
    within = tuple(bound is not None and bound <= budget_j for bound in bounds)
    inside = [place for place, fits in enumerate(within) if fits]
    best = min(inside, key=lambda place: _time_order(candidates[place]), default=None)
    why = None
    if best is None:
        known = [
            ((steady(c.energy_bound_j), *c.simplicity), c)
            for c in candidates
            if c.energy_bound_j is not None
        ]
        closest = min(known, key=lambda each: each[0], default=(None, None))[1]
        if closest is None:
            why = "no energy is known, so nothing can be held against an energy budget"
        else:
            asked, bound, expected = energies(budget_j, closest.energy_bound_j, closest.energy_j)
            why = (
                f"nothing stays within {asked}; the closest is {closest.setting} with at most {bound} "
                f"({expected} expected, {closest.energy_source})"
            )
    judged = f"{_upper('energy', candidates)}; among those within it, the least expected time"
    return Choice(best, why, within, judged)


def _by_weight(candidates: Sequence[Candidate], weight: float) -> Choice:
    everything = tuple(True for _ in candidates)
    if weight == 0:
        best = min(range(len(candidates)), key=lambda place: _time_order(candidates[place]))
        return Choice(best, None, everything, "the expected time; energy has no weight")
    known = [(c.energy_j, c.time_s, p) for p, c in enumerate(candidates) if c.energy_j is not None]
    judged = "w E/E_ref + (1 - w) T/T_ref of what is expected"
    if not known:
        why = "no energy is known, so it cannot be weighed against time; --energy-weight 0 asks for time"
        return Choice(None, why, everything, judged)
    joules, seconds = min(k[0] for k in known), min(k[1] for k in known)
    costs = [
        (
            steady(weight * e / joules + (1 - weight) * t / seconds),
            candidates[place].cost_order,
            place,
        )
        for e, t, place in known
    ]
    return Choice(min(costs)[2], None, everything, judged, (joules, seconds))


def _time_order(candidate: Candidate) -> tuple[float, tuple[float, float, int, int, str]]:
    """The order of time: the fastest first, then the cheapest."""
    return steady(candidate.time_s), candidate.cost_order


def _upper(quantity: str, candidates: Sequence[Candidate]) -> str:
    bounded = [
        (c.time_high_s if quantity == "time" else c.energy_high_j) is not None for c in candidates
    ]
    if all(bounded):
        return f"the upper end of the 90 % interval of the {quantity}"
    if any(bounded):
        return f"the upper end of the 90 % interval of the {quantity}, where there is one"
    return f"the expected {quantity} (there are no intervals)"
