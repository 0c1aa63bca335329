"""One observation: from the start of a host's sampler to the run record that the first process writes."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.measure.observer.asked import Asked
from joulecast.measure.observer.host_clocks import ClockServer, offset_from
from joulecast.measure.observer.job_folder import JobFolder
from joulecast.measure.observer.job_record import assemble_killed, begin, write_job
from joulecast.measure.observer.launch_place import place
from joulecast.measure.power.foreign_load import load_now
from joulecast.measure.power.meters import MeteredNodes
from joulecast.measure.power.run_clock import ClockOffset
from joulecast.measure.power.sampler import Sampler, SamplerOrder
from joulecast.runs import provenance
from joulecast.runs.record import RunRecord

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
    of_killed: Sequence[str] = ()
    """Lines about records that were made of what killed measurements had left."""


class _HostSampler:
    """The sampler of this host, and its clock against that of the launch's first process."""

    def __init__(self, job: JobFolder, asked: Asked) -> None:
        self._job = job
        # A process that runs already would be a part of it.
        load = load_now() if asked.attached is None else None
        label = job.host.partition(":")[0]
        watts = asked.platform
        cores = float(os.cpu_count() or 1)
        where = asked.metering
        nodes = MeteredNodes(
            label, {}, cores, watts.idle_w, watts.full_w, where.sysfs_root, where.command
        )
        order = SamplerOrder(asked.meters, asked.period_s, nodes, job.pids_of_host(_JOINING_S))
        self._sampler = Sampler(order, job.samples_of(job.place.rank))
        job.write(
            f"begun-{job.place.rank}",
            {
                "host": job.host,
                "label": label,
                "meters": asked.meters,
                "load_before": None if load is None else [load.busy_cores, list(load.programs)],
                "clock": _plain(self._offset()),
                "fingerprint": provenance.host_fingerprint(),
            },
        )
        self._sampler.wait_until_begun()

    def _offset(self) -> ClockOffset | None:
        here = ClockOffset(0.0, 0.0, time.monotonic())
        if self._job.place.size == 1:
            return here
        self._job.wait(lambda: self._job.read("clock") is not None, _PATIENCE_S)
        first = self._job.read("clock")
        if first is None or first["host"] == self._job.host:
            return None if first is None else here
        return offset_from(first["addresses"], first["port"]) or _by_wall_clock(first)

    def stop(self) -> str | None:
        """Stop; the reason if the sampler died."""
        return self._sampler.stop().died

    def leave(self) -> None:
        """Stop, and leave word of it for the first process."""
        died = self.stop()
        end = {"host": self._job.host, "died": died, "clock": _plain(self._offset())}
        self._job.write(f"host-{self._job.place.rank}", end)


def _plain(offset: ClockOffset | None) -> list[float] | None:
    return None if offset is None else [offset.offset_s, offset.uncertainty_s, offset.at_s]


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
        # Before this launch has a folder of its own. A run of a campaign is measured again.
        self._of_killed = assemble_killed(out) if asked.spec is None else []
        self._job = JobFolder(meeting, place(environment), asked.attached)
        self.marks = self._job.marks
        """Folder of this process for the marks of the training."""
        self._server = _announce_clock(self._job)
        first = self._job.is_first_of_host()
        self._sampler = _HostSampler(self._job, asked) if first else None
        if self._job.place.rank == 0:
            begin(self._job, asked)

    def end(self, code: int | None, faults: Sequence[str] = ()) -> Result:
        """Stop the sampler; the first process waits for the others and writes the record.

        Args:
            code: return code of the command; ``None`` if it still runs, or if there was none.
            faults: reasons why the run counts as failed.
        """
        ended_s = time.monotonic()
        job = self._job
        job.leave_end(code)
        if self._sampler is not None:
            # Processes of one host share a sampler, which reads until the last of them has ended.
            job.wait(lambda: all(job.ended(rank) for rank in job.ranks_of_host()), _PATIENCE_S)
            self._sampler.leave()
            self._sampler = None
        if job.place.rank != 0:
            job.wait(lambda: not job.path.exists(), _PATIENCE_S)
            return Result()
        try:
            missing = _wait_for_all(job)
            folder, record = write_job(job, self._asked, self._out, ended_s, [*faults, *missing])
        except JoulecastError as error:
            return Result(why_not=str(error), of_killed=self._of_killed)
        return Result(folder, record, of_killed=self._of_killed)

    def close(self) -> None:
        """Remove what the observation needed meanwhile."""
        if self._sampler is not None:
            # The command did not start: the sampler ends before its folder is removed.
            self._sampler.stop()
        if self._server is not None:
            self._server.close()
        if self._job.place.rank == 0:
            self._job.remove()


def _wait_for_all(job: JobFolder) -> list[str]:
    """Wait for the other processes; returns what is missing of them."""
    ranks = range(job.place.size)
    job.wait(lambda: all(job.ended(rank) for rank in ranks), _PATIENCE_S)
    late = [rank for rank in ranks if not job.ended(rank)]
    seen = {part["host"] for rank in ranks if (part := job.read(f"process-{rank}")) is not None}
    job.wait(lambda: seen <= job.hosts_that_ended(), _PATIENCE_S)
    missing = sorted(host.partition(":")[0] for host in seen - job.hosts_that_ended())
    faults = []
    if late:
        numbers = ", ".join(map(str, late))
        faults.append(
            f"failed: processes {numbers} of the launch left nothing within {_PATIENCE_S:g} s"
        )
    if missing:
        faults.append(f"failed: the sampler of {', '.join(missing)} left nothing")
    return faults
