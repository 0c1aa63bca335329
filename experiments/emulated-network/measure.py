"""Measures steps and collectives on the emulated network; needs root. See README.md."""

import os
import subprocess
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from families import (
    REPEATED,
    EmulatedJob,
    all_configurations,
    calibration_jobs,
    step_job,
)
from jobs import LATE_S, Answer
from launching import find_launcher, program_command
from measuring import (
    Measured,
    Program,
    Session,
    Tell,
    awake_cores,
    begun_session,
    facts_of_now,
    kept_until_written,
    rank_path,
    write_results,
)
from nodes import Link, commands, node_name, nodes, require_means

from joulecast.errors import JoulecastError
from joulecast.simulate.judged.emulated_network import EMULATED, EmulatedStep

_MPI_SETTINGS = {
    # Ranks of one machine would otherwise share memory behind the network's back.
    "MPIR_CVAR_NOLOCAL": "1",
    "MPIR_CVAR_CH4_NETMOD": "ucx",
    "UCX_TLS": "tcp",
    "UCX_NET_DEVICES": "eth0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": rank_path(__file__),
}
PROGRAM = Program(
    module="rank",
    tables=EMULATED.tables,
    timeout_s=180.0,
    settings=_MPI_SETTINGS,
    attempts=3,
    enough=5,
)
_WHAT = (
    "Steps of training and stand-alone collectives, measured on an emulated network: a node is a "
    "network namespace behind a link limited by tbf in either direction; computations are timed "
    "sleeps; communication is MPI (isend, irecv) over TCP, of ranks with real-time priority "
    "(SCHED_RR) that look after their messages every 0.1 ms, on cores kept awake by spinners of "
    "SCHED_IDLE. `seconds` is from a start that all ranks agreed on to the end of the last rank. "
    "`other_cores` is what processes that are not ours used meanwhile (recorded, not judged); "
    "`late_s` the latest that a rank noticed the end of a computation; `disturbed` says that it was "
    f"more than {1e3 * LATE_S:g} ms. Two warm-up iterations of every launch are not kept; repeat 1 was "
    "measured at the end of the session, for an A/A comparison."
)


def require_mpich() -> list[str]:
    """The lines in which the launcher of MPI states its version.

    Raises:
        JoulecastError: there is none, or it is not MPICH's (the settings are MPICH's).
    """
    launcher = find_launcher()
    output = subprocess.run([launcher, "--version"], capture_output=True, text=True).stdout
    if "HYDRA" not in output:
        raise JoulecastError(
            f"{launcher} is not MPICH's, which the emulated network is measured with; "
            "pip install mpich, or run it as `./run`, whose lock has it"
        )
    return [line.strip() for line in output.splitlines()[:3]]


def _in_nodes(job: EmulatedJob) -> list[list[str]]:
    """The words before the program of every rank, which put it in its node."""
    hosts = [node_name(rank // job.ranks_per_node) for rank in range(job.ranks)]
    return [["ip", "netns", "exec", host] for host in hosts]


def all_jobs(only: Sequence[str] | None = None) -> list[EmulatedJob]:
    """The jobs of a session, in order; ``only`` chooses by name (A/A repeats come along).

    Raises:
        JoulecastError: a name that nothing has.
    """
    known = {job.name: job for job in calibration_jobs()}
    known.update({each.name: step_job(each) for each in all_configurations()})
    for name in only or ():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise JoulecastError(f"the emulated network has nothing named {name}{hint}")
    chosen = [name for name in known if only is None or name in only]
    again = [each for each in all_configurations() if each.name in REPEATED and each.name in chosen]
    return [known[name] for name in chosen] + [step_job(each, 1) for each in again]


def _facts(mpiexec: list[str], link: Link) -> dict[str, Any]:
    example = calibration_jobs()[0]
    words = program_command(
        PROGRAM.module, example.ranks, Path("JOB"), Path("OUT"), _in_nodes(example)
    )
    return {
        **facts_of_now(_WHAT),
        "kernel": os.uname().release,
        "mpiexec": mpiexec,
        "link": link.model_dump(),
        "node_commands": commands(0, link),
        "mpi_settings": _MPI_SETTINGS,
        "job_command": ["mpiexec", *(w.replace(sys.executable, "python") for w in words[1:])],
    }


def _answers(session: Session, jobs: Sequence[EmulatedJob], link: Link, tell: Tell) -> list[Answer]:
    """The answers of all jobs; nodes are made only if some are missing."""
    todo = [job for job in jobs if session.kept(job) is None]
    if todo:
        count = max(job.ranks // job.ranks_per_node for job in todo)
        with nodes(count, link), awake_cores():
            for number, job in enumerate(todo, 1):
                _, output = session.answer(job, PROGRAM, _in_nodes(job))
                tell(f"{number}/{len(todo)} {job.name}: {output}")
    return [answer for job in jobs if (answer := session.kept(job)) is not None]


def measure(out: Path, tell: Tell = print, only: Sequence[str] | None = None) -> None:
    """Measure configurations and collectives and leave them in ``out``.

    Args:
        out: new folder.
        tell: gets a line for every job that is done.
        only: names of configurations and calibrations; everything if absent.

    Raises:
        JoulecastError: not root, no ``ip``, ``tc`` or ``mpiexec``, ``out`` is there already, or a
            job failed; what was measured before is kept in ``out``.work.
    """
    jobs, link = all_jobs(only), Link()
    with kept_until_written(out) as work:
        require_means()
        facts = _facts(require_mpich(), link)
        same = ("host", "versions", "link", "mpi_settings")
        with begun_session(work / "session-0", facts, same, tell) as session:
            answers = _answers(session, jobs, link, tell)
        parts = [part for job in jobs for part in job.parts]
        steps = {part.name: part for part in parts if isinstance(part, EmulatedStep)}
        write_results(out, EMULATED, list(steps.values()), [Measured(answers, session.facts)])


if __name__ == "__main__":
    measure(Path(sys.argv[1]), only=sys.argv[2:] or None)
