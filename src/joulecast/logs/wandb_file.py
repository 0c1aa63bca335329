"""Runs of W&B that were logged offline (``run-ID.wandb``): when each step of a training was logged.

A file has 7 bytes in front, and then records in the format of LevelDB's log: blocks of 32 KiB with parts of
records. A part has a checksum (4 bytes), its size (2) and its place in the record (1). A record is a message
of protobuf (``wandb_internal.proto``).
"""

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.logs.protobuf import read_fields
from joulecast.runs.files.reading import read_bytes

_START = b":W&B"
_FRONT, _BLOCK, _HEAD = 7, 32768, 7
_WHOLE, _LAST = 1, 4
"""Places of a part: it is the whole record, or the last part of one."""
_HISTORY, _ITEM = 2, 1
_KEY, _NESTED_KEY, _VALUE = 1, 2, 16
"""Fields of a record, of its history (what a call of ``log`` wrote), and of an item of that."""
_STEPS = ("train/global_step", "trainer/global_step", "_step")
"""What counts the steps. ``_step`` counts calls of ``log``, so Hugging Face's Trainer and Lightning log a
count of their own."""


def read_wandb(file: Path) -> list[tuple[int, float]]:
    """Step and time (s since 1970) of the calls that logged one scalar: the one that was logged most often.

    A record that is cut short at the end belongs to a training that was stopped, or that still runs.

    Raises:
        JoulecastError: the file is no run of W&B, or has no scalars.
    """
    by_scalar: dict[str, list[tuple[int, float]]] = defaultdict(list)
    try:
        for logged in _logged(read_bytes(file, "run of W&B")):
            step = next((logged[name] for name in _STEPS if name in logged), None)
            if step is None:
                continue
            for name, value in logged.items():
                if (
                    not name.startswith("_")
                    and name not in _STEPS
                    and isinstance(value, int | float)
                ):
                    by_scalar[name].append((int(step), float(logged["_timestamp"])))
    except (IndexError, KeyError, TypeError, AttributeError, ValueError, struct.error):
        raise JoulecastError(f"{file}: is no offline run of W&B, or is damaged") from None
    if not by_scalar:
        raise JoulecastError(f"{file}: has no scalars, as wandb.log writes them")
    return max(sorted(by_scalar.items()), key=lambda scalar: len(scalar[1]))[1]


def _logged(content: bytes) -> Iterator[dict[str, Any]]:
    """What each call of ``log`` wrote, by name."""
    if not content.startswith(_START):
        raise ValueError
    for record in _records(content):
        for number, history in read_fields(record):
            if number == _HISTORY:
                yield dict(_item(item) for field, item in read_fields(history) if field == _ITEM)


def _item(message: bytes) -> tuple[str, Any]:
    fields = list(read_fields(message))
    names = [value.decode() for number, value in fields if number in (_KEY, _NESTED_KEY)]
    return ".".join(names), json.loads(dict(fields)[_VALUE])


def _records(content: bytes) -> Iterator[bytes]:
    at, record = _FRONT, b""
    while at + _HEAD <= len(content):
        if at % _BLOCK > _BLOCK - _HEAD:
            # No part begins in the last bytes of a block.
            at += _BLOCK - at % _BLOCK
            continue
        _, size, place = struct.unpack_from("<IHB", content, at)
        at += _HEAD
        record += content[at : at + size]
        at += size
        if place in (_WHOLE, _LAST) and at <= len(content):
            yield record
            record = b""
