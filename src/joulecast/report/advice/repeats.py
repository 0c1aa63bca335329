"""What runs of exactly a setting say of it: their mean, and how far one run lies from another."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import stdtrit

CELL = ["platform", "workload", "nodes", "batch"]
"""What makes runs repeats of one setting."""

ESTIMATED = "estimated"


def unmixed(training: pd.DataFrame) -> pd.DataFrame:
    """Training runs without the estimated energies of a platform that also has others.

    Estimates and measurements are never averaged: where a platform has both, the estimates go.
    """
    estimated = training["energy_source"] == ESTIMATED
    other = training["energy_source"].notna() & ~estimated & training["energy_j"].notna()
    both = estimated & other.groupby(training["platform"]).transform("any")
    if not both.any():
        return training
    return training.assign(
        energy_j=training["energy_j"].mask(both),
        energy_source=training["energy_source"].mask(both),
        why_no_energy=training["why_no_energy"].mask(
            both, "other runs on this platform are metered, and estimates are not mixed with them"
        ),
    )


def per_work(training: pd.DataFrame) -> pd.DataFrame:
    """``time_s`` and ``energy_j`` of one step; of imported runs, of one unit of their work."""
    imported = training["kind"] == "imported"
    divisor = training["steps"].mask(imported, training["samples"]).astype(float)
    return pd.DataFrame(
        {"time_s": training["total_s"] / divisor, "energy_j": training["energy_j"] / divisor}
    )


@dataclass(frozen=True)
class Spread:
    """Standard deviation of the logarithm of a quantity between repeats, pooled over settings."""

    sd: float
    freedom: int

    def sides(self, runs: int) -> tuple[float, float] | None:
        """Half widths of the logarithm's 90 % interval for one more run, after the mean of ``runs``;
        ``None`` for a setting that was not repeated."""
        if self.freedom < 1 or runs < 2:
            return None
        half = float(stdtrit(self.freedom, 0.95)) * self.sd * float(np.sqrt(1 + 1 / runs))
        return half, half


def spread_of(training: pd.DataFrame, quantity: str) -> Spread:
    """The spread between repeats of ``time_s`` or ``energy_j``, over all settings that have any."""
    values = np.log(per_work(training)[quantity].where(lambda v: v > 0))
    cells = values.groupby([training[key] for key in CELL], dropna=False)
    counts, squares = cells.count(), cells.var(ddof=1) * (cells.count() - 1)
    freedom = int((counts - 1).clip(lower=0).sum())
    if freedom < 1:
        return Spread(float("nan"), 0)
    return Spread(float(np.sqrt(squares.sum() / freedom)), freedom)
