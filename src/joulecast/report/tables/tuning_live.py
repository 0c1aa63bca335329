"""The table of a training that was tuned live."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.report.tables.output import write_table


def live_table(record: Mapping[str, Any]) -> pd.DataFrame:
    """A row a recurrence of a training that was tuned live."""
    return pd.DataFrame(record["recurrences"])


def write_live_table(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the table of the training that was tuned live."""
    reached = sum(bool(row["reached"]) for row in record["recurrences"])
    metered = sum(row["energy_j"] is not None for row in record["recurrences"])
    write_table(
        folder / "tuning_live",
        f"Tuned live: {record['network']} on digits",
        [
            f"Measured here: {len(record['recurrences'])} recurrences of a training to an accuracy of "
            f"{record['target_accuracy']:g} on the test split, policy {record['policy']}; {reached} reached "
            f"it, in {record['training_s']:.1f} s of training altogether.",
            f"The cost is in {record['cost_unit']}. The energy of {metered} of the recurrences is known"
            + (f"; elsewhere: {record['why_no_energy']}." if record["why_no_energy"] else "."),
            *record["notes"],
        ],
        live_table(record),
    )
