"""What to change to save energy: the advice of :mod:`joulecast.planning` for every network, in sentences, and
its forecasts as points beside what was measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.pages.answers import WAS_RUN, energy_is, work_of, work_told
from joulecast.pages.results import NothingToShow, Results, having
from joulecast.pages.words import NONE, Table, counted, digits, is_number, joules, percent, seconds
from joulecast.planning.advise import advise
from joulecast.planning.limits import Limit

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
    units = {info.spec.run: info.spec.foreign for info in results.infos}
    having(clean, ("workload", "platform"), "fits/observations.parquet", "fits")
    told = []
    for row in (
        clean.sort_values("workload").drop_duplicates("workload").head(networks).itertuples()
    ):
        foreign = units.get(row.run)
        unit = foreign.work_unit if foreign else "samples"
        name = str(row.workload)
        try:
            answer = advise(
                results.record_folders,
                str(row.network),
                Limit(energy_weight=1.0),
                platform=str(row.platform),
                samples=work_of(unit),
            )
        except (JoulecastError, ValueError, KeyError) as error:
            told.append(Advice(name, [f"No advice: {error}."]))
            continue
        told.append(told_of(answer, name))
    return told


def told_of(answer: Mapping[str, Any], name: str | None = None) -> Advice:
    """An answer of :func:`joulecast.planning.advise.advise` in sentences.

    Args:
        name: what to call the network, if not as the answer does.
    """
    network = name or str(answer["network"])
    best, candidates = answer.get("best"), answer.get("candidates") or []
    work = answer.get("work") or {}
    unit = str(work.get("unit") or "samples")
    if best is None:
        sentences = [f"No setting can be recommended: {answer.get('why_none') or 'none is known'}."]
    else:
        sentences = list(_sentences(best, candidates, unit))
        sentences.append(f"This rests on: {answer['rests_on']}.")
    return Advice(
        network,
        sentences,
        [f"{step['what']}: {step['why']}" for step in answer.get("measure_next") or []],
        [
            str(warning)
            for warning in answer.get("warnings") or []
            if "times that of the longest" not in warning
        ],
        _table(network, candidates, unit) if candidates else None,
        list(_points(network, candidates, unit)),
    )


def setting_of(candidate: Mapping[str, Any]) -> str:
    """Nodes, batch and power limit in words."""
    nodes = counted(int(candidate["nodes"]), "node")
    batch = candidate.get("batch_size")
    limit = candidate.get("power_limit_w")
    parts = [f"on {nodes}", f"batch {digits(batch)}" if is_number(batch) else ""]
    parts.append(f"power limit {digits(limit)} W" if is_number(limit) else "")
    return ", ".join(part for part in parts if part)


def _energy_is(candidate: Mapping[str, Any]) -> str:
    if not is_number(candidate.get("energy_j")):
        return f"none: {candidate.get('why_no_energy') or 'no reason is told'}"
    if candidate.get("rests_on") == "simulated":
        return "simulated"
    return energy_is(str(candidate.get("energy_source")), candidate.get("rests_on") == "measured")


def _between(candidate: Mapping[str, Any]) -> str:
    low, high = candidate.get("energy_low_j"), candidate.get("energy_high_j")
    return f"{joules(low)} to {joules(high)}" if is_number(low) and is_number(high) else NONE


def _energy(candidate: Mapping[str, Any]) -> str:
    if not is_number(candidate.get("energy_j")):
        return f"no energy ({candidate.get('why_no_energy') or 'no reason is told'})"
    between = _between(candidate)
    interval = "" if between == NONE else f"; 90 % between {between.replace(' to ', ' and ')}"
    return f"{joules(candidate['energy_j'])} ({_energy_is(candidate)}{interval})"


def _sentences(
    best: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]], unit: str
) -> Iterator[str]:
    word = "Least energy" if is_number(best.get("energy_j")) else "Best known"
    yield (
        f"{word}: train {setting_of(best)}. That takes {_energy(best)} and {seconds(best['time_s'])} for "
        f"{work_told(unit)}."
    )
    fastest = min(candidates, key=lambda c: float(c["time_s"]), default=best)
    if setting_of(fastest) == setting_of(best):
        yield "It is the fastest known setting, too: there is nothing to give up for it."
        return
    energies = [best.get("energy_j"), fastest.get("energy_j")]
    slower = digits(float(best["time_s"]) / float(fastest["time_s"]))
    alike = best.get("energy_source") == fastest.get("energy_source")
    if alike and all(is_number(energy) for energy in energies):
        energy, spent = (float(energy or 0.0) for energy in energies)
        yield (
            f"That saves {percent(100 * (1 - energy / spent))} of the energy of the fastest setting "
            f"({setting_of(fastest)}: {_energy(fastest)}, {seconds(fastest['time_s'])}), and takes {slower} "
            "times as long."
        )
    else:
        yield f"The fastest setting is {setting_of(fastest)}; this one takes {slower} times as long."


def _table(network: str, candidates: Sequence[Mapping[str, Any]], unit: str) -> Table:
    time = f"time for {work_told(unit)}"
    columns = ("setting", time, "energy", "90 % between", "energy is", "rests on")
    rows = [
        (
            *(setting_of(one), seconds(one["time_s"]), joules(one.get("energy_j"))),
            *(_between(one), _energy_is(one), _rests_on(one)),
        )
        for one in candidates[:_MOST_ROWS]
    ]
    return Table(f"{network}: settings weighed", columns, rows, frozenset(columns[1:4]))


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
                "between": _between(one),
            }


def shared_warnings(advised: Sequence[Advice]) -> list[str]:
    """What to beware of in all of them, each warning once."""
    return list(dict.fromkeys(warning for one in advised for warning in one.warnings))
