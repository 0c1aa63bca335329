"""Slower nodes on fast cores: padding that gives every node count the same node speed.

Ranks that share cores would make a node slower the more nodes there are. So one rank of the host first
measures compute and update alone on a free machine, and then every rank stretches each of its own to
``nodes_per_core`` times that. A stage that took longer all the same (the cores were not enough) is
an overrun, and its share is kept in the record.
"""

import time


class NodeSpeed:
    """How long the stages of an emulated node last; without emulation it pads nothing."""

    def __init__(self, nodes_per_core: int = 1) -> None:
        self.nodes_per_core = nodes_per_core
        self.reference_s: dict[str, float] = {}
        self._padded = self._overran = 0

    def pad(self, stage: str, started: float, share: float = 1.0) -> None:
        """Sleep until ``stage``, begun at ``started``, has lasted as long as on an emulated node.

        Args:
            share: this rank's work in units of the reference's (batches that differ by a sample).
        """
        if stage not in self.reference_s:
            return
        due = started + self.reference_s[stage] * share * self.nodes_per_core
        now = time.monotonic()
        self._padded += 1
        # A millisecond is what the sleep itself is off by.
        self._overran += now > due + 1e-3
        time.sleep(max(0.0, due - now))

    def restart_count(self) -> None:
        """Forget the overruns so far (those of the warm-up)."""
        self._padded = self._overran = 0

    @property
    def overrun_fraction(self) -> float | None:
        """Share of the padded stages that took longer than they should; ``None`` if none was padded."""
        return self._overran / self._padded if self._padded else None
