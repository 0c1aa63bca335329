"""Tables as plain data: what JSON can hold, where a number that is not known is ``None``."""

import math
from typing import Any

import numpy as np
import pandas as pd


def plain(value: Any) -> Any:
    """A Python number, string or ``None`` for what is not finite."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def plain_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """One dictionary a row."""
    rows = table.astype(object).to_dict("records")
    return [{str(key): plain(value) for key, value in row.items()} for row in rows]
