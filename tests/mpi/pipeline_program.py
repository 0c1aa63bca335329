"""A pipeline over all ranks against one process with the same micro-batches, in float64 (run by mpiexec).

Arguments: network, image size, micro-batches, modules at which stages begin. Both schedules in turn.
"""

import sys

import torch
from mpi4py import MPI

from joulecast.training.loop import loss_sum
from joulecast.training.pipeline import Stage, split_network
from joulecast.workloads.networks import build_network

name, image_size, micro_batches, *cuts = sys.argv[1:]
size, count = int(image_size), int(micro_batches)
comm = MPI.COMM_WORLD
torch.set_num_threads(1)
torch.manual_seed(3)
network = build_network(name, size, 16, 10).double().train()
for module in network.modules():
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0  # noise of its own in every process is not what is compared
samples = 2 * count
images = torch.randn(samples, 3, size, size, dtype=torch.float64)
labels = torch.arange(samples) % 10
pieces = split_network(network, cuts)
assert len(pieces) == comm.size

single = 0.0
for part in range(count):
    where = slice(2 * part, 2 * part + 2)
    mine = loss_sum(network(images[where]), labels[where])
    (mine / samples).backward()
    single += float(mine.detach())
expected = {id(p): p.grad.clone() for p in network.parameters()}
largest = max(float(g.abs().max()) for g in expected.values())

for schedule in ("gpipe", "1f1b"):
    stage = Stage(pieces[comm.rank], comm, schedule, count, samples, (3, size, size), yields=True)
    for _ in range(2):  # the second time the buffers are in use already
        loss = stage.step(images, labels)
    for parameter in stage.parameters:
        difference = float((parameter.grad - expected[id(parameter)]).abs().max()) / largest
        assert difference <= 1e-10, (schedule, difference)
    assert sum(comm.allgather(len(stage.parameters))) == len(expected)
    if comm.rank == comm.size - 1:
        assert abs(loss / single - 1) < 1e-10, (schedule, loss, single)

before = [p.detach().clone() for p in stage.parameters]
stage.update(0.1, 0.9)
for weight, was in zip(stage.parameters, before, strict=True):
    assert torch.allclose(weight, was - 0.1 * expected[id(weight)], rtol=0, atol=1e-12)
