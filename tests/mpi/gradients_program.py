"""N ranks with a global batch against one rank with the same batch, in float64 (run by mpiexec).

Arguments: network, algorithm, overlap (0 or 1), hosts to pretend.
"""

import sys

import torch
from mpi4py import MPI

from joulecast.measure.training.gradients import GradientBuckets
from joulecast.measure.training.loader import batch_indices
from joulecast.measure.training.loop import loss_sum
from joulecast.measure.training.mpi import Hosts
from joulecast.measure.training.stage_clock import StageClock
from joulecast.measure.workloads.datasets import open_dataset
from joulecast.measure.workloads.networks import build_network

network_name, algorithm, overlap, pretended = sys.argv[1:]
comm = MPI.COMM_WORLD
torch.set_num_threads(1)
hosts = Hosts.of(comm, f"host{comm.rank % int(pretended)}")
BATCH = 6
torch.manual_seed(1 + comm.rank)
network = build_network(network_name, 32, 16, 10).double().train()
for module in network.modules():
    if isinstance(module, torch.nn.Dropout):
        module.p = 0.0  # noise of its own on every rank is not what is compared
buckets = GradientBuckets(
    network.parameters(),
    hosts,
    StageClock(),
    algorithm=algorithm,
    bucket_bytes=3e5,
    overlap=bool(int(overlap)),
    yields=comm.size > 2,
)
buckets.broadcast_parameters()
images = open_dataset("digits", None, 32, 10)


def gradients(ranks: int, rank: int) -> list[torch.Tensor]:
    pictures, labels = images.batch(next(batch_indices(len(images), BATCH, ranks, rank, seed=3)))
    (loss_sum(network(pictures.double()), labels) / BATCH).backward()
    return [] if ranks == 1 else [g.clone() for g in buckets.finish()]


for _ in range(2):  # the second time the buffers are in use already
    together = gradients(comm.size, comm.rank)
buckets.close()
gradients(1, 0)
alone = [p.grad for p in buckets.parameters]
largest = max(float(g.abs().max()) for g in alone)
for mine, single in zip(together, alone, strict=True):
    difference = float((mine - single).abs().max()) / largest
    assert difference <= 1e-10, difference
