"""Plausible metered runs, and the ways in which their readings go wrong.

A run's readings are ``{node: (t_s, watts)}`` in seconds of the run clock, so that a corruption can be put on
generated runs, on files as handed in and on tables alike. A corruption takes the readings, the run's
start and stop and a generator of chance, and gives the readings as a faulty log would have them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from mlperf_fixtures import ZERO_MS, line, power_lines, result_lines, write_lines
from numpy.typing import NDArray

from joulecast.errors import JoulecastError
from joulecast.logs.mlperf import import_mlperf
from joulecast.runs.record import RunRecord, read_record

Floats = NDArray[np.float64]
Readings = dict[str, tuple[Floats, Floats]]
Corruption = Callable[[Readings, tuple[float, float], np.random.Generator], Readings]

START_S = 60.0
SHAPES = ("epochs", "blocks")


@dataclass(frozen=True)
class MeteredRun:
    """A run as its log tells it: ``events`` are lines, ``run_s`` start and stop."""

    events: list[str]
    run_s: tuple[float, float]
    readings: Readings
    extra: dict[str, list[str]] = field(default_factory=dict)


def _course(shape: str, chance: np.random.Generator) -> tuple[list[str], list[tuple[float, float]]]:
    """Lines of epochs or blocks with an evaluation after each, and the evaluations' times."""
    at_s, lines, evaluations = START_S, [], []
    for number in range(5):
        stop_s = at_s + chance.uniform(70, 110)
        done_s = stop_s + chance.uniform(14, 18)
        if shape == "epochs":
            counted, then = dict(epoch_num=number + 1), dict(epoch_num=number + 1)
            word = "epoch"
        else:
            counted, then = dict(samples_count=400 * number), dict(samples_count=400 * (number + 1))
            word = "block"
        lines += [
            line(f"{word}_start", at_s, **counted),
            line(f"{word}_stop", stop_s, **counted),
            line("eval_start", stop_s, **then),
            line("eval_stop", done_s, **then),
        ]
        evaluations.append((stop_s, done_s))
        at_s = done_s
    return lines, evaluations


def metered_run(
    seed: int,
    nodes: int = 4,
    shape: str = "epochs",
    clipped: bool = False,
    same_course: int | None = None,
) -> MeteredRun:
    """A run on nodes of eight accelerators, read about every 2 s, from a minute before to a minute after it.

    Power climbs over five seconds, is lower in evaluations, and scatters; every node has a level and a
    phase of its own. ``clipped`` keeps only what was read during the run. Runs of the same
    ``same_course`` take the same time.
    """
    chance = np.random.default_rng(seed)
    of_course = np.random.default_rng(seed if same_course is None else same_course)
    events, evaluations = _course(shape, of_course)
    run_s = START_S, evaluations[-1][1]
    fine_s = np.arange(-20.0, run_s[1] + 60, 0.1)
    want_w = np.where((fine_s >= run_s[0]) & (fine_s < run_s[1]), 6200.0, 2400.0)
    for start_s, stop_s in evaluations:
        want_w[(fine_s >= start_s) & (fine_s < stop_s)] = 4100.0
    ramp = np.ones(50) / 50
    smooth_w = np.convolve(np.concatenate([np.full(49, want_w[0]), want_w]), ramp, "valid")
    readings: Readings = {}
    for node in range(nodes):
        t_s = np.arange(-15 + chance.uniform(0, 2), run_s[1] + 55, 2.0)
        t_s = np.round(t_s + chance.uniform(0, 0.05, len(t_s)), 3)
        watts = np.interp(t_s, fine_s, smooth_w) * chance.normal(1, 0.01)
        watts = np.round(watts + chance.normal(0, 40, len(t_s)))
        dips = chance.random(len(t_s)) < 0.01
        watts[dips] *= 0.8
        keep = (t_s >= run_s[0]) & (t_s <= run_s[1]) if clipped else np.ones(len(t_s), bool)
        readings[f"node_{node}"] = t_s[keep], np.round(watts[keep])
    return MeteredRun(events, run_s, readings)


def write_metered_run(
    results: Path,
    run: MeteredRun,
    stem: str = "result_1",
    system: str = "4xACME-Fast9000",
    benchmark: str = "resnet",
    zero_ms: int = ZERO_MS,
) -> None:
    """Write the run as a submission has it; another ``zero_ms`` moves all its files in time."""
    place = results / system / benchmark
    lines = result_lines(run.events, nodes=len(run.readings), status=None)
    for old, key, at_s in ((30.0, "init_stop", run.run_s[0]), (30.0, "run_start", run.run_s[0])):
        lines[lines.index(line(key, old))] = line(key, at_s)
    lines.append(line("run_stop", run.run_s[1], status="success"))
    files = {
        node: power_lines(list(zip(t_s.tolist(), watts.tolist(), strict=True)))
        for node, (t_s, watts) in run.readings.items()
    }

    def moved(text: str) -> str:
        before, mark, after = text.partition('"time_ms": ')
        if not mark:
            return text
        stamp, comma, rest = after.partition(",")
        # Stamps in seconds, for milliseconds, are moved by seconds.
        in_ms = 1 if int(stamp) > 1e11 else 1000
        return f"{before}{mark}{int(stamp) + (zero_ms - ZERO_MS) // in_ms}{comma}{rest}"

    write_lines(place / f"{stem}.txt", [moved(text) for text in lines])
    for name, texts in (files | run.extra).items():
        write_lines(place / "power" / stem / f"{name}.txt", [moved(text) for text in texts])


def write_repeats(
    folder: Path,
    corruption: Corruption | None,
    faulty: int,
    repeats: int = 5,
    seed: int = 0,
    nodes: int = 4,
    shape: str = "epochs",
    clipped: bool = False,
) -> None:
    """Write a submission of ``repeats`` runs, the first ``faulty`` of them corrupted in the same way."""
    for number in range(repeats):
        run = metered_run(1000 * seed + number, nodes, shape, clipped, same_course=seed)
        if corruption is not None and number < faulty:
            # The same fault in all of them: a node's clock lags alike in every run.
            chance = np.random.default_rng(seed)
            run = replace(run, readings=corruption(run.readings, run.run_s, chance))
        write_metered_run(
            folder, run, f"result_{number + 1}", zero_ms=ZERO_MS + number * 10_000_000
        )


def _watts(change: Callable[[Floats], Floats], only: str | None = None) -> Corruption:
    def corrupted(
        readings: Readings, run_s: tuple[float, float], chance: np.random.Generator
    ) -> Readings:
        return {
            node: (t_s, change(watts) if only in (None, _place(readings, node)) else watts)
            for node, (t_s, watts) in readings.items()
        }

    return corrupted


def _times(change: Callable[[Floats], Floats]) -> Corruption:
    def corrupted(
        readings: Readings, run_s: tuple[float, float], chance: np.random.Generator
    ) -> Readings:
        return {node: (change(t_s), watts) for node, (t_s, watts) in readings.items()}

    return corrupted


def _kept(keep: Callable[[Floats, tuple[float, float]], NDArray[np.bool_]]) -> Corruption:
    def corrupted(
        readings: Readings, run_s: tuple[float, float], chance: np.random.Generator
    ) -> Readings:
        return {
            node: (t_s[keep(t_s, run_s)], watts[keep(t_s, run_s)])
            for node, (t_s, watts) in readings.items()
        }

    return corrupted


def _place(readings: Readings, node: str) -> str | None:
    """``second`` for the second node, or for the only one."""
    names = list(readings)
    return "second" if node == names[min(1, len(names) - 1)] else None


def _one_node(
    change: Callable[[Floats, Floats, tuple[float, float], np.random.Generator], Floats],
) -> Corruption:
    """Change the watts of the second node, or of the only one."""

    def corrupted(
        readings: Readings, run_s: tuple[float, float], chance: np.random.Generator
    ) -> Readings:
        return {
            node: (
                t_s,
                change(t_s, watts, run_s, chance) if _place(readings, node) else watts,
            )
            for node, (t_s, watts) in readings.items()
        }

    return corrupted


def _lags(readings: Readings, run_s: tuple[float, float], chance: np.random.Generator) -> Readings:
    lags = np.linspace(0.5, 17, len(readings))
    chance.shuffle(lags)
    return {
        node: (t_s + lag, watts)
        for lag, (node, (t_s, watts)) in zip(lags, readings.items(), strict=True)
    }


def _twice_stamped(t_s: Floats) -> Floats:
    return t_s[np.arange(len(t_s)) // 2 * 2]


def _copies(
    readings: Readings, run_s: tuple[float, float], chance: np.random.Generator
) -> Readings:
    first = next(iter(readings.values()))
    return dict.fromkeys(readings, first)


def _frozen_inside(
    t_s: Floats, watts: Floats, run_s: tuple[float, float], chance: np.random.Generator
) -> Floats:
    since = int(np.searchsorted(t_s, 0.7 * run_s[0] + 0.3 * run_s[1]))
    return np.where(np.arange(len(t_s)) >= since, watts[since], watts)


def _idle(
    t_s: Floats, watts: Floats, run_s: tuple[float, float], chance: np.random.Generator
) -> Floats:
    return np.round(2400 + chance.normal(0, 15, len(watts)))


def _some_negative(
    t_s: Floats, watts: Floats, run_s: tuple[float, float], chance: np.random.Generator
) -> Floats:
    return np.where(chance.random(len(watts)) < 0.05, -watts, watts)


def _spikes(
    t_s: Floats, watts: Floats, run_s: tuple[float, float], chance: np.random.Generator
) -> Floats:
    spiky = watts.copy()
    spiky[[len(watts) // 3, len(watts) // 2]] = 1e6
    return spiky


def _counted(t_s: Floats, watts: Floats) -> Floats:
    return np.round(np.cumsum(watts * np.diff(t_s, prepend=t_s[0])))


def _counter(of_joules: Callable[[Floats], Floats]) -> Corruption:
    def corrupted(
        readings: Readings, run_s: tuple[float, float], chance: np.random.Generator
    ) -> Readings:
        return {
            node: (t_s, of_joules(_counted(t_s, watts))) for node, (t_s, watts) in readings.items()
        }

    return corrupted


def _differences(wraps_after_j: float) -> Corruption:
    """Watts as differences of a counter whose register wraps, and what wraps is left as it comes."""

    def corrupted(
        readings: Readings, run_s: tuple[float, float], chance: np.random.Generator
    ) -> Readings:
        found = {}
        for node, (t_s, watts) in readings.items():
            count = _counted(t_s, watts) % wraps_after_j
            found[node] = t_s[1:], np.round(np.diff(count) / np.maximum(np.diff(t_s), 0.1))
        return found

    return corrupted


_ZERO_S = ZERO_MS / 1000

KINDS: dict[str, Corruption] = {
    "kW for W": _watts(lambda w: np.round(w / 1000, 3)),
    "mW for W": _watts(lambda w: w * 1000),
    "ten times": _watts(lambda w: w * 10),
    "one node in kW": _watts(lambda w: np.round(w / 1000, 3), "second"),
    "one node halved": _watts(lambda w: np.round(w / 2), "second"),
    "one node doubled": _watts(lambda w: w * 2, "second"),
    "counter for watts": _counter(lambda joules: joules),
    "small counter for watts": _counter(lambda joules: np.round(joules / 3600)),
    "counter that wraps": _counter(lambda joules: joules % 65536),
    "counter backwards": _counter(lambda joules: joules[-1] - joules),
    "differences of a wrapping counter": _differences(262144),
    "clocks shifted by 20 s": _times(lambda t: t + 20),
    "clocks shifted by 60 s": _times(lambda t: t + 60),
    "clocks shifted by -20 s": _times(lambda t: t - 20),
    "a lag for each node": _lags,
    "one node frozen": _one_node(lambda t, w, run, chance: np.full_like(w, w[0])),
    "one node freezes": _one_node(_frozen_inside),
    "one node idle": _one_node(_idle),
    "one node at zero": _one_node(lambda t, w, run, chance: np.zeros_like(w)),
    "another day": _times(lambda t: t + 86_400),
    "another time zone": _times(lambda t: t + 7 * 3600),
    "stamps in seconds": _times(lambda t: (np.round(_ZERO_S + t) - ZERO_MS) / 1000),
    "stamps twice": _times(_twice_stamped),
    "cut off": _kept(lambda t, run: t < run[0] + 0.7 * (run[1] - run[0])),
    "long gap": _kept(
        lambda t, run: (
            (t < run[0] + 0.3 * (run[1] - run[0])) | (t > run[0] + 0.6 * (run[1] - run[0]))
        )
    ),
    "negative watts": _one_node(_some_negative),
    "spikes": _one_node(_spikes),
    "nodes copied": _copies,
}
"""All corruptions by name. Those of one node change the second."""

REMARKED = {"nodes copied": "shared meters", "stamps twice": "stamps twice"}
"""What is right in sum, so that the run stays, with the remark that says so."""


def kinds_of(texts: list[str]) -> set[str]:
    """The kinds of remarks or of reasons."""
    return {text.split(":")[0] for text in texts}


def imported(source: Path, out: Path) -> list[RunRecord]:
    """All records by system and repeat, whatever is left of them."""
    try:
        import_mlperf(source, out)
    except JoulecastError as error:
        assert "no run is left for fits" in str(error)
    records = [read_record(folder) for folder in out.iterdir()]
    return sorted(records, key=lambda r: (r.info.spec.platform.name, r.info.spec.repeat))


def is_found(kind: str, record: RunRecord) -> bool:
    """Whether a corrupted run is left out, or has the remark that says what is odd."""
    return bool(record.info.left_out) or REMARKED.get(kind) in kinds_of(record.info.remarks)


def found_table(folder: Path, **shape: Any) -> list[dict[str, Any]]:
    """Kinds of corruption, each with whether it is found in one run of five and in all five, and how
    many clean runs it costs; ``shape`` as for :func:`write_repeats`."""
    rows = []
    for kind, corruption in KINDS.items():
        row: dict[str, Any] = {"kind": kind, "clean_lost": 0}
        for name, faulty in (("one_run", 1), ("all_repeats", 5)):
            place = folder / f"{name}-{len(rows)}"
            write_repeats(place / "in", corruption, faulty, **shape)
            records = imported(place / "in", place / "out")
            row[name] = all(is_found(kind, record) for record in records[:faulty])
            row["clean_lost"] += sum(bool(r.info.left_out) for r in records[faulty:])
        rows.append(row)
    return rows
