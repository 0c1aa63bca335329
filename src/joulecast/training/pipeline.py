"""A network in stages, one on each rank, trained by micro-batches over MPI.

    network in pieces          split_tasks(network, stage_of_each_task)
    who does what when         stage_order("1f1b", stages=2, stage=0, micro_batches=4)
    one rank's stage           Stage(piece, comm, "1f1b", 4, samples, (3, 32, 32))
    a step of it               loss = stage.step(images, labels); stage.update()

After a forward, activations go to all stages that read them; after a backward, gradients go back and are
added up in the stage that made the activation. A sender never waits: the receiving stage fetches a message
when it needs it (within a host MPI reads the sender's memory). Gradients of parameters add up over the
micro-batches in ``parameter.grad``.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from joulecast.errors import JoulecastError
from joulecast.graphs.schedules import Phase, Schedule, Work, stage_order
from joulecast.training.loop import loss_sum, momentum_step
from joulecast.training.pieces import Piece, split_network, split_tasks
from joulecast.training.pipeline_messages import (
    Layout,
    Port,
    Request,
    Transport,
    memory_of,
    ports,
)
from joulecast.training.pipeline_tasks import at_rest

__all__ = ["Piece", "Schedule", "Stage", "Work", "split_network", "split_tasks", "stage_order"]

_POLL_S = 50e-6


class Stage:
    """One rank's stage of a pipeline: rank s of ``comm`` has stage s. Its construction is collective.

    Args:
        piece: this rank's piece of the network.
        comm: communicator with as many ranks as there are stages.
        schedule: ``gpipe`` or ``1f1b``.
        micro_batches: number of equal parts of a step's batch.
        samples: samples of one step.
        image_shape: shape of one sample of the network's input.
        yields: release the core while waiting, for ranks that share cores.
    """

    def __init__(
        self,
        piece: Piece,
        comm: Transport,
        schedule: Schedule,
        micro_batches: int,
        samples: int,
        image_shape: Sequence[int],
        yields: bool = False,
    ) -> None:
        if samples % micro_batches:
            raise JoulecastError(
                f"pipeline: a batch of {samples} does not divide into {micro_batches} micro-batches"
            )
        if (comm.rank, comm.size) != (piece.stage, piece.stages):
            raise JoulecastError(
                f"pipeline: rank {comm.rank} of {comm.size} was given stage {piece.stage} of {piece.stages}; "
                "rank s has stage s"
            )
        self.piece, self.samples = piece, samples
        self.parameters = [p for p in piece.parameters() if p.requires_grad]
        self.order = stage_order(schedule, comm.size, comm.rank, micro_batches)
        self._comm, self._yields = comm, yields
        self._is_last = comm.rank == comm.size - 1
        self._batches, self._each = micro_batches, samples // micro_batches
        self._agree_on_layouts(image_shape)
        self._places: dict[tuple[Phase, int, Port], Tensor] = {}
        for batch in range(micro_batches):
            for port in self._entering:
                self._places["forward", batch, port] = port.like.place()
            for port in self._leaving:
                if port.like.has_gradient:
                    self._places["backward", batch, port] = port.like.place()
        crossing = self._entering if self._is_last else self._leaving
        self.message_bytes = sum(port.like.byte_count for port in crossing)
        """Bytes of one micro-batch that leave this stage (that enter it, for the last one)."""
        self._momenta: list[Tensor | None] = [torch.zeros_like(p) for p in self.parameters]
        self._arriving: dict[tuple[Phase, int, Port], Request] = {}
        self._entered: dict[int, dict[Port, Tensor]] = {}
        self._left: dict[int, dict[tuple[str, int], Tensor]] = {}
        self._on_the_way: list[tuple[Request, Tensor]] = []
        self._loss = 0.0

    def _agree_on_layouts(self, image_shape: Sequence[int]) -> None:
        """Find the layouts of all values between stages, by passing zeros through the pipeline."""
        self._layouts: dict[str, Layout] = {}
        self._entering: list[Port] = []
        self._leaving: list[Port] = []
        for producer in sorted(set(self.piece.entering.values())):
            entering = self._comm.recv(source=producer)
            self._layouts |= entering
            self._entering += ports(entering, producer)
        zeros = {
            (port.value, port.at): torch.zeros(
                port.like.shape, dtype=port.like.dtype, requires_grad=port.like.has_gradient
            )
            for port in self._entering
        }
        images = torch.zeros((self._each, *image_shape), dtype=self.piece.dtype)
        with at_rest(self.piece.module), torch.random.fork_rng(devices=[]), torch.enable_grad():
            left, _ = self.piece(images, self._values(zeros))
        for name, value in left.items():
            self._layouts[name] = Layout.of(value)
        for consumer in sorted(
            {stage for stages in self.piece.leaving.values() for stage in stages}
        ):
            leaving = {
                name: self._layouts[name]
                for name, stages in self.piece.leaving.items()
                if consumer in stages
            }
            self._comm.send(leaving, consumer)
            self._leaving += ports(leaving, consumer)

    def _values(self, tensors: Mapping[tuple[str, int], Tensor]) -> dict[str, Any]:
        """The values that enter this stage, assembled from their tensors."""
        return {
            name: self._layouts[name].filled(lambda at, name=name: tensors[name, at])  # type: ignore[misc]
            for name in self.piece.entering
        }

    def _tag(self, phase: Phase, batch: int, port: Port) -> int:
        # Unique between two ranks, as MPI identifies messages by sender, receiver and tag.
        return 2 * (port.number * self._batches + batch) + (phase == "backward")

    def _wait(self, request: Request) -> None:
        if not self._yields:
            request.Wait()
            return
        while not request.Test():
            time.sleep(_POLL_S)

    def _receive(self, phase: Phase, batch: int, port: Port) -> Tensor:
        self._wait(self._arriving.pop((phase, batch, port)))
        return self._places[phase, batch, port]

    def _send(self, tensor: Tensor, phase: Phase, batch: int, port: Port) -> None:
        whole = tensor.detach().contiguous()
        tag = self._tag(phase, batch, port)
        self._on_the_way.append((self._comm.Isend(memory_of(whole), port.rank, tag), whole))

    def begin(self) -> None:
        """Begin a step: clear the gradients, and post the receives of all messages."""
        self._loss = 0.0
        for parameter in self.parameters:
            parameter.grad = None
        # All at once, so that messages may arrive in any order.
        for (phase, batch, port), place in self._places.items():
            request = self._comm.Irecv(memory_of(place), port.rank, self._tag(phase, batch, port))
            self._arriving[phase, batch, port] = request

    def forward(self, batch: int, images: Tensor, labels: Tensor) -> None:
        """Do one micro-batch's forward; for the arguments see :meth:`step`."""
        mine = slice(batch * self._each, (batch + 1) * self._each)
        entered = self._entered[batch] = {
            port: self._receive("forward", batch, port)
            .detach()
            .requires_grad_(port.like.has_gradient)
            for port in self._entering
        }
        tensors = {(port.value, port.at): tensor for port, tensor in entered.items()}
        left, outputs = self.piece(
            images[mine] if self.piece.reads_images else None, self._values(tensors)
        )
        found = {name: self._layouts[name].leaves_of(name, value) for name, value in left.items()}
        self._left[batch] = {}
        for port in self._leaving:
            tensor = found[port.value][port.at]
            if port.like.has_gradient:
                self._left[batch][port.value, port.at] = tensor
            self._send(tensor, "forward", batch, port)
        if self._is_last:
            loss = loss_sum(outputs, labels[mine])
            self._loss += float(loss.detach())
            # Divided by the size of the batch, so that micro-batches add up to the gradient of its mean.
            self._left[batch]["loss", 0] = loss / self.samples

    def backward(self, batch: int) -> None:
        """Do one micro-batch's backward."""
        gradients: dict[tuple[str, int], Tensor | None] = {}
        if self._is_last:
            gradients["loss", 0] = None
        for port in self._leaving:
            if port.like.has_gradient:
                key, arrived = (port.value, port.at), self._receive("backward", batch, port)
                before = gradients.get(key)
                gradients[key] = arrived if before is None else before + arrived
        left = self._left.pop(batch)
        if left:
            torch.autograd.backward(list(left.values()), [gradients[key] for key in left])
        for port, tensor in self._entered.pop(batch).items():
            if port.like.has_gradient:
                # A value of which only the shape was read has no gradient, but its stage waits for one.
                own = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
                self._send(own, "backward", batch, port)

    def finish(self) -> float:
        """The loss as returned by :meth:`step`, once all sent messages have arrived."""
        for request, _ in self._on_the_way:
            self._wait(request)
        self._on_the_way.clear()
        return self._loss

    def step(self, images: Tensor, labels: Tensor) -> float:
        """The loss summed over the batch on the last stage, 0 on the others (collective).

        Does forward and backward; afterwards every parameter has its gradient.

        Args:
            images: the whole batch; needed by the stages that read the network's input.
            labels: those of the whole batch; needed by the last stage.
        """
        self.begin()
        for phase, batch in self.order:
            if phase == "forward":
                self.forward(batch, images, labels)
            else:
                self.backward(batch)
        return self.finish()

    def update(self, learning_rate: float, momentum: float) -> None:
        """Do one step of SGD with momentum on this stage's parameters."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        momentum_step(self.parameters, gradients, self._momenta, learning_rate, momentum)
