"""Event files of TensorBoard, as PyTorch writes them: when each step of a training was logged.

A file is a row of records: 8 bytes that say how long the record is, 4 bytes of checksum, the record, and
4 bytes of checksum. A record is a message of protobuf (TensorFlow's ``event.proto`` and ``summary.proto``).
"""

import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.logs.protobuf import read_fields
from joulecast.runs.files.reading import read_bytes

_HEAD, _TAIL = 12, 4
"""Bytes around a record."""
_TIME, _STEP, _SUMMARY = 1, 2, 5
_VALUE = 1
_TAG, _NUMBER = 1, 2
"""Fields of an event, of its summary, and of a value of that."""


def read_events(file: Path) -> list[tuple[int, float]]:
    """Step and time (s since 1970) of the events of one scalar: the one that was logged most often.

    A record that is cut short at the end belongs to a training that was stopped, or that still runs.

    Raises:
        JoulecastError: the file is no event file, or has no scalars.
    """
    by_tag: dict[str, list[tuple[int, float]]] = defaultdict(list)
    try:
        for record in _records(read_bytes(file, "event file of TensorBoard")):
            event = dict(read_fields(record))
            for name, value in read_fields(event.get(_SUMMARY, b"")):
                scalar = dict(read_fields(value)) if name == _VALUE else {}
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
