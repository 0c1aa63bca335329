"""A network in stages, one to a rank, trained micro-batch after micro-batch over MPI.

    network in pieces          split_network(network, ["layer3"])
    who does what when         stage_order("1f1b", stages=2, stage=0, micro_batches=4)
    one rank's stage           Stage(piece, comm, "1f1b", 4, sample)
    a step of it               loss = stage.step(images, labels); stage.update()

Activations go to the next rank when a forward is done, their gradients back when a backward is. A sender
never waits: the next stage fetches what it needs when it needs it (within a host MPI reads the sender's
memory). Gradients of a stage's parameters add up over the micro-batches in ``parameter.grad``.
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from mpi4py import MPI
from torch import Tensor, fx, nn

from joulecast.errors import JoulecastError
from joulecast.training.loop import loss_sum, momentum_step

Schedule = Literal["gpipe", "1f1b"]
Work = tuple[Literal["forward", "backward"], int]
"""What a stage does next, and the micro-batch it does it for (0-based)."""

_POLL_S = 50e-6


def stage_order(schedule: Schedule, stages: int, stage: int, micro_batches: int) -> list[Work]:
    """Order of a stage's work, as ``joulecast.simulator.strategy.phases`` has it.

    GPipe: all forwards, then all backwards in the opposite order. 1F1B: stage s of p may have p - s
    micro-batches under way; it goes forward while it may, else backward.
    """
    if schedule == "gpipe":
        forwards: list[Work] = [("forward", batch) for batch in range(micro_batches)]
        return forwards + [("backward", batch) for batch in reversed(range(micro_batches))]
    order: list[Work] = []
    forward = backward = 0
    while backward < micro_batches:
        if forward < micro_batches and forward - backward < stages - stage:
            order.append(("forward", forward))
            forward += 1
        else:
            order.append(("backward", backward))
            backward += 1
    return order


def _module_path(node: fx.Node) -> str:
    """The module that a node of the trace is in ("" for the network itself)."""
    stack = list(node.meta.get("nn_module_stack") or {})
    return str(stack[-1]).split("@")[0] if stack else ""


def _stage_of_nodes(name: str, graph: fx.Graph, cuts: Sequence[str]) -> dict[fx.Node, int]:
    """Stage of every node: a stage begins where the first node of its module is."""
    stages: dict[fx.Node, int] = {}
    begun = 0
    for node in graph.nodes:
        path = _module_path(node)
        while begun < len(cuts) and (path == cuts[begun] or path.startswith(f"{cuts[begun]}.")):
            begun += 1
        stages[node] = begun
    for node in graph.find_nodes(op="get_attr"):
        # Parameters of no layer are read at the start of the trace, wherever they are used.
        stages[node] = min((stages[user] for user in node.users), default=0)
    if begun < len(cuts):
        raise JoulecastError(
            f"{name} cannot be cut before `{cuts[begun]}`: it has no such module, or not after the cuts "
            f"before it ({', '.join(cuts[:begun]) or 'none'})"
        )
    return stages


def _crossing(name: str, stages: dict[fx.Node, int], cut: str, stage: int) -> fx.Node:
    """The one node that stages from ``stage`` on take from those before."""
    crossing = [
        node
        for node, own in stages.items()
        if own < stage and any(stages[user] >= stage for user in node.users)
    ]
    if len(crossing) != 1 or stages[crossing[0]] != stage - 1:
        names = ", ".join(node.name for node in crossing)
        raise JoulecastError(
            f"{name} cannot be cut before `{cut}`: more than one tensor crosses the cut ({names}); cut "
            "between blocks"
        )
    return crossing[0]


def _piece(
    network: nn.Module, nodes: Sequence[fx.Node], entering: fx.Node, leaving: fx.Node
) -> nn.Module:
    """The nodes as a module of their own, with the parameters of the network by their names there."""
    graph = fx.Graph()
    copies = {entering: graph.placeholder(entering.name)}
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda read: copies[read])
    graph.output(copies[leaving])
    return fx.GraphModule(network, graph).train(network.training)


def split_network(network: nn.Module, cuts: Sequence[str]) -> list[nn.Module]:
    """Cut a network into consecutive pieces that share its parameters.

    Args:
        network: can be traced by ``torch.fx``, as all of torchvision's classifiers can.
        cuts: module path at which each piece but the first begins, in order.

    Raises:
        JoulecastError: no such module, or more than one tensor would cross a cut.
    """
    if not cuts:
        return [network]
    name = type(network).__name__
    trace = fx.symbolic_trace(network).graph
    stages = _stage_of_nodes(name, trace, cuts)
    (entry,) = trace.find_nodes(op="placeholder")
    (output,) = trace.find_nodes(op="output")
    edges = [entry]
    edges += [_crossing(name, stages, cut, stage) for stage, cut in enumerate(cuts, 1)]
    edges.append(output.all_input_nodes[0])
    bodies: list[list[fx.Node]] = [[] for _ in edges[1:]]
    for node, stage in stages.items():
        if node.op not in ("placeholder", "output"):
            bodies[stage].append(node)
    return [
        _piece(network, body, entering, leaving)
        for body, (entering, leaving) in zip(bodies, pairwise(edges), strict=True)
    ]


class Stage:
    """One rank's stage of a pipeline: rank s of ``comm`` has stage s.

    Args:
        module: this rank's piece of the network; it takes a tensor and gives one.
        comm: as many ranks as there are stages.
        schedule: ``gpipe`` or ``1f1b``.
        micro_batches: that a step's batch is split into, evenly.
        samples: of one step.
        image_shape: of one sample of the first stage's input.
        yields: a rank that waits gives its core away, for ranks that share cores.
    """

    def __init__(
        self,
        module: nn.Module,
        comm: MPI.Intracomm,
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
        self.module, self.samples = module, samples
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.order = stage_order(schedule, comm.size, comm.rank, micro_batches)
        self._comm, self._yields = comm, yields
        self._is_first, self._is_last = comm.rank == 0, comm.rank == comm.size - 1
        self._each = samples // micro_batches
        entered, left = self._agree_on_shapes([self._each, *image_shape])
        crossing = entered if self._is_last else left
        self.message_bytes = crossing.numel() * crossing.element_size()
        """Of one micro-batch, behind this stage (before the last)."""
        self._activations = [] if self._is_first else self._places(micro_batches, entered)
        self._gradients = [] if self._is_last else self._places(micro_batches, left)
        self._momenta: list[Tensor | None] = [torch.zeros_like(p) for p in self.parameters]
        self._entered: dict[int, Tensor] = {}
        self._left: dict[int, Tensor] = {}
        self._on_the_way: list[tuple[MPI.Request, Tensor]] = []
        self._loss = 0.0

    def _places(self, count: int, like: Tensor) -> list[Tensor]:
        return [torch.empty(like.shape, dtype=like.dtype) for _ in range(count)]

    @torch.no_grad()
    def _agree_on_shapes(self, image_shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """What enters and leaves this stage, found by passing zeros through the pipeline (collective)."""
        dtype = self.parameters[0].dtype if self.parameters else torch.float32
        shape = image_shape if self._is_first else self._comm.recv(source=self._comm.rank - 1)
        training = self.module.training
        entered = torch.zeros(tuple(shape), dtype=dtype)
        left: Tensor = self.module.eval()(entered)
        self.module.train(training)
        if not self._is_last:
            self._comm.send(tuple(left.shape), self._comm.rank + 1)
        return entered, left

    def _receive_ahead(self) -> None:
        # All receives are posted at once, so that messages find their place in any order.
        rank = self._comm.rank
        self._arriving: dict[Work, MPI.Request] = {}
        for batch, place in enumerate(self._activations):
            self._arriving["forward", batch] = self._comm.Irecv(place.numpy(), rank - 1, 2 * batch)
        for batch, place in enumerate(self._gradients):
            self._arriving["backward", batch] = self._comm.Irecv(
                place.numpy(), rank + 1, 2 * batch + 1
            )

    def _wait(self, request: MPI.Request) -> None:
        if not self._yields:
            request.Wait()
            return
        while not request.Test():
            time.sleep(_POLL_S)

    def _send(self, tensor: Tensor, rank: int, tag: int) -> None:
        whole = tensor.detach().contiguous()
        self._on_the_way.append((self._comm.Isend(whole.numpy(), rank, tag), whole))

    def _forward(self, batch: int, images: Tensor, labels: Tensor) -> None:
        if self._is_first:
            entered = images[batch * self._each : (batch + 1) * self._each]
        else:
            self._wait(self._arriving.pop(("forward", batch)))
            entered = self._entered[batch] = self._activations[batch].detach().requires_grad_()
        left = self.module(entered)
        if self._is_last:
            loss = loss_sum(left, labels[batch * self._each : (batch + 1) * self._each])
            self._loss += float(loss.detach())
            # Divided by the whole batch, micro-batches add up to the gradient of its mean.
            left = loss / self.samples
        else:
            self._send(left, self._comm.rank + 1, 2 * batch)
        self._left[batch] = left

    def _backward(self, batch: int) -> None:
        left = self._left.pop(batch)
        if self._is_last:
            left.backward()
        else:
            self._wait(self._arriving.pop(("backward", batch)))
            left.backward(self._gradients[batch])
        if not self._is_first:
            gradient = self._entered.pop(batch).grad
            assert gradient is not None
            self._send(gradient, self._comm.rank - 1, 2 * batch + 1)

    def step(self, images: Tensor, labels: Tensor) -> float:
        """Forward and backward of a batch; afterwards every parameter has its gradient (collective).

        Args:
            images: of the whole batch; read by the first stage alone.
            labels: of the whole batch; read by the last stage alone.

        Returns:
            The loss summed over the batch on the last stage, 0 on the others.
        """
        self._loss = 0.0
        for parameter in self.parameters:
            parameter.grad = None
        self._receive_ahead()
        for work, batch in self.order:
            if work == "forward":
                self._forward(batch, images, labels)
            else:
                self._backward(batch)
        for request, _ in self._on_the_way:
            self._wait(request)
        self._on_the_way.clear()
        return self._loss

    def update(self, learning_rate: float, momentum: float) -> None:
        """One step of SGD with momentum on this stage's parameters."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        momentum_step(self.parameters, gradients, self._momenta, learning_rate, momentum)
