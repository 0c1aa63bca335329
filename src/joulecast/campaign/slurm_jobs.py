"""State of a SLURM job: whether it still runs, and why it ended."""

import os
import shutil
import subprocess
import time
from dataclasses import dataclass

_POLL_S = 0.5
_ENDS_JOBS_S = 35.0  # KillWait is 30 s unless configured

_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")
_REASONS = {
    "TIMEOUT": "killed by its time limit; give it longer: `runtime` in the profile",
    "NODE_FAIL": "a node of its job went down",
    "CANCELLED": "its job was cancelled",
    "OUT_OF_MEMORY": "its job used more memory than it had; give it more: `mem_mb` in the profile",
    "PREEMPTED": "its job was preempted",
    "DEADLINE": "its job ran into its deadline",
    "BOOT_FAIL": "a node of its job did not boot",
}


@dataclass(frozen=True)
class SlurmJob:
    """State of a job (``None``: SLURM has forgotten it), and how often it was restarted."""

    state: str | None
    restarts: int = 0


def slurm_job(number: str) -> SlurmJob | None:
    """State of a job; ``None`` when SLURM cannot be asked now.

    Where SLURM is not installed (results copied from a cluster), all jobs count as forgotten.
    """
    answered = not (shutil.which("scontrol") or shutil.which("sacct"))
    for program, *arguments in (
        ("scontrol", "show", "job", "-o", number),
        ("sacct", "-X", "-n", "-P", "-o", "State", "-j", number),
    ):
        try:
            answer = subprocess.run(
                [program, *arguments], capture_output=True, text=True, timeout=30
            )
        except (FileNotFoundError, subprocess.TimeoutExpired):
            continue
        if answer.returncode == 0 and answer.stdout.strip():
            words = answer.stdout.split()
            facts = dict(word.split("=", 1) for word in words if "=" in word)
            return SlurmJob(facts.get("JobState", words[0]), int(facts.get("Restarts", 0)))
        answered |= "Invalid job id" in answer.stderr
    return SlurmJob(None) if answered else None


def may_run(number: str) -> bool:
    """Whether a job runs, as far as SLURM can say: ``True`` also when it cannot be asked now."""
    job = slurm_job(number)
    return job is None or job.state in _RUNNING


def _ended_job(number: str) -> SlurmJob | None:
    """State of a job that is over; waits half a minute for one that SLURM is still ending."""
    deadline = time.monotonic() + _ENDS_JOBS_S
    while (job := slurm_job(number)) and job.state == "COMPLETING":
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return job


def why_job_ended(number: str, unexplained: str) -> str:
    """Reason for the end of a job; begins with ``unexplained`` where SLURM gives none."""
    job = _ended_job(number)
    if job is None:
        return f"{unexplained} (SLURM job {number}: SLURM cannot be asked)"
    if number == os.environ.get("SLURM_JOB_ID") and job.restarts:
        return f"{unexplained}; SLURM has started its job {number} again"
    if job.state in _REASONS:
        return f"{_REASONS[job.state]} (SLURM job {number}: {job.state})"
    answer = "has forgotten it" if job.state is None else f"says {job.state}"
    return f"{unexplained} (SLURM job {number}: SLURM {answer})"
