"""The part of a node that a meter covers, in one word. This module imports nothing, because the sampler has
to start quickly in each run."""

from typing import Literal

Covers = Literal["node", "module", "socket", "gpu", "cpu", "memory"]
"""The part of a node whose power a meter counts: the whole node; a module of CPU, memory and GPU; a
processor's socket with its memory; or one of these parts."""
