"""The sampler: one process on each host that reads its meters at absolute deadlines.

Rank 0 of a host starts it as ``python -m joulecast.measure.power.sampler FILE``, and sends it its order as
one line of JSON. It ends when its standard input is closed. So it also ends when the rank dies. After its
first readings, it prints a line. Every few seconds it appends its readings to the file. So only a few seconds
are lost if the machine fails. :mod:`joulecast.measure.power.samples` reads the file. Times are on the host's
monotonic clock.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.measure.power.command_meter import finish_all
from joulecast.measure.power.host_activity import CpuWork, HostActivity, Row
from joulecast.measure.power.meter_registry import METERS
from joulecast.measure.power.meters import (
    Believed,
    Meter,
    MeteredNodes,
    MeterFailed,
    MeterUnavailable,
    NothingNew,
    ReadFailed,
    SampledMeter,
    described,
    opened_in_time,
)
from joulecast.measure.power.samples import Left, Rows, SamplerFacts, SampleWriter

if TYPE_CHECKING:
    from joulecast.runs.spec import RunSpec

_KEPT_EVERY_S = 4.0
"""Seconds from one writing of readings to the next. Writing itself takes time, too. So at most five seconds
of readings can be lost."""
_HANGS_S = 20.0
"""If a meter does not answer for this number of seconds, it hangs."""
_END_S = 30.0
"""Seconds that a sampler may take to end: a meter may hang."""
_BEGUN = "begun"


@dataclass(frozen=True)
class SamplerOrder:
    """What to sample: meter kinds by name, the period, and the nodes of this host."""

    meters: tuple[str, ...]
    period_s: float
    nodes: MeteredNodes
    ranks: tuple[int, ...] = ()
    """Ids of the run's processes on this host. The work of all other processes counts as load of other
    programs."""

    @classmethod
    def of(
        cls,
        spec: "RunSpec",
        host: str,
        ranks: tuple[int, ...],
        pids: dict[str, list[int]] | None = None,
        core_seconds_per_s: float | None = None,
    ) -> "SamplerOrder":
        """The order for the sampler of one host of a run. ``host`` is the host's name in the record."""
        nodes = MeteredNodes(
            host,
            pids or {},
            core_seconds_per_s or float(os.cpu_count() or 1),
            spec.platform.idle_w,
            spec.platform.full_w,
            spec.metering.sysfs_root,
            spec.metering.command,
        )
        return cls(spec.meters, spec.sample_period_s, nodes, ranks)


def open_all(order: SamplerOrder) -> tuple[list[Meter], list[SampledMeter]]:
    """Open the meters that an order names. Returns the open meters, and the kinds that could not be opened,
    each with the reason.

    Some kinds cannot exist on this machine. They are reported only if there is nothing else to report.
    """
    opened: list[Meter] = []
    absent: list[SampledMeter] = []
    not_applicable: list[SampledMeter] = []
    for name in order.meters:
        rows = absent
        try:
            opened += opened_in_time(name, METERS[name], order.nodes)
            continue
        except MeterUnavailable as missing:
            reason = str(missing)
            rows = not_applicable if missing.not_applicable else absent
        except Exception as error:
            reason = f"{name}: cannot be opened ({_said(error)}); leave it out of `meters`"
        rows.append(
            SampledMeter(node=order.nodes.host_node, meter=name, available=False, reason=reason)
        )
    return opened, absent if opened or absent else not_applicable


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class _Asked:
    """Name of the meter that is being read, and the time on the monotonic clock at which this began. While no
    meter is being read, the name is empty."""

    name, since_s = "", 0.0

    def set(self, name: str) -> None:
        self.since_s, self.name = time.monotonic(), name

    def end_if_it_hangs(self) -> None:
        """If a meter hangs, print its name and end this process. This function runs in a separate thread."""
        while not (name := self.name) or time.monotonic() - self.since_s < _HANGS_S:
            time.sleep(1.0)
        print(f"{name} does not answer: its driver hangs", flush=True)
        os._exit(1)


class _Readings:
    """What the meters gave, and which faults each of them had."""

    def __init__(self, meters: list[Meter], asked: _Asked) -> None:
        self._asked = asked
        self._meters = [Believed(meter) for meter in meters]
        self.described = [described(meter) for meter in meters]
        self.rows: list[tuple[int, Row]] = []

    def read(self) -> None:
        """Read all meters that have not failed. If one fails, the others are still read."""
        for index, meter in enumerate(self._meters):
            self._asked.set(meter.meter.name)
            while self.described[index].available and self._read_one(index, meter):
                pass
        self._asked.set("")

    def _read_one(self, index: int, meter: Believed) -> bool:
        """Read a meter once. Returns whether the meter may have more readings already."""
        before, about = time.monotonic(), self.described[index]
        try:
            reading = meter.read()
        except NothingNew:
            return False
        except MeterFailed as fault:
            about.available, about.reason = False, str(fault)
        except ReadFailed:
            about.failed_reads += 1
        except Exception as error:
            about.available, about.reason = False, f"its reading failed ({_said(error)})"
        else:
            read_s = reading.at_s or (before + time.monotonic()) / 2
            self.rows.append((index, (read_s, reading.watts, reading.joules)))
            return reading.at_s is not None
        return False


def sample(
    order: SamplerOrder,
    stop: threading.Event,
    keep: Callable[[SamplerFacts, Rows], None],
    begun: Callable[[], None] = lambda: None,
    asked: _Asked | None = None,
) -> None:
    """Read all meters at ``t0 + k period`` until ``stop`` is set, and once more after it.

    A missed deadline is counted and skipped. The meters are not read twice to make up for it.

    Args:
        keep: a function that gets the facts, and the rows of the last few seconds.
        begun: a function that is called after the first readings.
        asked: gets the name of the meter that is being read, so that a thread can see whether it hangs.
    """
    meters, absent = open_all(order)
    activity = HostActivity(order.nodes, any(meter.name.startswith("gpu") for meter in meters))
    readings, work = _Readings(meters, asked or _Asked()), CpuWork(order.ranks)
    facts = SamplerFacts(meters=[*readings.described, *absent], nodes=activity.names)
    rows, work_series = readings.rows, len(facts.meters) + len(facts.nodes)
    rows += [(work_series, row) for row in work.look(at_once=True)]

    def read_everything(*, at_once: bool = False) -> None:
        readings.read()
        rows.extend(enumerate(activity.look(at_once=at_once), len(facts.meters)))
        rows.extend((work_series, row) for row in work.look(at_once=at_once))

    def hand_over() -> None:
        keep(facts, rows.copy())
        rows.clear()

    kept_s: float | None = None
    first = time.monotonic()
    k = 0
    while True:
        k += 1
        behind = int((time.monotonic() - first) / order.period_s)
        if behind >= k:
            for about in readings.described:
                about.missed_deadlines += behind - k + 1
            k = behind + 1
        if stop.wait(max(0.0, first + k * order.period_s - time.monotonic())):
            break
        read_everything()
        if kept_s is None:
            begun()
        if kept_s is None or time.monotonic() - kept_s >= _KEPT_EVERY_S:
            kept_s = time.monotonic()
            hand_over()
    read_everything(at_once=True)
    # The fast meters have been read by now. So none of them waits for a slow controller.
    if finish_all(meters):
        readings.read()
    facts.programs, facts.ended = list(work.busiest()), True
    hand_over()


def outside_mpi() -> dict[str, str]:
    """The environment, without the variables that would make a process part of the current MPI job.

    SLURM and Hydra put the addresses of a job step into these variables. A process that is no rank would use
    them and wait for ever.
    """
    return {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDI"))}


class Sampler:
    """Handle on the sampler process of this host, which writes what it reads to a file.

    Raises:
        JoulecastError: the file cannot be written.
    """

    def __init__(self, order: SamplerOrder, file: Path) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        except OSError as error:
            raise JoulecastError(
                f"{file}: samples cannot be written there ({error.strerror})"
            ) from None
        self._order, self._file = order, file
        self._said = ""
        self._process = subprocess.Popen(
            # -P: Python takes no module from the user's current folder.
            [sys.executable, "-P", "-m", "joulecast.measure.power.sampler", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=outside_mpi(),
            # Zeus has helpers of its own for RAPL and Jetson: the group ends them with the sampler.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(asdict(order)) + "\n")
            self._process.stdin.flush()

    def wait_until_begun(self) -> None:
        """Wait for the first readings. What happens before them is not measured.

        If the sampler ends, the wait ends, too. (A meter that hangs ends the sampler.)
        """
        assert self._process.stdout is not None
        self._said = self._process.stdout.readline().strip()

    def stop(self) -> "Left":
        """End the sampler, and return its file and facts.

        If a sampler was killed, or does not end, ``died`` has the reason. What it wrote before is kept.
        """
        died = None
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
            code = self._process.returncode
        except subprocess.TimeoutExpired:
            # If a driver hangs, even SIGKILL does not end the process at once. So nothing waits for it.
            died, code = f"did not end within {_END_S:g} s", 0
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if code < 0:
            died = f"was ended by {signal.Signals(-code).name}"
        elif code > 0:
            said = [self._said, *self._process.stdout.read().splitlines()]
            reasons = [line for line in said if line not in ("", _BEGUN)]
            died = f"ended: {reasons[-1] if reasons else f'code {code}'}"
        self._process.stdout.close()
        whole = None if died is None else f"the power sampler {died}"
        return Left(self._file, self._order.nodes.host_node, self._order.meters, whole)


def main() -> None:
    """Sample the meters until standard input is closed. The first line of standard input says what to sample.
    The argument is the file to write."""
    # A terminal sends these signals to all its processes. A scheduler sends SIGTERM to all processes of a
    # job. But the sampler is needed until its parent closes standard input, or ends. SIGTERM has a handler
    # that does nothing: if it were ignored, Zeus' helpers would inherit this, and Zeus could not end them by
    # SIGTERM.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    order = TypeAdapter(SamplerOrder).validate_json(sys.stdin.readline())
    stop = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stop.set()

    def say_begun() -> None:
        # The rank may have ended, and gives the reason itself.
        with suppress(BrokenPipeError):
            print(_BEGUN, flush=True)

    asked = _Asked()
    for task in (wait_for_the_end, asked.end_if_it_hangs):
        threading.Thread(target=task, daemon=True).start()
    writer = SampleWriter(Path(sys.argv[1]))
    sample(order, stop, writer.append, say_begun, asked)
    try:
        writer.close()
    except OSError as error:
        raise SystemExit(
            f"{sys.argv[1]}: the last samples could not be written ({error})"
        ) from None


if __name__ == "__main__":
    main()
