"""Printed texts compared: words as they are, numbers with tolerance."""

import re
from itertools import zip_longest

import pytest

_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)")


def assert_alike(printed: str, shown: str) -> None:
    """Check that a text says what another one does: word by word, and numbers within 2 %.

    Counts below 50 are equal then. Last digits depend on the processor, and on them the width of columns.
    """
    lines, expected = ([line.split() for line in text.splitlines()] for text in (printed, shown))
    for said, written in zip_longest(lines, expected, fillvalue=[]):
        words, numbers = zip(*(_apart(each) for each in (said, written)), strict=True)
        assert words[0] == words[1], (
            f"{' '.join(said)!r} is printed, {' '.join(written)!r} is shown"
        )
        assert numbers[0] == pytest.approx(numbers[1], rel=0.02), " ".join(said)


def _apart(words: list[str]) -> tuple[str, list[float]]:
    """A line's words with their numbers left open, and the numbers."""
    line = " ".join(words)
    numbers = [float(number.replace(",", "")) for number in _NUMBER.findall(line)]
    return _NUMBER.sub("#", line), numbers
