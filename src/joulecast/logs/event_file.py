"""Event files of TensorBoard, as PyTorch writes them: when each step of a training was logged.

A file is a row of records: 8 bytes that say how long the record is, 4 bytes of checksum, the record, and
4 bytes of checksum. A record is a message of protobuf (TensorFlow's ``event.proto`` and ``summary.proto``).
"""

import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import read_bytes

_HEAD, _TAIL = 12, 4
"""Bytes around a record."""
_TIME, _STEP, _SUMMARY = 1, 2, 5
_VALUE = 1
_TAG, _NUMBER = 1, 2
"""Fields of an event, of its summary, and of a value of that."""
_FIXED = {1: 8, 5: 4}
"""Bytes of a field, by its wire type."""


def read_events(file: Path) -> list[tuple[int, float]]:
    """Step and time (s since 1970) of the events of one scalar: the one that was logged most often.

    A record that is cut short at the end belongs to a training that was stopped, or that still runs.

    Raises:
        JoulecastError: the file is no event file, or has no scalars.
    """
    by_tag: dict[str, list[tuple[int, float]]] = defaultdict(list)
    try:
        for record in _records(read_bytes(file, "event file of TensorBoard")):
            event = dict(_fields(record))
            for name, value in _fields(event.get(_SUMMARY, b"")):
                scalar = dict(_fields(value)) if name == _VALUE else {}
                if _NUMBER in scalar:
                    (t_s,) = struct.unpack("<d", event[_TIME])
                    by_tag[scalar[_TAG].decode()].append((event.get(_STEP, 0), t_s))
    except (IndexError, KeyError, TypeError, AttributeError, ValueError, struct.error):
        raise JoulecastError(f"{file}: is no event file of TensorBoard, or is damaged") from None
    if not by_tag:
        raise JoulecastError(f"{file}: has no scalars, as torch.utils.tensorboard writes them")
    return max(sorted(by_tag.items()), key=lambda tag: len(tag[1]))[1]


def _records(content: bytes) -> Iterator[bytes]:
    at = 0
    while at + _HEAD <= len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        start = at + _HEAD
        at = start + size + _TAIL
        if at <= len(content):
            yield content[start : start + size]


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a message: a whole number, or bytes."""
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
