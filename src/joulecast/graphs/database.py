"""The op database: measured times of operators on a machine, and times of shapes between the measured ones.

The key of an entry has everything that its time depends on (:class:`Signature`): kind, attributes, sizes,
direction and precision. If a shape was not measured, its time is read from a straight line through two
measured shapes. These may differ from it in one splittable dim only: an op has a fixed cost, and a cost for
each row. The line reaches beyond the measured shapes only by :data:`REACH`. The database has no time for any
other shape. Then the caller takes a roofline.

On a rented machine, other guests use the same caches and memory. They slow everything by a few percent or by
tens of percent, for tenths of a second or for minutes. No counter shows this, because the process has its
core all the time. So the code uses only the mean of the fastest quarter of the repetitions
(:func:`mean_of_fastest`), both for the steps that are predicted and for the ops that predict them. The
repetitions have to be spread over the session.

This module needs no torch. :mod:`joulecast.graphs.measure_ops` measures.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Cost, Costs, Direction
from joulecast.graphs.opgraph import DimKind, Op, OpGraph
from joulecast.graphs.precision import DEFAULT_TRAINING, TrainingSetup
from joulecast.runs.files.reading import read_json_object, validated
from joulecast.runs.files.writing import written_aside

REACH = 2.0
"""Largest ratio between the size of a shape and the nearest measured size."""
_COSTLY_ATTRIBUTES = ("stride", "dilation", "groups", "causal", "dropout", "approximate", "inplace")


_Size = Annotated[int, Field(ge=1, le=10**15)]
_Count = Annotated[int, Field(ge=0, le=10**12)]
_Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


@dataclass(frozen=True)
class Signature:
    """Everything that the time of an op depends on."""

    kind: str
    attributes: tuple[tuple[str, str], ...]
    """Strides, groups, ...; and ``reads``, the roles of the tensors that the op reads. An op computes no
    gradient for an input of the network."""
    fixed: tuple[tuple[str, _Size], ...]
    """Sizes of the dims that may not be split."""
    dims: tuple[tuple[str, _Size], ...]
    """Sizes of the other dims."""
    direction: Direction
    precision: str

    def but(self, name: str) -> tuple[Any, ...]:
        """The signature without the size of one dim."""
        others = tuple(size for size in self.dims if size[0] != name)
        return (self.kind, self.attributes, self.fixed, others, self.direction, self.precision)


def _size(size: int, parts: float) -> int:
    """Number of entries in the largest part of a dim."""
    return math.ceil(size / parts - 1e-9)


def signature(
    graph: OpGraph,
    op: Op,
    direction: Direction,
    parts: Mapping[str, float] | None = None,
    precision: str = "fp32",
) -> Signature:
    """The signature of an op of a graph, or of one part of it.

    Args:
        graph: the graph at the batch in question.
        op: one of its ops.
        direction: forward or backward.
        parts: number of parts of each split dim. A dim that is not named is whole.
        precision: precision of the arithmetic.
    """
    given = {name: op.attributes[name] for name in _COSTLY_ATTRIBUTES if name in op.attributes}
    given["reads"] = "+".join(graph.tensors[access.tensor].role for access in op.reads)
    sizes = sorted((d.name, _size(d.size, (parts or {}).get(d.name, 1)), d.kind) for d in op.dims)
    return Signature(
        kind=op.kind,
        attributes=tuple(sorted((name, json.dumps(value)) for name, value in given.items())),
        fixed=tuple((name, size) for name, size, kind in sizes if kind is DimKind.OPAQUE),
        dims=tuple((name, size) for name, size, kind in sizes if kind is not DimKind.OPAQUE),
        direction=direction,
        precision=precision,
    )


def optimizer_signature(parameter_bytes: int, precision: str = "fp32") -> Signature:
    """The signature of an update by SGD with momentum, for parameters of this size in bytes."""
    return Signature("sgd", (), (), (("bytes", parameter_bytes),), "forward", precision)


@dataclass(frozen=True)
class Entry:
    """A measured op. Its time is the mean of ``samples`` measured times."""

    signature: Signature
    milliseconds: Annotated[float, Field(ge=1e-9, le=1e12, allow_inf_nan=False)]
    samples: _Count


@dataclass(frozen=True)
class StepCheck:
    """Compares the sum of the ops' times with the time of a whole training step."""

    network: str
    batch: _Count
    whole_s: Annotated[float, Field(ge=1e-9, le=1e9, allow_inf_nan=False)]
    """Seconds of forward, loss and backward, if no op is timed (mean of the fastest quarter of the steps)."""
    ops_s: _Seconds
    """Sum of the times of all ops, forward and backward."""
    timed_s: _Seconds
    """Seconds of forward, loss and backward of a step that is timed op by op. If they are near ``whole_s``,
    the timing disturbed nothing."""
    optimizer_s: _Seconds
    kept: _Count
    """Number of steps that were kept, on all ranks."""
    dropped: _Count
    """Number of steps that were left out, because the rank did not have its core all the time."""
    waited_share: Annotated[float, Field(allow_inf_nan=False)]
    """Share of the time of a kept step in which the rank had no core (median). If it is above a few
    hundredths, the machine was busy, and the database should be measured again."""

    @property
    def covered_share(self) -> float:
        """Time of the ops over the time of the whole step. It is 1 if the ops explain the step exactly."""
        return self.ops_s / self.whole_s


@dataclass(frozen=True)
class Database:
    """Measured ops of one machine.

    ``provenance`` has the host, the number of threads of a rank, the number of ranks, versions and the date.
    """

    provenance: dict[str, Any]
    entries: tuple[Entry, ...]
    steps: tuple[StepCheck, ...] = ()

    @cached_property
    def _exact(self) -> dict[Signature, Entry]:
        return {entry.signature: entry for entry in self.entries}

    @cached_property
    def _lines(self) -> dict[tuple[str, tuple[Any, ...]], list[tuple[int, float]]]:
        """The lines between measured shapes. A line has the entries that differ only in the size of one dim:
        the sizes, and the seconds of each. The key is the dim's name, and everything that the entries
        share."""
        lines: dict[tuple[str, tuple[Any, ...]], dict[int, float]] = {}
        for entry in self.entries:
            for name, size in entry.signature.dims:
                key = (name, entry.signature.but(name))
                lines.setdefault(key, {})[size] = entry.milliseconds / 1e3
        return {key: sorted(points.items()) for key, points in lines.items() if len(points) > 1}

    def lookup(self, wanted: Signature) -> Cost | None:
        """Seconds of an op, measured or from the line through two measured shapes; ``None`` if they are not
        known.

        The op differs from the two shapes in one dim. If several dims are possible, the dim with the nearest
        measured size is taken.
        """
        if wanted in self._exact:
            return Cost(self._exact[wanted].milliseconds / 1e3, "measured")
        found: list[tuple[float, float]] = []
        for name, size in wanted.dims:
            points = self._lines.get((name, wanted.but(name)))
            if points is None:
                continue
            smaller = [p for p in points if p[0] < size]
            larger = [p for p in points if p[0] > size]
            outside = not smaller or not larger
            low, high = (
                (points[:2] if not smaller else points[-2:])
                if outside
                else (smaller[-1], larger[0])
            )
            away = min(max(size / near, near / size) for near, _ in (low, high))
            if outside and away > REACH:
                continue
            slope = (high[1] - low[1]) / (high[0] - low[0])
            # Noise may turn the line. A time is never less than the time of the smaller shape, in proportion.
            floor = low[1] * min(1.0, size / low[0])
            seconds = low[1] + slope * (size - low[0])
            if outside:
                seconds = max(seconds, floor) if size < low[0] else max(seconds, high[1])
            found.append((away, seconds))
        return Cost(min(found, key=lambda pair: pair[0])[1], "interpolated") if found else None

    def optimizer(self, parameter_bytes: float, precision: str = "fp32") -> Cost | None:
        """Seconds of SGD with momentum: the seconds for each byte at the nearest measured size, times the
        bytes."""
        known = [
            (e.signature.dims[0][1], e.milliseconds / 1e3)
            for e in self.entries
            if e.signature.kind == "sgd" and e.signature.precision == precision
        ]
        if not known or parameter_bytes <= 0:
            return None
        size, seconds = min(known, key=lambda pair: abs(math.log(pair[0] / parameter_bytes)))
        is_measured = size == parameter_bytes
        return Cost(seconds * parameter_bytes / size, "measured" if is_measured else "interpolated")

    def write(self, path: Path) -> None:
        """Write the database as JSON, one entry a line."""
        head = json.dumps({"provenance": self.provenance, "steps": [asdict(s) for s in self.steps]})
        lines = ",\n".join(json.dumps(asdict(entry)) for entry in self.entries)
        with written_aside(path) as partial:
            partial.write_text(f'{head[:-1]}, "entries": [\n{lines}\n]}}\n')


def read_database(path: Path) -> Database:
    """Read a database from JSON.

    Raises:
        JoulecastError: the file is missing, or is no database.
    """
    found = read_json_object(
        path, "op database (`./run snakemake --cores all -- results/ops/NETWORK.json` makes it)"
    )
    database = validated(TypeAdapter(Database), found, f"{path}: is no op database")
    for entry in database.entries:
        named = [name for name, _ in (*entry.signature.fixed, *entry.signature.dims)]
        if len(set(named)) < len(named) or (entry.signature.kind == "sgd" and len(named) != 1):
            raise JoulecastError(
                f"{path}: is no op database: {entry.signature.kind} has the dims {', '.join(named)}"
            )
    return database


def merged(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """One entry for each signature. An op in several places gets its mean time, so the sum stays the same."""
    found: dict[Signature, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.signature, []).append(entry)
    return tuple(
        Entry(key, sum(e.milliseconds for e in same) / len(same), sum(e.samples for e in same))
        for key, same in found.items()
    )


@dataclass(frozen=True)
class MeasuredCosts:
    """Costs from a database. If it has no answer, they come from ``fallback``."""

    database: Database
    fallback: Costs | str
    """Other costs, or the reason why there are none."""
    precision: str = "fp32"

    def cost(
        self, graph: OpGraph, op: Op, parts: Mapping[str, float], direction: Direction
    ) -> Cost:
        known = self.database.lookup(signature(graph, op, direction, parts, self.precision))
        if known is not None:
            return known
        sizes = ", ".join(f"{d.name}={d.size / parts.get(d.name, 1):g}" for d in op.dims)
        what = f"graph {graph.name}: op `{op.name}` ({op.kind} {direction}, {sizes})"
        return self._instead(what).cost(graph, op, parts, direction)

    def _instead(self, what: str) -> Costs:
        """The fallback for what the database does not have."""
        if isinstance(self.fallback, str):
            raise JoulecastError(
                f"{what} is not in the op database, and there is no roofline to fall back to: {self.fallback}"
            )
        return self.fallback

    def optimizer(self, parameter_bytes: float, training: TrainingSetup = DEFAULT_TRAINING) -> Cost:
        answer = self.database.optimizer(parameter_bytes, self.precision)
        if answer is None:
            what = f"the optimizer on {parameter_bytes:.0f} bytes"
            return self._instead(what).optimizer(parameter_bytes, training)
        # SGD with momentum was measured. Another optimizer takes the same time for each byte that it moves.
        times = training.update_bytes(parameter_bytes) / DEFAULT_TRAINING.update_bytes(
            parameter_bytes
        )
        return answer if times == 1 else Cost(answer.seconds * times, "interpolated")


FEWEST = 3
"""Least number of repetitions in the fastest quarter. If there are fewer, all count."""


def fastest_quarter(seconds: Sequence[float]) -> list[int]:
    """Positions of the fastest quarter, the fastest first."""
    by_time = sorted(range(len(seconds)), key=seconds.__getitem__)
    return by_time[: max(FEWEST, len(by_time) // 4)]


def mean_of_fastest(seconds: Sequence[float]) -> float:
    """Mean of the fastest quarter; NaN if there are no repetitions."""
    return fmean(seconds[i] for i in fastest_quarter(seconds)) if len(seconds) else float("nan")
