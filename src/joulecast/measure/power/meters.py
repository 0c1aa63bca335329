"""Meters: what can be read, and why something cannot be read.

A meter belongs to a node. Each read gives joules counted since the meter was opened (a counter), watts,
or both. A read that fails raises :class:`ReadFailed`. Its value is missing; it is never 0. A meter that
can no longer be believed raises :class:`MeterFailed`. A meter that does not exist raises
:class:`MeterUnavailable` when it is opened, with the reason and the remedy.

A counter can restart (a driver is loaded again), run backwards, jump, or stop. A sensor can give 0, or a
value in another unit. So a meter is believed only as long as the power that it gives is possible for its
device (:class:`Believed`).
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from joulecast.runs.meter_choice import Covers, MeterInfo
from joulecast.runs.provenance import boot_id

_POSSIBLE_W: dict[Covers | None, tuple[float, float]] = {
    "node": (1.0, 30e3),
    "module": (0.1, 10e3),
    "socket": (0.1, 1500.0),
    "gpu": (0.1, 4000.0),
    "cpu": (0.1, 750.0),
    "memory": (0.01, 1000.0),
    None: (0.01, 30e3),
}
"""For each part that a meter may cover: the least watts while it is on, and the most watts. The largest
devices that are sold are limited to 14 kW (a node of 8 B200), 2.7 kW (a module of Grace and Blackwell), 1.4
kW (a GPU), and 500 W (a processor)."""
_MEAN_OF = 10
"""The mean watts of a counter are also checked over this number of renewals. A renewal lies between two
readings, so its time is not known exactly. Over this number of renewals, the error of the time is small."""


class MeterUnavailable(Exception):
    """The meter cannot be opened. The error says why, and how to get the meter.

    ``not_applicable`` means that this kind of machine cannot have the meter, or that it is not set up. Then
    only a list of all meters has a line about it.
    """

    def __init__(self, reason: str, remedy: str, *, not_applicable: bool = False) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason, self.remedy, self.not_applicable = reason, remedy, not_applicable


class ReadFailed(Exception):
    """One read gave nothing. The next one may succeed."""


class MeterFailed(ReadFailed):
    """The meter cannot be believed for the rest of the run. The error says why."""


class NothingNew(ReadFailed):
    """The meter has no new reading. It is slower than its reader, and has no fault."""


class Reading(NamedTuple):
    """Watts now, and joules since the meter was opened; ``None`` for what the meter does not give.

    ``at_s`` is the time of the reading on the monotonic clock; ``None``: the time when it was requested.
    """

    watts: float | None
    joules: float | None
    at_s: float | None = None


READING = ("t_s", "watts", "joules")
"""Columns of a meter's readings."""


class Meter(Protocol):
    """One meter of one node.

    ``identity`` names the device that is read. It is the same for all containers of a machine that read
    the device, and ``None`` if no device is known. A meter may also have ``covers``, ``remark`` and
    ``renewed_s``, as in :class:`~joulecast.runs.meter_choice.MeterInfo`, and ``limits``.
    """

    node: str
    name: str
    source: str
    counter: bool
    identity: str | None

    def read(self) -> Reading:
        """Read once.

        Raises:
            ReadFailed: this read gave nothing.
            MeterFailed: no read will give anything from now on.
        """
        ...


class SampledMeter(MeterInfo):
    """A meter of this host, as a record describes it, and the ``identity`` of its device."""

    identity: str | None = None


def described(meter: Meter) -> SampledMeter:
    """The description of an open meter, for a record."""
    names = ("node", "source", "counter", "identity", "covers", "remark", "renewed_s")
    facts = {name: getattr(meter, name) for name in names if hasattr(meter, name)}
    return SampledMeter.model_validate({"meter": meter.name, "available": True, **facts})


@dataclass(frozen=True)
class MeteredNodes:
    """Facts about the nodes of one host. The meters of the host may need them.

    If several emulated nodes share the host, ``pids`` has the processes of each node, by its name. It is
    empty for a node that is the whole host. ``core_seconds_per_s`` is the capacity of a node in CPU seconds
    per second. ``idle_w`` and ``full_w`` are the watts of a node that is idle, and of one that is fully used;
    ``None`` if they are unknown. ``sysfs_root`` is the folder of the kernel's files. ``power_command`` has
    the words of the site's command.
    """

    host_node: str
    pids: dict[str, list[int]] = field(default_factory=dict)
    core_seconds_per_s: float = 1.0
    idle_w: float | None = None
    full_w: float | None = None
    sysfs_root: str = "/sys"
    power_command: tuple[str, ...] = ()


Opener = Callable[[MeteredNodes], list[Meter]]
"""A function that opens the meters of one kind for the nodes of a host."""


_OPENED_WITHIN_S = 15.0
"""Longest time (s) that opening the meters of one kind may take. A site's command may take ten seconds."""


def opened_in_time(kind: str, open_meters: Opener, nodes: MeteredNodes) -> list[Meter]:
    """The meters of a kind, opened in a thread, because a driver may hang.

    Raises:
        MeterUnavailable: there is no such meter, or opening the meters took too long.
    """
    answers: queue.SimpleQueue[list[Meter] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(open_meters(nodes))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=_OPENED_WITHIN_S)
    except queue.Empty:
        reason = f"{kind}: does not answer within {_OPENED_WITHIN_S:g} s"
        raise MeterUnavailable(reason, "its driver hangs; see to it, or leave it out") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def identity_of(device: str) -> str | None:
    """The identity of a device. It is the same in all containers of this machine. ``None`` if the boot id is
    not known."""
    boot = boot_id()
    return None if boot is None else f"{boot}:{device}"


@dataclass(frozen=True)
class Limits:
    """The limits of what a device can draw, and of how its counter behaves.

    Attributes:
        least_w: least watts of the device while it is on.
        most_w: most watts that the device can draw.
        renewed_s: longest time until the counter is renewed.
        moves_within_s: longest time for which the count may stay the same.
    """

    least_w: float
    most_w: float
    renewed_s: float
    moves_within_s: float


def limits_of(
    covers: Covers | None,
    *,
    renewed_s: float = 1.0,
    moves_within_s: float = 10.0,
    least_w: float | None = None,
    most_w: float | None = None,
) -> Limits:
    """Limits of a device, by the part that it covers. A description of the device may make the limits
    tighter.

    Args:
        renewed_s, moves_within_s: as in :class:`Limits`.
        least_w: least watts, for a device that may draw less than others.
        most_w: most watts by the description of the device. It counts only if it is lower than the usual
            limit.
    """
    least, most = _POSSIBLE_W[covers]
    return Limits(
        least if least_w is None else least_w,
        most if most_w is None else min(most, most_w),
        renewed_s,
        moves_within_s,
    )


class DeviceMeter:
    """A meter that asks a device for one number: the energy that the device has drawn so far (a counter), or
    the power that it draws now.

    Args:
        ask: asks the device for the number. Raises :class:`ReadFailed`.
        limits: what power is possible for the device.
        unit: joules (of a counter) or watts that the number 1 stands for.

    Raises:
        ReadFailed: the device does not answer.
    """

    source = "measured"

    def __init__(
        self,
        name: str,
        node: str,
        covers: Covers,
        ask: Callable[[], float],
        limits: Limits,
        *,
        counter: bool = True,
        unit: float,
        identity: str | None,
        remark: str | None = None,
        renewed_s: float | None = None,
    ) -> None:
        self.name, self.node, self.covers, self.limits = name, node, covers, limits
        self.counter, self.remark, self.renewed_s = counter, remark, renewed_s
        self.identity, self._ask, self._unit = identity, ask, unit
        self._first = ask()

    def read(self) -> Reading:
        """Joules since the meter was opened, or watts now."""
        number = self._ask()
        if self.counter:
            return Reading(None, (number - self._first) * self._unit)
        return Reading(number * self._unit, None)


class _Renewal(NamedTuple):
    """A value of a counter in joules, and the earliest and latest time at which the counter can have taken
    this value."""

    joules: float
    earliest_s: float
    latest_s: float


class Believed:
    """A meter whose readings count only if they are possible for its device. All meters are read by this
    class.

    For watts, each reading has to be possible. For a counter, the mean watts have to be possible, both from
    one renewal to the next and over ten renewals. A counter may also not stand still for long. After a fault,
    the meter begins again, and joules from before the fault to after it do not count. An estimate comes from
    no device, so nothing limits it.

    Args:
        meter: the meter to read. It may have ``limits``. Otherwise the limits follow from the part that it
            covers.
    """

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        limits = getattr(meter, "limits", None) or limits_of(getattr(meter, "covers", None))
        self._limits: Limits | None = None if meter.source == "estimated" else limits
        self._renewals: deque[_Renewal] = deque(maxlen=_MEAN_OF)
        self._last_s = 0.0
        self._has_counted = False

    def read(self) -> Reading:
        """Read once.

        Raises:
            ReadFailed: this read gave nothing.
            MeterFailed: the reading cannot be believed, or no read will give anything from now on.
        """
        before_s = time.monotonic()
        reading = self.meter.read()
        after_s = time.monotonic()
        if reading.at_s is not None:
            before_s = after_s = reading.at_s
        fault = None
        if self._limits is not None:
            limits, watts = self._limits, reading.watts
            if watts is not None and not limits.least_w <= watts <= limits.most_w:
                fault = f"it reads {watts:.6g} W; {_possible(limits)}"
            if reading.joules is not None:
                fault = fault or self._look(reading.joules, before_s, after_s, limits)
        if fault is not None:
            self._renewals.clear()
            raise MeterFailed(fault)
        return reading

    def _look(self, joules: float, before_s: float, after_s: float, limits: Limits) -> str | None:
        fault = None
        if self._renewals and joules == self._renewals[-1].joules:
            # A slow read may show the value at its begin or at its end. Only the time from the end of one
            # read to the begin of the next is certain.
            stood_s = before_s - self._renewals[-1].latest_s
            if stood_s > limits.moves_within_s:
                fault = f"its counter stands still for {stood_s:.3g} s"
        else:
            new = _Renewal(joules, before_s - limits.renewed_s, after_s)
            if self._renewals:
                new = new._replace(earliest_s=max(new.earliest_s, self._last_s))
                fault = _fault_between(self._renewals[-1], new, limits)
                fault = fault or _fault_between(self._renewals[0], new, limits)
            elif joules < 0 and not self._has_counted:
                # The counter fell between its opening and its first reading.
                fault = _fault_between(new._replace(joules=0.0), new, limits)
            self._renewals.append(new)
        self._has_counted = True
        self._last_s = before_s
        return fault


def _fault_between(old: _Renewal, new: _Renewal, limits: Limits) -> str | None:
    moved_j, most_s = new.joules - old.joules, new.latest_s - old.earliest_s
    least_s = max(0.0, new.earliest_s - old.latest_s)
    if moved_j >= 0 and limits.least_w * least_s <= moved_j <= limits.most_w * most_s:
        return None
    return (
        f"its counter went from {old.joules:.6g} to {new.joules:.6g} J in {most_s:.3g} s: it restarted or is "
        f"broken; {_possible(limits)}"
    )


def _possible(limits: Limits) -> str:
    return f"such a device draws {limits.least_w:g} to {limits.most_w:g} W"
