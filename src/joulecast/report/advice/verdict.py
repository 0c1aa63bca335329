"""Whether the best candidate is clearly the best, and what it costs to take another."""

from collections.abc import Sequence
from typing import Any

from joulecast.energy.prices import estimated
from joulecast.quantities import counted, digits, percent, steady
from joulecast.report.advice.candidate import Candidate
from joulecast.report.advice.choice import IN_WORDS, Choice, amounts_of

_SAME = 0.005
"""Relative difference below which a saving is not named."""


def overlaps(rival: Candidate, best: Candidate, quantity: str) -> bool:
    """Whether a rival's 90 % interval reaches below the upper end of the best's."""
    low, high = rival.ends(quantity)[1], best.ends(quantity)[2]
    return low is not None and high is not None and low <= high


def verdict_on(candidates: Sequence[Candidate], choice: Choice, currency: str) -> dict[str, Any]:
    """Whether there is a clear winner, as plain data.

    Returns:
        ``clear_winner`` (``None`` where no interval says so), ``overlapping``: settings within the limit
        whose interval overlaps that of the best, of these and the best the ``cheapest`` in what people pay
        (energy without a price) and the ``fastest``, the ``trade`` of a clear winner against the fastest of
        all within the limit, and all ``in_words`` (``None`` where there is no choice).
    """
    nothing: dict[str, Any] = {
        "clear_winner": None,
        "overlapping": [],
        "cheapest": None,
        "fastest": None,
        "trade": None,
        "in_words": None,
    }
    if choice.best is None:
        return nothing
    best, least = candidates[choice.best], choice.least
    others = [
        candidates[place] for place in choice.order if choice.within[place] and place != choice.best
    ]
    if not others:
        return nothing | {
            "clear_winner": True,
            "cheapest": best.setting,
            "fastest": best.setting,
            "in_words": f"no other setting is {'known' if len(candidates) == 1 else 'within the limits'}",
        }
    if least == "weight" or best.ends(least)[2] is None:
        why = "a weight has no interval" if least == "weight" else "it has no interval"
        return nothing | {"in_words": f"whether it is clearly the best is not known: {why}"}
    rivals = [other for other in others if overlaps(other, best, least)]
    paid = "energy" if best.cost is None else "cost"
    if not rivals:
        text = f"a clear winner: its 90 % interval of the {IN_WORDS[least]} overlaps no other's"
        trade = _won(best, min([best, *others], key=lambda c: c.order("time")), paid)
        return nothing | {
            "clear_winner": True,
            "cheapest": best.setting,
            "fastest": best.setting,
            "trade": trade,
            "in_words": f"{text}; {trade}",
        }
    alike = [best, *rivals]
    cheapest = min(alike, key=lambda candidate: candidate.order(paid))
    fastest = min(alike, key=lambda candidate: candidate.order("time"))
    overlap = (
        f"the 90 % intervals of the {IN_WORDS[least]} of {counted(len(alike), 'setting')} overlap"
    )
    return {
        "clear_winner": False,
        "overlapping": [rival.setting for rival in rivals],
        "cheapest": cheapest.setting,
        "fastest": fastest.setting,
        "trade": None,
        "in_words": f"no clear winner: {overlap}; {_trade(cheapest, fastest, paid, currency)}",
    }


def _share_saved(one: Candidate, fastest: Candidate, paid: str) -> float | None:
    """Share that one saves of what the fastest costs; ``None`` where the two cannot be compared."""
    amount, spent = one.ends(paid)[0], fastest.ends(paid)[0]
    if amount is None or spent is None or steady(spent) <= 0:
        return None
    # What was measured and what was estimated cannot be compared.
    return 1 - amount / spent if fastest.source_of(paid) == one.source_of(paid) else None


def _won(best: Candidate, fastest: Candidate, paid: str) -> str:
    """What a clear winner saves, and how much longer it takes than the fastest."""
    if fastest is best:
        return "it is the fastest, too"
    longer = f"takes {digits(best.time_s / fastest.time_s)} times as long as the fastest, {fastest.setting}"
    saved = _share_saved(best, fastest, paid)
    if saved is None or saved < _SAME:
        return f"it {longer}"
    return f"it saves {percent(100 * saved)} of the {IN_WORDS[paid]} and {longer}"


def _trade(cheapest: Candidate, fastest: Candidate, paid: str, currency: str) -> str:
    """What the cheapest of some settings saves, and how much longer it takes than the fastest of them."""
    amount = cheapest.ends(paid)[0]
    if amount is None:
        return "what each costs is not known"
    source = cheapest.source_of(paid)
    text = estimated(amounts_of(paid, currency)(amount)[0], source)
    named = f"the cheapest of them is {cheapest.setting} ({text})"
    if fastest is cheapest:
        return f"{named}, and it is the fastest of them"
    longer = (
        f"takes {digits(cheapest.time_s / fastest.time_s)} times as long as the fastest of them"
    )
    saved = _share_saved(cheapest, fastest, paid)
    if saved is None:
        return f"{named}, and it {longer}, {fastest.setting}"
    if saved < _SAME:
        return f"{named}, and it {longer}, {fastest.setting}, which costs as much"
    share = f"{percent(100 * saved)} of the {IN_WORDS[paid]}"
    return f"{named}, which saves {share} and {longer}, {fastest.setting}"
