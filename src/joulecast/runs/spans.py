"""Spans of time: functions that subtract, intersect and join them, and measure their length."""

from collections.abc import Sequence

Span = tuple[float, float]
"""Start and stop, in s of one clock."""


def subtract(intervals: Sequence[Span], holes: Sequence[Span]) -> list[Span]:
    """The part of ``intervals`` that lies outside of ``holes``, sorted."""
    left = []
    for start, stop in sorted(intervals):
        at = start
        for hole_start, hole_stop in sorted(holes):
            if hole_stop <= at or hole_start >= stop:
                continue
            if hole_start > at:
                left.append((at, hole_start))
            at = max(at, hole_stop)
        if at < stop:
            left.append((at, stop))
    return left


def union(intervals: Sequence[Span]) -> list[Span]:
    """The intervals, sorted. Overlapping intervals are joined."""
    joined: list[Span] = []
    for start, stop in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return joined


def intersection(intervals: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """The time that lies in both lists of intervals, as sorted, disjoint intervals."""
    return subtract(union(intervals), subtract(union(intervals), union(others)))


def length(intervals: Sequence[Span]) -> float:
    """Total seconds of disjoint intervals."""
    return sum(stop - start for start, stop in intervals)
