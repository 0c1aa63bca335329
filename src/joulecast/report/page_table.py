"""A table of a page, as text. Its rows also have amounts. From them, the page computes the costs of the
reader's own work."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from joulecast.runs.json_values import json_value

_ENDS = ("", "_low", "_high")


@dataclass(frozen=True)
class Amounts:
    """Time and energy of a setting for its work. From them, the page computes the costs of the reader's own
    work and prices.

    Attributes:
        time_s, energy_j: the expected values, and the ends of their intervals.
        work: in ``unit``.
        batch: batch of all nodes, if the work is a number of whole steps. ``None``: time and energy grow in
            proportion to the work.
        nodes, gpus: numbers in use, if they are known.
        is_estimated: whether the energy rests on an estimated power.
    """

    time_s: tuple[float | None, ...]
    energy_j: tuple[float | None, ...]
    work: float
    unit: str
    batch: float | None
    nodes: float | None = None
    gpus: float | None = None
    is_estimated: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any], **known: Any) -> "Amounts":
        """The amounts (time, energy, intervals) of a row. The row has ``energy_source``, ``time_s``,
        ``energy_j`` and the ends of their intervals, as in forecasts."""
        time_s, energy_j = (
            tuple(row.get(f"{name}{end}_{unit}") for end in _ENDS)
            for name, unit in (("time", "s"), ("energy", "j"))
        )
        is_estimated = "estimated" in str(row["energy_source"])
        return cls(time_s, energy_j, is_estimated=is_estimated, **known)

    def as_json(self) -> str:
        """All attributes as JSON. A number that is not known is ``null``."""
        return json.dumps(json_value(asdict(self)))


@dataclass(frozen=True)
class Table:
    """A table of the page.

    ``rows`` are texts. ``numeric`` columns are aligned to the right. ``file`` is the table in the results
    from which the numbers come, without suffix. ``amounts`` may have, for each row, the numbers behind its
    texts in the columns ``time``, ``energy``, ``cost`` and ``CO2e``.
    """

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numeric: frozenset[str] = frozenset()
    file: str | None = None
    amounts: Sequence[Amounts] = ()

    @property
    def aligned(self) -> list[tuple[str, bool]]:
        """Pairs: each column, and whether it is numeric."""
        return [(column, column in self.numeric) for column in self.columns]
