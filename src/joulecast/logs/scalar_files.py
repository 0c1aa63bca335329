"""Binary logs of scalars: when each step of a training was logged to TensorBoard, or offline to W&B.

An event file of TensorBoard, as PyTorch writes it, is a row of records: 8 bytes that say how long the record
is, 4 bytes of checksum, the record, and 4 bytes of checksum. A record is a message of protobuf (TensorFlow's
``event.proto`` and ``summary.proto``).

An offline run of W&B (``run-ID.wandb``) has 7 bytes in front, and then records in the format of LevelDB's
log: blocks of 32 KiB with parts of records. A part has a checksum (4 bytes), its size (2) and its place in
the record (1). A record is a message of protobuf (``wandb_internal.proto``).

A record that is cut short at the end belongs to a training that was stopped, or that still runs.
"""

import json
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import read_bytes

Scalar = tuple[str, int, float]
"""Name, step and time (s since 1970)."""

_HEAD, _TAIL = 12, 4
"""Bytes before and after each record of an event file."""
_TIME, _STEP, _SUMMARY = 1, 2, 5
_OF_SUMMARY = 1
_TAG, _NUMBER = 1, 2
"""Numbers of fields. ``_TIME``, ``_STEP`` and ``_SUMMARY`` are fields of an event, ``_OF_SUMMARY`` of its
summary, ``_TAG`` and ``_NUMBER`` of a value in the summary."""
_START = b":W&B"
_FRONT, _BLOCK, _PART_HEAD = 7, 32768, 7
_WHOLE, _LAST = 1, 4
"""Two values of the field that says which part of a record follows: the whole record, or its last part."""
_HISTORY, _ITEM = 2, 1
_KEY, _NESTED_KEY, _VALUE = 1, 2, 16
"""Numbers of fields. ``_HISTORY`` is a field of a record, ``_ITEM`` of its history (what a call of ``log``
wrote), ``_KEY``, ``_NESTED_KEY`` and ``_VALUE`` of an item of the history."""
_STEPS = ("train/global_step", "trainer/global_step", "global_step", "_step")
"""Scalars that count the steps. The first that was logged is taken. ``_step`` counts calls of ``log``, so
Hugging Face's Trainer, Lightning and torchtune log a count of their own."""
_EVALUATION = re.compile(r"\b(eval|evaluation|val|valid|validation|test)(?![a-z])", re.IGNORECASE)
"""In the name of a scalar: an evaluation logged it."""
_FIXED = {1: 8, 5: 4}
"""Bytes of a field of protobuf, by its wire type."""


def read_scalars(file: Path) -> tuple[str, list[tuple[int, float]]]:
    """One scalar: its name, and its steps with their times (s since 1970). It is the scalar that was logged
    most often. Those of an evaluation do not count, because they may have their own steps.

    Raises:
        JoulecastError: the file is no event file and no run of W&B, or has no scalars.
    """
    what, scalars_in, writer = (
        "event file of TensorBoard",
        _of_events,
        "torch.utils.tensorboard writes",
    )
    if file.suffix == ".wandb":
        what, scalars_in, writer = "offline run of W&B", _of_wandb, "wandb.log writes"
    by_name: dict[str, list[tuple[int, float]]] = defaultdict(list)
    try:
        for name, step, t_s in scalars_in(read_bytes(file, what)):
            by_name[name].append((step, t_s))
    except (IndexError, KeyError, TypeError, AttributeError, ValueError, struct.error):
        raise JoulecastError(f"{file}: is no {what}, or is damaged") from None
    if not by_name:
        raise JoulecastError(
            f"{file}: has no scalars, as {writer} them (others, such as Keras, are not read); write start, "
            "stop and samples of the run into a table of runs by hand"
        )
    trained = {name: of for name, of in by_name.items() if not _EVALUATION.search(name)}
    return max(sorted((trained or by_name).items()), key=lambda scalar: len(scalar[1]))


def _of_events(content: bytes) -> Iterator[Scalar]:
    at = 0
    while at + _HEAD <= len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        start = at + _HEAD
        at = start + size + _TAIL
        if at > len(content):
            return
        event = dict(_fields(content[start : start + size]))
        for name, value in _fields(event.get(_SUMMARY, b"")):
            scalar = dict(_fields(value)) if name == _OF_SUMMARY else {}
            if _NUMBER in scalar:
                (t_s,) = struct.unpack("<d", event[_TIME])
                yield scalar[_TAG].decode(), event.get(_STEP, 0), t_s


def _of_wandb(content: bytes) -> Iterator[Scalar]:
    if not content.startswith(_START):
        raise ValueError
    for record in _records_of_wandb(content):
        for number, history in _fields(record):
            if number != _HISTORY:
                continue
            logged = dict(_item(item) for field, item in _fields(history) if field == _ITEM)
            step = next((logged[name] for name in _STEPS if name in logged), None)
            if step is None:
                continue
            for name, value in logged.items():
                is_own = not name.startswith("_") and name not in _STEPS
                if is_own and isinstance(value, int | float):
                    yield name, int(step), float(logged["_timestamp"])


def _item(message: bytes) -> tuple[str, Any]:
    fields = list(_fields(message))
    names = [value.decode() for number, value in fields if number in (_KEY, _NESTED_KEY)]
    return ".".join(names), json.loads(dict(fields)[_VALUE])


def _records_of_wandb(content: bytes) -> Iterator[bytes]:
    at, record = _FRONT, b""
    while at + _PART_HEAD <= len(content):
        if at % _BLOCK > _BLOCK - _PART_HEAD:
            # No part begins in the last bytes of a block.
            at += _BLOCK - at % _BLOCK
            continue
        _, size, place = struct.unpack_from("<IHB", content, at)
        at += _PART_HEAD
        record += content[at : at + size]
        at += size
        if place in (_WHOLE, _LAST) and at <= len(content):
            yield record
            record = b""


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value (a whole number, or bytes) of each field of a message, without its schema."""
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
