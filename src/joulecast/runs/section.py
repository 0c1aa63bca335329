"""What a section of the configuration is: keys with bounds; a room's own section lies in that room."""

from collections.abc import ValuesView
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

_LONGEST_NAME = 255
_LARGEST = 10**12
"""Largest number in a configuration, as needed for sizes in bytes."""


class Section(BaseModel):
    """A section of keys; others are refused."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _possible(cls, value: Any) -> Any:
        values = value.values() if isinstance(value, dict) else value
        for each in values if isinstance(values, list | tuple | ValuesView) else [values]:
            if isinstance(each, int | float) and abs(each) > _LARGEST:
                raise ValueError(f"{str(each)[:20]} is more than any campaign can have")
            if isinstance(each, str) and max(map(len, each.split("/"))) > _LONGEST_NAME:
                raise ValueError("is too long for the name of a file")
        return value
