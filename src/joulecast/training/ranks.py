"""Launches a program of this package under MPI, gives it a job, and takes back its answer."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel

from joulecast.errors import JoulecastError
from joulecast.training.processes import run_to_end

_FAILED_LINES = 8


def find_launcher() -> str:
    """The ``mpiexec`` that belongs to this Python, or that of the PATH.

    Raises:
        JoulecastError: there is none.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.is_file() else shutil.which("mpiexec")
    if found is None:
        raise JoulecastError(
            "no `mpiexec`; the lock has MPICH (`./run` installs it), or install one of your own"
        )
    return found


def own_mpi_environment() -> dict[str, str]:
    """The environment without what would make an MPI program part of the job that started it.

    In a job of SLURM's MPICH would ask `srun` for its ranks, and wait forever in a job of one task.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDI"))}
    return {**inherited, "HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user"}


def leave_mpi_job() -> None:
    """Let MPI begin alone in this process, which is nobody's rank: call it before MPI is imported.

    A batch job of SLURM's leaves its step's addresses in the environment of what it starts, and there MPI
    would abort the process.
    """
    alone = own_mpi_environment()
    for name in set(os.environ) - set(alone):
        del os.environ[name]


def one_thread_environment() -> dict[str, str]:
    """The environment that runs of training on this machine have, with one thread a rank."""
    one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", **own_mpi_environment(), **one}


def _reason_file(job: Path) -> Path:
    return job.with_name("reason.txt")


def say_reason(error: JoulecastError, job: Path) -> None:
    """Say why this rank fails: in the log, and in a file beside the job that it was given.

    A launcher may end before it has passed on all that its ranks printed; the file gets there.
    """
    print(f"error: {error}", file=sys.stderr, flush=True)
    with suppress(OSError):
        _reason_file(job).write_text(str(error), encoding="utf-8")


def said_reason(job: Path, log: str) -> str | None:
    """Why the last rank that failed did so, or the launcher; ``None`` when none has said anything.

    Args:
        job: the file that the ranks were given.
        log: what ranks and launcher have printed.
    """
    with suppress(OSError):
        return _reason_file(job).read_text(encoding="utf-8")
    said = [line.removeprefix("error: ") for line in log.splitlines() if line.startswith("error: ")]
    return said[-1] if said else None


def command_line(
    program: str, ranks: int, job: Path, answer: Path, inside: Sequence[Sequence[str]] = ()
) -> list[str]:
    """The argument list that starts a program's ranks on this machine; no shell sees it.

    Args:
        program: module that reads ``job`` and leaves ``answer``.
        ranks: how many.
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
    """Run ``python -m PROGRAM JOB ANSWER`` on some ranks of this machine.

    Args:
        program: module that reads the job's JSON and leaves JSON as its answer.
        job: what is to be done.
        name: of the job, for messages.
        ranks: how many.
        log: gets what the ranks print.
        lock: descriptor of the machine lock, which the ranks inherit.
        timeout_s: afterwards the ranks are ended.
        inside: as of :func:`command_line`.
        settings: environment variables that the ranks have besides those of :func:`one_thread_environment`.

    Returns:
        The answer.

    Raises:
        JoulecastError: no ``mpiexec``, not finished in time, or a rank failed; with what it said.
    """
    print(f"--- {name}", file=log, flush=True)
    begin_of_this_try = log.seek(0, os.SEEK_END)
    with tempfile.TemporaryDirectory(prefix="joulecast-") as scratch:
        job_file, answer = Path(scratch) / "job.json", Path(scratch) / "answer.json"
        job_file.write_text(job.model_dump_json())
        try:
            code = run_to_end(
                command_line(program, ranks, job_file, answer, inside),
                {**one_thread_environment(), **(settings or {})},
                log,
                lock,
                Path(scratch),
                timeout_s=timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise JoulecastError(
                f"{name}: not finished after {timeout_s:.0f} s, and ended"
            ) from None
        if code != 0 or not answer.is_file():
            said = Path(log.name).read_bytes()[begin_of_this_try:].decode(errors="replace")
            reason = said_reason(job_file, said) or "; ".join(said.splitlines()[-_FAILED_LINES:])
            raise JoulecastError(f"{name}: failed (exit code {code}): {reason}")
        return json.loads(answer.read_text())
