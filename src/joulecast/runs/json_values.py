"""Converts tables to plain data for JSON. A number that is not known is ``None``."""

import math
from typing import Any

import numpy as np
import pandas as pd


def json_value(value: Any) -> Any:
    """The value, converted to Python numbers and strings, also inside of dictionaries and lists. A number
    that is not finite becomes ``None``."""
    if isinstance(value, dict):
        return {key: json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(inner) for inner in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def json_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A dictionary for each row."""
    rows = table.astype(object).to_dict("records")
    return [{str(key): json_value(value) for key, value in row.items()} for row in rows]
