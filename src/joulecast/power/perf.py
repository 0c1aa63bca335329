"""RAPL's counters by ``perf_event_open``, for users whom the kernel does not let read the powercap files.

They are the counters that :mod:`joulecast.power.rapl` reads, so that this kind is there only where that one
is not. The kernel counts in 64 bits and undoes the wraps of the registers. ``energy-cores`` and
``energy-gpu`` lie inside of ``energy-pkg``, and all of them inside of ``energy-psys``.
"""

import ctypes
import os
import platform
import re
import struct
import time
from pathlib import Path
from typing import Any

from joulecast.power import rapl
from joulecast.power.kernel_files import identity_of, text_in
from joulecast.power.meters import Meter, MeteredNodes, MeterUnavailable, ReadFailed, Reading
from joulecast.power.register import Limits, Register
from joulecast.records.covers import Covers

FOLDER = Path("bus/event_source/devices/power")
_CALLS = {"x86_64": 298, "aarch64": 241}
"""Number of the system call by machine."""
_ATTRIBUTE_BYTES = 64  # PERF_ATTR_SIZE_VER0
_CLOSE_ON_EXEC = 8  # PERF_FLAG_FD_CLOEXEC
_ALL_PROCESSES, _NO_GROUP = -1, -1
_MOST_W, _MOST_OF_A_MACHINE_W = 1500.0, 6000.0


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _open_counter(kind: int, event: int, cpu: int) -> int:
    """A file descriptor that counts an event of a whole CPU.

    Raises:
        OSError: as the kernel says.
    """
    number = _CALLS.get(platform.machine())
    if number is None:
        raise OSError(0, f"not known how to ask on {platform.machine()}")
    attribute = struct.pack("IIQ", kind, _ATTRIBUTE_BYTES, event).ljust(_ATTRIBUTE_BYTES, b"\0")
    buffer = ctypes.create_string_buffer(attribute, _ATTRIBUTE_BYTES)
    words = (_ALL_PROCESSES, cpu, _NO_GROUP, ctypes.c_ulong(_CLOSE_ON_EXEC))
    descriptor = int(_libc().syscall(number, buffer, *words))
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return descriptor


class PerfMeter:
    """One counter of one socket; joules since it was opened."""

    source = "measured"
    counter = True

    def __init__(
        self, name: str, node: str, covers: Covers, descriptor: int, unit_j: float
    ) -> None:
        self.name, self.node, self.covers = name, node, covers
        self.identity = identity_of(name)
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        most_w = _MOST_OF_A_MACHINE_W if covers == "socket" else _MOST_W
        limits = Limits(1e-3, most_w, renewed_s=rapl.RENEWED_EVERY_S, moves_within_s=2.0)
        self._register = Register(self._count(), time.monotonic(), unit_j=unit_j, limits=limits)

    def _count(self) -> int:
        try:
            content = self._file.read(8)
        except OSError as error:
            raise ReadFailed(f"{self.name}: {error.strerror}") from error
        if content is None or len(content) != 8:
            raise ReadFailed(f"{self.name}: the kernel gave no count")
        return int(struct.unpack("q", content)[0])

    def read(self) -> Reading:
        """Joules since it was opened."""
        before_s = time.monotonic()
        return Reading(None, self._register.joules(self._count(), before_s, time.monotonic()))


def _cpus(text: str) -> list[int]:
    """The CPUs of a mask as ``0,64`` or ``0-1``: one of each socket."""
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


_EVENTS: tuple[tuple[str, str, Covers], ...] = (
    ("energy-pkg", "pkg", "cpu"),
    ("energy-ram", "ram", "memory"),
)


def _opened(folder: Path, node: str) -> list[Meter]:
    """The counters of all sockets.

    Raises:
        OSError: the kernel does not let it.
        ValueError: its files hold something else.
        ReadFailed: a counter gives nothing.
    """
    kind, cpus = int((folder / "type").read_text()), _cpus(text_in(folder / "cpumask") or "0")
    whole: tuple[str, str, Covers] = ("energy-psys", "psys", "socket")
    has_whole = (folder / "events" / whole[0]).is_file()
    meters: list[Meter] = []
    for event, short, covers in (whole,) if has_whole else _EVENTS:
        file = folder / "events" / event
        code = re.fullmatch(r"event=(0x[0-9a-f]+)", text_in(file) or "")
        if code is None:
            continue
        unit_j = float(file.with_name(f"{event}.scale").read_text())
        for socket, cpu in enumerate(cpus[:1] if has_whole else cpus):
            descriptor = _open_counter(kind, int(code[1], 16), cpu)
            meters.append(PerfMeter(f"perf:{short}-{socket}", node, covers, descriptor, unit_j))
    return meters


def _has_powercap(nodes: MeteredNodes) -> bool:
    try:
        return bool(rapl.open_meters(nodes))
    except MeterUnavailable:
        return False


def open_meters(nodes: MeteredNodes) -> list[Meter]:
    """RAPL's counters of all sockets, where the powercap files are closed.

    Raises:
        MeterUnavailable: the kernel has no such events, does not let this user count them, or ``rapl`` has
            them.
    """
    folder = nodes.sysfs / FOLDER
    if not (folder / "type").is_file():
        raise MeterUnavailable(
            "perf: the kernel has no events of power",
            "needs bare metal with an Intel or AMD CPU and the module rapl",
            elsewhere=True,
        )
    if _has_powercap(nodes):
        raise MeterUnavailable(
            "perf: rapl reads the same counters", "nothing to do", elsewhere=True
        )
    try:
        meters = _opened(folder, nodes.host_node)
    except PermissionError:
        raise MeterUnavailable(
            "perf: the kernel does not let this user count the power of a whole CPU",
            "`sysctl kernel.perf_event_paranoid=0`, or CAP_PERFMON; or open RAPL's files "
            "(docs/explanation/security.md)",
        ) from None
    except (OSError, ValueError, ReadFailed) as error:
        reason = getattr(error, "strerror", None) or error
        raise MeterUnavailable(f"perf: {reason}", f"look into {folder}") from None
    if not meters:
        raise MeterUnavailable("perf: the kernel counts no energy", f"look into {folder}/events")
    return meters
