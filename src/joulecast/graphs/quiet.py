"""Whether a core is as fast as it can be: a neighbour on the same physical core halves it unseen.

On a rented machine another guest may use the same physical core or its caches. Nothing in this system tells:
the process has its core all the time, and everything takes up to twice as long, for tenths of a second or for
minutes. A small matrix product of known duration does tell.
"""

import time

import torch

SLOWED = 0.1
"""A probe that took this share longer than on a quiet core marks what was measured beside it."""
_PAUSE_S = 0.005
_SIZE, _PRODUCTS = 320, 4


class SpeedProbe:
    """Times a small matrix product, some 3 ms; it fits a core's own cache and leaves the others alone."""

    def __init__(self) -> None:
        self._a, self._b = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
        self._out = torch.empty(_SIZE, _SIZE)

    def seconds(self) -> float:
        """How long it takes now, with its matrices in the core's cache."""
        torch.mm(self._a, self._b, out=self._out)
        start = time.perf_counter()
        for _ in range(_PRODUCTS):
            torch.mm(self._a, self._b, out=self._out)
        return time.perf_counter() - start

    def quietest(self, seconds: float) -> float:
        """The least that it takes while one tries for so long."""
        end, best = time.perf_counter() + seconds, self.seconds()
        while time.perf_counter() < end:
            best = min(best, self.seconds())
        return best

    def wait(self, quiet_s: float, patience_s: float) -> None:
        """Return when the core is as fast as in ``quiet_s``, twice in a row, or patience ends."""
        end, quiet = time.perf_counter() + patience_s, 0
        while quiet < 2 and time.perf_counter() < end:
            quiet = quiet + 1 if self.seconds() <= quiet_s * (1 + SLOWED) else 0
            if not quiet:
                time.sleep(_PAUSE_S)
