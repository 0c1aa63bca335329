"""A job of an experiment and its answer, in the one format that both experiments use, and which iterations of
it do not count, as something disturbed them."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from joulecast.simulate.judged.results import Frozen

Row = dict[str, Any]
"""One iteration: what was measured, and its values by column."""
Answer = dict[str, list[Row]]
"""The rows that a job has measured, by table (:class:`joulecast.simulate.judged.results.IterationTable`)."""
LATE_S = 0.005
"""A sleeping rank that notices the end of its computing later than this was disturbed."""
WAITING = 0.03
"""A computing rank without a core for more than this share was disturbed, if that is longer than its clock
of CPU time is off by."""
OTHERS = 0.2
"""Ranks that compute are disturbed by other processes with more cores than this: their memory traffic."""
_WAITING_S = 5e-5
_LONG_S = 0.1


class Job(Frozen):
    """One launch of MPI; each experiment adds what its ranks are to do.

    ``repeat`` tells a second measurement of the same thing (A/A) from the first.
    """

    name: str
    ranks: int = Field(ge=1)
    repeat: int = Field(0, ge=0)
    warm_up: int = Field(2, ge=0)
    iterations: int = Field(ge=1)

    def digest(self) -> str:
        """SHA-256 of the value."""
        return hashlib.sha256(
            json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()
        ).hexdigest()


def is_disturbed(row: Mapping[str, Any]) -> bool:
    """Whether an iteration was disturbed.

    The load of others is not judged where ranks sleep: they have real-time priority. On two cores of which
    others already wanted 1 to 1.8, two more busy processes changed no median of three configurations by more
    than repeats without them differed (0.8 %).

    Args:
        row: has ``late_s`` where ranks sleep; ``seconds``, ``waited_share`` and ``other_cores`` where they
            compute.
    """
    if "late_s" in row:
        return bool(row["late_s"] > LATE_S)
    waited = row["waited_share"]
    # The clocks and ticks are too coarse to judge a few milliseconds.
    is_long = row["seconds"] >= _LONG_S
    return bool(
        (waited > WAITING and waited * row["seconds"] > _WAITING_S)
        or (is_long and row["other_cores"] > OTHERS)
    )
