"""The advised settings, and the cost of the settings that were run, as tables."""

from collections.abc import Sequence

import pandas as pd

from joulecast.energy.forecast import Note, texts_of, work_of
from joulecast.energy.prices import Prices
from joulecast.quantities import (
    NONE,
    amount,
    consumptions,
    consumptions_of,
    digits,
    joules,
    listed,
    percent,
    seconds,
)
from joulecast.report.campaign import COSTS, Advised, work_in_words
from joulecast.report.forecast_lines import energy_is, in_words, paid_cells
from joulecast.report.page_table import Amounts, Table
from joulecast.runs.json_values import json_rows
from joulecast.runs.scale import hosts_and_gpus, scales_are

_MOST_NAMED = 3
_HOW_SURE = {
    True: "Clear winner for {}.",
    False: "No clear winner for {}: the 90 % intervals of several settings overlap.",
    None: "For {}, the runs do not tell whether another setting is better.",
}


def headline(advised: Sequence[Advised]) -> tuple[str, str]:
    """One line that says which setting to take, and how sure this is."""
    answers = [(one.label, one.answer) for one in advised if one.answer and one.answer["best"]]
    if not answers:
        return "No setting can be recommended yet", ""
    chosen: dict[str, list[str]] = {}
    how_sure: dict[bool | None, list[str]] = {}
    for label, answer in answers:
        chosen.setdefault(answer["best"]["setting"], []).append(label)
        how_sure.setdefault(answer["verdict"]["clear_winner"], []).append(label)
    named = [f"{setting} for {listed(labels, _MOST_NAMED)}" for setting, labels in chosen.items()]
    if len(named) > _MOST_NAMED:
        named[_MOST_NAMED:] = [f"{len(named) - _MOST_NAMED} more"]
    least = sorted({answer["limit"]["in_words"] for _, answer in answers})
    sure = " ".join(
        words.format(listed(how_sure[clear], _MOST_NAMED))
        for clear, words in _HOW_SURE.items()
        if clear in how_sure
    )
    return f"Take {'; '.join(named)}: the lowest expected {listed(least)}", sure


def cautions(notes: Sequence[str], advised: Sequence[Advised]) -> list[str]:
    """Warnings that a reader must know before using the numbers. Each names its networks.

    Args:
        notes: notes of the forecast. If there are any, warnings of the advice that begin with the name of its
            network are left out, because they repeat these notes.
    """
    of_advice = [
        Note(one.name, f"{one.name}: {warning.removeprefix(f'{one.name}: ')}")
        for one in advised
        if one.answer is not None
        for warning in one.answer["warnings"]
        if not notes or not warning.startswith((f"{one.name}: ", f"{one.name} on "))
    ]
    return [*notes, *texts_of(of_advice)]


def short_table(advised: Sequence[Advised], prices: Prices) -> Table | None:
    """The setting to take, in a row for each network; ``None`` if none can be named."""
    rows, amounts, works, least = [], [], [], []
    for one in advised:
        answer = one.answer
        if answer is None or answer["best"] is None:
            continue
        best, work, unit = answer["best"], answer["work"]["samples"], answer["work"]["unit"]
        works.append(amount(work, unit))
        least.append(answer["limit"]["in_words"])
        rows.append(
            {
                "network": one.label,
                "setting": best["setting"],
                "energy": in_words(best, "energy", consumptions),
                "energy is": energy_is(best),
                **paid_cells(best, prices),
                "time": in_words(best, "time"),
                "verdict": answer["verdict"]["in_words"] or "",
            }
        )
        in_steps = one.has_steps and unit == "samples"
        amounts.append(
            Amounts.of(
                best,
                work=work,
                unit=unit,
                batch=best["batch_size"] if in_steps else None,
                nodes=best["hosts"],
                gpus=best["gpus"],
            )
        )
    if not rows:
        return None
    caption = (
        f"Which setting to take, for {' or '.join(dict.fromkeys(works))}: the one with the lowest expected "
        f"{listed(list(dict.fromkeys(least)))}. In brackets: 90 % intervals"
    )
    cells = [tuple(row.values()) for row in rows]
    return Table(caption, tuple(rows[0]), cells, amounts=amounts)


def settings_table(costs: pd.DataFrame, prices: Prices) -> Table:
    """A row for each network and node count: time, energy, its source, joules per sample, and MC2's error.

    Args:
        costs: the table of :func:`joulecast.report.campaign.costs`.
    """
    ones = " or ".join(unit.removesuffix("s") for unit in sorted(set(costs["unit"])))
    works = sorted({work_in_words(unit) for unit in costs["unit"]})
    # If a value is the same in all rows, only the caption has it.
    shared = works[0] if len(works) == 1 else ""
    off = {
        f"{what} off by (held out)": f"{what}_off_percent"
        for what in ("time", "energy")
        if costs[f"{what}_off_percent"].notna().any()
    }
    rows, amounts, in_joules = [], [], consumptions_of(costs["energy_j"])
    for row in json_rows(costs):
        source = NONE if row["energy_source"] is None else str(row["energy_source"])
        why = f"none: {row['why']}" if source == NONE and row["why"] else source
        per_one_j = row["energy_j"] and row["energy_j"] / work_of(row["unit"])
        per_one = {"for": work_in_words(row["unit"]), f"energy per {ones}": joules(per_one_j)}
        rows.append(
            {
                "network": str(row["workload"]),
                scales_are(costs["nodes_are"]): str(row["nodes"]),
                "energy": in_joules(row["energy_j"])[0],
                "energy is": why,
                **paid_cells(row, prices, with_interval=False),
                "time": seconds(row["time_s"]),
                **({} if shared else per_one),
                **{name: percent(row[column], signed=True) for name, column in off.items()},
                "batch of all nodes": digits(row["batch"]),
                "runs": str(row["runs"]),
            }
        )
        amounts.append(
            Amounts.of(
                row,
                work=work_of(row["unit"]),
                unit=row["unit"],
                batch=row["batch"] if row["has_steps"] else None,
                **dict(zip(("nodes", "gpus"), hosts_and_gpus(row), strict=True)),
            )
        )
    caption = "Cost of the settings that were run" + (f", for {shared}" if shared else "")
    if paid_by := prices.in_words():
        caption = f"{caption} (prices: {paid_by})"
    numeric = frozenset(rows[0]) - {"network", "energy is"}
    cells = [tuple(row.values()) for row in rows]
    return Table(caption, tuple(rows[0]), cells, numeric, COSTS, amounts)
