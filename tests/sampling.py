"""Samples of a sampler in this process, columns of them, and GPUs that Zeus could show."""

import tempfile
from pathlib import Path

from zeus.device.gpu.common import ZeusGPUNoPermissionError, ZeusGPUNotSupportedError

from joulecast.measure.power.meters import READING
from joulecast.measure.power.sampler import sample
from joulecast.measure.power.samples import SampleWriter, read_samples


def sampled(order, stop):
    """The samples of a sampler in this process, through its file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "samples"
        writer = SampleWriter(file)
        sample(order, stop, writer.append)
        writer.close()
        return read_samples(file)


def column(samples, meter, name):
    """A column of the readings of a meter."""
    names = [row.meter for row in samples.facts.meters]
    return samples.readings[names.index(meter)][READING.index(name)].tolist()


class FakeGpu:
    """One GPU as Zeus shows it: 100 to 400 W, found at 300 W."""

    supports_nonblocking_setters = True
    gpu_index = 0

    def __init__(self, name="NVIDIA H100 80GB HBM3", *, counts=True, instant=True):
        self.name, self.counts, self.instant = name, counts, instant
        self.energy_mj, self.watts = 5_000, 250.0
        self.limit_mw, self.set_to, self.refuses = 300_000, [], False

    def get_name(self):
        return self.name

    def supports_get_total_energy_consumption(self):
        return self.counts

    def get_total_energy_consumption(self):
        return self.energy_mj

    def get_instant_power_usage(self):
        if not self.instant:
            raise ZeusGPUNotSupportedError("no instant power")
        return self.watts * 1e3

    def get_average_power_usage(self):
        return self.watts * 1e3

    def get_power_management_limit_constraints(self):
        return 100_000, 400_000

    def get_power_management_limit(self):
        return self.limit_mw

    def set_power_management_limit(self, milliwatts):
        if self.refuses:
            raise ZeusGPUNoPermissionError("not permitted")
        self.set_to.append(milliwatts)
        self.limit_mw = milliwatts


class FakeGpus:
    """What Zeus gives for all GPUs of a host."""

    def __init__(self, *gpus):
        self.gpus = list(gpus)


def show_gpus(monkeypatch, *gpus):
    """Have Zeus show these GPUs."""
    monkeypatch.setattr("zeus.device.gpu._gpus", FakeGpus(*gpus))
    return gpus[0] if gpus else None
