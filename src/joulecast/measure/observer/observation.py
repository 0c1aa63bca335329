"""Measures a command. The result is one run record, with the power of the
hosts and the steps.

An observation lasts from the start of a host's sampler until the first process has written the record.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.measure.observer.command import Command, fault_of
from joulecast.measure.observer.job_folder import (
    Came,
    Clock,
    Ended,
    Fingerprint,
    JobFolder,
    SamplerBegun,
    SamplerEnded,
    place,
)
from joulecast.measure.observer.job_record import assemble_killed, begin, write_job
from joulecast.measure.power.host_clocks import ClockOffset, ClockServer, offset_from
from joulecast.measure.power.other_load import load_now
from joulecast.measure.power.sampler import Sampler, SamplerOrder
from joulecast.runs import provenance
from joulecast.runs.record import RunRecord
from joulecast.runs.spec import RunSpec

_SITE = Path(__file__).parent / "site"
FOLDER = "JOULECAST_OBSERVER"
"""Environment variable of the measured command and its processes: the folder for their marks."""
CAPTURE = "JOULECAST_CAPTURE"
"""Environment variable of the measured command and its processes: the function that captures the trained
network, as ``module:function``."""

_PATIENCE_S = 120.0
"""Seconds for which a process waits for the other processes of its launch after its own end."""
_JOINING_S = 10.0
"""Seconds in which all processes of a launch are expected to start."""


@dataclass(frozen=True)
class Result:
    """The record and its folder, if this process made it. If it should have made a record and could not,
    ``why_not`` says why."""

    folder: Path | None = None
    record: RunRecord | None = None
    why_not: str | None = None
    of_killed: Sequence[str] = ()
    """Text lines about killed measurements: one line for each record that was made from their files."""


def _offset(job: JobFolder) -> ClockOffset | None:
    """The clock of the launch's first process minus this host's clock; ``None`` if it is not known."""
    here = ClockOffset(0.0, 0.0, time.monotonic())
    if job.place.size == 1:
        return here
    job.wait(lambda: job.read("clock", Clock) is not None, _PATIENCE_S)
    first = job.read("clock", Clock)
    if first is None or first.host == job.host:
        return None if first is None else here
    # NTP keeps wall clocks of hosts that cannot reach each other within about 10 ms.
    own_s, first_s = time.time() - time.monotonic(), first.wall_s - first.clock_s
    by_wall = ClockOffset(own_s - first_s, 0.01, time.monotonic())
    return offset_from(first.addresses, first.port) or by_wall


def _begun_sampler(job: JobFolder, asked: RunSpec) -> Sampler:
    """Start the sampler of this host. Returns it after its first readings."""
    label = job.host.partition(":")[0]
    order = SamplerOrder.of(asked, label, job.pids_of_host(_JOINING_S))
    # The other processes of this host wait now. So this is only the load by other programs.
    load = load_now()
    sampler = Sampler(order, job.samples_of(job.place.rank))
    begun = SamplerBegun(
        host=job.host,
        label=label,
        meters=asked.meters,
        load_before=load,
        clock=_offset(job),
        fingerprint=Fingerprint(**provenance.host_fingerprint()),
    )
    job.write(f"begun-{job.place.rank}", begun)
    sampler.wait_until_begun()
    return sampler


class Observation:
    """The observation of one training. Each process of a launch has one such object.

    Args:
        out: folder of the records, which all hosts share; for a run of a campaign, the folder of its record.
        in_campaign: whether ``asked`` is a campaign's run, which the record must match.
    """

    def __init__(
        self,
        asked: RunSpec,
        out: Path,
        environment: Mapping[str, str],
        *,
        in_campaign: bool = False,
    ) -> None:
        self._out, self._in_campaign = out, in_campaign
        meeting = out.parent if in_campaign else out
        # This is done before this launch has a folder of its own. If a run of a campaign was killed, no
        # record is made of it, because Snakemake measures it again.
        self._of_killed = [] if in_campaign else assemble_killed(out)
        self._job = JobFolder(meeting, place(environment))
        self.marks = self._job.marks
        """Folder of this process for the marks of the training."""
        self._keep = False
        self._server: ClockServer | None = None
        rank, size = self._job.place.rank, self._job.place.size
        if rank == 0 and size > 1:
            # The others ask for the clock of the first process.
            self._server = ClockServer()
            now = {"clock_s": time.monotonic(), "wall_s": time.time()}
            where = {"addresses": self._server.addresses, "port": self._server.port}
            self._job.write("clock", Clock(host=self._job.host, **where, **now))
        self._sampler: Sampler | None = None
        if self._job.is_first_of_host():
            self._sampler = _begun_sampler(self._job, asked)
        else:
            self._job.wait(self._job.is_sampled, _PATIENCE_S)
        if rank == 0:
            begin(self._job, asked)

    def end(self, code: int | None, faults: Sequence[str] = ()) -> Result:
        """Stop the sampler. The first process also waits for the other processes, and writes the record.
        Returns the result of this process.

        Args:
            code: return code of the command; ``None`` if it still runs, or if there was none.
        """
        ended_s = time.monotonic()
        # If a run of a campaign has no record, it is measured again. The files of any other run are kept
        # until its record is written.
        self._keep = not self._in_campaign
        try:
            return self._ended(code, faults, ended_s)
        except (JoulecastError, OSError) as error:
            kept = f"; what was measured is in {self._job.path}" if self._keep else ""
            return Result(why_not=f"{error}{kept}", of_killed=self._of_killed)

    def _ended(self, code: int | None, faults: Sequence[str], ended_s: float) -> Result:
        job = self._job
        job.write(f"ended-{job.place.rank}", Ended(code=code))
        if self._sampler is not None:
            # Processes of one host share a sampler, which reads until the last of them has ended.
            job.wait(lambda: all(job.ended(rank) for rank in job.ranks_of_host()), _PATIENCE_S)
            died = self._sampler.stop().died
            end = SamplerEnded(host=job.host, died=died, clock=_offset(job))
            job.write(f"host-{job.place.rank}", end)
            self._sampler = None
        if job.place.rank != 0:
            job.unlock()
            job.wait(lambda: not job.path.exists(), _PATIENCE_S)
            return Result()
        all_faults = [*faults, *_wait_for_all(job)]
        folder, record = write_job(
            job,
            self._out,
            ended_s,
            all_faults,
            in_campaign=self._in_campaign,
            runs_on=code is None,
        )
        self._keep = False
        return Result(folder, record, of_killed=self._of_killed)

    def close(self) -> None:
        """Delete what the observation needed only while it ran."""
        if self._sampler is not None:
            # The command did not start: the sampler ends before its folder is removed.
            self._sampler.stop()
        if self._server is not None:
            self._server.close()
        if self._job.place.rank == 0 and not self._keep:
            self._job.remove()


def _wait_for_all(job: JobFolder) -> list[str]:
    """Wait until all processes and samplers of the launch have ended, but only for a limited time. Returns a
    fault for each kind that is still missing."""
    ranks = range(job.place.size)
    job.wait(lambda: all(job.ended(rank) for rank in ranks), _PATIENCE_S)
    late = [rank for rank in ranks if not job.ended(rank)]
    seen = {part.host for rank in ranks if (part := job.read(f"process-{rank}", Came)) is not None}
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


def measure_command(
    asked: RunSpec,
    out: Path,
    *,
    in_campaign: bool = False,
    capture: str | None = None,
    window_s: float | None = None,
) -> tuple[int, Result]:
    """Run a command, and make a run record of it. Returns the command's return code, and the result with the
    record.

    If several processes are launched together (``srun``, ``mpiexec``), the first one makes the record.

    Args:
        out, in_campaign: as in :class:`Observation`.
        capture: the function that makes the op graph of the trained network, as ``package.module:function``.
            ``None``: the network is not captured.
        window_s: measure only for this time. The command continues after it.

    Raises:
        JoulecastError: the command cannot be started.
    """
    assert asked.observed is not None
    observation = Observation(asked, out, os.environ, in_campaign=in_campaign)
    try:
        # This brings the observer into the Python processes of the command.
        paths = [str(_SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        inside = {FOLDER: str(observation.marks), "PYTHONPATH": os.pathsep.join(paths)}
        inside |= {CAPTURE: capture} if capture else {}
        command = Command(asked.observed.command, {**os.environ, **inside})
        code = command.within(window_s)
        fault = None if code is None else fault_of(code)
        result = observation.end(code, [fault] if fault else [])
        return command.to_the_end() if code is None else code, result
    finally:
        observation.close()
