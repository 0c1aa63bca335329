"""Chooses the best candidate within the limits of a training, and says whether it is clearly the best.

A limit is compared with the upper end of a candidate's 90 % interval. If only the expected time met a
deadline, half of the runs would miss it. If a candidate has no interval, its expected value is compared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from joulecast.energy.prices import Prices, estimated
from joulecast.errors import JoulecastError
from joulecast.quantities import (
    consumptions,
    counted,
    digits,
    listed,
    masses,
    money,
    percent,
    steady,
    times,
)
from joulecast.report.advice.candidate import Candidate
from joulecast.report.advice.request import Limit
from joulecast.runs.scale import unit_of

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
"""The quantities that are compared, in words."""

_ON_RUN = " up to the largest scale that was run"

_SAME = 0.005
"""The smallest relative saving that is named."""
_NAMED = 60
"""Most letters that a sentence spends on the names of overlapping settings."""


def check_prices_of(limit: Limit, prices: Prices) -> None:
    """Refuse a limit of money without a price, or of CO2 without an intensity."""
    # Names of options, such as ``--cost-budget``.
    asked = {f"--{_NAMES[each].lower().replace(' ', '-')}": each for each in limit.budgets}
    if limit.objective is not None:
        asked[f"--objective {limit.objective}"] = limit.objective
    for name, quantity in asked.items():
        if quantity == "cost" and not prices.known:
            raise JoulecastError(
                f"{name}: no price is known; give --price, --price-node-hour or --price-gpu-hour"
            )
        if quantity == "co2" and prices.co2 is None:
            raise JoulecastError(f"{name}: no intensity is known; give --co2 (grams for a kWh)")


def within_words(limit: Limit, currency: str) -> str:
    """The budgets, as ``within 1 h and EUR 20``; empty without any."""
    amounts = [
        amounts_of(quantity, currency)(amount)[0] for quantity, amount in limit.budgets.items()
    ]
    return f"within {listed(amounts)}" if amounts else ""


def amounts_of(quantity: str, currency: str) -> Callable[..., list[str]]:
    """The function that writes amounts of a quantity in words."""
    known: dict[str, Callable[..., list[str]]] = {
        "time": times,
        "energy": consumptions,
        "cost": partial(money, currency),
        "co2": lambda *values: [f"{mass} CO2e" for mass in masses(*values)],
    }
    return known.get(quantity, lambda *values: [f"{digits(value)} J s" for value in values])


@dataclass(frozen=True)
class Choice:
    """The best candidate, and the candidates within the limit, as places in the list of candidates.

    Attributes:
        within: for each candidate, whether it is within the limit.
        order: all places. Candidates within the limit come first. Among these, the least value of the
        objective comes first.
        least: the objective: the objective of the limit, or time if no energy is known.
        by_energy: the candidate that estimated energy would choose, if time chooses in place of it.
        only_run: whether counts beyond the runs could not be chosen.
    """

    best: int | None
    why_none: str | None
    within: tuple[bool, ...]
    judged_by: str
    order: tuple[int, ...]
    least: str
    by_energy: int | None
    only_run: bool

    def others(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates, in order, that could have been chosen in place of the best one."""
        return [
            candidates[place]
            for place in self.order
            if self.within[place]
            and place != self.best
            and not (self.only_run and candidates[place].times_beyond > 1)
        ]

    def as_json(self, limit: Limit) -> dict[str, Any]:
        """The limit and how it was applied."""
        return {
            "kind": " and ".join(_NAMES[quantity] for quantity in limit.budgets) or "none",
            "objective": self.least,
            "in_words": IN_WORDS[self.least] + _ON_RUN * self.only_run,
            "judged_by": self.judged_by,
        }


def choose(candidates: Sequence[Candidate], limit: Limit, currency: str = "EUR") -> Choice:
    """The candidate with the smallest objective, among the candidates within all budgets.

    If no objective is requested, and energy is not known or only estimated, the objective is time. If time
    replaces an estimated energy, node counts that did not run come last. Otherwise the choice would often be
    the largest count, without any measurement behind it. If candidates are equal, the one with less energy is
    taken, then the one with less time, fewer nodes, and a smaller batch.
    """
    budgets = limit.budgets

    def holds(one: Candidate) -> bool:
        bounds = ((one.bound(quantity), budget) for quantity, budget in budgets.items())
        return all(bound is not None and bound <= budget for bound, budget in bounds)

    within = tuple(map(holds, candidates))
    kept = [c for c, fits in zip(candidates, within, strict=True) if fits]
    judged, least = kept or candidates, limit.least
    amounts = {least, *budgets} - {"time"}
    only_estimated = limit.objective is None and any(
        "estimated" in (c.source_of(amount) or "") for c in judged for amount in amounts
    )
    unknown, why_time = None, ""
    if only_estimated:
        least = "time"
    elif all(c.ends(least)[0] is None for c in judged):
        why = judged[0].why_no_cost if least == "cost" else judged[0].why_no_energy
        if limit.objective is None:
            least, why_time = "time", ", for no energy is known"
        else:
            unknown = f"no {IN_WORDS[least]} is known ({why}); --objective time chooses by time"
    only_run = only_estimated and len({c.times_beyond > 1 for c in judged}) > 1

    def rank(place: int) -> tuple[Any, ...]:
        one = candidates[place]
        return not within[place], only_run and one.times_beyond > 1, one.order(least)

    order = sorted(range(len(candidates)), key=rank)
    lowest = f"the lowest expected {IN_WORDS[least]}{_ON_RUN * only_run}{why_time}"
    judged_by = f"{lowest}; no limit was set"
    if budgets:
        ends = " and ".join(_upper(quantity, candidates) for quantity in budgets)
        limit_is, applies = ("limit", "applies") if len(budgets) == 1 else ("limits", "apply")
        judged_by = (
            f"{lowest}, of the settings within the {limit_is}. The {limit_is} {applies} to {ends}"
        )
    by_energy = None
    if kept and only_estimated:
        fitting = [place for place in order if within[place]]
        by_energy = min(fitting, key=lambda place: candidates[place].order("energy"))
        judged_by += (
            ". Energy is only estimated, so the choice is not by energy. By energy, it would be "
        )
        would = f"{candidates[by_energy].setting} (--objective energy)"
        judged_by += "the same" if by_energy == order[0] else would
    why_none = unknown if kept else _why_nothing_is_within(candidates, budgets, currency)
    best = order[0] if why_none is None else None
    return Choice(best, why_none, within, judged_by, tuple(order), least, by_energy, only_run)


def nearest(candidates: Sequence[Candidate], budgets: Mapping[str, float]) -> Candidate | None:
    """The candidate that is nearest to the budgets, if no candidate keeps them; ``None`` if a limited
    quantity is known for no candidate."""
    known = []
    for one in candidates:
        ratios = [
            bound / budget
            for quantity, budget in budgets.items()
            if (bound := one.bound(quantity)) is not None
        ]
        if len(ratios) == len(budgets):
            known.append((steady(max(ratios)), *one.simplicity, one))
    return min(known, key=lambda each: each[:-1])[-1] if known else None


def _why_nothing_is_within(
    candidates: Sequence[Candidate], budgets: Mapping[str, float], currency: str
) -> str:
    closest = nearest(candidates, budgets)
    if closest is None:
        missing = [q for q in budgets if all(c.bound(q) is None for c in candidates)]
        quantity = [*missing, *budgets][0]
        article = "an" if quantity == "energy" else "a"
        one = candidates[0]
        why = one.why_no_cost if quantity == "cost" else one.why_no_energy
        reason = "" if why is None else f" ({why})"
        return (
            f"no {IN_WORDS[quantity]} is known{reason}, so nothing can be held against {article} "
            f"{_NAMES[quantity]}"
        )
    ends = [_end(closest, *budget, currency) for budget in budgets.items()]
    verb = "ends" if list(budgets) == ["time"] else "stays"
    asked = listed([budget for budget, _ in ends])
    took = listed([end for _, end in ends])
    return f"nothing {verb} within {asked}; the closest is {closest.setting} with {took}"


def _end(candidate: Candidate, quantity: str, budget: float, currency: str) -> tuple[str, str]:
    """Two texts: a budget; and the upper bound of a candidate with its expected value. All are in the same
    unit."""
    value, _, high = candidate.ends(quantity)
    allowed, bound, expected = amounts_of(quantity, currency)(
        budget, candidate.bound(quantity), value
    )
    source = candidate.source_of(quantity)
    note = f", {source}" if quantity == "energy" else estimated("", source)
    return allowed, f"{'about' if high is None else 'at most'} {bound} ({expected} expected{note})"


def _upper(quantity: str, candidates: Sequence[Candidate]) -> str:
    bounded = [candidate.ends(quantity)[2] is not None for candidate in candidates]
    name = IN_WORDS[quantity]
    if all(bounded):
        return f"the upper end of the 90 % interval of the {name}"
    if any(bounded):
        return f"the upper end of the 90 % interval of the {name}, where there is one"
    return f"the expected {name} (there are no intervals)"


def overlaps(rival: Candidate, best: Candidate, quantity: str) -> bool:
    """Whether the 90 % interval of a rival begins below the upper end of the best one's interval."""
    low, high = rival.at_wall(quantity)[1], best.at_wall(quantity)[2]
    return low is not None and high is not None and low <= high


def verdict_on(candidates: Sequence[Candidate], choice: Choice, currency: str) -> dict[str, Any]:
    """Whether there is a clear winner, as plain data.

    Returns:
        ``clear_winner`` is ``None`` if there is no interval, if its width is assumed and it overlaps no
        other, if there is no other setting, or if only one node count was run and the choice has another
        one. ``overlapping`` has the settings within the limit whose intervals overlap the interval of the
        best setting. ``in_words`` says this in sentences, and which of these settings costs least and which
        is fastest. It is ``None`` if there is no choice.
    """
    if choice.best is None:
        return _verdict(None, None)
    best, least = candidates[choice.best], choice.least
    others = choice.others(candidates)
    if not others:
        has_others = sum(choice.within) > 1
        why_alone = "is known" if len(candidates) == 1 or has_others else "is within the limits"
        return _verdict(None, f"no other setting{_ON_RUN * choice.only_run} {why_alone}")
    why_unknown = None
    if best.ends(least)[2] is None:
        why_unknown = "it has no interval"
    elif best.beyond_one_count:
        why_unknown = f"all runs have only one {unit_of(best.nodes_are)} count, and it has another"
    rivals = [other for other in others if overlaps(other, best, least)]
    if not rivals and best.width_is_assumed:
        why_unknown = "nothing was run twice, so the spread between runs is assumed"
    if why_unknown is not None:
        return _verdict(None, f"it may not be clearly the best: {why_unknown}")
    paid = "energy" if best.cost is None else "cost"
    if not rivals:
        among = _ON_RUN * choice.only_run
        text = (
            f"a clear winner{among}: its 90 % interval of the {IN_WORDS[least]} overlaps no other's"
        )
        if least != "time":
            text += f"; {_won(best, min([best, *others], key=lambda c: c.order('time')), paid)}"
        return _verdict(True, text)
    alike = [best, *rivals]
    cheapest = min(alike, key=lambda candidate: candidate.order(paid))
    fastest = min(alike, key=lambda candidate: candidate.order("time"))
    overlap = (
        f"{counted(len(alike), 'setting')}{_ON_RUN * choice.only_run} have overlapping 90 % intervals of "
        f"the {IN_WORDS[least]}"
    )
    named = "; ".join(each.setting for each in alike)
    if len(named) <= _NAMED:
        overlap += f" ({named})"
    text = f"no clear winner: {overlap}. {_trade(cheapest, fastest, paid, currency)}"
    return _verdict(False, text, rivals)


def _verdict(
    clear_winner: bool | None,
    in_words: str | None,
    overlapping: Sequence[Candidate] = (),
) -> dict[str, Any]:
    return {
        "clear_winner": clear_winner,
        "overlapping": [rival.setting for rival in overlapping],
        "in_words": in_words,
    }


def _share_saved(one: Candidate, fastest: Candidate, paid: str) -> float | None:
    """The share of the fastest setting's cost that another setting saves; ``None`` if the two cannot be
    compared."""
    amount, spent = one.at_wall(paid)[0], fastest.at_wall(paid)[0]
    if amount is None or spent is None or steady(spent) <= 0:
        return None
    # Measured and estimated values cannot be compared.
    return 1 - amount / spent if fastest.source_of(paid) == one.source_of(paid) else None


def _won(best: Candidate, fastest: Candidate, paid: str) -> str:
    """What a clear winner saves, and how much longer it takes than the fastest."""
    if fastest is best:
        return "it is also the fastest"
    longer = f"takes {digits(best.time_s / fastest.time_s)} times as long as the fastest, {fastest.setting}"
    saved = _share_saved(best, fastest, paid) or 0.0
    if saved < _SAME:
        return f"it {longer}"
    return f"it saves {percent(100 * saved)} of the {IN_WORDS[paid]} and {longer}"


def _trade(cheapest: Candidate, fastest: Candidate, paid: str, currency: str) -> str:
    """What the cheapest of some settings saves, and how much longer it takes than the fastest of them."""
    amount = cheapest.ends(paid)[0]
    if amount is None:
        return "What each costs is not known"
    text = estimated(amounts_of(paid, currency)(amount)[0], cheapest.source_of(paid))
    named = f"Of these, {cheapest.setting} has the lowest {IN_WORDS[paid]} ({text})"
    if fastest is cheapest:
        return f"{named}, and is the fastest"
    longer = f"takes {digits(cheapest.time_s / fastest.time_s)} times as long as the fastest"
    saved = _share_saved(cheapest, fastest, paid)
    if saved is not None and saved < _SAME:
        return f"{named}, as much as the fastest, {fastest.setting}. It {longer}"
    share = "" if saved is None else f"saves {percent(100 * saved)} of the {IN_WORDS[paid]}, and "
    return f"{named}. It {share}{longer}, {fastest.setting}"
