"""Mutations of files: of their bytes, and of what they mean as JSON, YAML, CSV and Parquet."""

import gzip
import io
import json
import math
import random
import re
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

WRONG: tuple[Any, ...] = (
    *(float("nan"), float("inf"), float("-inf"), 1e308, 1e18, 10**18, 10**40, -1, -1.5, 0, 1e-300),
    *("", " ", "x" * 10_000, "nan", "=1+1", "a\nb", "\ud800", "../../etc/passwd", "1", "²", "\0"),
    *(None, True, False, [], [1], [[]], {}, {"a": 1}, [None] * 3, 2**31, 2**63, 0.5),
)
"""What a value is replaced by."""

Mutation = Callable[[bytes, random.Random], bytes]


def _place(content: bytes, rng: random.Random) -> int:
    return rng.randrange(len(content)) if content else 0


def _flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 3, 20))):
        if changed:
            changed[_place(content, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _no_text(content: bytes, rng: random.Random) -> bytes:
    place = _place(content, rng)
    return (
        content[:place]
        + rng.choice((b"\xff", b"\0", b"\xc3"))
        + content[place + rng.randrange(2) :]
    )


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: _place(content, rng)]


def _repeated(content: bytes, rng: random.Random) -> bytes:
    place = _place(content, rng)
    end = min(len(content), place + rng.choice((1, 10, 1000)))
    return content[:end] + content[place:end] * rng.choice((1, 2, 100)) + content[end:]


def _lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    place, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(other, lines[place])
    elif kind == 2:
        lines[place], lines[other] = lines[other], lines[place]
    else:
        lines.insert(place, b"x" * 100_000)
    return b"\n".join(lines)


_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?")
_NUMBERS = (
    *(b"-1", b"0", b"1e308", b"1e999", b"1000000000000000000", b"9" * 400, b"NaN", b"-0.0", b""),
    *(b"1e-300", b"nan", b"inf", b"0x10", b"1_000", b"99999999999", b"-Infinity", b"2.5", b"true"),
)


def _numbers(content: bytes, rng: random.Random) -> bytes:
    """One number of a text, or a few, replaced."""
    found = list(_NUMBER.finditer(content))
    for match in sorted(
        rng.sample(found, min(len(found), rng.choice((1, 1, 2)))), key=lambda m: -m.start()
    ):
        content = content[: match.start()] + rng.choice(_NUMBERS) + content[match.end() :]
    return content


BYTES: tuple[Mutation, ...] = (_flipped, _no_text, _cut, _repeated, _lines, _numbers)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a tree with each of its keys or positions."""
    found: list[tuple[Any, Any]] = []
    keys = (
        value.keys()
        if isinstance(value, dict)
        else range(len(value) if isinstance(value, list) else 0)
    )
    for key in list(keys):
        found.append((value, key))
        found += _places(value[key])
    return found


def mutated_tree(value: Any, rng: random.Random) -> Any:
    """A tree of objects, lists and values with one thing wrong with it."""
    places = _places(value)
    if not places or rng.random() < 0.02:
        return rng.choice(WRONG)
    holder, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[rng.choice(("renamed", "", "x" * 1000, "1"))] = holder.pop(key)
    elif kind == 2 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif kind == 3:
        other, there = rng.choice(places)
        # A copy: the tree must not come to hold itself.
        holder[key] = json.loads(
            json.dumps(other.get(there) if isinstance(other, dict) else None, default=str)
        )
    elif kind == 4 and isinstance(holder[key], int | float):
        holder[key] = rng.choice(
            (-holder[key], holder[key] * 10**9, holder[key] / 3, str(holder[key]))
        )
    else:
        holder[key] = rng.choice(WRONG)
    return value


def _json(content: bytes, rng: random.Random) -> bytes:
    text = json.dumps(mutated_tree(json.loads(content), rng))
    if rng.random() < 0.1 and text.startswith("{"):
        # A key that is there twice: the last one counts.
        key = rng.choice(re.findall(r'"[^"]*"(?=:)', text) or ['"x"'])
        text = f"{text[:-1]}, {key}: {json.dumps(rng.choice(WRONG))}}}"
    return text.encode()


def _json_lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    full = [number for number, line in enumerate(lines) if line.strip()]
    place = rng.choice(full)
    lines[place] = _json(lines[place], rng)
    return b"\n".join(lines)


def _yaml(content: bytes, rng: random.Random) -> bytes:
    tree = yaml.safe_load(content)
    if rng.random() < 0.1 and isinstance(tree, dict) and tree:
        # Aliases that unfold to a billion values under a key that is known.
        key = rng.choice(list(tree))
        bomb = "".join(f"  k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 10)}]\n" for n in range(1, 10))
        rest = {name: value for name, value in tree.items() if name != key}
        return f"{key}:\n  k0: &k0 [x]\n{bomb}{yaml.safe_dump(rest)}".encode()
    return yaml.safe_dump(mutated_tree(tree, rng), allow_unicode=True).encode(
        errors="surrogatepass"
    )


def _csv(content: bytes, rng: random.Random) -> bytes:
    rows = [line.split(",") for line in content.decode().split("\n")]
    row = rng.choice([0, rng.randrange(len(rows))])
    column = rng.randrange(len(rows[row]))
    kind = rng.randrange(4)
    if kind == 0:
        for each in rows:
            del each[column : column + 1]
    elif kind == 1:
        for each in rows:
            each.extend(each[column : column + 1])
    else:
        rows[row][column] = str(rng.choice(WRONG))
    return "\n".join(",".join(each) for each in rows).encode(errors="surrogatepass")


_TEXTS = ("", None, "x" * 10_000, "=1")
_FLOATS = (float("nan"), float("inf"), 1e308, 1e18, -1.0, None)


def _parquet(content: bytes, rng: random.Random) -> bytes:
    table = pq.read_table(io.BytesIO(content))
    name = rng.choice(table.column_names)
    place, values = table.column_names.index(name), table[name].to_pylist()
    kind = rng.randrange(9)
    if kind == 8 and len(table):
        nested = rng.choice(([1.0], ["x"], {"a": 1.0}, [("k", "v")]))
        is_map = isinstance(nested, list) and isinstance(nested[0], tuple)
        of_map = pa.map_(pa.string(), pa.string()) if is_map else None
        table = table.set_column(place, name, pa.array([nested] * len(table), type=of_map))
    elif kind == 0:
        table = table.drop([name])
    elif kind == 1:
        table = table.rename_columns(["other" if n == name else n for n in table.column_names])
    elif kind == 2 and len(table):
        table = pa.concat_tables([table] * rng.choice((2, 1000)))
    elif kind == 3:
        table = table.slice(0, rng.choice((0, 1, len(table) // 2)))
    elif kind == 4:
        table = table.take(pa.array(rng.sample(range(len(table)), len(table))))
    elif kind == 5 and len(table):
        whole = rng.choice(("x", -1.0, float("nan"), 1e308, 10**18, None))
        table = table.set_column(place, name, pa.array([whole] * len(table)))
    elif values:
        row = rng.randrange(len(values))
        is_text = isinstance(values[row], str)
        wrong = (
            ("", None, "x" * 10_000, "=1")
            if is_text
            else (float("nan"), 1e308, -1.0, 1e18, None, float("inf"))
        )
        values[row] = rng.choice(wrong)
        table = table.set_column(
            place, name, pa.array(values, type=pa.string() if is_text else pa.float64())
        )
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def _samples(content: bytes, rng: random.Random) -> bytes:
    """A file of a sampler with some wrong numbers."""
    with pa.CompressedInputStream(pa.BufferReader(content), "gzip") as plain:
        table = pa.ipc.open_stream(plain).read_all()
    place = rng.randrange(table.num_columns)
    name, values = table.column_names[place], table.column(place).to_pylist()
    wrong = (0, 1, 2, 3, 65535) if name == "series" else _FLOATS
    for row in rng.sample(range(len(values)), rng.choice((1, 5, len(values)))):
        values[row] = rng.choice(wrong)
    table = table.set_column(place, name, pa.array(values, table.schema.field(place).type))
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return gzip.compress(out.getvalue())


def _hdf5(content: bytes, rng: random.Random) -> bytes:
    """An HDF5 file of which one data set, or one attribute, is another."""
    import h5py
    import numpy as np

    file = io.BytesIO(content)
    with h5py.File(file, "r+") as root:
        names: list[str] = []
        root.visit(names.append)
        name = rng.choice(names)
        item = root[name]
        if isinstance(item, h5py.Dataset) and rng.random() < 0.7:
            attributes = dict(item.attrs)
            del root[name]
            wrong = (np.zeros(3, "f4"), np.array([b"x"]), np.zeros((2, 2, 2)), np.full(4, np.nan))
            made = root.create_dataset(name, data=wrong[rng.randrange(4)])
            made.attrs.update(attributes)
        elif len(item.attrs) and rng.random() < 0.7:
            item.attrs[rng.choice(list(item.attrs))] = rng.choice((-1.0, math.inf, "x", 0, [1, 2]))
        elif rng.random() < 0.5:
            root.create_dataset("big", (1 << 40,), "f8", chunks=(1 << 20,))
        else:
            del root[name]
    return file.getvalue()


def _marks(content: bytes, rng: random.Random) -> bytes:
    """Marks of a training of which one has a wrong number."""
    row = bytearray(content)
    place = 17 * rng.randrange(len(content) // 17)
    where, form = rng.choice(((0, "<B"), (1, "<d"), (9, "<f"), (13, "<f")))
    wrong = (0, 5, 6, 255) if form == "<B" else (math.nan, math.inf, -1.0, 1e18, 1e30, 0.5, -1e30)
    struct.pack_into(form, row, place + where, rng.choice(wrong))
    return bytes(row)


STRUCTURE: dict[str, Mutation] = {
    ".json": _json,
    ".jsonl": _json_lines,
    ".yaml": _yaml,
    ".csv": _csv,
    ".parquet": _parquet,
    ".hdf5": _hdf5,
    ".facts": _json,
    ".samples": _samples,
    ".marks": _marks,
}
"""By the ending of a file's name."""


def mutated(content: bytes, ending: str, rng: random.Random) -> bytes:
    """The content of a file with something wrong with it, most often with what it means."""
    structure = STRUCTURE.get(ending)
    if structure is not None and rng.random() < 0.6:
        return structure(content, rng)
    return rng.choice(BYTES)(content, rng)
