"""Starting one run from outside, and vouching for its record.

One measurement at a time has a host: a lock that the MPI job inherits is held until the last of its
processes is gone, even when whoever started it was killed. A record that already answers the
specification is not measured again, so an orphan that finished after all is not lost.
"""

import fcntl
import json
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
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from joulecast.errors import JoulecastError
from joulecast.files import explained_disk_errors, written_aside
from joulecast.records import answers, read_info
from joulecast.spec import RunSpec
from joulecast.training.ranks import said_reason

_LOG_LINES_KEPT = 40


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


def command_line(spec: RunSpec, spec_file: Path, out: Path, launcher: str | None) -> list[str]:
    """The argument list that starts a run; no shell ever sees it.

    Args:
        launcher: ``mpiexec``, ``srun --mpi=pmi2``, ...; ``None`` starts a single rank without one.

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
    return [*words, "-n", str(spec.ranks), *rank]


def _environment(spec: RunSpec) -> dict[str, str]:
    threads = str(spec.threads_per_rank)
    return {
        # Huge pages for what glibc allocates (others ignore it): first touches cost a rank seconds.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        **os.environ,
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


def _run(
    command: list[str], spec: RunSpec, spec_file: Path, log: TextIO, lock: int, timeout_s: float
) -> None:
    begin_of_this_try = log.seek(0, os.SEEK_END)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=_environment(spec),
        start_new_session=True,
        pass_fds=(lock,),
    )

    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupted)
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
    finally:
        signal.signal(signal.SIGTERM, before)
    if code != 0:
        killed = f" (killed by signal {-code})" if code < 0 else ""
        ended = f"ended with exit code {code}{killed}"
        printed = Path(log.name).read_bytes()[begin_of_this_try:].decode(errors="replace")
        reason = said_reason(spec_file, printed)
        raise JoulecastError(f"{reason} ({ended})" if reason else f"run {spec.run}: {ended}")


def _keep_failure(folder: Path, spec: RunSpec, reason: str, log_lines: list[str]) -> None:
    failure = {
        "run": spec.run,
        "failed_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "reason": reason,
        "log": log_lines[-_LOG_LINES_KEPT:],
    }
    with written_aside(folder / f"{spec.run}.json") as partial:
        partial.write_text(json.dumps(failure, indent=1) + "\n")


def measure(
    spec: RunSpec,
    out: Path,
    log_file: Path,
    *,
    launcher: str | None = "mpiexec",
    failures: Path | None = None,
    timeout_s: float = 3600.0,
) -> None:
    """Run ``spec`` and leave a validated record in ``out``; if it is there already, do nothing.

    Args:
        log_file: gets everything the ranks print.
        failures: folder in which a failed run leaves ``RUN.json`` with its reason and the end of
            its log; removed again when the run succeeds.

    Raises:
        JoulecastError: the run failed; the message says how, the log says why.
    """
    with explained_disk_errors(log_file):
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log = open(log_file, "a", encoding="utf-8")  # noqa: SIM115 (closed by the block below)
    with log:
        begin_of_this_try = log.tell()
        try:
            with machine_lock(log) as lock:
                if answers(out, spec):
                    print(f"{out} already answers this specification", file=log)
                    return
                with tempfile.TemporaryDirectory(prefix="joulecast-") as scratch:
                    spec_file = Path(scratch) / "spec.json"
                    spec_file.write_text(spec.model_dump_json())
                    begin = time.monotonic()
                    command = command_line(spec, spec_file, out, launcher)
                    _run(command, spec, spec_file, log, lock, timeout_s)
                print(f"{spec.run}: {time.monotonic() - begin:.1f} s in all", file=log)
                # Rank 0 validated the record before it renamed it.
                if read_info(out).spec_sha256 != spec.digest():
                    raise JoulecastError(f"run {spec.run}: {out} answers another specification")
        except JoulecastError as error:
            log.flush()
            lines = log_file.read_bytes()[begin_of_this_try:].decode(errors="replace").splitlines()
            if failures is not None:
                _keep_failure(failures, spec, str(error), lines)
            raise
    if failures is not None:
        (failures / f"{spec.run}.json").unlink(missing_ok=True)
