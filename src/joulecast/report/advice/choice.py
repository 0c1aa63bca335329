"""What a training may take, and the candidate that meets it best.

A limit is held against the upper end of a candidate's 90 % interval: a deadline that the expected time
just meets is missed every other time. A candidate without an interval is judged by what is expected of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from joulecast.energy.prices import Prices, estimated
from joulecast.quantities import consumptions, digits, listed, masses, money, steady, times
from joulecast.report.advice.candidate import Candidate
from joulecast.report.advice.objective import check_priced
from joulecast.report.advice.request import Limit

_OPTIONS = {
    "time": "--deadline",
    "energy": "--energy-budget",
    "cost": "--cost-budget",
    "co2": "--co2-budget",
}
_NAMES = {
    "time": "deadline",
    "energy": "energy budget",
    "cost": "cost budget",
    "co2": "CO2 budget",
}
IN_WORDS = {
    "time": "time",
    "energy": "energy",
    "cost": "cost",
    "co2": "CO2e",
    "edp": "product of energy and time",
}
"""What is weighed, in words."""


def kind_of(limit: Limit) -> str:
    """``deadline``, ``energy budget``, ``cost budget``, ``CO2 budget``, ``weight``, several, or ``none``."""
    names = [_NAMES[quantity] for quantity in limit.budgets]
    if limit.energy_weight is not None:
        names.append("weight")
    return " and ".join(names) or "none"


def check_prices_of(limit: Limit, prices: Prices) -> None:
    """Raise a :class:`JoulecastError` where a price is missing that the limit needs."""
    asked = {_OPTIONS[quantity]: quantity for quantity in limit.budgets}
    if limit.objective is not None:
        asked[f"--objective {limit.objective}"] = limit.objective
    check_priced(asked, prices)


def within_words(limit: Limit, currency: str) -> str:
    """The budgets, as ``within 1 h and EUR 20``; empty without any."""
    amounts = [
        amounts_of(quantity, currency)(amount)[0] for quantity, amount in limit.budgets.items()
    ]
    return f"within {listed(amounts)}" if amounts else ""


def amounts_of(quantity: str, currency: str) -> Callable[..., list[str]]:
    """The function that gives amounts of a quantity in words."""
    known: dict[str, Callable[..., list[str]]] = {
        "time": times,
        "energy": consumptions,
        "cost": partial(money, currency),
        "co2": lambda *values: [f"{mass} CO2e" for mass in masses(*values)],
    }
    return known.get(quantity, lambda *values: [f"{digits(value)} J s" for value in values])


@dataclass(frozen=True)
class Choice:
    """The best candidate and which of them are within the limit, by their places in the list."""

    best: int | None
    why_none: str | None
    within: tuple[bool, ...]
    judged_by: str
    order: tuple[int, ...] = ()
    """All places: what is within the limit comes first, then the least of what is judged."""
    least: str = "energy"
    """What was judged: as the limit has it, or time where no energy is known."""
    references: tuple[float, float] | None = None
    """Joules and seconds that a weight relates to."""
    by_energy: int | None = None
    """What estimated energy would choose, where time chooses in its place."""

    def as_json(self, limit: Limit) -> dict[str, Any]:
        """The limit and how it was applied."""
        content: dict[str, Any] = {
            "kind": kind_of(limit),
            "objective": self.least,
            "judged_by": self.judged_by,
        }
        if self.references is not None:
            content |= {"energy_ref_j": self.references[0], "time_ref_s": self.references[1]}
        return content


Order = Callable[[Candidate], tuple[Any, ...]]


@dataclass(frozen=True)
class _Aim:
    """What is to be least: its order, in words, and whether it is known of a candidate."""

    least: str
    order: Order
    text: str
    unknown: str | None = None
    """Why nothing can be chosen; ``None`` where something can."""
    references: tuple[float, float] | None = None
    only_estimated: bool = False
    """Whether time takes the place of an energy that is only estimated."""


def choose(candidates: Sequence[Candidate], limit: Limit, currency: str = "EUR") -> Choice:
    """The best of the candidates within all the budgets of a limit: the least of its objective.

    A weight ``w`` asks for the least ``w E/E_ref + (1 - w) T/T_ref``, the cost of Zeus (You et al., NSDI
    2023, eq. 2) with the least energy and time of the candidates as references. Where no energy is known and
    no objective is asked for, or it is only estimated, time takes its place. Of equals: the cheaper in
    energy, the faster, then the one on fewer nodes, with the smaller batch.
    """
    within = tuple(
        all(_holds(candidate, *budget) for budget in limit.budgets.items())
        for candidate in candidates
    )
    kept = [c for c, fits in zip(candidates, within, strict=True) if fits]
    aim = _aim(kept or candidates, candidates, limit)
    places = range(len(candidates))
    by_energy = None
    if kept and aim.only_estimated:
        by_energy = min(
            (place for place in places if within[place]),
            key=lambda place: candidates[place].order("energy"),
        )
    order = sorted(places, key=lambda p: (not within[p], aim.order(candidates[p])))
    why = _why_nothing_is_within(candidates, limit, currency) if not kept else aim.unknown
    return Choice(
        best=order[0] if why is None else None,
        why_none=why,
        within=within,
        judged_by=_judged_by(candidates, limit, aim)
        + ("" if by_energy is None else _would_choose(candidates[by_energy], candidates[order[0]])),
        order=tuple(order),
        least=aim.least,
        references=aim.references,
        by_energy=by_energy,
    )


def _holds(candidate: Candidate, quantity: str, budget: float) -> bool:
    bound = candidate.bound(quantity)
    return bound is not None and bound <= budget


def _aim(kept: Sequence[Candidate], all_of_them: Sequence[Candidate], limit: Limit) -> _Aim:
    least = limit.least
    if least == "weight":
        return _weighed(all_of_them, float(limit.energy_weight or 0.0))
    known = [c for c in kept if c.ends(least)[0] is not None]
    if limit.objective is None and any("estimated" in (c.source_of(least) or "") for c in known):
        return _Aim("time", lambda c: c.order("time"), "expected time", only_estimated=True)
    if known:
        return _Aim(least, lambda c: c.order(least), f"expected {IN_WORDS[least]}")
    if limit.objective is None:
        return _Aim("time", lambda c: c.order("time"), "expected time, for no energy is known")
    why = kept[0].why_no_cost if least == "cost" else kept[0].why_no_energy
    reason = f"no {IN_WORDS[least]} is known ({why}); --objective time asks for time"
    return _Aim(least, lambda c: c.order(least), f"expected {IN_WORDS[least]}", reason)


def _would_choose(by_energy: Candidate, best: Candidate) -> str:
    which = "the same" if by_energy is best else f"{by_energy.setting}, as --objective energy does"
    return f". Energy is only estimated and does not choose; it would choose {which}"


def _weighed(candidates: Sequence[Candidate], weight: float) -> _Aim:
    if weight == 0:
        text = "expected time; energy has no weight"
        return _Aim("time", lambda c: c.order("time"), text)
    known = [(c.energy_j, c.time_s) for c in candidates if c.energy_j is not None]
    text = "w E/E_ref + (1 - w) T/T_ref of what is expected"
    if not known:
        why = "no energy is known, so it cannot be weighed against time; --energy-weight 0 asks for time"
        return _Aim("weight", lambda c: c.order("time"), text, why)
    joules, seconds = min(e for e, _ in known), min(t for _, t in known)

    def order(candidate: Candidate) -> tuple[Any, ...]:
        if candidate.energy_j is None:
            return math.inf, candidate.cost_order
        energy, time = candidate.energy_j / joules, candidate.time_s / seconds
        return steady(weight * energy + (1 - weight) * time), candidate.cost_order

    return _Aim("weight", order, text, references=(joules, seconds))


def _judged_by(candidates: Sequence[Candidate], limit: Limit, aim: _Aim) -> str:
    text = aim.text if aim.text.startswith("w ") else f"the {aim.text}"
    if not limit.budgets:
        return text if limit.least == "weight" else f"{text}; no limit was given"
    ends = "; ".join(_upper(quantity, candidates) for quantity in limit.budgets)
    them = "it" if len(limit.budgets) == 1 else "all of them"
    return f"{ends}; among those within {them}, {text.replace('the ', 'the least ', 1)}"


def nearest(candidates: Sequence[Candidate], budgets: Mapping[str, float]) -> Candidate | None:
    """The candidate that comes nearest to budgets that nothing keeps; ``None`` where what they limit is not
    known of any."""

    def beyond(candidate: Candidate) -> float | None:
        ratios = [
            None if (bound := candidate.bound(quantity)) is None else bound / budget
            for quantity, budget in budgets.items()
        ]
        return None if None in ratios else max(ratio for ratio in ratios if ratio is not None)

    known = [(steady(by), *c.simplicity, c) for c in candidates if (by := beyond(c)) is not None]
    return min(known, key=lambda each: each[:-1])[-1] if known else None


def _why_nothing_is_within(candidates: Sequence[Candidate], limit: Limit, currency: str) -> str:
    budgets = limit.budgets
    closest = nearest(candidates, budgets)
    if closest is None:
        missing = [q for q in budgets if all(c.bound(q) is None for c in candidates)]
        quantity = [*missing, *budgets][0]
        article = "an" if quantity == "energy" else "a"
        return (
            f"no {IN_WORDS[quantity]} is known, so nothing can be held against {article} "
            f"{_NAMES[quantity]}"
        )
    ends = [_end(closest, quantity, currency) for quantity in budgets]
    verb = "ends" if list(budgets) == ["time"] else "stays"
    asked = within_words(limit, currency)
    return f"nothing {verb} {asked}; the closest is {closest.setting} with {listed(ends)}"


def _end(candidate: Candidate, quantity: str, currency: str) -> str:
    """What a candidate takes at most, and what is expected of it."""
    value, _, high = candidate.ends(quantity)
    bound, expected = amounts_of(quantity, currency)(candidate.bound(quantity), value)
    source = candidate.source_of(quantity)
    note = f", {source}" if quantity == "energy" else estimated("", source)
    return f"{'about' if high is None else 'at most'} {bound} ({expected} expected{note})"


def _upper(quantity: str, candidates: Sequence[Candidate]) -> str:
    bounded = [candidate.ends(quantity)[2] is not None for candidate in candidates]
    name = IN_WORDS[quantity]
    if all(bounded):
        return f"the upper end of the 90 % interval of the {name}"
    if any(bounded):
        return f"the upper end of the 90 % interval of the {name}, where there is one"
    return f"the expected {name} (there are no intervals)"
