"""Emulated slower nodes: stages are padded so that nodes have the same speed at every node count.

Without padding, ranks that share cores would be slower the more nodes there are. So one rank of the host
first times compute and update alone on a free machine. Then all ranks extend each of these stages to
``nodes_per_core`` times that. A stage that still took longer, for want of cores, is an overrun; the record
has the share of overruns.
"""

import time


class NodeSpeed:
    """The durations of an emulated node's stages; without emulation nothing is padded."""

    def __init__(self, nodes_per_core: int = 1) -> None:
        self.nodes_per_core = nodes_per_core
        self.reference_s: dict[str, float] = {}
        self._padded = self._overran = 0

    def pad(self, stage: str, started: float, share: float = 1.0) -> None:
        """Sleep until ``stage``, begun at ``started``, has lasted as long as on an emulated node.

        Args:
            share: this rank's work relative to the reference (batches may differ by a sample).
        """
        if stage not in self.reference_s:
            return
        due = started + self.reference_s[stage] * share * self.nodes_per_core
        now = time.monotonic()
        self._padded += 1
        # Sleep itself is inexact by a millisecond.
        self._overran += now > due + 1e-3
        time.sleep(max(0.0, due - now))

    def restart_count(self) -> None:
        """Discard the overruns so far (those of the warm-up)."""
        self._padded = self._overran = 0

    @property
    def overrun_fraction(self) -> float | None:
        """Share of the padded stages that took longer than they should; ``None`` if none was padded."""
        return self._overran / self._padded if self._padded else None
