"""Measurements that ranks hand to rank 0 for the record; loaded by every rank, so without pandas."""

from dataclasses import dataclass
from typing import Any

from joulecast.measure.power.run_clock import RunClock
from joulecast.measure.power.samples import Left
from joulecast.measure.training.stage_clock import Intervals


@dataclass
class Measured:
    """Start and stop of a run on this host's clock, and the fields of the record that the run decides."""

    start: float
    stop: float
    outcome: dict[str, Any]
    checks: dict[str, Any]
    info: dict[str, Any]


@dataclass
class FromRank:
    """Measurements that one rank hands to rank 0; ``sampled`` comes from one rank of each host.

    Times of ``intervals`` are on the host's clock, ``start_s`` and ``stop_s`` on the run's.
    """

    node: str
    host: str
    host_node: str
    clock: RunClock
    start_s: float
    stop_s: float
    intervals: Intervals
    peak_rss_bytes: int
    oversubscribed: bool
    sampled: Left | None
    fingerprint: dict[str, Any]
    scheduler_node: str | None
