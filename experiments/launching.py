"""Programs of the experiments on some ranks of this machine: they get a job, and leave an answer."""

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel

from joulecast.errors import JoulecastError
from joulecast.measure.training.ranks import NotFinished, rank_environment, run_ranks


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
            code, reason = run_ranks(command, environment, job_file, log, lock, timeout_s)
        except NotFinished as error:
            raise JoulecastError(f"{name}: {error}") from None
        if code != 0 or not answer.is_file():
            why = reason or "see the log"
            raise JoulecastError(f"{name}: failed (exit code {code}): {why}")
        return json.loads(answer.read_text())
