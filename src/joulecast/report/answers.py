"""The answers in numbers: what settings cost, and what their energies are."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from joulecast.energy.forecast import work_of
from joulecast.energy.plain import plain_rows
from joulecast.energy.prices import Prices, co2_text, cost_columns, cost_text
from joulecast.quantities import (
    NONE,
    consumptions_of,
    counted,
    digits,
    joules,
    listed,
    percent,
    seconds,
)
from joulecast.report.grid import SHOWS, Amounts, Table
from joulecast.report.held_out import unseen_energies, unseen_times
from joulecast.report.results_folder import COSTS, NothingToShow, Results
from joulecast.report.tables.priced import work_done, work_in_words
from joulecast.runs.observations import is_training
from joulecast.runs.scale import hosts_and_gpus, scale_in_words, scales_are

WAS_RUN = "was run"
"""How a setting is known that is no forecast."""


def why_no_energy(results: Results) -> str:
    """Reason why no run has an energy, as the records have it."""
    reasons = results.observations.get("why_no_energy", pd.Series(dtype=object)).dropna()
    text = listed(sorted(set(map(str, reasons))), 3)
    return f"no run has an energy ({text})" if text else "no run has an energy"


_SCALE = ("ranks_per_host", "accelerators_per_node")


def costs(results: Results) -> pd.DataFrame:
    """A row a setting: means over its runs of ``time_s`` and ``energy_j`` for the work of
    :func:`~joulecast.report.tables.priced.work_in_words`, and their kWh, money and CO2.

    ``time_off_percent`` and ``energy_off_percent`` are MC2's errors where it had not seen the setting.

    Raises:
        NothingToShow: no training run is left.
    """
    clean = results.clean
    unit = clean["work_unit"]
    ours = (clean["kind"] == "training") & clean["batch"].gt(0) & (unit == "samples")
    batches = clean["batch"].where(ours)
    done = [work_done(*each) for each in zip(unit, batches, strict=True)]
    parts = clean["samples"].where(clean["samples"] > 0) / done
    # Columns that only some kinds of runs have.
    clean = clean.reindex(columns=[*dict.fromkeys([*clean.columns, *_SCALE])])
    priced = clean.assign(
        unit=unit,
        time_s=clean["total_s"] / parts,
        work_j=clean["energy_j"].astype(float) / parts,
        has_steps=ours,
        energy_source=clean["energy_source"].where(clean["energy_j"].notna()),
        why=clean.get("why_no_energy"),
    )
    by = ["platform", "workload", "network", "nodes", "nodes_are", "batch", "energy_source", "unit"]
    table = (
        priced.groupby(by, dropna=False, sort=True)
        .agg(
            ranks_per_host=("ranks_per_host", "first"),
            accelerators_per_node=("accelerators_per_node", "first"),
            runs=("run", "count"),
            samples=("samples", "mean"),
            run_s=("total_s", "mean"),
            run_j=("energy_j", "mean"),
            time_s=("time_s", "mean"),
            has_steps=("has_steps", "all"),
            energy_j=("work_j", "mean"),
            why=("why", "first"),
        )
        .reset_index()
    )
    table = table.astype({"run_j": float, "energy_j": float})
    return table.join(cost_columns(table, results.prices)).assign(**_errors(results, table))


def _errors(results: Results, table: pd.DataFrame) -> dict[str, list[float | None]]:
    """Columns of how far MC2 was off where it had not seen the setting."""
    try:
        times = _by_setting(unseen_times(results))
    except NothingToShow:
        times = {}
    energies = {source: _by_setting(cells) for source, cells in unseen_energies(results)}
    settings = table[["platform", "network", "nodes", "batch"]].itertuples(index=False, name=None)
    keys = [_key(*setting) for setting in settings]
    of_source = [energies.get(source, {}) for source in table["energy_source"]]
    return {
        "time_off_percent": [times.get(key) for key in keys],
        "energy_off_percent": [cells.get(key) for cells, key in zip(of_source, keys, strict=True)],
    }


def _known_costs(results: Results) -> pd.DataFrame:
    """The table of :func:`costs` that the rule ``advice`` wrote."""
    if COSTS not in results.tables:
        raise NothingToShow("no training run is left", "measure")
    return results.tables[COSTS]


def energy_is(source: str, was_run: bool) -> str:
    """What to call an energy: its source, or that it is a forecast and made from what."""
    return source if was_run else f"forecast from {source} energy"


def nodes_in_words(nodes: int, nodes_are: Any = None) -> str:
    """``on 1 node``, ``on 4 nodes``; ``on 4 GPUs`` or ``on 4 ranks`` where the records count these."""
    return f"on {scale_in_words(nodes, nodes_are)}"


def measured_points(results: Results) -> pd.DataFrame:
    """Settings that were run, as points: ``workload``, ``setting``, ``time_s`` and ``energy_j`` for the work
    that :func:`work_in_words` says of ``unit``, ``energy_source``, and ``how`` it is known.

    Raises:
        NothingToShow: no training run is left.
    """
    table = _known_costs(results)
    setting = [
        nodes_in_words(row.nodes, row.nodes_are)
        + ("" if pd.isna(row.batch) else f", batch {digits(row.batch)}")
        for row in table.itertuples()
    ]
    table = table.assign(setting=setting, how=WAS_RUN, between=NONE)
    kept = ["workload", "setting", "time_s", "energy_j", "energy_source", "unit", "how", "between"]
    return table[kept]


def _key(*setting: Any) -> tuple[Any, ...]:
    """A setting to look up: a batch that no log tells is NaN, which is not equal to itself."""
    return tuple(None if pd.isna(value) else value for value in setting)


def _by_setting(cells: pd.DataFrame) -> dict[tuple[Any, ...], float]:
    """Errors of settings that no fit had seen."""
    cells = cells[cells["split"] != "in-sample"]
    keys = cells[["platform", "network", "nodes", "batch"]].itertuples(index=False, name=None)
    return dict(
        zip((_key(*key) for key in keys), cells["difference_percent"].astype(float), strict=True)
    )


def settings_table(results: Results) -> Table:
    """Networks by node counts: time, energy with its source, joules a sample, and how wrong MC2 was.

    Raises:
        NothingToShow: no training run is left.
    """
    table = _known_costs(results)
    ones = " or ".join(unit.removesuffix("s") for unit in sorted(set(table["unit"])))
    paid = paid_names(results.prices)
    works = sorted({work_in_words(unit) for unit in table["unit"]})
    # What is the same in all rows stands in the caption alone.
    shared = works[0] if len(works) == 1 else ""
    columns = (
        *("network", scales_are(table["nodes_are"]), "energy", "energy is", *paid, "time"),
        *(() if shared else ("for", f"energy per {ones}")),
        *("time off by (held out)", "energy off by (held out)", "batch of all nodes", "runs"),
    )
    rows, in_joules = [], consumptions_of(table["energy_j"])
    for row, money in zip(table.itertuples(), plain_rows(table), strict=True):
        source = NONE if pd.isna(row.energy_source) else str(row.energy_source)
        why = f"none: {row.why}" if source == NONE and isinstance(row.why, str) else source
        rows.append(
            (
                *(str(row.workload), str(row.nodes), *in_joules(row.energy_j), why),
                *paid_cells(money, results.prices, with_interval=False),
                seconds(row.time_s),
                *(() if shared else _of_work(row)),
                percent(row.time_off_percent, signed=True),
                percent(row.energy_off_percent, signed=True),
                *(digits(row.batch), str(row.runs)),
            )
        )
    numeric = frozenset(columns) - {"network", "energy is"}
    caption = "What the settings cost that were run" + (f", for {shared}" if shared else "")
    paid_by = results.prices.in_words()
    if paid_by:
        caption = f"{caption} (prices: {paid_by})"
    amounts = [
        Amounts.of(
            row,
            row["energy_source"],
            work=work_of(row["unit"]),
            unit=row["unit"],
            batch=row["batch"] if row["has_steps"] else None,
            **dict(zip(("nodes", "gpus"), hosts_and_gpus(row), strict=True)),
        )
        for row in plain_rows(table)
    ]
    return Table(caption, columns, rows, numeric, COSTS, amounts, SHOWS)


def _of_work(row: Any) -> tuple[str, str]:
    return work_in_words(row.unit), joules(row.energy_j / work_of(row.unit))


def paid_names(prices: Prices) -> list[str]:
    """Columns of money and CO2 that there are numbers for."""
    return ["cost"] * prices.known + ["CO2e"] * (prices.co2 is not None)


def paid_cells(row: Mapping[str, Any], prices: Prices, with_interval: bool = True) -> list[str]:
    """Money and CO2 of a row in words, in the columns of :func:`paid_names`."""
    texts = {
        "cost": cost_text(row, prices.currency, with_interval),
        "CO2e": co2_text(row, with_interval),
    }
    return [texts[name] for name in paid_names(prices)]


def left_out_sentence(results: Results) -> str:
    """How many training runs no number rests on; empty where all count."""
    runs = results.observations
    trained = runs[is_training(runs)]
    without = int((trained["polluted"] != "").sum())
    if not without:
        return ""
    return f"{without} of {counted(len(trained), 'training run')} are left out of all numbers."


def source_sentences(results: Results) -> list[str]:
    """Whether energies were measured or estimated, and how many runs of each."""
    trained = results.observations[is_training(results.observations)]
    counts = trained["energy_source"].value_counts()
    sentences = [
        f"{ENERGY_IS.get(str(s), str(s))} ({counted(int(n), 'run')})." for s, n in counts.items()
    ]
    by_others = int((trained["kind"] == "imported").sum())
    for number, whose in ((by_others, " by others and imported"), (len(trained) - by_others, "")):
        if number:
            sentences.insert(0, f"Times were measured{whose} ({counted(number, 'run')}).")
    dark = int(trained["energy_source"].isna().sum())
    if dark:
        why = why_no_energy(results).removeprefix("no run has an energy").strip(" ()")
        sentences.append(
            f"{counted(dark, 'run')} without any energy" + (f": {why}." if why else ".")
        )
    return sentences or ["There is no training run."]


ENERGY_IS = {
    "measured": "Energy was measured by a meter of the nodes",
    "recorded": "Energy was measured elsewhere and kept as data",
    "imported": "Energy was measured by others and imported",
    "simulated": "Energy was simulated, not measured",
    "estimated": "Energy was estimated from utilisation and the watts in the platform's file; no meter "
    "measured it",
}
"""What the source of an energy means."""
