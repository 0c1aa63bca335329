"""One run, from its specification to its record.

:func:`measure_run` has all steps in their order. A host measures one run at a time
(:mod:`joulecast.measure.training.machine`). A record that already answers the specification is not measured
again.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from joulecast.errors import JoulecastError
from joulecast.measure.training.launch import RunLaunch
from joulecast.measure.training.machine import LONGEST_WAIT_S, Machine, held_machine
from joulecast.measure.training.processes import ended_by_signals
from joulecast.measure.training.ranks import opened_log
from joulecast.runs.files.writing import directory_written_aside
from joulecast.runs.folders import answers
from joulecast.runs.spec import RunSpec


@dataclass(frozen=True)
class Quiet:
    """The configuration's section ``quiet``: longest wait for other programs, and how often a run that they
    disturbed is repeated."""

    wait_s: float
    repeats: int


def measure_run(
    spec: RunSpec,
    out: Path,
    log_file: Path,
    *,
    launcher: str | None = "mpiexec",
    nodes: int | None = None,
    python: str | None = None,
    timeout_s: float = 3600.0,
    quiet: Quiet | None = None,
) -> None:
    """Run ``spec`` and leave a validated record in ``out``; do nothing if it is there already.

    Args:
        out: folder of the record, which all hosts of the run must see.
        log_file: gets everything that the ranks print, and why the run failed.
        launcher, nodes, python, timeout_s: see :class:`joulecast.measure.training.launch.RunLaunch`.
        quiet: no wait and no repeats if ``None``.

    Raises:
        JoulecastError: the run failed; the message says how, the log says why.
    """
    quiet = quiet or Quiet(wait_s=0.0, repeats=0)
    # A measurement of the same campaign takes no longer than this one may.
    longest_s = max(LONGEST_WAIT_S, (1 + quiet.repeats) * (timeout_s + quiet.wait_s))
    with (
        opened_log(log_file) as log,
        ended_by_signals(),
        _reason_logged(log, spec.run),
        held_machine(log, quiet.wait_s, longest_s) as machine,
    ):
        if answers(out, spec):
            print(f"{out} already answers this specification", file=log)
            return
        launch = RunLaunch(spec, launcher, nodes, python, timeout_s)
        with _scratch(out) as scratch:
            begin = time.monotonic()
            record = _least_disturbed(launch, scratch, machine, quiet, log)
            with directory_written_aside(out) as partial:
                for file in record.iterdir():
                    if not file.name.startswith("."):
                        shutil.move(file, partial)
        print(f"{spec.run}: {time.monotonic() - begin:.1f} s in all", file=log)


@contextmanager
def _reason_logged(log: TextIO, run: str) -> Iterator[None]:
    """Begin the log with the run, and end it with the reason of a failure, as `joulecast status` reads it."""
    print(f"run {run}", file=log, flush=True)
    try:
        yield
    except KeyboardInterrupt:
        print("error: interrupted", file=log, flush=True)
        raise
    except Exception as error:
        print(f"error: {' '.join(str(error).split()) or repr(error)}", file=log, flush=True)
        raise


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder for the ranks, next to the records, as ranks on other hosts use it; removed at the end.

    Those of attempts that were killed are removed first: no process can use them, as it would hold the
    machine.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f".{out.name}-scratch-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{out.name}-scratch-", dir=out.parent, ignore_cleanup_errors=True
    ) as scratch:
        yield Path(scratch)


def _least_disturbed(
    launch: RunLaunch, scratch: Path, machine: Machine, quiet: Quiet, log: TextIO
) -> Path:
    """Folder of the record with the least foreign load; a disturbed run is repeated while the machine is
    quiet.

    Raises:
        JoulecastError: no run gave a record.
    """
    spec_file = scratch / "spec.json"
    spec_file.write_text(launch.spec.model_dump_json())
    best: tuple[float, Path] | None = None
    for again in range(quiet.repeats + 1):
        load = machine.wait_for_quiet()
        if best is not None and not load.is_quiet:
            break
        folder = scratch / ("record" if not again else f"record-{again}")
        try:
            info = launch.record(spec_file, folder, load, log, machine.lock)
        except JoulecastError as error:
            if best is None:
                raise
            print(f"{error}; the first record is kept", file=log)
            break
        busy = max(load.busy_cores, info.load_during.get("busy_cores", 0.0))
        best = min(best or (busy, folder), (busy, folder))
        if not info.disturbed or not load.is_quiet:
            break
        print(f"{launch.spec.run} was disturbed: {'; '.join(info.disturbed)}", file=log)
    assert best is not None
    return best[1]
