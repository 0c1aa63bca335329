"""CPU energy by RAPL through the kernel's powercap files.

Domains overlap: ``psys`` contains the packages and a package contains its cores. They are never
summed: ``psys`` is taken alone where it exists, otherwise each package plus its ``dram`` domain,
which lies outside the package. ``energy_uj`` wraps at ``max_energy_range_uj``.
"""

from pathlib import Path

from joulecast.power.meters import Meter, MeteredNodes, MeterUnavailable, ReadFailed, Reading
from joulecast.provenance import boot_id

POWERCAP = Path("/sys/class/powercap")


class RaplMeter:
    """One RAPL domain; joules since it was opened, with wraps of the register undone."""

    source = "measured"
    counter = True

    def __init__(self, domain: Path, name: str, node: str) -> None:
        self._energy = domain / "energy_uj"
        self._range_uj = int((domain / "max_energy_range_uj").read_text())
        self.node, self.name = node, name
        # Containers have host names of their own, and the registers of the one machine below them.
        boot = boot_id()
        self.identity = None if boot is None else f"{boot}:{name}"
        self._last_uj = int(self._energy.read_text())
        self._counted_uj = 0

    def read(self) -> Reading:
        try:
            now_uj = int(self._energy.read_text())
        except (OSError, ValueError) as error:
            raise ReadFailed(str(error)) from error
        # One wrap at most lies between two reads: the register lasts minutes at full power.
        self._counted_uj += (now_uj - self._last_uj) % (self._range_uj + 1)
        self._last_uj = now_uj
        return Reading(None, self._counted_uj / 1e6)


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
    domains = _domains(POWERCAP if root is None else root)
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
