"""Training logs of Megatron-LM and torchtitan: when which step was done, as a row of a table of runs.

A line is printed after its steps, so the run begins with the first line: the steps before it are warm-up.
"""

import re
from pathlib import Path

import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.logs.log_times import Clock
from joulecast.runs.files.reading import read_text

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TIME = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?)"
_MEGATRON = re.compile(rf"(?:\[{_TIME}\] +)?iteration +(\d{{1,15}})/ *\d+ \|")
_TITAN = re.compile(rf"\[titan\] {_TIME} - .*?\bstep: *(\d{{1,15}})\b.*\bloss:")
_SAMPLES = re.compile(r"\| +consumed samples: +(\d{1,15}) \|")
_BATCH = re.compile(r"\| +global batch size: +(\d{1,15}) \|")


def read_training_log(file: Path, clock: Clock) -> dict[str, str | int]:
    """A training: ``start`` and ``stop`` (ISO 8601), and its ``samples`` and ``batch`` as far as the log has
    them, else its ``steps``.

    Args:
        file: what the training printed.
        clock: where the zone of its times is.

    Raises:
        JoulecastError: it has less than two lines of steps, or one that cannot be; names the line.
    """
    rows: list[tuple[int, int, int | None, int | None]] = []
    texts = []
    for number, line in enumerate(read_text(file, "training log").splitlines(), start=1):
        plain = _COLOUR.sub("", line)
        found = _MEGATRON.search(plain) or _TITAN.search(plain)
        if found is None:
            continue
        where = f"{file}, line {number}"
        if found[1] is None:
            raise JoulecastError(
                f"{where}: has no time; write start, stop and samples of the run into a table of runs by hand"
            )
        step = int(found[2])
        if rows and step == rows[-1][1]:
            continue  # another rank's line
        if rows and step < rows[-1][1]:
            raise JoulecastError(
                f"{where}: step {step} follows step {rows[-1][1]}, so that a training began again; make a "
                "file of each"
            )
        samples, batch = _SAMPLES.search(plain), _BATCH.search(plain)
        rows.append(
            (number, step, int(samples[1]) if samples else None, int(batch[1]) if batch else None)
        )
        texts.append(found[1].replace(",", "."))
    if len(rows) < 2:
        raise JoulecastError(
            f"{file}: has {len(rows)} lines of steps, as Megatron-LM or torchtitan print them; give "
            "a log of at least two"
        )
    lines = [number for number, *_ in rows]
    times = clock.place(clock.seconds(pd.Series(texts, index=lines), str(file)), str(file))
    for place in range(1, len(rows)):
        if times.t_s[place] < times.t_s[place - 1]:
            raise JoulecastError(
                f"{file}, line {lines[place]}: its time is before that of the line before; make a file of "
                "each training"
            )
    zone = "UTC" if times.form == "placed" else None
    start, stop = (
        pd.Timestamp(t, unit="s", tz=zone).isoformat() for t in (times.t_s[0], times.t_s[-1])
    )
    row: dict[str, str | int] = {"start": start, "stop": stop}
    batches = {size for *_, size in rows[1:]}
    if len(batches) == 1 and (size := batches.pop()):
        row["batch"] = size
    first, last = rows[0][2], rows[-1][2]
    if first is None or last is None:
        return {**row, "steps": rows[-1][1] - rows[0][1]}
    if last <= first:
        raise JoulecastError(
            f"{file}, line {lines[-1]}: consumed samples: {last} are not above {first}"
        )
    return {**row, "samples": last - first}
