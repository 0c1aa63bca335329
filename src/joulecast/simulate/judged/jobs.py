"""A job of an experiment and its answer, in the one format that both experiments use."""

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

Row = dict[str, Any]
"""One iteration: what was measured, and its values by column."""
Answer = dict[str, list[Row]]
"""The rows that a job has measured, by table (:class:`joulecast.simulate.judged.results.Table`)."""


class Frozen(BaseModel):
    """A value that JSON can hold and that does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def digest(self) -> str:
        """SHA-256 of everything in it."""
        return hashlib.sha256(
            json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()
        ).hexdigest()


class StepConfiguration(Frozen):
    """A step of training; each experiment adds how it is done."""

    name: str = Field(pattern=r"^[a-z0-9_-]+$")
    family: str


class Job(Frozen):
    """One launch of MPI; each experiment adds what its ranks are to do.

    ``repeat`` tells a second measurement of the same thing (A/A) from the first.
    """

    name: str
    ranks: int = Field(ge=1)
    repeat: int = Field(0, ge=0)
    warm_up: int = Field(2, ge=0)
    iterations: int = Field(ge=1)
