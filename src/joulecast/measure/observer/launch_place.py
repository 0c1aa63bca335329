"""The place of a process among those that one launcher has started: how many there are, and which it is."""

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from joulecast.runs.provenance import boot_id


@dataclass(frozen=True)
class Place:
    """Number ``rank`` of ``size`` processes; ``job`` is the same name for all of them and for no others."""

    rank: int
    size: int
    job: str


def _numbers(environment: Mapping[str, str], *names: str) -> list[int] | None:
    texts = [environment.get(name, "") for name in names]
    return [int(text) for text in texts] if all(text.isdigit() for text in texts) else None


def place(environment: Mapping[str, str]) -> Place:
    """The place by the environment of torchrun, ``srun``, Open MPI or Hydra (MPICH, Intel); else alone.

    Hydra gives its job no name: its processes know each other by their parent, which is the same on one host.
    """
    torch = _numbers(environment, "RANK", "WORLD_SIZE")
    if torch is not None:
        names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
        meeting = "-".join(environment.get(name, "") for name in names)
        # A launcher on one host is known by its process: the next launch may meet at the same port.
        own = environment.get("LOCAL_WORLD_SIZE") == str(torch[1])
        return Place(torch[0], torch[1], f"torch-{meeting}" + (f"-{os.getppid()}" if own else ""))
    slurm = _numbers(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID")
    if slurm is not None:
        job = f"slurm-{environment.get('SLURM_JOB_ID')}.{slurm[2]}"
        # A job that is started again has the same number, and must not meet what it left before.
        if (again := environment.get("SLURM_RESTART_COUNT", "0")) != "0":
            job += f"-{again}"
        return Place(slurm[0], slurm[1], job)
    openmpi = _numbers(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if openmpi is not None:
        name = environment.get("PMIX_NAMESPACE", f"{boot_id()}-{os.getppid()}")
        return Place(openmpi[0], openmpi[1], f"openmpi-{name}")
    hydra = _numbers(environment, "PMI_RANK", "PMI_SIZE")
    if hydra is not None:
        return Place(hydra[0], hydra[1], f"hydra-{boot_id()}-{os.getppid()}")
    return Place(0, 1, f"alone-{uuid.uuid4().hex[:12]}")
