"""Ranks started under a launcher, with a time limit, and the reason if they fail.

:func:`run_ranks` is the one runner: it starts the ranks of a run (:mod:`joulecast.measure.training.launch`)
and those of this package's other programs, which get a job and leave an answer (:func:`launch_ranks`).
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel

from joulecast.errors import JoulecastError
from joulecast.measure.training.processes import NotFinished, run_to_end
from joulecast.runs.files.writing import explained_disk_errors

_FAILED_LINES = 8


def find_launcher() -> str:
    """The ``mpiexec`` that belongs to this Python, or that of the PATH.

    Raises:
        JoulecastError: there is none.
    """
    own = Path(sys.executable).parent / "mpiexec"
    found = str(own) if own.is_file() else shutil.which("mpiexec")
    if found is None:
        raise JoulecastError(
            "no `mpiexec`; the lock has MPICH (`./run` installs it), or install one of your own"
        )
    return found


def own_mpi_environment() -> dict[str, str]:
    """The environment without the variables that would make an MPI program part of the current MPI job.

    With them, MPICH in a SLURM job asks `srun` for its ranks, and in a job of one task waits forever.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDI"))}
    return {**inherited, "HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user"}


def leave_mpi_job() -> None:
    """Let MPI start in this process, which is no rank of any launcher; to be called before MPI is imported.

    SLURM leaves the addresses of the job step in the environment; with them MPI would abort the process.
    """
    alone = own_mpi_environment()
    for name in set(os.environ) - set(alone):
        del os.environ[name]


def rank_environment(threads: int, *, own_mpi: bool = True) -> dict[str, str]:
    """The environment of ranks with some compute threads.

    Args:
        own_mpi: leave out the current MPI job, see :func:`own_mpi_environment`.
    """
    inherited = own_mpi_environment() if own_mpi else dict(os.environ)
    return {
        # Huge pages for glibc's memory (other C libraries ignore it): its first use takes a rank seconds.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        **inherited,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
    }


def _reason_file(job: Path) -> Path:
    return job.with_name("reason.txt")


def say_reason(error: JoulecastError, job: Path) -> None:
    """Write why this rank fails to the log, and to a file next to the job.

    A launcher may end before it has passed on all that its ranks printed; the file is not lost.
    """
    print(f"error: {error}", file=sys.stderr, flush=True)
    with suppress(OSError):
        _reason_file(job).write_text(str(error), encoding="utf-8")


def said_reason(job: Path, log: str) -> str | None:
    """Why the last rank that failed, or the launcher, did so; ``None`` if none gave a reason.

    Args:
        job: file of the ranks' job.
        log: all that ranks and launcher have printed.
    """
    with suppress(OSError):
        return _reason_file(job).read_text(encoding="utf-8")
    said = [line.removeprefix("error: ") for line in log.splitlines() if line.startswith("error: ")]
    return said[-1] if said else None


@contextmanager
def opened_log(file: Path) -> Iterator[TextIO]:
    """The open log that ranks append to; its folder is made if it is missing."""
    with explained_disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        log = open(file, "a+", encoding="utf-8")  # noqa: SIM115 (closed by the block below)
    with log:
        yield log


@dataclass(frozen=True)
class LauncherEnd:
    """End of a launcher: its exit code, the reason if it or a rank gave one, and all that was printed."""

    code: int
    reason: str | None
    printed: str


def run_ranks(
    command: Sequence[str],
    environment: dict[str, str],
    job_file: Path,
    log: TextIO,
    lock: int,
    timeout_s: float,
) -> LauncherEnd:
    """The end of a launcher, after all its ranks are gone.

    The other arguments and the errors are those of :func:`joulecast.measure.training.processes.run_to_end`.

    Args:
        job_file: the ranks' job, in a folder that all hosts see.
        log: open for reading too.
    """
    begin_of_this_try = log.seek(0, os.SEEK_END)
    code = run_to_end(command, environment, log, lock, timeout_s=timeout_s)
    # Read by descriptor: a restart of this run may have removed the file by its name.
    size = os.fstat(log.fileno()).st_size - begin_of_this_try
    printed = os.pread(log.fileno(), size, begin_of_this_try).decode(errors="replace")
    return LauncherEnd(code, said_reason(job_file, printed), printed)


def program_command(
    program: str, ranks: int, job: Path, answer: Path, inside: Sequence[Sequence[str]] = ()
) -> list[str]:
    """The argument list that starts a program's ranks on this machine; no shell sees it.

    Args:
        program: module that reads ``job`` and writes ``answer``.
        ranks: number of ranks.
        job: file of the job.
        answer: file of the answer.
        inside: for each rank the words before its command, as ``ip netns exec NODE``; none if empty.

    Raises:
        JoulecastError: no ``mpiexec``.
    """
    # Under mpi4py's runner a rank that fails ends the others too.
    worker = [sys.executable, "-m", "mpi4py", "-m", program, str(job), str(answer)]
    if not inside:
        return [find_launcher(), "-n", str(ranks), *worker]
    line = [find_launcher(), "-bind-to", "none"]
    for rank in range(ranks):
        line += [] if rank == 0 else [":"]
        line += ["-n", "1", *inside[rank], *worker]
    return line


def launch_ranks(
    program: str,
    job: BaseModel,
    name: str,
    ranks: int,
    log: TextIO,
    lock: int,
    timeout_s: float,
    *,
    inside: Sequence[Sequence[str]] = (),
    settings: Mapping[str, str] | None = None,
) -> Any:
    """The answer of ``python -m PROGRAM JOB ANSWER`` on some ranks of this machine.

    Args:
        program: module that reads the job's JSON and writes its answer as JSON.
        job: the job.
        name: of the job, for messages.
        ranks: number of ranks.
        log: gets what the ranks print.
        lock: descriptor of the machine's lock, which the ranks inherit.
        timeout_s: the ranks are ended when they have not finished by then.
        inside: see :func:`program_command`.
        settings: further environment variables of the ranks.

    Raises:
        JoulecastError: no ``mpiexec``, not finished in time, or a rank failed; says why.
    """
    print(f"--- {name}", file=log, flush=True)
    with tempfile.TemporaryDirectory(prefix="joulecast-") as scratch:
        job_file, answer = Path(scratch) / "job.json", Path(scratch) / "answer.json"
        job_file.write_text(job.model_dump_json())
        command = program_command(program, ranks, job_file, answer, inside)
        environment = {**rank_environment(threads=1), **(settings or {})}
        try:
            end = run_ranks(command, environment, job_file, log, lock, timeout_s)
        except NotFinished as error:
            raise JoulecastError(f"{name}: {error}") from None
        if end.code != 0 or not answer.is_file():
            reason = end.reason or "; ".join(end.printed.splitlines()[-_FAILED_LINES:])
            raise JoulecastError(f"{name}: failed (exit code {end.code}): {reason}")
        return json.loads(answer.read_text())
