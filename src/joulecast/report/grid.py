"""A table of a page, as text."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table of the page: ``rows`` are of text; ``numeric`` columns are set to the right; ``file`` is the
    table of the results, without suffix, that its numbers come from."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numeric: frozenset[str] = frozenset()
    file: str | None = None

    @property
    def aligned(self) -> list[tuple[str, bool]]:
        """Columns with whether they are numeric."""
        return [(column, column in self.numeric) for column in self.columns]
