"""One observation: from the start of a host's sampler to the run record that the first process writes."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.observer.asked import Asked
from joulecast.observer.assemble import Host, observed_record
from joulecast.observer.host_clocks import ClockServer, offset_from
from joulecast.observer.job_folder import MARKS_PREFIX, JobFolder
from joulecast.observer.launch_place import place
from joulecast.observer.marks_file import Process, read_processes
from joulecast.power.foreign_load import Load, load_now
from joulecast.power.meters import MeteredNodes
from joulecast.power.run_clock import ClockOffset, RunClock
from joulecast.power.sampled_hosts import SampledHost
from joulecast.power.sampler import Sampler, SamplerOrder
from joulecast.records import provenance
from joulecast.records.record import RunRecord, write_record

_PATIENCE_S = 120.0
"""Time that the other processes of a launch get, after the end of this one."""
_JOINING_S = 10.0
"""Time in which the processes of a launch are expected to start."""


@dataclass(frozen=True)
class Result:
    """The record and its folder, where this process made it; ``why_not`` says why there is none that should
    be there."""

    folder: Path | None = None
    record: RunRecord | None = None
    why_not: str | None = None


class _HostSampler:
    """The sampler of this host, and its clock against that of the launch's first process."""

    def __init__(self, job: JobFolder, asked: Asked) -> None:
        self._job = job
        # A process that runs already would be a part of it.
        self._load_before = load_now() if asked.attached is None else None
        label = job.host.partition(":")[0]
        watts = asked.platform
        cores = float(os.cpu_count() or 1)
        nodes = MeteredNodes(label, {}, cores, watts.idle_w, watts.full_w, asked.metering.if_any)
        order = SamplerOrder(asked.meters, asked.period_s, nodes, job.pids_of_host(_JOINING_S))
        self._sampler = Sampler(order)
        self._before = self._offset()
        self._sampler.wait_until_begun()
        self._label = label

    def _offset(self) -> ClockOffset | None:
        here = ClockOffset(0.0, 0.0, time.monotonic())
        if self._job.place.size == 1:
            return here
        self._job.wait(lambda: self._job.read("clock") is not None, _PATIENCE_S)
        first = self._job.read("clock")
        if first is None or first["host"] == self._job.host:
            return None if first is None else here
        return offset_from(first["addresses"], first["port"]) or _by_wall_clock(first)

    def leave(self) -> None:
        """Stop, and leave the readings for the first process."""
        answer = self._sampler.stop()
        load = self._load_before
        clocks = [
            None if at is None else [at.offset_s, at.uncertainty_s, at.at_s]
            for at in (self._before, self._offset())
        ]
        self._job.write(
            f"host-{self._label}-{self._job.place.rank}",
            {
                "host": self._job.host,
                "label": self._label,
                "answer": answer,
                "load_before": None if load is None else [load.busy_cores, list(load.programs)],
                "clocks": clocks,
                "fingerprint": provenance.host_fingerprint(),
            },
        )


def _by_wall_clock(first: Mapping[str, Any]) -> ClockOffset:
    """Offset by the wall clocks of two hosts, which NTP holds together within about 10 ms."""
    ahead_s = first["wall_s"] - first["clock_s"]
    own_s = time.time() - time.monotonic()
    return ClockOffset(own_s - ahead_s, 0.01, time.monotonic())


def _announce_clock(job: JobFolder) -> ClockServer | None:
    """The clock of the first process of several, which the others ask."""
    if job.place.rank != 0 or job.place.size == 1:
        return None
    server = ClockServer()
    now = {"clock_s": time.monotonic(), "wall_s": time.time()}
    job.write(
        "clock", {"host": job.host, "addresses": server.addresses, "port": server.port, **now}
    )
    return server


class Observation:
    """The observation of one training, seen from one of the processes that were launched together.

    Args:
        asked: what is observed.
        out: folder of the records, which all hosts share; of a run of a campaign the record's own.
        environment: of the launch.
    """

    def __init__(self, asked: Asked, out: Path, environment: Mapping[str, str]) -> None:
        self._asked, self._out = asked, out
        meeting = out if asked.spec is None else out.parent
        self._job = JobFolder(meeting, place(environment), asked.attached)
        self.marks = Path(tempfile.mkdtemp(prefix=MARKS_PREFIX))
        """Folder of this process for the marks of the training."""
        self._job.arrive(marks=str(self.marks))
        self._server = _announce_clock(self._job)
        first = self._job.is_first_of_host()
        self._sampler = _HostSampler(self._job, asked) if first else None
        self._began_s = time.monotonic()

    def end(self, code: int | None, faults: Sequence[str] = ()) -> Result:
        """Stop the sampler; the first process waits for the others and writes the record.

        Args:
            code: return code of the command; ``None`` if it still runs, or if there was none.
            faults: reasons why the run counts as failed.
        """
        span = self._began_s, time.monotonic()
        job = self._job
        job.leave_marks(read_processes(self.marks), code)
        if self._sampler is not None:
            # Processes of one host share a sampler, which reads until the last of them has ended.
            job.wait(lambda: all(job.ended(rank) for rank in job.ranks_of_host()), _PATIENCE_S)
            self._sampler.leave()
        if job.place.rank != 0:
            job.wait(lambda: not job.path.exists(), _PATIENCE_S)
            return Result()
        try:
            missing = _wait_for_all(job)
            folder, record = _write(job, self._asked, self._out, span, [*faults, *missing])
        except JoulecastError as error:
            return Result(why_not=str(error))
        return Result(folder, record)

    def close(self) -> None:
        """Remove what the observation needed meanwhile."""
        if self._server is not None:
            self._server.close()
        if self._job.place.rank == 0:
            self._job.remove()
        shutil.rmtree(self.marks, ignore_errors=True)


def _wait_for_all(job: JobFolder) -> list[str]:
    """Wait for the other processes; returns what is missing of them."""
    ranks = range(job.place.size)
    job.wait(lambda: all(job.ended(rank) for rank in ranks), _PATIENCE_S)
    late = [rank for rank in ranks if not job.ended(rank)]
    seen = {part["host"] for rank in ranks if (part := job.read(f"process-{rank}")) is not None}
    job.wait(lambda: seen <= set(job.hosts()), _PATIENCE_S)
    missing = sorted(host.partition(":")[0] for host in seen - set(job.hosts()))
    faults = []
    if late:
        numbers = ", ".join(map(str, late))
        faults.append(
            f"failed: processes {numbers} of the launch left nothing within {_PATIENCE_S:g} s"
        )
    if missing:
        faults.append(f"failed: the sampler of {', '.join(missing)} left nothing")
    return faults


def _hosts(job: JobFolder, origin_s: float) -> dict[str, Host]:
    """The hosts of the launch, that of this process first."""
    parts = job.hosts()
    ordered = sorted(parts, key=lambda host: host != job.host)
    found = {}
    for host in ordered:
        part = parts[host]
        offsets = [ClockOffset(*at) for at in part["clocks"] if at is not None]
        if not offsets:
            raise JoulecastError(
                f"{part['label']}: its clock could not be related to that of the first host"
            )
        clock = RunClock(origin_s, offsets[0], offsets[-1])
        load = part["load_before"]
        sampled = SampledHost(host, part["label"], clock, part["answer"])
        found[host] = Host(sampled, part["fingerprint"], load and Load(load[0], tuple(load[1])))
    return found


def _write(
    job: JobFolder,
    asked: Asked,
    out: Path,
    span: tuple[float, float],
    faults: list[str],
) -> tuple[Path, RunRecord]:
    hosts = _hosts(job, span[0])
    processes: list[tuple[Process, Host]] = []
    for rank in range(job.place.size):
        if job.ended(rank):
            host, code, found = job.marks_of(rank)
            processes += [(process, hosts[host]) for process in found if host in hosts]
            if code and rank:
                faults.append(f"failed: process {rank} of the launch ended with code {code}")
    whole = (0.0, span[1] - span[0])

    def written(folder: Path, repeat: int) -> tuple[Path, RunRecord]:
        every = list(hosts.values())
        record = observed_record(asked, folder.name, repeat, every, processes, whole, faults)
        write_record(folder, record)
        return folder, record

    if asked.spec:
        return written(out, 1)
    with _next_folder(out, asked.name, len(hosts)) as (folder, repeat):
        return written(folder, repeat)


@contextmanager
def _next_folder(out: Path, name: str, hosts: int) -> Iterator[tuple[Path, int]]:
    """Folder of the next record of a training on some hosts, and its number, which no other process takes."""
    for number in count(1):
        folder = out / f"{name}-n{hosts}-r{number}"
        if folder.exists():
            continue
        taken = out / f".taken-{folder.name}"
        try:
            taken.mkdir()
        except FileExistsError:
            continue
        try:
            if not folder.exists():
                yield folder, number
                return
        finally:
            taken.rmdir()
