"""A pipeline over all ranks against one process with the same micro-batches, in float64 (run by mpiexec).

Arguments: network, schedule, micro-batches, modules at which stages begin.
"""

import sys

import torch
from mpi4py import MPI

from joulecast.training.loop import loss_sum
from joulecast.training.pipeline import Stage, split_network
from joulecast.workloads.datasets import open_dataset
from joulecast.workloads.networks import build_network

name, schedule, micro_batches, *cuts = sys.argv[1:]
comm = MPI.COMM_WORLD
torch.set_num_threads(1)
torch.manual_seed(3)
network = build_network(name, 32, 16, 10).double().train()
for module in network.modules():
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0  # noise of its own in every process is not what is compared
count = int(micro_batches)
samples = 2 * count
images, labels = open_dataset("digits", None, 32, 10).batch(range(samples))
images = images.double()
stages = split_network(network, cuts)
assert len(stages) == comm.size
stage = Stage(stages[comm.rank], comm, schedule, count, samples, (3, 32, 32), yields=True)
for _ in range(2):  # the second time the buffers are in use already
    loss = stage.step(images, labels)
together = [p.grad.clone() for p in stage.parameters]
before = [p.detach().clone() for p in stage.parameters]

for parameter in network.parameters():
    parameter.grad = None
single = 0.0
for part in range(count):
    where = slice(2 * part, 2 * part + 2)
    mine = loss_sum(network(images[where]), labels[where])
    (mine / samples).backward()
    single += float(mine.detach())
largest = max(float(p.grad.abs().max()) for p in network.parameters())
for mine, parameter in zip(together, stage.parameters, strict=True):
    difference = float((mine - parameter.grad).abs().max()) / largest
    assert difference <= 1e-10, difference
assert sum(comm.allgather(len(together))) == len(list(network.parameters()))
if comm.rank == comm.size - 1:
    assert abs(loss / single - 1) < 1e-10, (loss, single)
stage.update(0.1, 0.9)
for weight, was, gradient in zip(stage.parameters, before, together, strict=True):
    assert torch.allclose(weight, was - 0.1 * gradient, rtol=0, atol=1e-12)
