"""Samples of a sampler in this process, and columns of them."""

from joulecast.power.meters import READING
from joulecast.power.sampler import sample
from joulecast.power.samples import collected


def sampled(order, stop):
    """The samples of a sampler in this process."""
    blocks = []
    sample(order, stop, lambda *block: blocks.append(block))
    return collected(blocks)


def column(samples, meter, name):
    """A column of the readings of a meter."""
    names = [row["meter"] for row in samples.meters]
    return samples.readings[names.index(meter)][READING.index(name)].tolist()
