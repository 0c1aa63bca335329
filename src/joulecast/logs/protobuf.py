"""Reads messages of protobuf without their schema: numbers and values of their fields."""

from collections.abc import Iterator
from typing import Any

_FIXED = {1: 8, 5: 4}
"""Bytes of a field, by its wire type."""


def read_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a message: a whole number, or bytes.

    Raises:
        IndexError, KeyError: the bytes are no message.
    """
    at = 0
    while at < len(message):
        key, at = _whole(message, at)
        if key & 7 == 0:
            value, at = _whole(message, at)
            yield key >> 3, value
            continue
        size, at = _whole(message, at) if key & 7 == 2 else (_FIXED[key & 7], at)
        if at + size > len(message):
            raise IndexError
        yield key >> 3, message[at : at + size]
        at += size


def _whole(message: bytes, at: int) -> tuple[int, int]:
    """A whole number of seven bits a byte, and where the next field begins."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (message[at + shift // 7] & 127) << shift
        if message[at + shift // 7] < 128:
            return value, at + shift // 7 + 1
    raise IndexError
