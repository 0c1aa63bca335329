"""Synchronous SGD with momentum over replicas: the training loop of one rank."""

import hashlib
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from joulecast.errors import JoulecastError
from joulecast.measure.training.gradients import GpuGradients, GradientBuckets
from joulecast.measure.training.loader import Batch, Loader, batch_indices, rank_share
from joulecast.measure.training.mpi import MPI, Hosts, arrive, arrive_slowly
from joulecast.measure.training.ranks import keep_freed_memory
from joulecast.measure.training.stage_clock import StageClock
from joulecast.measure.workloads.datasets import Images, open_dataset
from joulecast.measure.workloads.networks import build_empty, build_network
from joulecast.runs.spec import RunSpec, Workload

_REFERENCE_STEPS = 3
_INCEPTION_AUXILIARY_WEIGHT = 0.4  # Szegedy et al. 2016, section 4


def loss_sum(outputs: Any, labels: Tensor) -> Tensor:
    """Cross entropy summed over the batch, including Inception's auxiliary classifier."""
    if isinstance(outputs, Tensor):
        return nn.functional.cross_entropy(outputs, labels, reduction="sum")
    main = nn.functional.cross_entropy(outputs.logits, labels, reduction="sum")
    extra = nn.functional.cross_entropy(outputs.aux_logits, labels, reduction="sum")
    return main + _INCEPTION_AUXILIARY_WEIGHT * extra


def broadcast_replica(network: nn.Module, buckets: GradientBuckets, comm: MPI.Intracomm) -> None:
    """Copy the parameters and buffers of rank 0 to all ranks."""
    buckets.broadcast_parameters()
    for buffer in network.buffers():
        on_host = buffer.detach().cpu().contiguous()
        comm.Bcast(on_host.view(-1).numpy())
        buffer.copy_(on_host)


def weights_sha256(network: nn.Module) -> str:
    """Hash of all parameters. Buffers (batch statistics) are left out, because they differ between ranks."""
    digest = hashlib.sha256()
    for parameter in network.parameters():
        digest.update(parameter.detach().cpu().contiguous().view(-1).numpy().data)
    return digest.hexdigest()


def device_of(spec: RunSpec, hosts: Hosts) -> torch.device:
    """The device of this rank. If it is a GPU, no other rank of the host uses it.

    Raises:
        JoulecastError: the specification asks for GPUs, and the host has too few.
    """
    assert spec.training is not None
    if spec.training.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise JoulecastError(
            f"run {spec.run}: training.device is cuda, but torch sees no GPU on {hosts.own}"
        )
    # A launcher may show each rank one GPU, which is then 0 on all of them.
    device = torch.device("cuda", hosts.local.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    # By default torch computes convolutions at tf32 where a training is at fp32.
    torch.backends.cudnn.allow_tf32 = False
    gpus = hosts.local.allgather(str(torch.cuda.get_device_properties(device).uuid))
    if len(set(gpus)) < len(gpus):
        raise JoulecastError(
            f"run {spec.run}: {len(gpus)} ranks of {hosts.own} share {len(set(gpus))} GPU, and NCCL needs "
            "one for each rank; ask for fewer nodes or ranks_per_node, or for more hosts"
        )
    return device


class NodeSpeed:
    """How long the stages of an emulated node take: equally long at every number of nodes. Without emulation,
    no stage is padded.

    Ranks share cores. Without padding, each rank would become slower when there are more nodes. So one rank
    of the host first measures how long compute and update take on a free machine. Then all ranks extend each
    of these stages to the measured time multiplied by ``nodes_per_core``. If a stage takes longer because
    there are too few cores, it is an overrun. The record has the share of overruns.
    """

    def __init__(self, nodes_per_core: int = 1) -> None:
        self.nodes_per_core = nodes_per_core
        self.reference_s: dict[str, float] = {}
        self._padded = self._overran = 0

    def pad(self, stage: str, started: float) -> None:
        """Sleep until ``stage`` has lasted as long as on an emulated node. The stage began at ``started``."""
        if stage not in self.reference_s:
            return
        due = started + self.reference_s[stage] * self.nodes_per_core
        now = time.monotonic()
        self._padded += 1
        # Sleep itself is inexact by a millisecond.
        self._overran += now > due + 1e-3
        time.sleep(max(0.0, due - now))

    def restart_count(self) -> None:
        """Forget the overruns so far. They belong to the warm-up."""
        self._padded = self._overran = 0

    @property
    def overrun_fraction(self) -> float | None:
        """Share of the padded stages that took longer than they should; ``None`` if none was padded."""
        return self._overran / self._padded if self._padded else None


@dataclass
class LoopResult:
    """Result of the training loop. Times are on this host's monotonic clock."""

    start: float
    stop: float
    steps: int
    samples: int
    final_loss: float
    accuracy: float | None
    reached_target: bool | None


def open_images(workload: Workload, *, train: bool = True) -> Images:
    """The train or test split of a workload's data set."""
    w = workload
    return open_dataset(w.dataset, w.data_root, w.image_size, w.classes, train)


class Trainer:
    """One rank's replica, optimiser state, loader and gradient buckets."""

    def __init__(self, spec: RunSpec, hosts: Hosts, clock: StageClock, yields: bool) -> None:
        assert spec.training is not None and spec.workload is not None
        self.spec, self.training, self.workload = spec, spec.training, spec.workload
        self.hosts, self.clock, self.yields = hosts, clock, yields
        comm = hosts.comm
        torch.set_num_threads(spec.threads_per_rank)
        keep_freed_memory()
        self.device = device_of(spec, hosts)
        images = open_images(self.workload)
        torch.manual_seed(spec.seed)
        self.network = self._build().to(self.device)
        torch.manual_seed(spec.seed * 100_003 + comm.rank)  # dropout differs between ranks
        self.network.train()
        self._share_gradients(comm)
        self._momenta: list[Tensor | None] = [torch.zeros_like(p) for p in self.parameters]
        self.speed = NodeSpeed(spec.emulation.nodes_per_core if spec.emulation else 1)
        first, last = rank_share(self.training.global_batch_size, comm.size, comm.rank)
        self.batch_size = last - first
        self.loader = Loader(
            images,
            batch_indices(
                len(images), self.training.global_batch_size, comm.size, comm.rank, spec.seed
            ),
            workers=self.training.loader_workers,
            prefetch=self.training.prefetch_batches,
            slow_down=float(self.speed.nodes_per_core),
            pins=self.device.type == "cuda",
        )

    def _share_gradients(self, comm: MPI.Intracomm) -> None:
        training, network = self.training, self.network
        self.buckets: GradientBuckets | GpuGradients
        self.replica: nn.Module = network
        arrive_slowly(comm)
        if self.device.type == "cuda":
            self.buckets = GpuGradients(
                network, comm, self.clock, training.bucket_mb, training.overlap
            )
            self.replica = self.buckets.replica
        else:
            self.buckets = GradientBuckets(
                network.parameters(),
                self.hosts,
                self.clock,
                algorithm=training.algorithm,
                bucket_bytes=training.bucket_mb * 1e6,
                overlap=training.overlap,
                yields=self.yields,
            )
            broadcast_replica(network, self.buckets, comm)
        self.parameters = self.buckets.parameters

    def _build(self) -> nn.Module:
        w = self.workload
        shape = (w.network, w.image_size, w.patch_size, w.classes)
        if self.hosts.comm.rank == 0:
            network = build_network(*shape)
        else:
            # Random weights are not drawn, because this takes seconds, and the weights of rank 0 replace
            # them.
            network = build_empty(*shape).to_empty(device="cpu")
        return network.double() if self.training.precision == "fp64" else network

    def forward_backward(self, batch: Batch) -> float:
        """Do a forward and a backward pass. Returns the sum of the losses of this rank's samples. The sum of
        the gradients over all ranks is the gradient of the mean loss of the global batch."""
        images, labels = (part.to(self.device, non_blocking=True) for part in batch)
        if self.training.precision == "fp64":
            images = images.double()
        autocast = (
            torch.autocast(self.device.type, dtype=torch.bfloat16)
            if self.training.precision == "bf16"
            else nullcontext()
        )
        with autocast:
            loss = loss_sum(self.replica(images), labels)
        # Divided by the global batch size, so that the sum over ranks is the gradient of the global mean.
        (loss / self.training.global_batch_size).backward()
        return float(loss.detach())

    @torch.no_grad()
    def update(self, gradients: list[Tensor]) -> None:
        """Do one fused step of SGD with momentum."""
        sgd(
            [*self.parameters],
            gradients,
            self._momenta,
            fused=True,
            foreach=False,
            has_sparse_grad=False,
            weight_decay=0.0,
            momentum=self.training.momentum,
            lr=self.training.learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def measure_reference(self) -> None:
        """For emulation: measure how long compute and update take on one rank of the host, while its other
        ranks are idle."""
        if self.speed.nodes_per_core == 1:
            return
        times: dict[str, float] | None = None
        if self.hosts.is_leader:
            times = self._time_alone()
        arrive_slowly(self.hosts.local)
        self.speed.reference_s = self.hosts.local.bcast(times)

    def _time_alone(self) -> dict[str, float]:
        assert isinstance(self.buckets, GradientBuckets)
        buffers = [(b, b.detach().clone()) for b in self.network.buffers()]
        batch = next(self.loader)
        overlap, self.buckets.overlap = self.buckets.overlap, False
        best = {"computing": math.inf, "update": math.inf}
        for step in range(1 + _REFERENCE_STEPS):
            begin = time.monotonic()
            self.forward_backward(batch)
            computed = time.monotonic()
            # With zero gradients and momenta the update changes nothing, and takes as long as any.
            zeros = self.buckets.discard()
            discarded = time.monotonic()
            self.update(zeros)
            updated = time.monotonic()
            if step:
                best["computing"] = min(best["computing"], computed - begin)
                best["update"] = min(best["update"], updated - discarded)
        self.buckets.overlap = overlap
        for buffer, before in buffers:
            buffer.copy_(before)
        return best

    def step(self) -> float:
        """Do one training step, and record its stages. Returns the sum of the losses of this rank's
        samples."""
        clock = self.clock
        with clock.stage("materials"):
            batch = next(self.loader)
        begin = time.monotonic()
        loss = self.forward_backward(batch)
        self.speed.pad("computing", begin)
        clock.record("computing", begin, self.buckets.computed())
        gradients = self.buckets.finish()
        begin = time.monotonic()
        self.update(gradients)
        self.speed.pad("update", begin)
        clock.record("update", begin, time.monotonic())
        return loss

    @torch.no_grad()
    def accuracy(self) -> float:
        """Share of the test split that is classified correctly. Each rank classifies a part of the split."""
        comm, images = self.hosts.comm, open_images(self.workload, train=False)
        self.network.eval()
        right = np.zeros(1)
        mine = range(comm.rank, len(images), comm.size)
        for begin in range(0, len(mine), 64):
            pictures, labels = images.batch(mine[begin : begin + 64])
            scores = self.network(pictures.to(self.device, self.parameters[0].dtype))
            right += float((scores.argmax(1).cpu() == labels).sum())
        self.network.train()
        comm.Allreduce(MPI.IN_PLACE, right)
        return float(right[0]) / len(images)

    def train(
        self,
        progress: Callable[[int, float], None],
        may_continue: Callable[[int, float], bool] | None = None,
    ) -> LoopResult:
        """Warm up, then train for the given steps or to the target accuracy.

        Args:
            progress: is called after every step, with the number of steps so far and this rank's mean loss.
            may_continue: is called after every evaluation that missed the target, with the number of steps so
                far and the accuracy. It returns whether to continue. It must return the same on all ranks.
        """
        training, comm, clock = self.training, self.hosts.comm, self.clock
        self.measure_reference()
        for step in range(training.warmup_steps):
            clock.step = step - training.warmup_steps
            self.step()
        self.speed.restart_count()
        arrive(comm, self.yields)
        start = time.monotonic()
        accuracy: float | None = None
        reached: bool | None = None if training.target_accuracy is None else False
        loss, done = math.nan, 0
        for step in range(training.steps):
            clock.step = step
            loss = self.step()
            done = step + 1
            progress(done, loss / max(self.batch_size, 1))
            last = done == training.steps
            if training.target_accuracy and (last or done % training.evaluate_every == 0):
                with clock.stage("other"):
                    accuracy = self.accuracy()
                if accuracy >= training.target_accuracy:
                    reached = True
                    break
                if may_continue is not None and not last and not may_continue(done, accuracy):
                    break
        arrive(comm, self.yields)
        stop = time.monotonic()
        total = comm.allreduce(loss) / training.global_batch_size
        samples = done * training.global_batch_size
        return LoopResult(start, stop, done, samples, total, accuracy, reached)

    def close(self) -> None:
        """Stop threads and free shared memory (collective)."""
        self.loader.close()
        self.buckets.close()
