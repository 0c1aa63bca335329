"""Measuring steps and collectives on the emulated network.

Every job is one launch of MPI whose raw answer is kept in ``OUT.work`` as soon as it is there, so an
interrupted measurement goes on where it was. When all jobs are answered they become ``OUT``.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TextIO

from joulecast.errors import JoulecastError
from joulecast.files.writing import explained_disk_errors, written_aside
from joulecast.ground_truth.families import REPEATED, all_configurations
from joulecast.ground_truth.jobs import Job, calibration_jobs, step_job
from joulecast.ground_truth.kept import resumed_session
from joulecast.ground_truth.load import awake_cores, is_polluted
from joulecast.ground_truth.namespaces import Link, commands, node_name, nodes, require_means
from joulecast.ground_truth.results import write_results
from joulecast.power.foreign_load import load_before
from joulecast.records.provenance import host_fingerprint, source_state, versions
from joulecast.training.launch import ended_by_signals
from joulecast.training.machine import machine_lock
from joulecast.training.processes import run_to_end

CLEAN_ITERATIONS = 5
_ATTEMPTS = 3
_TIMEOUT_S = 180.0
_MPI_SETTINGS = {
    # Ranks of one machine would otherwise share memory behind the network's back.
    "MPIR_CVAR_NOLOCAL": "1",
    "MPIR_CVAR_CH4_NETMOD": "ucx",
    "UCX_TLS": "tcp",
    "UCX_NET_DEVICES": "eth0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def find_launcher() -> str:
    """The ``mpiexec`` that belongs to this Python, or that of the PATH.

    Raises:
        JoulecastError: there is none, or it is not MPICH's (the settings are MPICH's).
    """
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.is_file() else shutil.which("mpiexec")
    if found is None:
        raise JoulecastError(
            "no `mpiexec`; the lock has MPICH (`./run` installs it), or install one of your own"
        )
    said = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
    if "HYDRA" not in said:
        raise JoulecastError(
            f"{found} is not MPICH's, which the emulated network is measured with; "
            "pip install mpich, or run it as `./run`, whose lock has it"
        )
    return found


def command_line(launcher: str, job: Job, job_file: Path, out: Path) -> list[str]:
    """The argument list that starts a job with every rank in its node; no shell sees it."""
    line = [launcher, "-bind-to", "none"]
    for rank in range(job.ranks):
        line += [] if rank == 0 else [":"]
        line += ["-n", "1", "ip", "netns", "exec", node_name(rank // job.ranks_per_node)]
        line += [sys.executable, "-m", "joulecast.ground_truth.worker", str(job_file), str(out)]
    return line


def _launch(launcher: str, job: Job, log: TextIO, lock: int) -> list[list[dict[str, Any]]]:
    """Run a job once; gives for every part its iterations."""
    with tempfile.TemporaryDirectory(prefix="joulecast-") as scratch:
        job_file, answer = Path(scratch) / "job.json", Path(scratch) / "answer.json"
        job_file.write_text(job.model_dump_json())
        print(f"--- {job.name}", file=log, flush=True)
        try:
            code: int | str = run_to_end(
                command_line(launcher, job, job_file, answer),
                {**os.environ, **_MPI_SETTINGS},
                log,
                lock,
                Path(scratch),
                timeout_s=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            code = f"none after {_TIMEOUT_S:.0f} s"
        if code != 0 or not answer.is_file():
            raise JoulecastError(f"{job.name}: failed (exit code {code}); {log.name} says why")
        seen: list[list[dict[str, Any]]] = json.loads(answer.read_text())["seen"]
        return seen


def _clean(iterations: Sequence[dict[str, Any]]) -> int:
    return sum(not is_polluted(each["late_s"]) for each in iterations)


def _answer(work: Path, job: Job) -> Path:
    return work / f"{job.name}.json"


def _is_answered(work: Path, job: Job) -> bool:
    try:
        return bool(json.loads(_answer(work, job).read_text())["digest"] == job.digest())
    except FileNotFoundError:
        return False


def _measure_job(launcher: str, job: Job, work: Path, log: TextIO, lock: int) -> str:
    """Measure until enough iterations are clean, or the machine will not be quiet."""
    seen: list[list[dict[str, Any]]] = [[] for _ in job.parts]
    for _ in range(_ATTEMPTS):
        for all_seen, more in zip(seen, _launch(launcher, job, log, lock), strict=True):
            all_seen.extend(more)
        if min(map(_clean, seen)) >= min(CLEAN_ITERATIONS, job.iterations):
            break
    with written_aside(_answer(work, job)) as partial:
        partial.write_text(json.dumps({"digest": job.digest(), "seen": seen}))
    longest = [max(each["ended_s"]) for each in seen[-1]]
    polluted = sum(len(part) - _clean(part) for part in seen)
    return f"{sorted(longest)[len(longest) // 2]:.3f} s" + (
        f", {polluted} iterations polluted" if polluted else ""
    )


def all_jobs(only: Sequence[str] | None = None) -> list[Job]:
    """What a session measures, in order; ``only`` chooses by name (A/A repeats come along).

    Raises:
        JoulecastError: a name that nothing has.
    """
    known = {job.name: [job] for job in calibration_jobs()}
    known.update({each.name: [step_job(each)] for each in all_configurations()})
    for name in only or ():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise JoulecastError(f"the testbed has nothing named {name}{hint}")
    chosen = [name for name in known if only is None or name in only]
    again = [each for each in all_configurations() if each.name in REPEATED and each.name in chosen]
    return [job for name in chosen for job in known[name]] + [step_job(each, 1) for each in again]


def _session(launcher: str, link: Link) -> dict[str, Any]:
    example = calibration_jobs()[0]
    built = subprocess.run([launcher, "--version"], capture_output=True, text=True).stdout
    return {
        "began_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host_fingerprint(),
        "kernel": os.uname().release,
        "versions": versions(),
        "mpiexec": [line.strip() for line in built.splitlines()[:3]],
        "source": source_state(),
        "load_before": load_before(),
        "link": link.model_dump(),
        "node_commands": commands(0, link),
        "mpi_settings": _MPI_SETTINGS,
        "job_command": [
            word.replace(sys.executable, "python")
            for word in command_line("mpiexec", example, Path("JOB"), Path("OUT"))
        ],
    }


def measure(
    out: Path, tell: Callable[[str], object] = print, only: Sequence[str] | None = None
) -> None:
    """Measure configurations and collectives and leave them in ``out``.

    Args:
        tell: told of every job that is done.
        only: names of configurations and calibrations; everything if absent.

    Raises:
        JoulecastError: not root, no ``ip``, ``tc`` or ``mpiexec``, ``out`` is there already, or a
            job failed; what was measured before is kept in ``out``.work.
    """
    jobs = all_jobs(only)
    if out.exists():
        raise JoulecastError(f"{out} is there already; move it away to measure anew")
    require_means()
    launcher, link = find_launcher(), Link()
    work = out.with_name(out.name + ".work")
    with explained_disk_errors(work):
        work.mkdir(parents=True, exist_ok=True)
        log = open(work / "log.txt", "a", encoding="utf-8")  # noqa: SIM115 (closed below)
    with log, ended_by_signals(), machine_lock(log) as lock:
        session = resumed_session(
            work, _session(launcher, link), ("host", "versions", "link", "mpi_settings")
        )
        todo = [job for job in jobs if not _is_answered(work, job)]
        if todo:
            count = max(job.ranks // job.ranks_per_node for job in todo)
            begin = time.monotonic()
            with nodes(count, link), awake_cores():
                for number, job in enumerate(todo, 1):
                    said = _measure_job(launcher, job, work, log, lock)
                    tell(f"{number}/{len(todo)} {job.name}: {said}")
            tell(f"measured in {time.monotonic() - begin:.0f} s")
        answers = {job.name: json.loads(_answer(work, job).read_text())["seen"] for job in jobs}
        write_results(out, jobs, answers, session)
    shutil.rmtree(work)
