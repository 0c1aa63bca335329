"""Starting one run from outside, and vouching for its record.

One measurement at a time has a host (:mod:`joulecast.training.machine`), and it waits for other programs
to end. A run that they still disturbed is measured again. A record that already answers the
specification is not measured again, so an orphan that finished after all is not lost.
"""

import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from joulecast.campaign.attempts import attempt_noted, bring_back, keep_record, wait_for_earlier
from joulecast.errors import JoulecastError
from joulecast.files.writing import directory_written_aside, explained_disk_errors
from joulecast.power.foreign_load import Load
from joulecast.records.record import RunInfo, answers, read_info
from joulecast.records.spec import RunSpec
from joulecast.training.machine import LONGEST_WAIT_S, Machine, held_machine
from joulecast.training.processes import NotBegun, remove_shared_memory, run_to_end
from joulecast.training.ranks import own_mpi_environment, said_reason


def command_line(
    spec: RunSpec,
    spec_file: Path,
    out: Path,
    launcher: str | None,
    nodes: int | None = None,
    python: str | None = None,
    load: Load | None = None,
) -> list[str]:
    """The argument list that starts a run; no shell ever sees it.

    Args:
        launcher: ``mpiexec``, ``srun --mpi=pmi2``, ...; ``None`` starts a single rank without one.
        nodes: nodes of the scheduler's to spread the ranks over; one for each host if ``None``.
        python: the command that is Python for the ranks, as ``apptainer exec joulecast.sif python``;
            this one if ``None``.
        load: what other programs did before the run; the run looks itself if ``None``.

    Raises:
        JoulecastError: the launcher is not there, or several ranks have none.
    """
    interpreter = _words(spec, python, "rank_python") if python else [sys.executable]
    rank = [*interpreter, "-m", "joulecast.training", "--spec", str(spec_file), "--out", str(out)]
    if load is not None:
        rank += ["--load", json.dumps(asdict(load))]
    if launcher is None:
        if spec.ranks > 1:
            raise JoulecastError(f"run {spec.run}: {spec.ranks} ranks need an MPI launcher")
        return rank
    words = _words(spec, launcher, "mpi")
    if Path(words[0]).name == "srun":
        # It would fill the first node before it gives more than one rank to the others, bind a rank
        # and its sampler to one core, and let ranks wait for one that was killed.
        words += [
            f"--ntasks-per-node={-(-spec.ranks // (nodes or spec.hosts))}",
            "--cpu-bind=none",
            "--kill-on-bad-exit=1",
        ]
    return [*words, "-n", str(spec.ranks), *rank]


def _words(spec: RunSpec, command: str, resource: str) -> list[str]:
    words = shlex.split(command)
    if not words or shutil.which(words[0]) is None:
        raise JoulecastError(
            f"run {spec.run}: no `{words[0] if words else command}` on the PATH; load the site's "
            "module, install it (an MPI is in the lock: `./run` puts it there), or name another with "
            f"--set-resources train:{resource}=..."
        )
    return words


def _environment(spec: RunSpec, launcher: str | None) -> dict[str, str]:
    threads = str(spec.threads_per_rank)
    # A single rank in a job step of SLURM's would take its parent's place in MPI.
    inherited = own_mpi_environment() if launcher is None else dict(os.environ)
    return {
        # Huge pages for what glibc allocates (others ignore it): first touches cost a rank seconds.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        **inherited,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does, so that nothing is left running or half-written."""

    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _put_in_place(measured: Path, out: Path, run: str, attempts: Path) -> None:
    # Held before it takes its place, where it may be removed at any time.
    keep_record(attempts, run, measured)
    with directory_written_aside(out) as partial:
        for file in measured.iterdir():
            shutil.move(file, partial)


@dataclass(frozen=True)
class Quiet:
    """What is done about other programs: see the section ``quiet`` of the configuration."""

    wait_s: float
    repeats: int


@dataclass(frozen=True)
class _Job:
    """One run, repeated while other programs disturb it."""

    spec: RunSpec
    launcher: str | None
    nodes: int | None
    python: str | None
    log: TextIO
    timeout_s: float
    start_timeout_s: float

    def measured(self, scratch: Path, machine: Machine, quiet: Quiet) -> Path:
        """The folder of the record; a run that other programs disturbed is measured again, and the record
        with the least foreign load is taken.

        Raises:
            JoulecastError: no run gave a record.
        """
        spec_file = scratch / "spec.json"
        spec_file.write_text(self.spec.model_dump_json())
        best: tuple[float, Path] | None = None
        for again in range(quiet.repeats + 1):
            load = machine.wait_for_quiet()
            if best is not None and not load.is_quiet:
                break
            folder = scratch / ("record" if not again else f"record-{again}")
            try:
                info = self._once(spec_file, folder, load, machine.lock)
            except JoulecastError as error:
                if best is None:
                    raise
                print(f"{error}; the first record is kept", file=self.log)
                break
            busy = max(load.busy_cores, info.load_during.get("busy_cores", 0.0))
            best = min(best or (busy, folder), (busy, folder))
            if not info.disturbed or not load.is_quiet:
                break
            print(f"{self.spec.run} was disturbed: {'; '.join(info.disturbed)}", file=self.log)
        assert best is not None
        return best[1]

    def _once(self, spec_file: Path, folder: Path, load: Load, lock: int) -> RunInfo:
        command = command_line(
            self.spec, spec_file, folder, self.launcher, self.nodes, self.python, load
        )
        try:
            self._run(command, spec_file, lock)
        except NotBegun as error:
            # After a node went down SLURM has left a launcher without its ranks; another one got them.
            print(f"{error}; they are started once more", file=self.log, flush=True)
            self._run(command, spec_file, lock)
        # Rank 0 validated the record before it renamed it.
        info = read_info(folder)
        if info.spec_sha256 != self.spec.digest():
            raise JoulecastError(f"run {self.spec.run}: its record answers another one")
        return info

    def _run(self, command: list[str], spec_file: Path, lock: int) -> None:
        """Run a launcher with its ranks; an error says why they failed."""
        spec, log = self.spec, self.log
        begin_of_this_try = log.seek(0, os.SEEK_END)
        try:
            code = run_to_end(
                command,
                _environment(spec, self.launcher),
                log,
                lock,
                spec_file.parent,
                timeout_s=self.timeout_s,
                start_timeout_s=self.start_timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise JoulecastError(
                f"run {spec.run}: not finished after {self.timeout_s:.0f} s and ended; give it longer with "
                "the configuration key `run_timeout_s`"
            ) from None
        except NotBegun as error:
            raise NotBegun(
                f"run {spec.run}: {error}, and it was ended; does the launcher wait for the scheduler or the "
                "network? Start again, or give it longer with the configuration key `start_timeout_s`"
            ) from None
        if code != 0:
            killed = f" (killed by signal {-code})" if code < 0 else ""
            ended = f"ended with exit code {code}{killed}"
            # Not by its name: who starts the run anew meanwhile removes the log.
            size = os.fstat(log.fileno()).st_size - begin_of_this_try
            printed = os.pread(log.fileno(), size, begin_of_this_try).decode(errors="replace")
            reason = said_reason(spec_file, printed)
            raise JoulecastError(f"{reason} ({ended})" if reason else f"run {spec.run}: {ended}")


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
    """Run ``spec`` and leave a validated record in ``out``; if it is there already, do nothing.

    Args:
        out: folder of the record, which all hosts of the run must see.
        log_file: gets everything the ranks print.
        launcher, nodes, python: as in :func:`command_line`.
        attempts: folder of the journal of attempts (:mod:`joulecast.campaign.attempts`); beside ``out`` if
            ``None``.
        asked_s: when the run was asked for (seconds of the epoch): a record that another attempt has
            finished since counts, even if it was removed to make room for this one.
        timeout_s, start_timeout_s: when the run is ended: not finished, or its ranks not begun.
        quiet: how long to wait for other programs, and how often a disturbed run is measured again;
            neither if ``None``.

    Raises:
        JoulecastError: the run failed; the message says how, the log says why.
    """
    attempts = out.parent / "attempts" if attempts is None else attempts
    patience = quiet or Quiet(wait_s=0.0, repeats=0)
    since_s = asked_s if math.isfinite(asked_s) else 0.0
    # A measurement of the same campaign takes no longer than this one may.
    longest_s = max(LONGEST_WAIT_S, (1 + patience.repeats) * (timeout_s + patience.wait_s))
    with explained_disk_errors(log_file):
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log = open(log_file, "a+", encoding="utf-8")  # noqa: SIM115 (closed by the block below)
    with log, ended_by_signals(), attempt_noted(attempts, spec.run, log_file) as attempt:
        # Before the lock, which an earlier attempt on this host may be waiting for.
        wait_for_earlier(attempts, attempt, log, 2 * longest_s)
        with held_machine(log, patience.wait_s, since_s, longest_s) as machine:
            bring_back(attempts, spec.run, out, asked_s)
            # Of killed attempts; their ranks, which read and wrote there, are gone with the lock.
            for left in attempts.glob(f".{spec.run}-*"):
                if not out.exists() and answers(left / "record", spec):
                    _put_in_place(left / "record", out, spec.run, attempts)
                remove_shared_memory(left)
                shutil.rmtree(left, ignore_errors=True)
            if answers(out, spec):
                print(f"{out} already answers this specification", file=log)
                keep_record(attempts, spec.run, out)
                return
            job = _Job(spec, launcher, nodes, python, log, timeout_s, start_timeout_s)
            # Ranks on other hosts read it, so it lies where the records do.
            with tempfile.TemporaryDirectory(prefix=f".{spec.run}-", dir=attempts) as scratch:
                begin = time.monotonic()
                measured = job.measured(Path(scratch), machine, patience)
                _put_in_place(measured, out, spec.run, attempts)
            print(f"{spec.run}: {time.monotonic() - begin:.1f} s in all", file=log)
