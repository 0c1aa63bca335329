"""What to change to save energy: the advice of :mod:`joulecast.planning` for every network, in sentences, and
its forecasts as points beside what was measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from joulecast.energy.prices import Prices
from joulecast.energy.scale import scale_in_words
from joulecast.errors import JoulecastError
from joulecast.planning.advise import advise
from joulecast.planning.choice import Limit
from joulecast.quantities import (
    NONE,
    consumptions,
    digits,
    is_number,
    percent,
    steady,
    times,
)
from joulecast.report.answers import (
    WAS_RUN,
    energy_is,
    paid_cells,
    paid_in_words,
    paid_names,
)
from joulecast.report.grid import Table
from joulecast.report.results_folder import NothingToShow, Results, having
from joulecast.report.tables.priced import work_in_words

_MOST_NETWORKS, _MOST_ROWS = 6, 40
_MOST_READ = 500
"""Records that are read for all advice together, some 20 ms each: all of them again for every network."""
_RESTS_ON = {
    "measured": WAS_RUN,
    "fitted": "forecast, fitted model",
    "simulated": "forecast, simulated",
}


@dataclass(frozen=True)
class Advice:
    """What to do about one network."""

    network: str
    sentences: list[str]
    verdict: str = ""
    measure_next: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    table: Table | None = None
    points: list[dict[str, Any]] = field(default_factory=list)


def advices(results: Results) -> list[Advice]:
    """Advice for every network of the campaign that asks for the least energy, as far as it can be given.

    Raises:
        NothingToShow: no training run is left, or the campaign is too large to look at while a page is made.
    """
    networks = min(_MOST_NETWORKS, _MOST_READ // max(1, len(results.record_folders)))
    if not networks:
        raise NothingToShow(
            f"{len(results.record_folders):,} records take too long to weigh here; ask for one network with "
            "the command below"
        )
    clean = results.clean
    if not results.record_folders:
        raise NothingToShow("the records that the advice rests on are not here", "measure")
    having(clean, ("workload", "platform"), "fits/observations.parquet", "fits")
    all_advice = []
    for row in (
        clean.sort_values("workload", kind="stable")
        .drop_duplicates("workload")
        .head(networks)
        .itertuples()
    ):
        name = str(row.workload)
        try:
            answer = advise(
                results.record_folders,
                str(row.network),
                Limit(),
                platform=str(row.platform),
                prices=results.prices,
            )
        except (JoulecastError, ValueError, KeyError) as error:
            all_advice.append(Advice(name, [f"No advice: {error}."]))
            continue
        all_advice.append(told_of(answer, name))
    return all_advice


def told_of(answer: Mapping[str, Any], name: str | None = None) -> Advice:
    """An answer of :func:`joulecast.planning.advise.advise` in sentences.

    Args:
        name: what to call the network, if not as the answer does.
    """
    network = name or str(answer["network"])
    best, candidates = answer.get("best"), answer.get("candidates") or []
    work = answer.get("work") or {}
    unit = str(work.get("unit") or "samples")
    prices = Prices(**(answer.get("prices") or {}))
    verdict = (answer.get("verdict") or {}).get("in_words")
    if best is None:
        sentences = [f"No setting can be recommended: {answer.get('why_none') or 'none is known'}."]
    else:
        sentences = list(_sentences(best, candidates, unit, prices))
        if verdict:
            verdict = f"{verdict[0].upper()}{verdict[1:]}."
            sentences.append(verdict)
        sentences.append(f"This rests on: {answer['rests_on']}.")
    return Advice(
        network,
        sentences,
        verdict if best is not None and verdict else "",
        [f"{step['what']}: {step['why']}" for step in answer.get("measure_next") or []],
        [str(warning) for warning in answer.get("warnings") or []],
        _table(network, candidates, unit, prices) if candidates else None,
        list(_points(network, candidates, unit)),
    )


def setting_of(candidate: Mapping[str, Any]) -> str:
    """Nodes, batch, strategy and power limit in words."""
    nodes = scale_in_words(candidate["nodes"], candidate.get("nodes_are"))
    batch = candidate.get("batch_size")
    limit = candidate.get("power_limit_w")
    parts = [f"on {nodes}", f"batch {digits(batch)}" if is_number(batch) else ""]
    strategy = str(candidate.get("strategy") or "node")
    # "one node" and "8 nodes" say nothing beside the node count.
    alone = any(unit in strategy for unit in ("node", "GPU", "rank"))
    parts.append("" if alone else strategy)
    parts.append(f"power limit {digits(limit)} W" if is_number(limit) else "")
    return ", ".join(part for part in parts if part)


def _energy_is(candidate: Mapping[str, Any]) -> str:
    if not is_number(candidate.get("energy_j")):
        return f"none: {candidate.get('why_no_energy') or 'no reason is known'}"
    if candidate.get("rests_on") == "simulated":
        return "simulated"
    return energy_is(str(candidate.get("energy_source")), candidate.get("rests_on") == "measured")


def _amount(candidate: Mapping[str, Any], quantity: str) -> tuple[str, str]:
    """A candidate's ``time`` or ``energy``, and its interval in the same unit."""
    unit, together = {"time": ("s", times), "energy": ("j", consumptions)}[quantity]
    value, low, high = together(
        *(candidate.get(f"{quantity}{end}_{unit}") for end in ("", "_low", "_high"))
    )
    return value, NONE if NONE in (low, high) else f"{low} to {high}"


def _interval(between: str) -> str:
    return "" if between == NONE else f"90 % between {between.replace(' to ', ' and ')}"


def _time(candidate: Mapping[str, Any]) -> str:
    value, between = _amount(candidate, "time")
    interval = _interval(between)
    return value + (f" ({interval})" if interval else "")


def _energy(candidate: Mapping[str, Any]) -> str:
    if not is_number(candidate.get("energy_j")):
        return f"no energy ({candidate.get('why_no_energy') or 'no reason is given'})"
    value, between = _amount(candidate, "energy")
    facts = [_energy_is(candidate), _interval(between)]
    return f"{value} ({'; '.join(fact for fact in facts if fact)})"


def _sentences(
    best: Mapping[str, Any],
    candidates: Sequence[Mapping[str, Any]],
    unit: str,
    prices: Prices,
) -> Iterator[str]:
    paid = paid_in_words(best, prices)
    costs = f" It costs {paid}." if paid else ""
    if is_number(best.get("energy_j")):
        taken = f"{_energy(best)} and {_time(best)} for {work_in_words(unit)}"
        yield f"Least energy: train {setting_of(best)}. That takes {taken}.{costs}"
    else:
        # Without energies the choice is by time.
        taken = f"{_time(best)} for {work_in_words(unit)}, with {_energy(best)}"
        yield f"Least time: train {setting_of(best)}. That takes {taken}.{costs}"
    fastest = min(candidates, key=lambda c: steady(c["time_s"]), default=best)
    if setting_of(fastest) == setting_of(best) and not is_number(best.get("energy_j")):
        return
    if setting_of(fastest) == setting_of(best):
        yield "It is the fastest known setting, too: there is nothing to give up for it."
        return
    both_j = [best.get("energy_j"), fastest.get("energy_j")]
    slower = digits(float(best["time_s"]) / float(fastest["time_s"]))
    alike = best.get("energy_source") == fastest.get("energy_source")
    if alike and all(is_number(energy) for energy in both_j):
        energy, spent = (float(energy or 0.0) for energy in both_j)
        yield (
            f"That saves {percent(100 * (1 - energy / spent))} of the energy of the fastest setting "
            f"({setting_of(fastest)}: {_energy(fastest)}, {_time(fastest)}), and takes {slower} "
            "times as long."
        )
    else:
        yield f"The fastest setting is {setting_of(fastest)}; this one takes {slower} times as long."


def _table(
    network: str, candidates: Sequence[Mapping[str, Any]], unit: str, prices: Prices
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
    return Table(f"{network}: settings weighed", columns, rows, frozenset(columns[1:5]))


def _rests_on(candidate: Mapping[str, Any]) -> str:
    rests = str(candidate.get("rests_on"))
    outside = candidate.get("extrapolation") or []
    return "; ".join([_RESTS_ON.get(rests, rests), *map(str, outside)])


def _points(
    network: str, candidates: Sequence[Mapping[str, Any]], unit: str
) -> Iterator[dict[str, Any]]:
    """Forecasts as points of the energy-time front; what was run is there already."""
    for one in candidates:
        if one.get("rests_on") != "measured" and is_number(one.get("energy_j")):
            yield {
                "workload": network,
                "setting": setting_of(one),
                "time_s": float(one["time_s"]),
                "energy_j": float(one["energy_j"]),
                "energy_source": str(one["energy_source"]),
                "unit": unit,
                "how": _RESTS_ON.get(str(one["rests_on"]), "forecast"),
                "between": _amount(one, "energy")[1],
            }


def shared_warnings(advised: Sequence[Advice]) -> list[str]:
    """What to beware of in all of them, each warning once."""
    return list(dict.fromkeys(warning for one in advised for warning in one.warnings))
