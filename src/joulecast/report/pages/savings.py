"""Which setting to take: the answers of :mod:`joulecast.report.advice` for each network, with their verdicts,
and their forecasts as points next to what was measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from joulecast.energy.forecast import work_of
from joulecast.energy.prices import NO_PRICES, Prices
from joulecast.quantities import (
    NONE,
    consumptions,
    counted,
    digits,
    is_number,
    listed,
    times,
    with_range,
)
from joulecast.report.advice.choice import IN_WORDS
from joulecast.report.advice.request import AdviceRequest
from joulecast.report.answers import WAS_RUN, energy_is, paid_cells, paid_names
from joulecast.report.grid import SHOWS, Amounts, Table
from joulecast.report.results_folder import Results
from joulecast.report.tables.priced import work_in_words

_MOST_ROWS, _MOST_NAMED = 40, 3
_DAY_S = 86400.0
_RESTS_ON = {
    "measured": WAS_RUN,
    "fitted": "forecast, fitted model",
    "simulated": "forecast, simulated",
}


@dataclass(frozen=True)
class Advice:
    """What to do about one network.

    Attributes:
        clear: whether there is a clear winner; ``None`` where no interval says so, or nothing is known.
        setting: what to take, in words, as the command chooses it.
        asked: the options of the command that gives this advice.
        least: what is to be least.
        label: what charts call it, if not as the campaign does.
        trade: what a clear winner saves, and how much longer it takes than the fastest.
        alone: whether no other setting is known.
        batches: how many batches of a rank were weighed.
        unit: what work is counted in.
        rows: of the short table, each of the cells that :func:`short_table` names.
        amounts: of these rows.
    """

    network: str
    sentences: list[str]
    clear: bool | None = None
    setting: str | None = None
    least: str = "energy"
    rows: list[tuple[str, ...]] = field(default_factory=list)
    amounts: list[Amounts] = field(default_factory=list)
    measure_next: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    table: Table | None = None
    points: list[dict[str, Any]] = field(default_factory=list)
    prices: Prices = NO_PRICES
    label: str = ""
    work: str = ""
    trade: str = ""
    alone: bool = False
    asked: AdviceRequest | None = None
    batches: int = 0
    unit: str = "samples"

    @property
    def name(self) -> str:
        """What charts call it."""
        return self.label or self.network


def advices(results: Results) -> list[Advice]:
    """The advice that the rule ``advice`` wrote for every network of the campaign.

    Raises:
        NothingToShow: there is none.
    """
    return [_advice(one) for one in results.answer("advice")]


def _advice(one: Mapping[str, Any]) -> Advice:
    if "why_none" in one:
        return Advice(one["name"], [f"No advice: {one['why_none']}."], label=one["label"])
    advice = advice_of(one["answer"], one["name"], has_steps=one["has_steps"])
    return replace(advice, label=one["label"], asked=AdviceRequest(**one["request"]))


def advice_of(
    answer: Mapping[str, Any], name: str | None = None, *, has_steps: bool = True
) -> Advice:
    """An answer of :func:`joulecast.report.advice.advise.advise` in sentences and tables.

    Args:
        name: what to call the network, if not as the answer does.
        has_steps: whether the work is whole steps of the batch.
    """
    network = name or str(answer["network"])
    best, candidates = answer.get("best"), answer.get("candidates") or []
    unit = str((answer.get("work") or {}).get("unit") or "samples")
    prices = Prices(**(answer.get("prices") or {}))
    verdict = answer.get("verdict") or {}
    known: dict[str, Any] = {
        "measure_next": [
            f"{step['what']}: {step['why']}" for step in answer.get("measure_next") or []
        ],
        "warnings": [str(warning) for warning in answer.get("warnings") or []],
        "table": _table(network, candidates, unit, prices, has_steps) if candidates else None,
        "points": list(_points(network, candidates, unit, best)),
        "prices": prices,
        "work": work_in_words(unit),
        "trade": verdict.get("trade") or "",
        "alone": len(candidates) == 1,
        "batches": len({one.get("batch_per_rank") for one in candidates}),
        "unit": unit,
    }
    if best is None:
        why = answer.get("why_none") or "none is known"
        return Advice(network, [f"No setting can be recommended: {why}."], **known)
    clear = verdict.get("clear_winner")
    least = str((answer.get("limit") or {}).get("objective") or "energy")
    named = {one["setting"]: one for one in candidates}
    fastest = named.get(verdict.get("fastest"), best)
    cheapest = named.get(verdict.get("cheapest"), best)
    alike = 1 + len(verdict.get("overlapping") or [])
    taken = {"": best}
    if clear is False:
        taken = {"the fastest": fastest, "the cheapest": cheapest, "the choice": best}
    words = verdict.get("in_words")
    sentences = [f"{words[0].upper()}{words[1:]}."] if words else []
    by = (answer.get("limit") or {}).get("judged_by")
    judged = [f"Judged by {by}."] if by else []
    if len(candidates) == 1:
        short = "no other setting is known"
    elif clear is None:
        short = f"least expected {IN_WORDS[least]}; no interval says how sure"
    else:
        short = f"clear winner: least {IN_WORDS[least]}"
    if clear is False:
        short = f"no clear winner: {counted(alike, 'setting')} overlap"
    # One row where the cheapest of those that overlap is the fastest, too.
    rows: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
    for which, one in reversed(taken.items()):
        rows.setdefault(one["setting"], (one, []))[1].append(which)
    return Advice(
        network,
        [*sentences, *judged, f"This rests on: {answer['rests_on']}."],
        clear,
        best["setting"],
        least,
        [
            _short_row(
                one, f"{short}; {' and '.join(which)} of these" if which[0] else short, prices, unit
            )
            for one, which in rows.values()
        ],
        [_amounts(one, unit, has_steps) for one, _ in rows.values()],
        **known,
    )


def _amounts(one: Mapping[str, Any], unit: str, has_steps: bool) -> Amounts:
    return Amounts.of(
        one,
        one.get("energy_source"),
        work=work_of(unit),
        unit=unit,
        batch=one.get("batch_size") if has_steps and unit == "samples" else None,
        nodes=one.get("hosts"),
        gpus=one.get("gpus"),
    )


def _short_row(one: Mapping[str, Any], verdict: str, prices: Prices, unit: str) -> tuple[str, ...]:
    energy = with_range(*_ends(one, "energy")) if is_number(one.get("energy_j")) else "none"
    return (
        *(str(one["setting"]), energy, _energy_is(one), *paid_cells(one, prices)),
        *(with_range(*_ends(one, "time")), _in_a_day(one, unit), verdict),
    )


def _in_a_day(one: Mapping[str, Any], unit: str) -> str:
    """The work that a setting does in a day, with its interval: the longest time does the least."""
    ends = (one.get(f"time{end}_s") for end in ("", "_high", "_low"))
    return with_range(*(digits(work_of(unit) * _DAY_S / end) if end else NONE for end in ends))


def short_table(advised: Sequence[Advice]) -> Table | None:
    """Which setting to take, a row or two a network; ``None`` where none can be named."""
    units = list(dict.fromkeys(one.unit for one in advised if one.rows))
    if not units:
        return None
    each = {unit: f" {unit}" if len(units) > 1 else "" for unit in units}
    rows = [
        (one.name, *row[:-2], f"{row[-2]}{each[one.unit]}", row[-1])
        for one in advised
        for row in one.rows
    ]
    paid = paid_names(advised[0].prices)
    columns = ("network", "setting", "energy", "energy is", *paid, "time")
    columns += (f"{units[0] if len(units) == 1 else 'work'} in a day", "verdict")
    work = " or ".join(dict.fromkeys(one.work for one in advised if one.rows))
    first = listed(list(dict.fromkeys(IN_WORDS[one.least] for one in advised if one.rows)))
    caption = (
        f"Which setting to take, for {work}; first the one whose {first} is expected to be least; in "
        "brackets: 90 % intervals"
    )
    amounts = [each for one in advised for each in one.amounts]
    return Table(caption, columns, rows, amounts=amounts, shows=SHOWS)


def headline(advised: Sequence[Advice]) -> tuple[str, str]:
    """What costs least in a line, and a line on what to take where there is no clear winner."""
    alone = [one for one in advised if one.alone]
    clear = [one for one in advised if one.clear and not one.alone]
    even = [one for one in advised if one.clear is False]
    bare = [one for one in advised if one.clear is None and one.setting and not one.alone]
    parts = []
    if clear:
        won = [f"{one.name} on {one.setting}" for one in clear[:_MOST_NAMED]]
        more = [f"{len(clear) - _MOST_NAMED} more"] if len(clear) > _MOST_NAMED else []
        parts.append(f"Least {clear[0].least}: {'; '.join([*won, *more])}")
    if even:
        names = listed([one.name for one in even], _MOST_NAMED)
        parts.append(f"No clear winner for {names}: 90 % intervals of the {even[0].least} overlap")
    if bare:
        named = "; ".join(f"{one.name} on {one.setting}" for one in bare[:_MOST_NAMED])
        parts.append(f"Least expected {bare[0].least}: {named}")
    trades = [f"{one.name}: {one.trade}." for one in clear[:_MOST_NAMED] if one.trade]
    if alone:
        named = "; ".join(f"{one.name} on {one.setting}" for one in alone[:_MOST_NAMED])
        (trades if parts else parts).append(f"Only one setting was run: {named}")
    if not parts:
        return "No setting can be recommended yet", ""
    chosen: dict[str, list[str]] = {}
    for one in even:
        chosen.setdefault(str(one.setting), []).append(one.name)
    take = "; ".join(
        setting if len(names) == len(advised) else f"{setting} for {listed(names, _MOST_NAMED)}"
        for setting, names in chosen.items()
    )
    if take:
        trades.append(f"Least {even[0].least} is expected of {take}.")
    return ". ".join(parts), " ".join(trades)


def setting_of(candidate: Mapping[str, Any]) -> str:
    """The setting of a candidate as part of a sentence."""
    limit = candidate.get("power_limit_w")
    return f"on {candidate['setting']}" + (f", power limit {limit:g} W" if is_number(limit) else "")


def _energy_is(candidate: Mapping[str, Any]) -> str:
    if not is_number(candidate.get("energy_j")):
        return f"none: {candidate.get('why_no_energy') or 'no reason is known'}"
    if candidate.get("rests_on") == "simulated":
        return "simulated"
    return energy_is(str(candidate.get("energy_source")), candidate.get("rests_on") == "measured")


def _ends(candidate: Mapping[str, Any], quantity: str) -> list[str]:
    """A candidate's ``time`` or ``energy`` and the ends of its interval, all in one unit."""
    unit, together = {"time": ("s", times), "energy": ("j", consumptions)}[quantity]
    return together(*(candidate.get(f"{quantity}{end}_{unit}") for end in ("", "_low", "_high")))


def _amount(candidate: Mapping[str, Any], quantity: str) -> tuple[str, str]:
    """A candidate's ``time`` or ``energy``, and its interval in the same unit."""
    value, low, high = _ends(candidate, quantity)
    return value, NONE if NONE in (low, high) else f"{low} to {high}"


def _table(
    network: str,
    candidates: Sequence[Mapping[str, Any]],
    unit: str,
    prices: Prices,
    has_steps: bool,
) -> Table:
    time = f"time for {work_in_words(unit)}"
    columns = (
        *("setting", time, "time, 90 % between"),
        *("energy", "energy, 90 % between", "energy is", *paid_names(prices), "rests on"),
    )
    rows = [
        (
            *(setting_of(one), *_amount(one, "time")),
            *(*_amount(one, "energy"), _energy_is(one)),
            *(*paid_cells(one, prices), _rests_on(one)),
        )
        for one in candidates[:_MOST_ROWS]
    ]
    amounts = [_amounts(one, unit, has_steps) for one in candidates[:_MOST_ROWS]]
    shows = SHOWS | {
        **{time: "time alone", "time, 90 % between": "time between"},
        **{"energy": "energy alone", "energy, 90 % between": "energy between"},
    }
    numeric = frozenset(columns[1:5])
    caption = f"{network}: settings weighed"
    return Table(caption, columns, rows, numeric, amounts=amounts, shows=shows)


def _rests_on(candidate: Mapping[str, Any]) -> str:
    rests = str(candidate.get("rests_on"))
    outside = candidate.get("extrapolation") or []
    return "; ".join([_RESTS_ON.get(rests, rests), *map(str, outside)])


def _points(
    network: str,
    candidates: Sequence[Mapping[str, Any]],
    unit: str,
    best: Mapping[str, Any] | None,
) -> Iterator[dict[str, Any]]:
    """All candidates with an energy as points of the energy-time front."""
    for one in candidates:
        if is_number(one.get("energy_j")):
            yield {
                "workload": network,
                "setting": setting_of(one),
                "time_s": float(one["time_s"]),
                "energy_j": float(one["energy_j"]),
                "energy_low_j": one.get("energy_low_j"),
                "energy_high_j": one.get("energy_high_j"),
                "energy_source": str(one["energy_source"]),
                "unit": unit,
                "how": _RESTS_ON.get(str(one["rests_on"]), "forecast"),
                "between": _amount(one, "energy")[1],
                "chosen": best is not None and one["setting"] == best["setting"],
            }


def shared_warnings(advised: Sequence[Advice]) -> list[str]:
    """What to beware of in all of them, each warning once."""
    return list(dict.fromkeys(warning for one in advised for warning in one.warnings))
