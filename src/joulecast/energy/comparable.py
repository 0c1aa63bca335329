"""Which energies of runs may be compared: those of the same parts of their nodes, by meters that agree."""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from joulecast.energy.metered_power import counted_power
from joulecast.quantities import counted
from joulecast.records.meter_comparison import (
    MOST_APART_PERCENT,
    comparisons_of,
    meter_warnings,
)
from joulecast.records.metering import host_of
from joulecast.records.record import RunRecord


def with_comparable_energies(rows: pd.DataFrame) -> pd.DataFrame:
    """Observations of which each platform's energies are of the same parts, as ``node`` or ``gpu+cpu``.

    A node's meter may fail in one run or be too slow for a short one, so that its parts count there. Such a
    run has no energy but the reason, where most runs of its platform have energies of something else; of as
    many, ``node`` counts before its parts. Runs that do not say what their energy is of are left as they are.

    Args:
        rows: those of :func:`joulecast.energy.observations.observe`.
    """
    if "energy_covers" not in rows or "energy_j" not in rows:
        return rows
    known = rows[rows["energy_covers"].notna() & rows["energy_j"].notna()]
    energies = [c for c in rows if c == "energy_j" or re.fullmatch(r"e_\w+_j|\w+ing_j", str(c))]
    changed = rows
    for _, of_platform in known.groupby(["platform", "energy_source"], sort=True):
        counts = of_platform["energy_covers"].value_counts()
        if len(counts) < 2:
            continue
        usual = min(counts.index, key=lambda c: (-counts[c], c != "node", c))
        others = of_platform.index[of_platform["energy_covers"] != usual]
        changed = changed.copy() if changed is rows else changed
        changed.loc[others, "why_no_energy"] = [
            f"its energy is of {covers}, that of most runs of {usual}"
            for covers in of_platform.loc[others, "energy_covers"]
        ]
        changed.loc[others, energies] = np.nan
        changed.loc[others, ["energy_source", "energy_covers"]] = None
    return changed


def doubtful_meters(record: RunRecord, folder: Path) -> str:
    """What a comparison of meters found wrong with those that a run's energy is made of; empty: nothing.

    Args:
        folder: of the record: comparisons lie in a folder ``meters`` near it
            (:func:`~joulecast.records.meter_comparison.comparisons_of`).

    Raises:
        JoulecastError: a comparison is broken; names it.
    """
    warnings = meter_warnings(comparisons_of(folder))
    if not warnings or record.info.spec.kind == "imported":
        return ""
    metering, _ = counted_power(record)
    if metering.source != "measured":
        return ""
    used = {(host_of(meter.node), meter.meter) for meter in metering.meters}
    found = [w.text for w in warnings if used & {(w.node, name) for name in w.meters}]
    return "; ".join(dict.fromkeys(found))


def meter_notes(observations: pd.DataFrame) -> list[str]:
    """What a reader must know of the meters that energies rest on; empty where nothing is known against them.

    Args:
        observations: those of :func:`joulecast.energy.observations.observe_all`.
    """
    if not {"meters_doubtful", "energy_j", "polluted"} <= {*observations}:
        return []  # fits of an earlier version
    used = observations[(observations["polluted"] == "") & observations["energy_j"].notna()]
    doubtful = used[used["meters_doubtful"].fillna("") != ""]
    if doubtful.empty:
        return []
    found = dict.fromkeys(doubtful["meters_doubtful"])
    return [
        f"Meters: the energy of {len(doubtful)} of {counted(len(used), 'run')} is of meters that failed or "
        f"are more than {MOST_APART_PERCENT:g} % apart, as `joulecast meters --compare` found: "
        f"{'; '.join(found)}. These joules may be wrong by as much."
    ]
