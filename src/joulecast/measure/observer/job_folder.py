"""The folder in which the processes of one launch meet. `srun -N2 joulecast measure`, for example,
starts one process on each host.

Each process has its own files of plain data, and writes each of them whole or not at all. If a measurement is
killed, the next one reads its files, so each file is checked when it is read. The first process of a host
samples the host's meters. The first process of all hosts makes the record after the others have ended.
"""

import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AwareDatetime, Field, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.measure.observer.steps import Process, read_processes
from joulecast.measure.power.host_clocks import ClockOffset, Moment
from joulecast.measure.power.other_load import Load
from joulecast.measure.power.samples import SAMPLES
from joulecast.runs.files.reading import FrozenContent, read_json_object, validated
from joulecast.runs.files.writing import written_aside
from joulecast.runs.provenance import boot_id, physical_host
from joulecast.runs.spec import RunSpec

_LOOK_S = 0.1
_SILENT_S = 120.0
"""If nothing was written to the folder of a launch for this time (s), its processes on other hosts count as
killed. (A sampler writes every few seconds.)"""
_LOCK = "lock"
PREFIX = ".job-"
"""Each folder of a launch has a name that begins with this."""
_PROCESS = re.compile(r"process-(\d{1,9})\.json", re.ASCII)

Count = Annotated[int, Field(ge=0, le=10**18)]


class Began(FrozenContent):
    """The request, and the moment at which the run begins: ``utc``, and ``clock_s`` on the clock of the first
    host, in s."""

    training: RunSpec
    utc: AwareDatetime
    clock_s: Moment


class Came(FrozenContent):
    """A process of the launch that has arrived."""

    host: str
    pid: Count


class Clock(FrozenContent):
    """The first host's clock, and the address at which other hosts can ask for its time."""

    host: str
    addresses: tuple[str, ...]
    port: Annotated[int, Field(ge=0, le=65535)]
    clock_s: Moment
    wall_s: Moment


class Fingerprint(FrozenContent):
    """Facts of a host that decide how fast a run is."""

    host: str
    cpu: str
    cores: Count
    memory_bytes: Count
    gpus: tuple[str, ...]
    system: str


class SamplerBegun(FrozenContent):
    """A host whose sampler has begun."""

    host: str
    label: str
    meters: tuple[str, ...]
    load_before: Load
    clock: ClockOffset | None
    fingerprint: Fingerprint


class SamplerEnded(FrozenContent):
    """A host whose sampler has ended. If the sampler did not end normally, ``died`` is the reason."""

    host: str
    died: str | None
    clock: ClockOffset | None


class Ended(FrozenContent):
    """The return code of the command of a process; ``None`` if the command still runs."""

    code: Annotated[int, Field(ge=-1000, le=1000)] | None


P = TypeVar("P", bound=FrozenContent)


@dataclass(frozen=True)
class Place:
    """The place of a process in its launch: number ``rank`` among ``size`` processes. ``job`` is the name of
    the launch, which no other launch has."""

    rank: int
    size: int
    job: str


def _numbers(environment: Mapping[str, str], *names: str) -> list[int] | None:
    """Rank, number of ranks and further numbers from these variables; ``None`` if one is missing, or if there
    is only one rank."""
    texts = [environment.get(name, "") for name in names]
    if not all(text.isdigit() for text in texts) or int(texts[1]) < 2:
        return None
    return [int(text) for text in texts]


def place(environment: Mapping[str, str]) -> Place:
    """The place of this process, from the environment of torchrun, Open MPI, ``srun`` or Hydra (MPICH,
    Intel). Without such a launcher, the process is alone.

    In a SLURM job, Open MPI and Hydra start helpers by ``srun``, so their ranks have variables of SLURM, too.
    Hydra gives its jobs no names. On one host, all processes of a Hydra job have the same parent. So the
    parent identifies the job.
    """
    torch = _numbers(environment, "RANK", "WORLD_SIZE")
    if torch is not None:
        names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
        meeting = "-".join(environment.get(name, "") for name in names)
        # A launcher on one host is known by its process: the next launch may meet at the same port.
        own = environment.get("LOCAL_WORLD_SIZE") == str(torch[1])
        return Place(torch[0], torch[1], f"torch-{meeting}" + (f"-{os.getppid()}" if own else ""))
    openmpi = _numbers(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    if openmpi is not None:
        name = environment.get("PMIX_NAMESPACE", f"{boot_id()}-{os.getppid()}")
        return Place(openmpi[0], openmpi[1], f"openmpi-{name}")
    slurm = _numbers(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID")
    if slurm is not None:
        job = f"slurm-{environment.get('SLURM_JOB_ID')}.{slurm[2]}"
        # A job that is started again has the same number, and must not meet what it left before.
        if (again := environment.get("SLURM_RESTART_COUNT", "0")) != "0":
            job += f"-{again}"
        return Place(slurm[0], slurm[1], job)
    hydra = _numbers(environment, "PMI_RANK", "PMI_SIZE")
    if hydra is not None:
        return Place(hydra[0], hydra[1], f"hydra-{boot_id()}-{os.getppid()}")
    return Place(0, 1, f"alone-{uuid.uuid4().hex[:12]}")


class JobFiles:
    """The files of one launch. They can also be read after its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def lock(self) -> bool:
        """Lock the files for this process alone. Returns whether no other process has locked them.

        Each process of the launch has a shared lock while it measures.
        """
        try:
            # NFS locks exclusively only what is open for writing.
            self._lock = os.open(self.path / _LOCK, os.O_RDWR)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.unlock()  # a process measures, or has just begun, or just ended
            return False
        return True

    def unlock(self) -> None:
        """Release the lock of this process."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_held(self) -> bool:
        """Whether a process of the launch still measures."""
        is_free = self.lock()
        self.unlock()
        return not is_free

    def was_killed(self, host: str) -> bool:
        """Whether the processes of the launch were killed, if none of them holds the lock.

        Processes on another host count as killed after two minutes of silence, because some file
        systems lock on one host only.
        """
        first = self.read("process-0", Came)
        if first is not None and first.host == host:
            return True
        try:
            signs = [path.stat().st_mtime for path in self.path.rglob("*")]
        except OSError:
            return False  # a process at work removes its files
        return time.time() - max(signs, default=0.0) > _SILENT_S

    def write(self, name: str, content: FrozenContent) -> None:
        """Write a file of plain data."""
        with written_aside(self.path / f"{name}.json") as partial:
            partial.write_text(content.model_dump_json())

    def read(self, name: str, kind: type[P]) -> P | None:
        """Read a file of plain data; ``None`` if it is not there yet.

        Raises:
            JoulecastError: the file contains other data than ``kind``.
        """
        path = self.path / f"{name}.json"
        if not path.is_file():
            return None
        content = read_json_object(path, "part of a measurement")
        return validated(TypeAdapter(kind), content, str(path))

    def ranks(self) -> list[int]:
        """Ranks of the processes that have arrived, in ascending order."""
        names = (_PROCESS.fullmatch(path.name) for path in self.path.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def samples_of(self, rank: int) -> Path:
        """Path of the file with the samples from the sampler that process ``rank`` started."""
        return self.path / f"host-{rank}{SAMPLES}"

    def ended(self, rank: int) -> bool:
        """Whether the command that process ``rank`` started has ended."""
        return (self.path / f"ended-{rank}.json").is_file()

    def marks_of(self, rank: int) -> list[Process]:
        """The command of process ``rank`` started processes. Returns those of them that trained."""
        return read_processes(self.path / f"marks-{rank}")

    def remove(self) -> None:
        """Remove the folder. It is renamed first, because other processes of the launch wait until it is
        gone, and NFS keeps a folder while one of its files is open."""
        gone = self.path.with_name(f".gone-{uuid.uuid4().hex}")
        try:
            os.replace(self.path, gone)
        except OSError:
            gone = self.path
        self.unlock()
        shutil.rmtree(gone, ignore_errors=True)


class JobFolder(JobFiles):
    """The folder of one launch, seen from one of its processes."""

    def __init__(self, out: Path, place: Place) -> None:
        """Make the folder, and announce this process: its lock, its host and its number.

        Raises:
            JoulecastError: nothing can be written in the folder.
        """
        # The command may change its folder, and its processes write here.
        super().__init__(out.absolute() / f"{PREFIX}{place.job}")
        self.place = place
        self.host = physical_host()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            self.write(f"process-{self.place.rank}", Came(host=self.host, pid=os.getpid()))
            self.marks.mkdir(exist_ok=True)
        except OSError as error:
            raise JoulecastError(
                f"{out}: no record can be written there ({error.strerror}); give another folder by --out"
            ) from None

    @property
    def marks(self) -> Path:
        """Folder for the marks of the processes that this process starts."""
        return self.path / f"marks-{self.place.rank}"

    def is_first_of_host(self) -> bool:
        """Whether this process is the first one on its host that calls this function."""
        name = self.host.replace("/", "_")
        try:
            (self.path / f"sampler-{name}.lock").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def is_sampled(self) -> bool:
        """Whether the sampler of this host has begun."""
        return any(self.read(f"begun-{rank}", SamplerBegun) for rank in self.ranks_of_host())

    def wait(self, ready: Callable[[], bool], patience_s: float) -> bool:
        """Wait until ``ready`` returns true. Returns whether this happened in time."""
        until_s = time.monotonic() + patience_s
        while not ready():
            if time.monotonic() > until_s:
                return False
            time.sleep(_LOOK_S)
        return True

    def ranks_of_host(self) -> list[int]:
        """Ranks of the processes on this host that have arrived so far."""
        known = {rank: self.read(f"process-{rank}", Came) for rank in range(self.place.size)}
        return [rank for rank, part in known.items() if part and part.host == self.host]

    def pids_of_host(self, patience_s: float) -> tuple[int, ...]:
        """Ids of the launch's processes on this host. Waits until all processes of the launch have arrived,
        but at most ``patience_s``."""
        everywhere = range(self.place.size)
        self.wait(
            lambda: all(self.read(f"process-{rank}", Came) for rank in everywhere), patience_s
        )
        parts = (self.read(f"process-{rank}", Came) for rank in self.ranks_of_host())
        return tuple(part.pid for part in parts if part)

    def hosts_that_ended(self) -> set[str]:
        """The hosts whose samplers have ended."""
        ends = (self.read(path.stem, SamplerEnded) for path in self.path.glob("host-*.json"))
        return {end.host for end in ends if end is not None}
