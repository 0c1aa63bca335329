"""CPU energy by RAPL through the kernel's powercap files.

Domains overlap: ``psys`` contains the packages and a package contains its cores. They are never
summed: ``psys`` is taken alone where it exists, otherwise each package plus its ``dram`` domain,
which lies outside the package. ``energy_uj`` wraps at ``max_energy_range_uj``.
"""

import time
from dataclasses import replace
from pathlib import Path

from joulecast.power.meters import Meter, MeteredNodes, MeterUnavailable, ReadFailed, Reading
from joulecast.power.register import Limits, Register
from joulecast.records.covers import Covers
from joulecast.records.provenance import boot_id

POWERCAP = Path("class/powercap")
"""Below the folder of the kernel's files."""
_MOST_W, _MOST_OF_A_MACHINE_W = 1500.0, 6000.0
"""Watts that no processor, and no machine of several, exceeds even for a moment."""
RENEWED_EVERY_S = 0.001
_LIMITS = Limits(least_w=1e-3, most_w=_MOST_W, renewed_s=RENEWED_EVERY_S, moves_within_s=2.0)
_PEAK = 4.0
"""A processor may draw some times what it is allowed for long, for milliseconds to seconds."""


def _limits(domain: Path, name: str) -> Limits:
    """What is possible for a domain: at most a peak of what it is allowed, where the kernel says that."""
    if name.startswith("psys"):
        return replace(_LIMITS, most_w=_MOST_OF_A_MACHINE_W)
    try:
        allowed_w = int((domain / "constraint_0_max_power_uw").read_text()) / 1e6
    except (OSError, ValueError):
        return _LIMITS
    if allowed_w < 10:  # some kernels say 0
        return _LIMITS
    return replace(_LIMITS, most_w=min(_MOST_W, _PEAK * allowed_w))


def covered_by(domain: str) -> Covers:
    """What a domain counts: of ``psys`` CPU and memory are certain, and GPUs are not."""
    if domain.startswith("psys"):
        return "socket"
    return "memory" if domain.startswith("dram") else "cpu"


class RaplMeter:
    """One RAPL domain; joules since it was opened, with wraps of the register undone."""

    source = "measured"
    counter = True

    def __init__(self, domain: Path, name: str, node: str) -> None:
        self._energy = domain / "energy_uj"
        range_uj = int((domain / "max_energy_range_uj").read_text())
        self.node, self.name = node, name
        self.covers = covered_by(name.removeprefix("rapl:"))
        # Containers have host names of their own, and the registers of the one machine below them.
        boot = boot_id()
        self.identity = None if boot is None else f"{boot}:{name}"
        self._register = Register(
            int(self._energy.read_text()),
            time.monotonic(),
            unit_j=1e-6,
            limits=_limits(domain, name.removeprefix("rapl:")),
            wraps_after=range_uj,
        )

    def read(self) -> Reading:
        before_s = time.monotonic()
        try:
            now_uj = int(self._energy.read_text())
        except (OSError, ValueError) as error:
            raise ReadFailed(str(error)) from error
        return Reading(None, self._register.joules(now_uj, before_s, time.monotonic()))


def _domains(root: Path) -> list[tuple[Path, str]]:
    named = [
        (folder, (folder / "name").read_text().strip())
        for folder in sorted(root.glob("intel-rapl:*"))
        if (folder / "name").is_file()
    ]
    psys = [(folder, name) for folder, name in named if name.startswith("psys")]
    if psys:
        return psys
    chosen = []
    for folder, name in named:
        if name.startswith("package"):
            chosen.append((folder, name))
        elif name == "dram":
            chosen.append((folder, f"dram-{folder.name.split(':')[1]}"))
    return chosen


def open_meters(nodes: MeteredNodes, root: Path | None = None) -> list[Meter]:
    """The disjoint RAPL domains of this host.

    Raises:
        MeterUnavailable: no powercap (a virtual machine, another CPU), or it may not be read.
    """
    domains = _domains(nodes.sysfs / POWERCAP if root is None else root)
    if not domains:
        raise MeterUnavailable(
            "RAPL: the kernel offers no powercap domain",
            "needs bare metal with an Intel or AMD CPU and the module intel_rapl_msr",
        )
    try:
        return [RaplMeter(folder, f"rapl:{name}", nodes.host_node) for folder, name in domains]
    except PermissionError:
        raise MeterUnavailable(
            "RAPL: energy_uj may be read by root only (Linux 5.10 and later)",
            "let one group read it: `chgrp power /sys/class/powercap/*/energy_uj && "
            "chmod g+r /sys/class/powercap/*/energy_uj` (by a udev rule to last)",
        ) from None
    except (OSError, ValueError) as error:
        raise MeterUnavailable(f"RAPL: {error}", "check the powercap files of this host") from None
