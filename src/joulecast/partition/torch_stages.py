"""Cuts a module of torch into pipeline stages. ``torch.distributed.pipelining`` runs them.

    the stages of any plan        stages = cut_into_stages(module, [images], [["conv1", ...], ["relu", ...]])
    what runs those of this rank  pipeline = pipeline_of(mine, len(stages), "1f1b", 4, loss)
    a step, alike on all ranks    pipeline.step(images, target=labels, losses=losses)

A stage is an ``fx.GraphModule`` with the module's own parameters. It receives the values of earlier stages
that this stage or a later one reads. It sends on the values that later stages read. So a value that skips a
stage passes through it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, distributed, fx, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.utils._pytree import tree_leaves

from joulecast.errors import JoulecastError
from joulecast.partition.tasks import capture_tasks, left_as_it_was, tensors_of

Schedule = Literal["gpipe", "1f1b", "interleaved"]
_OF_ONE_STAGE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_SIZES_AND_TYPES = {getattr, len, "dim", "ndimension", "numel", "size", "stride", "type"}
"""Functions and methods that take a tensor, return no tensor, and do not depend on the elements."""


class _Values(fx.Interpreter):
    """Runs a trace once, and keeps what every node gives, and which of its inputs it changes in place."""

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__(traced, garbage_collect_values=False)
        self.of: dict[fx.Node, Any] = {}
        self.changed: dict[fx.Node, list[fx.Node]] = {}

    def _versions(self, node: fx.Node) -> list[int]:
        return [tensor._version for tensor in tensors_of(self.of[node])]

    def run_node(self, n: fx.Node) -> Any:
        read = [each for each in n.all_input_nodes if each.op != "get_attr"]
        before = {each: self._versions(each) for each in read}
        self.of[n] = super().run_node(n)
        self.changed[n] = [each for each in read if self._versions(each) != before[each]]
        return self.of[n]


class _Cut:
    """A trace, and the stage of every node that gives tensors."""

    def __init__(
        self, module: nn.Module, inputs: Sequence[Tensor], stages: Sequence[Sequence[str]]
    ) -> None:
        captured = capture_tasks(module, *inputs)
        self.name, self.last, self.traced = type(module).__name__, len(stages) - 1, captured.traced
        self.nodes = list(captured.traced.graph.nodes)
        self.position = {node: place for place, node in enumerate(self.nodes)}
        values = _Values(captured.traced)
        with left_as_it_was(module), torch.enable_grad():
            values.run(*inputs)
        given = [task for tasks in stages for task in tasks]
        wrong = {task.name for task in captured.tasks} ^ {*given}
        if wrong or len(given) > len(captured.tasks) or not all(stages):
            raise self._error(f"they must have each task once, and none empty ({sorted(wrong)})")
        self._stage_of_task = {task: at for at, tasks in enumerate(stages) for task in tasks}
        self.constants = {
            node: tuple(value) if isinstance(value, torch.Size) else value
            for node, value in values.of.items()
            if node.op not in ("get_attr", "output") and not tensors_of(value)
        }
        self.made = {
            node: self._stage(node)
            for node in self.nodes
            if node not in self.constants and node.op != "get_attr"
        }
        self.needed = {
            node: max((self.made.get(user, 0) for user in node.users), default=0)
            for node in self.made
        }
        self._check()
        self._values = values.of
        self._storages = {
            node: {tensor.untyped_storage()._cdata for tensor in tensors_of(value)}
            for node, value in values.of.items()
        }
        self.copied = {
            node: [each for each in values.changed[node] if self._crosses_before(each, node)]
            for node in self.made
        }

    def _error(self, what: str) -> JoulecastError:
        return JoulecastError(f"{self.name} cannot be cut into these stages: {what}")

    def _stage(self, node: fx.Node) -> int:
        if node.op in ("placeholder", "output"):
            return 0 if node.op == "placeholder" else self.last
        if node.name in self._stage_of_task:
            return self._stage_of_task[node.name]
        read = [each for each in node.all_input_nodes if each.op != "get_attr"]
        if read:  # it picks one of several outputs of a task
            return max(self._stage(each) for each in read)
        # It counts the batches of a layer, which is where other tensors of that layer are read.
        layer = str(node.all_input_nodes[0].target).rpartition(".")[0]
        return max(
            self._stage_of_task[user.name]
            for each in self.nodes
            if each.op == "get_attr" and str(each.target).rpartition(".")[0] == layer
            for user in each.users
            if user.name in self._stage_of_task
        )

    def _check(self) -> None:
        """Refuse what would train something else than the module."""
        for node in self.constants:
            reads = [each for each in node.all_input_nodes if each in self.made]
            if self.constants[node] is not None and reads and node.target not in _SIZES_AND_TYPES:
                raise self._error(f"`{node.name}` makes a number of the elements of a tensor")
        holder: dict[int, int] = {}
        for node, stage in self.made.items():
            for read in node.all_input_nodes:
                if self.made.get(read, 0) > stage:
                    raise self._error(
                        f"`{node.name}` of stage {stage} reads `{read.name}`, of a later one"
                    )
            for parameter in self._parameters(node):
                if holder.setdefault(id(parameter), stage) != stage:
                    raise self._error(
                        f"`{node.name}` shares a parameter with another stage; let its tasks be in one"
                    )

    def _parameters(self, node: fx.Node) -> list[nn.Parameter]:
        if node.op == "call_module":
            return list(self.traced.get_submodule(str(node.target)).parameters())
        read = [each for each in node.all_input_nodes if each.op == "get_attr"]
        values = [_attribute(self.traced, str(each.target)) for each in read]
        return [value for value in values if isinstance(value, nn.Parameter)]

    def _crosses_before(self, changed: fx.Node, node: fx.Node) -> bool:
        """Whether a node changes in place what enters or leaves a stage, so that it must change a copy.

        Autograd forbids to change what is received, and what is sent must stay as it is.
        """
        before = [
            each
            for each in self.made
            if self.position[each] < self.position[node]
            and self._storages[each] & self._storages[changed]
        ]
        if not any(self.needed[each] > self.made[each] for each in before):
            return False
        for each in before:
            for user in each.users:
                if self.position[user] > self.position[node]:
                    raise self._error(
                        f"`{node.name}` changes `{each.name}` in place, and `{user.name}` reads that "
                        "afterwards"
                    )
        return True

    def _entering(self, stage: int) -> list[fx.Node]:
        """What a stage gets: values that earlier stages make, and that it or a later one reads. The first
        stage gets the inputs."""
        if stage == 0:
            return [node for node in self.made if node.op == "placeholder"]
        return [node for node in self.made if self.made[node] < stage <= self.needed[node]]

    def stage(self, stage: int, device: torch.device) -> fx.GraphModule:
        """The module of one stage, on a device."""

        def there(value: Any) -> Any:
            return device if isinstance(value, torch.device) else value

        graph = fx.Graph()
        copies: dict[fx.Node, Any] = {node: there(each) for node, each in self.constants.items()}
        for node in self._entering(stage):
            copies[node] = graph.placeholder(node.name)
        for node in self.nodes:
            if node.op == "get_attr" and any(self.made.get(user) == stage for user in node.users):
                copies[node] = graph.node_copy(node)
            elif node.op.startswith("call") and self.made.get(node) == stage:
                own = dict(copies)
                for changed in self.copied[node]:
                    own[changed] = graph.call_method("clone", (copies[changed],))
                copies[node] = copy = graph.node_copy(node, own.__getitem__)
                copy.kwargs = {name: there(value) for name, value in copy.kwargs.items()}
        if stage == self.last:
            (output,) = (node for node in self.nodes if node.op == "output")
            given = [each for each in tree_leaves(output.args[0]) if isinstance(each, fx.Node)]
            leaving = [each for each in given if each not in self.constants]
            handed_on = [copies[each] for each in leaving]
        else:  # what is sent must be contiguous
            leaving = self._entering(stage + 1)
            handed_on = [graph.call_method("contiguous", (copies[each],)) for each in leaving]
        graph.output(handed_on[0] if len(handed_on) == 1 else tuple(handed_on))
        made = fx.GraphModule(self.traced, graph).to(device)
        made.meta["entering"] = self._tensors(self._entering(stage))
        made.meta["leaving"] = self._tensors(leaving)
        return made

    def _tensors(self, nodes: Sequence[fx.Node]) -> tuple[Tensor, ...]:
        """The tensors that these nodes give, on the meta device (without elements)."""
        return tuple(
            torch.empty(value.shape, dtype=value.dtype, device="meta").requires_grad_(
                value.requires_grad
            )
            for node in nodes
            for value in tensors_of(self._values[node])
        )


def _attribute(root: nn.Module, path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(root.get_submodule(owner), name)


def cut_into_stages(
    module: nn.Module,
    inputs: Sequence[Tensor],
    stages: Sequence[Sequence[str]],
    mine: Sequence[int] | None = None,
    device: str | torch.device = "cpu",
) -> list[fx.GraphModule]:
    """The module of each stage. The stages share the parameters of the whole module. A parameter that is
    frozen there is frozen in its stage, too.

    Args:
        module: a module on the CPU that :func:`~joulecast.partition.tasks.capture_tasks` can follow.
        inputs: inputs of one micro-batch. If the module reads their sizes, these become constants of the
            stages.
        stages: for each stage, the names of its tasks, as in a plan.
        mine: the stages to return; by default all.
        device: device for the stages.

    Raises:
        JoulecastError: a task is in no stage, in two stages, or unknown; a stage is empty, or reads from a
            later stage; two stages would share a parameter; or the module makes a number of a tensor's
            element. The error names the task.
    """
    cut = _Cut(module, inputs, stages)
    wanted = range(len(stages)) if mine is None else mine
    return [cut.stage(stage, torch.device(device)) for stage in wanted]


def stages_of_rank(stages: int) -> range:
    """Numbers of this rank's stages: rank r of R has r, r + R, r + 2 R ..."""
    return range(distributed.get_rank(), stages, distributed.get_world_size())


def pipeline_of(
    mine: Sequence[fx.GraphModule],
    stages: int,
    schedule: Schedule,
    micro_batches: int,
    loss: Callable[[Any, Tensor], Tensor],
    device: str | torch.device = "cpu",
) -> Any:
    """The schedule of torch that runs this rank's stages.

    Args:
        mine: modules of :func:`stages_of_rank`, on the device.
        stages: number of all stages. It equals the number of ranks, or a multiple of it with ``interleaved``.
        micro_batches: number of equal parts of a step's batch.
        loss: takes the last stage's outputs and the target. Returns the mean loss over a micro-batch.
        device: device of this rank.

    Raises:
        JoulecastError: the number of stages does not fit the number of ranks.
    """
    ranks = distributed.get_world_size()
    if stages % ranks or (stages != ranks and schedule != "interleaved"):
        raise JoulecastError(
            f"{stages} stages on {ranks} ranks: start a rank for each stage (interleaved: or a half, a third)"
        )
    own: list[Any] = [
        PipelineStage(
            module,
            number,
            stages,
            torch.device(device),
            input_args=module.meta["entering"],
            output_args=module.meta["leaving"],
        )
        for module, number in zip(mine, stages_of_rank(stages), strict=True)
    ]
    if schedule == "interleaved":
        return ScheduleInterleaved1F1B(own, micro_batches, loss_fn=loss)
    return _OF_ONE_STAGE[schedule](own[0], micro_batches, loss_fn=loss)
