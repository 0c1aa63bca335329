"""Which energies of runs may be compared: those of the same parts of their nodes."""

import numpy as np
import pandas as pd

from joulecast.runs.table import ENERGIES


def with_comparable_energies(rows: pd.DataFrame) -> pd.DataFrame:
    """Observations of which each platform's energies are of the same parts, as ``node`` or ``gpu+cpu``.

    A node's meter may fail in one run or be too slow for a short one, so that its parts count there. Such a
    run has no energy but the reason, where most runs of its platform have energies of something else; of as
    many, ``node`` counts before its parts. Runs that do not say what their energy is of are left as they are.

    Args:
        rows: those of :func:`joulecast.runs.observations.observe`.
    """
    if "energy_covers" not in rows or "energy_j" not in rows:
        return rows
    known = rows[rows["energy_covers"].notna() & rows["energy_j"].notna()]
    energies = [name for name in ENERGIES if name in rows]
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
