"""The one place where an attempt at a run becomes its record.

:func:`measure` has all steps in their order. A host measures one run at a time
(:mod:`joulecast.training.machine`). A record that already answers the specification is not measured again, so
the result of ranks that outlived their starter is not lost.
"""

import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from joulecast.campaign.held_records import bring_back, hold_record
from joulecast.campaign.journal import attempt_noted, wait_for_earlier
from joulecast.errors import JoulecastError
from joulecast.files.writing import directory_written_aside
from joulecast.records.folders import answers
from joulecast.records.spec import RunSpec
from joulecast.training.launch import RunLaunch
from joulecast.training.left_files import SPEC, keep_unfinished, remove_left
from joulecast.training.machine import LONGEST_WAIT_S, Machine, held_machine
from joulecast.training.processes import ended_by_signals, remove_shared_memory
from joulecast.training.ranks import opened_log


@dataclass(frozen=True)
class Quiet:
    """The configuration's section ``quiet``: longest wait for other programs, and how often a run that they
    disturbed is repeated."""

    wait_s: float
    repeats: int


def measure(
    spec: RunSpec,
    out: Path,
    log_file: Path,
    *,
    launcher: str | None = "mpiexec",
    nodes: int | None = None,
    python: str | None = None,
    attempts: Path | None = None,
    timeout_s: float = 3600.0,
    start_timeout_s: float = 600.0,
    asked_s: float = math.inf,
    quiet: Quiet | None = None,
) -> None:
    """Run ``spec`` and leave a validated record in ``out``; do nothing if it is there already.

    Args:
        out: folder of the record, which all hosts of the run must see.
        log_file: gets everything that the ranks print.
        launcher, nodes, python, timeout_s, start_timeout_s: see
            :class:`joulecast.training.launch.RunLaunch`.
        attempts: folder of the journals (:mod:`joulecast.campaign.journal`) and held records; next to
            ``out`` if ``None``.
        asked_s: when the campaign was started (seconds since the epoch): a record that another attempt has
            finished since then counts, even if it was removed for this attempt.
        quiet: no wait and no repeats if ``None``.

    Raises:
        JoulecastError: the run failed; the message says how, the log says why.
    """
    attempts = out.parent / "attempts" if attempts is None else attempts
    quiet = quiet or Quiet(wait_s=0.0, repeats=0)
    since_s = asked_s if math.isfinite(asked_s) else 0.0
    # A measurement of the same campaign takes no longer than this one may.
    longest_s = max(LONGEST_WAIT_S, (1 + quiet.repeats) * (timeout_s + quiet.wait_s))
    with (
        opened_log(log_file) as log,
        ended_by_signals(),
        attempt_noted(attempts, spec.run, log_file) as attempt,
    ):
        # Before the machine is held, as an earlier attempt on this host may be waiting for the machine.
        wait_for_earlier(attempts, attempt, log, 2 * longest_s)
        with held_machine(log, quiet.wait_s, since_s, longest_s) as machine:
            bring_back(attempts, spec.run, out, asked_s)
            _recover_from_killed_attempts(attempts, spec, out)
            if answers(out, spec):
                print(f"{out} already answers this specification", file=log)
                hold_record(attempts, spec.run, out)
                return
            launch = RunLaunch(spec, launcher, nodes, python, timeout_s, start_timeout_s)
            # Ranks on other hosts use the scratch folder, so it lies next to the records.
            with _scratch(attempts, spec.run) as scratch:
                begin = time.monotonic()
                record = _least_disturbed(launch, scratch, machine, quiet, log)
                _put_in_place(record, out, spec.run, attempts)
            print(f"{spec.run}: {time.monotonic() - begin:.1f} s in all", file=log)


@contextmanager
def _scratch(attempts: Path, run: str) -> Iterator[Path]:
    """A folder for the ranks, removed at the end; what a failed run has measured is kept."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{run}-", dir=attempts))
    try:
        yield scratch
    except BaseException:
        keep_unfinished(attempts, run, scratch)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _recover_from_killed_attempts(attempts: Path, spec: RunSpec, out: Path) -> None:
    """Take the record that a killed attempt has finished, if there is one, and remove what it left, but for
    the measurements of an unfinished run.

    Its ranks, which used the scratch folder, are gone: they would still hold the machine.
    """
    for scratch in attempts.glob(f".{spec.run}-*"):
        if not out.exists() and answers(scratch / "record", spec):
            _put_in_place(scratch / "record", out, spec.run, attempts)
        else:
            keep_unfinished(attempts, spec.run, scratch)
        remove_shared_memory(scratch)
        shutil.rmtree(scratch, ignore_errors=True)


def _least_disturbed(
    launch: RunLaunch, scratch: Path, machine: Machine, quiet: Quiet, log: TextIO
) -> Path:
    """Folder of the record with the least foreign load; a disturbed run is repeated while the machine is
    quiet.

    Raises:
        JoulecastError: no run gave a record.
    """
    spec_file = scratch / SPEC
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
        # Not by the ranks: one that is killed while it ends is a failed run, whose steps are kept.
        remove_left(folder)
        busy = max(load.busy_cores, info.load_during.get("busy_cores", 0.0))
        best = min(best or (busy, folder), (busy, folder))
        if not info.disturbed or not load.is_quiet:
            break
        print(f"{launch.spec.run} was disturbed: {'; '.join(info.disturbed)}", file=log)
    assert best is not None
    return best[1]


def _put_in_place(record: Path, out: Path, run: str, attempts: Path) -> None:
    # Held first, as Snakemake may remove it as soon as it is in place.
    hold_record(attempts, run, record)
    with directory_written_aside(out) as partial:
        for file in record.iterdir():
            shutil.move(file, partial)
