"""Starting one run from outside, and vouching for its record.

One measurement at a time has a host: a lock that the MPI job inherits is held until the last of its
processes is gone, even when whoever started it was killed. A record that already answers the
specification is not measured again, so an orphan that finished after all is not lost.
"""

import fcntl
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
from pathlib import Path
from typing import TextIO

from joulecast.attempts import attempt_noted, wait_for_others
from joulecast.errors import JoulecastError
from joulecast.files import explained_disk_errors
from joulecast.records import answers, read_info
from joulecast.spec import RunSpec
from joulecast.training.ranks import said_reason


@contextmanager
def machine_lock(log: TextIO) -> Iterator[int]:
    """Hold this host for one measurement; gives the lock's descriptor for children to inherit."""
    path = Path(tempfile.gettempdir()) / f"joulecast-measuring-{os.getuid()}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another measurement holds {path}; waiting for its end", file=log, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def command_line(
    spec: RunSpec, spec_file: Path, out: Path, launcher: str | None, nodes: int | None = None
) -> list[str]:
    """The argument list that starts a run; no shell ever sees it.

    Args:
        launcher: ``mpiexec``, ``srun --mpi=pmi2``, ...; ``None`` starts a single rank without one.
        nodes: nodes of the scheduler's to spread the ranks over; one for each host if ``None``.

    Raises:
        JoulecastError: the launcher is not there, or several ranks have none.
    """
    rank = [sys.executable, "-m", "joulecast.training", "--spec", str(spec_file), "--out", str(out)]
    if launcher is None:
        if spec.ranks > 1:
            raise JoulecastError(f"run {spec.run}: {spec.ranks} ranks need an MPI launcher")
        return rank
    words = shlex.split(launcher)
    if not words or shutil.which(words[0]) is None:
        raise JoulecastError(
            f"run {spec.run}: no `{words[0] if words else launcher}` on the PATH; install an MPI "
            "(the lock has one: `./run` puts it there), load the site's module, or name another "
            "launcher with --set-resources train:mpi=..."
        )
    if Path(words[0]).name == "srun":
        # It would fill the first node before it gives more than one rank to the others, and let
        # ranks wait for one that was killed.
        words += [
            f"--ntasks-per-node={spec.ranks // (nodes or spec.hosts)}",
            f"--cpus-per-task={spec.threads_per_rank}",
            "--kill-on-bad-exit=1",
        ]
    return [*words, "-n", str(spec.ranks), *rank]


def _environment(spec: RunSpec, launcher: str | None) -> dict[str, str]:
    threads = str(spec.threads_per_rank)
    # A single rank in a job step of SLURM's would take its parent's place in MPI.
    alone = ("PMI_", "PMI2_", "PMIX_") if launcher is None else ()
    return {
        # Huge pages for what glibc allocates (others ignore it): first touches cost a rank seconds.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        **{key: value for key, value in os.environ.items() if not key.startswith(alone)},
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher and all it started: asked first, then forced."""
    for how, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, how)
            process.wait(patience_s)
            return
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


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


def _run(
    command: list[str],
    environment: dict[str, str],
    spec: RunSpec,
    spec_file: Path,
    log: TextIO,
    lock: int,
    timeout_s: float,
) -> None:
    begin_of_this_try = log.seek(0, os.SEEK_END)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        pass_fds=(lock,),
    )
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        raise JoulecastError(
            f"run {spec.run}: not finished after {timeout_s:.0f} s and ended; give it longer with "
            "the configuration key `run_timeout_s`"
        ) from None
    except BaseException:
        _end(process)
        raise
    if code != 0:
        killed = f" (killed by signal {-code})" if code < 0 else ""
        ended = f"ended with exit code {code}{killed}"
        printed = Path(log.name).read_bytes()[begin_of_this_try:].decode(errors="replace")
        reason = said_reason(spec_file, printed)
        raise JoulecastError(f"{reason} ({ended})" if reason else f"run {spec.run}: {ended}")


def measure(
    spec: RunSpec,
    out: Path,
    log_file: Path,
    *,
    launcher: str | None = "mpiexec",
    nodes: int | None = None,
    attempts: Path | None = None,
    timeout_s: float = 3600.0,
) -> None:
    """Run ``spec`` and leave a validated record in ``out``; if it is there already, do nothing.

    Args:
        out: folder of the record, which all hosts of the run must see.
        log_file: gets everything the ranks print.
        launcher, nodes: as in :func:`command_line`.
        attempts: folder of the journal of attempts (:mod:`joulecast.attempts`); beside ``out`` if
            ``None``.

    Raises:
        JoulecastError: the run failed; the message says how, the log says why.
    """
    attempts = out.parent / "attempts" if attempts is None else attempts
    with explained_disk_errors(log_file):
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log = open(log_file, "a", encoding="utf-8")  # noqa: SIM115 (closed by the block below)
    with log, ended_by_signals():
        wait_for_others(attempts, spec.run, log)
        with attempt_noted(attempts, spec.run, log_file), machine_lock(log) as lock:
            if answers(out, spec):
                print(f"{out} already answers this specification", file=log)
                return
            # Ranks on other hosts read it, so it lies where the records do.
            with tempfile.TemporaryDirectory(prefix=f".{spec.run}-", dir=attempts) as scratch:
                spec_file = Path(scratch) / "spec.json"
                spec_file.write_text(spec.model_dump_json())
                begin = time.monotonic()
                command = command_line(spec, spec_file, out, launcher, nodes)
                environment = _environment(spec, launcher)
                _run(command, environment, spec, spec_file, log, lock, timeout_s)
            print(f"{spec.run}: {time.monotonic() - begin:.1f} s in all", file=log)
            # Rank 0 validated the record before it renamed it.
            if read_info(out).spec_sha256 != spec.digest():
                raise JoulecastError(f"run {spec.run}: {out} answers another specification")
