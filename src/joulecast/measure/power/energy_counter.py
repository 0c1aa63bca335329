"""The energy counter of the device on which a process computes, to get the joules between two moments.

A sampler (:mod:`joulecast.measure.power.sampler`) reads meters during the whole run. This counter is read
only at the begin and at the end. NVML renews its counter about every 0.1 s, and RAPL every millisecond. So
the counter cannot measure a time that is not much longer than this.
"""

import os
from math import inf
from typing import Literal

from joulecast.errors import JoulecastError
from joulecast.measure.power.meters import (
    Believed,
    Meter,
    MeteredNodes,
    MeterFailed,
    MeterUnavailable,
    ReadFailed,
)
from joulecast.measure.power.zeus_devices import CPU_RENEWED_S, GPU_RENEWED_S, open_cpus, open_gpus

# At each end, a run may miss the energy between two renewals of the counter. A run must be so long that this
# is only some percent: 20 renewals for NVML. RAPL has more, because reading its file takes time, too.
_RENEWALS_OF_GPU, _RENEWALS_OF_CPU = 20, 100


class EnergyCounter:
    """The energy counters of the devices that train, added up.

    Args:
        least_s: shortest time between two readings for which joules are given; 0: joules are given for any
            time.
        renewed_s: seconds between two renewals of the counters. If a time is too short, the reason contains
            this number.

    Attributes:
        why_not: why there is no counter; ``None``: there is one.
    """

    def __init__(
        self,
        meters: list[Meter],
        why_not: str | None,
        *,
        least_s: float = 0.0,
        renewed_s: float = 0.0,
    ) -> None:
        self._meters, self.why_not = [Believed(meter) for meter in meters], why_not
        self._least_s, self._renewed_s = least_s, renewed_s
        self._last_failure = ""
        self._has_failed = False

    def begin(self) -> float | None:
        """Take the first reading of a new series. Returns its joules, as :meth:`read`. An earlier fault is
        forgotten."""
        for _ in range(2):
            # If the counter had a fault since the last reading, only the first of two readings fails.
            self._has_failed = False
            joules = self.read()
            if joules is not None:
                return joules
        return None

    def read(self) -> float | None:
        """Joules since the counter was opened; ``None`` if it cannot be read, or failed since
        :meth:`begin`."""
        if self.why_not is not None or self._has_failed:
            return None
        total = 0.0
        for believed in self._meters:
            name = believed.meter.name
            try:
                total += believed.read().joules or 0.0
            except MeterFailed as error:
                self._last_failure, self._has_failed = f"{name} failed: {error}", True
                return None
            except ReadFailed as error:
                self._last_failure = f"{name} could not be read ({error})"
                return None
        return total

    def between(
        self, first: float | None, last: float | None, *, over_s: float = inf
    ) -> tuple[float | None, str | None]:
        """Joules from one reading to another. If they are not known: ``None``, and the reason.

        Args:
            over_s: time between the two readings in s. Without it, the time counts as long enough.
        """
        if self.why_not is not None:
            return None, self.why_not
        if first is None or last is None:
            return None, self._last_failure
        if over_s < self._least_s:
            return None, (
                f"too short to be measured by a counter that is renewed every {self._renewed_s:g} s "
                f"(shorter than {self._least_s:g} s)"
            )
        if last <= first:
            return None, "the energy counter did not advance: too short a run, or it was reset"
        return last - first, None


def open_energy_counter(device: Literal["cpu", "cuda"], gpu: int = 0) -> EnergyCounter:
    """The counter of the device that trains: RAPL for a CPU, NVML's counter for a GPU."""
    on_gpu = device == "cuda"
    try:
        meters = (open_gpus if on_gpu else open_cpus)(MeteredNodes("here"))
    except MeterUnavailable as error:
        return EnergyCounter([], str(error))
    if not on_gpu:
        least_s = _RENEWALS_OF_CPU * CPU_RENEWED_S
        return EnergyCounter(meters, None, least_s=least_s, renewed_s=CPU_RENEWED_S)
    own = [meter for meter in meters if meter.name.split(":")[1] == str(gpu)]
    if not own:
        there = ", ".join(meter.name for meter in meters)
        return EnergyCounter([], f"there is no GPU {gpu} on this host; it has {there}")
    if not own[0].counter:
        return EnergyCounter([], f"GPU {gpu} has no energy counter (NVML, Volta and later)")
    least_s = _RENEWALS_OF_GPU * GPU_RENEWED_S
    return EnergyCounter(own, None, least_s=least_s, renewed_s=GPU_RENEWED_S)


def first_visible_gpu() -> int:
    """Number in nvidia-smi of the first GPU that CUDA shows to this process.

    Raises:
        JoulecastError: CUDA_VISIBLE_DEVICES names a part of a GPU, or names a GPU by its UUID.
    """
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if not first:
        return 0
    if not first.isdigit():
        raise JoulecastError(
            f"CUDA_VISIBLE_DEVICES is {first}: say its number in nvidia-smi (`gpu` of the job; in the "
            "configuration `tuning.live.gpu`), or put the number there; the energy and the power limit of a "
            "MIG slice cannot be separated from those of its GPU"
        )
    return int(first)
