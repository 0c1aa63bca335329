"""What a sampler has read: its readings and its host's activity, from the file that it wrote."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulecast.errors import JoulecastError
from joulecast.files.blocks import BlockReader
from joulecast.power.host_activity import ACTIVITY, WORK
from joulecast.power.meters import READING

SAMPLES = ".samples"
"""End of the names of files of samples."""

_LATE_S = 15.0
"""Time in which what another host wrote is seen on a shared file system."""

Floats = NDArray[np.float64]
Block = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Facts and columns of a few seconds; a fact of a later block takes the place of an earlier one."""


@dataclass
class Samples:
    """Readings and activity of one host, times in s of its monotonic clock.

    Attributes:
        facts: of the meters and of the sampler, as they were written last.
        readings: of each meter, :data:`~joulecast.power.meters.READING` by (readings,), NaN for no figure.
        activity: of each node, :data:`~joulecast.power.host_activity.ACTIVITY` by (rows,).
        work: :data:`~joulecast.power.host_activity.WORK` by (rows,).
        died: reason why the sampler did not end in order.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    readings: list[Floats] = field(default_factory=list)
    activity: dict[str, Floats] = field(default_factory=dict)
    work: Floats = field(default_factory=lambda: np.empty((len(WORK), 0)))
    died: str | None = None

    @property
    def meters(self) -> list[dict[str, Any]]:
        """A row a meter: what it is, how many reads ``failed``, and ``fault``: why it failed for good."""
        facts = self.facts
        rows = zip(
            facts.get("meters", ()), facts.get("failed", ()), facts.get("faults", ()), strict=True
        )
        return [meter | {"failed": failed, "fault": fault} for meter, failed, fault in rows]

    @property
    def absent(self) -> list[dict[str, str]]:
        """Meters that could not be opened, with reason and remedy."""
        return list(self.facts.get("absent", ()))

    @property
    def missed_deadlines(self) -> int:
        """Readings that were skipped, as the one before took too long."""
        return int(self.facts.get("missed_deadlines", 0))

    @property
    def programs(self) -> list[str]:
        """Names of the busiest other programs."""
        return list(self.facts.get("programs", ()))

    @property
    def span_s(self) -> tuple[float, float] | None:
        """Times of the first and the last look at the host; ``None`` if there was none."""
        return (float(self.work[0, 0]), float(self.work[0, -1])) if self.work.size else None


def collected(blocks: Iterable[Block], died: str | None = None) -> Samples:
    """All blocks of one sampler as one."""
    facts: dict[str, Any] = {}
    parts: dict[str, list[Floats]] = {}
    for new, columns in blocks:
        facts |= new
        for name, values in columns.items():
            parts.setdefault(name, []).append(np.asarray(values, dtype=float))

    def table(of: str, columns: tuple[str, ...]) -> Floats:
        rows = [np.concatenate(parts.get(f"{of}.{name}", [np.empty(0)])) for name in columns]
        return np.array(rows)

    return Samples(
        facts,
        [table(f"power.{index}", READING) for index in range(len(facts.get("meters", ())))],
        {
            node: table(f"activity.{index}", ACTIVITY)
            for index, node in enumerate(facts.get("nodes", ()))
        },
        table("work", WORK),
        died,
    )


@dataclass(frozen=True)
class Left:
    """What a sampler has left: the file, the kinds of meters it was to read, and why it died, if it did.

    ``is_whole``: the sampler has been stopped. The file of one that was killed with the run is read as it is.
    """

    path: Path
    meters: tuple[str, ...]
    died: str | None = None
    is_whole: bool = True

    def samples(self) -> Samples:
        """The samples; a sampler that read nothing gives its reason for each kind of meter."""
        if not self.is_whole:
            return collected(BlockReader(self.path).new())
        until_s = time.monotonic() + _LATE_S
        reader = BlockReader(self.path)
        blocks: list[Block] = []
        while True:
            try:
                blocks += reader.new()
            except JoulecastError:
                if self.died is None and time.monotonic() > until_s:
                    raise
            has_end = bool(blocks) and blocks[-1][0].get("ended", False)
            if has_end or self.died is not None or time.monotonic() > until_s:
                break
            time.sleep(0.1)
        died = self.died
        if died is None and not has_end:
            died = f"the power sampler's file {self.path} has no end"
        found = collected(blocks, died)
        if died is not None and not found.meters:
            remedy = "see what it printed in the log of the run"
            found.facts["absent"] = [
                {"meter": name, "reason": died, "remedy": remedy} for name in self.meters
            ]
        return found
