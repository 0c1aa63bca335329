"""The program of a device of a pipeline stage for one micro-batch: steps of computing, and messages between
them.

All devices of a stage run the same program, each on its own part. A step waits for the messages that bring
its input. A message starts after the step that makes its content. If a tensor is written in one layout and
read in another, collectives are put in between. The same rule holds for forward and backward. A tensor that
crosses a cut of the pipeline is sent.
"""

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property

from joulecast.graphs.costs import part_of
from joulecast.graphs.opgraph import Access, DimKind, OpGraph
from joulecast.simulate.collectives import (
    Layout,
    conversion,
    gradient_layout,
    local_bytes,
    read_layout,
    whole,
    written_layout,
)
from joulecast.simulate.phases import (
    Key,
    Message,
    Phase,
    Sharding,
    Step,
    WeightGradient,
    WrittenPhases,
    gather_weights,
)
from joulecast.simulate.placement import PlacedOp
from joulecast.simulate.recomputation import recomputed_ops
from joulecast.simulate.strategy import joined, shards_state, size_along

Mesh = Mapping[str, int]


class StageProgram:
    """The phases of one stage, and the weights that it trains.

    Phases are written only when they are asked for. A search looks at many strategies that do not fit in
    memory, and the memory is known without phases.
    """

    def __init__(self, builder: "ProgramBuilder", stage: int) -> None:
        self._builder = builder
        self.stage = stage
        self.items = builder.items[stage]

    @cached_property
    def weights(self) -> dict[str, Sharding]:
        """For each weight: the bytes with which a device computes, and how its training state is sharded."""
        return {
            access.tensor: self._builder.sharding(access, item)
            for item in reversed(self.items)
            for access in item.op.reads
            if self._builder.graph.tensors[access.tensor].role == "parameter"
        }

    @cached_property
    def gathered(self) -> dict[str, dict[str, Sharding]]:
        """For each block, the weights that are gathered before it and dropped after it (ZeRO-3)."""
        return self._builder.gathered(self.items, 3)

    @cached_property
    def first_forward(self) -> Phase:
        """Forward pass of the first micro-batch. It gathers weights, which are then kept for the whole step
        (ZeRO-2)."""
        kept = self._builder.gathered(self.items, 2)
        if not kept:
            return self.forward
        phase = self._builder.forward(self.stage)
        units = dict.fromkeys([*kept, *self.gathered])
        return gather_weights(phase, {u: kept.get(u, {}) | self.gathered.get(u, {}) for u in units})

    @cached_property
    def forward(self) -> Phase:
        """Forward of one micro-batch."""
        return gather_weights(self._builder.forward(self.stage), self.gathered)

    @cached_property
    def _backward(self) -> tuple[Phase, list[WeightGradient]]:
        phase, gradients = self._builder.backward(self.stage)
        return gather_weights(phase, self.gathered), gradients

    @property
    def backward(self) -> Phase:
        """Backward of one micro-batch."""
        return self._backward[0]

    @property
    def gradients(self) -> list[WeightGradient]:
        """Gradients of the weights of the stage, in the order in which the backward pass makes them."""
        return self._backward[1]

    @cached_property
    def tied(self) -> list[Message]:
        """Gradients of weights that other stages have, too. At the end, they are sent to each of these
        stages."""
        return self._builder.tied(self.stage, self.gradients)


class ForwardProgram(StageProgram):
    """A stage's program of the forward pass alone, for inference."""

    @cached_property
    def _backward(self) -> tuple[Phase, list[WeightGradient]]:
        return Phase(), []


class ProgramBuilder:
    """Builds the programs of all stages of a placed graph."""

    def __init__(
        self,
        graph: OpGraph,
        placed: list[PlacedOp],
        mesh: Mesh,
        shards_kept: bool = False,
        gradient_share: float = 1.0,
        written: WrittenPhases | None = None,
        parts_sent: int = 1,
        tensor_overlap: bool = False,
    ) -> None:
        self.graph = graph
        # Attention receives keys of other devices while it computes with the keys that have arrived.
        self.in_parts = ("tensor", "context") if tensor_overlap else ("context",)
        """Axes along which activations travel in parts, while the op next to them computes."""
        self._phases = WrittenPhases() if written is None else written
        self.gradient_share = gradient_share
        """Bytes of a gradient over the bytes of its weight."""
        self.shards_kept = shards_kept
        """Whether a tensor that a product gathers is kept for the backward only as a shard (Megatron)."""
        self.parts_sent = parts_sent
        """Parts in which tensor ranks send a tensor to another stage if all of them have it (Megatron)."""
        self.placed = placed
        # Collectives along the pipeline axis do not exist: stages send to each other.
        self.mesh = {axis: size for axis, size in mesh.items() if axis != "pipeline"}
        self.items: dict[int, list[PlacedOp]] = defaultdict(list)
        for item in placed:
            self.items[item.stage].append(item)
        self.sharded = [a for a, size in self.mesh.items() if size > 1 and shards_state(a)]
        """Axes along which ZeRO can shard."""
        self._shardings: dict[tuple[str, str], Sharding] = {}

    # Only phases use the following properties. Memory does not.
    @cached_property
    def readers(self) -> dict[str, list[tuple[PlacedOp, Access]]]:
        """The ops that read each tensor."""
        found: dict[str, list[tuple[PlacedOp, Access]]] = defaultdict(list)
        for item in self.placed:
            for access in item.op.reads:
                found[access.tensor].append((item, access))
        return found

    @cached_property
    def written(self) -> dict[str, tuple[PlacedOp, Layout]]:
        """For each tensor, the op that writes it, and the layout in which it is written."""
        return {
            access.tensor: (item, written_layout(item.op, access, item.placement, self.mesh))
            for item in self.placed
            for access in item.op.writes
        }

    def _convert(
        self, phase: Phase, tensor: str, have: Layout, want: Layout, after: int, what: str
    ) -> list[int]:
        """Add the messages of a conversion in order. Returns the last one to wait for, if any."""
        last: list[int] = []
        for kind, axis, size in conversion(self.graph.tensors[tensor], have, want, self.mesh):
            label = f"{kind} {what}{tensor}"
            # If it travels in parts, only one part is waited for: the first of a gather, the last of a sum.
            waited = size
            if axis in self.in_parts and kind in ("all_gather", "reduce_scatter"):
                waited = size / self.mesh[axis]
            if waited < size and kind == "reduce_scatter":
                last = [phase.send(Message(kind, axis, size - waited, label, after - 1, last))]
            last = [phase.send(Message(kind, axis, waited, label, after, last))]
            if waited < size and kind == "all_gather":
                phase.send(Message(kind, axis, size - waited, label, after, last))
        return last

    def _parts_sent(self, layout: Layout) -> int:
        return self.parts_sent if dict(layout).get("tensor") == "copies" else 1

    def _receive(self, phase: Phase, step: Step, key: Key) -> None:
        """Let the next step of a phase wait for another stage, and for its parts to be gathered."""
        if self._parts_sent(key[2]) == 1:
            step.receives.append(key)
            return
        known = [number for number, message in enumerate(phase.messages) if message.received == key]
        if not known:
            size = local_bytes(self.graph.tensors[key[0]], key[2], self.mesh)
            after = len(phase.steps) - 1
            gather = Message("all_gather", "tensor", size, f"gather {key[0]}", after, received=key)
            known = [phase.send(gather)]
        step.needs += known

    def _read(self, access: Access, item: PlacedOp) -> Layout:
        return read_layout(access, item.placement, self.mesh)

    def forward(self, stage: int) -> Phase:
        """Forward pass of a stage, without gathers of weights."""
        if stage not in self._phases.forward:
            self._phases.forward[stage] = self._forward(stage)
        return self._phases.forward[stage]

    def _forward(self, stage: int) -> Phase:
        phase = Phase()
        converted: dict[tuple[str, Layout], list[int]] = {}
        for item in self.items[stage]:
            step = Step(item, "forward")
            for access in item.op.reads:
                if access.tensor not in self.written:
                    continue
                producer, _ = self.written[access.tensor]
                want = self._read(access, item)
                if producer.stage != stage:
                    key: Key = (access.tensor, "forward", want, producer.stage, stage)
                    self._receive(phase, step, key)
                else:
                    step.needs += converted[access.tensor, want]
            phase.steps.append(step)
            for access in item.op.writes:
                self._pass_on(phase, access.tensor, converted)
        return phase

    def _pass_on(
        self, phase: Phase, tensor: str, converted: dict[tuple[str, Layout], list[int]]
    ) -> None:
        """Bring a written tensor into the layouts of its readers, and to their stages."""
        producer, have = self.written[tensor]
        after = len(phase.steps) - 1
        sent = set()
        for reader, access in self.readers[tensor]:
            want = self._read(access, reader)
            if (tensor, want) not in converted:
                converted[tensor, want] = self._convert(phase, tensor, have, want, after, "")
            key: Key = (tensor, "forward", want, producer.stage, reader.stage)
            if reader.stage != producer.stage and key not in sent:
                sent.add(key)
                size = local_bytes(self.graph.tensors[tensor], want, self.mesh)
                size /= self._parts_sent(want)
                last = converted[tensor, want]
                phase.send(Message("send", "", size, f"send {tensor}", after, last, key))

    def backward(self, stage: int) -> tuple[Phase, list[WeightGradient]]:
        """Backward pass of a stage, without gathers of weights. Also the gradients, in the order in which it
        makes them."""
        if stage not in self._phases.backward:
            self._phases.backward[stage] = self._backward(stage)
        phase, gradients = self._phases.backward[stage]
        zero = {item.unit: item.zero for item in self.items[stage]}
        return phase, [each.at_zero(zero[each.unit]) for each in gradients]

    def _backward(self, stage: int) -> tuple[Phase, list[WeightGradient]]:
        phase = Phase()
        done: dict[str, int] = {}
        gradients: dict[str, WeightGradient] = {}
        again: set[str] = set()
        gathered: list[int] = []
        mine = self.items[stage]
        for item in reversed(mine):
            if item.recompute and item.recompute not in again:
                again.add(item.recompute)
                self._recompute(phase, [i for i in mine if i.recompute == item.recompute])
            if not any(access.tensor in self.graph.trained for access in item.op.reads):
                continue
            step = Step(item, "backward", needs=gathered)
            gathered = self._gather_again(phase, item)
            for access in item.op.writes:
                needs, receives = self._gradient_of(phase, access.tensor, stage, done)
                step.needs += needs
                for key in receives:
                    self._receive(phase, step, key)
            phase.steps.append(step)
            done[item.op.name] = len(phase.steps) - 1
            self._collect(item, done[item.op.name], gradients)
            self._send_back(phase, item, stage, done)
        return phase, list(gradients.values())

    def _gather_again(self, phase: Phase, item: PlacedOp) -> list[int]:
        """Gather the input of a product from its shards again, while the gradient of this input is computed.

        The gradient of the weights needs it, in the second half of the step. So the next step waits for it.
        """
        messages: list[int] = []
        if not self.shards_kept or item.op.kind != "linear":
            return messages
        for access in item.op.reads:
            if access.tensor in self.written:
                _, have = self.written[access.tensor]
                want = self._read(access, item)
                if "partial" not in dict(have).values():
                    after = len(phase.steps) - 1
                    messages += self._convert(phase, access.tensor, have, want, after, "again ")
        return messages

    def _recompute(self, phase: Phase, unit: list[PlacedOp]) -> None:
        """Run a block's forward again, with the collectives inside it. The inputs of the block were kept."""
        unit = unit[: recomputed_ops(self.graph, [item.op for item in unit])]
        inside = {access.tensor for item in unit for access in item.op.writes}
        converted: dict[tuple[str, Layout], list[int]] = {}
        for item in unit:
            step = Step(item, "forward", again=True)
            for access in item.op.reads:
                if access.tensor in inside:
                    step.needs += converted[access.tensor, self._read(access, item)]
            phase.steps.append(step)
            for access in item.op.writes:
                after = len(phase.steps) - 1
                _, have = self.written[access.tensor]
                for reader, read in self.readers[access.tensor]:
                    want = self._read(read, reader)
                    if (
                        reader.recompute == item.recompute
                        and (access.tensor, want) not in converted
                    ):
                        converted[access.tensor, want] = self._convert(
                            phase, access.tensor, have, want, after, "again "
                        )

    def _gradient_layouts(self, tensor: str, stage: int, done: dict[str, int]) -> dict[Layout, int]:
        """Layouts of a tensor's gradients from this stage's readers, and the last step of each."""
        layouts: dict[Layout, int] = {}
        for reader, access in self.readers[tensor]:
            if reader.stage == stage and reader.op.name in done:
                layout = gradient_layout(access, reader.placement, self.mesh)
                layouts[layout] = max(layouts.get(layout, -1), done[reader.op.name])
        return layouts

    def _gradient_of(
        self,
        phase: Phase,
        tensor: str,
        stage: int,
        done: dict[str, int],
    ) -> tuple[list[int], list[Key]]:
        """Messages and keys that a backward step must wait for to have the gradient of the op's output."""
        _, written = self.written[tensor]
        want = whole(written)
        needs: list[int] = []
        for have, after in self._gradient_layouts(tensor, stage, done).items():
            needs += self._convert(phase, tensor, have, want, after, "gradient of ")
        later = {r.stage for r, _ in self.readers[tensor] if r.stage != stage}
        keys: list[Key] = [(tensor, "backward", want, other, stage) for other in sorted(later)]
        return needs, keys

    def _collect(self, item: PlacedOp, step: int, gradients: dict[str, WeightGradient]) -> None:
        for access in item.op.reads:
            tensor = self.graph.tensors[access.tensor]
            if tensor.role != "parameter":
                continue
            layout = gradient_layout(access, item.placement, self.mesh)
            # A parameter that is added to a sum once (a bias) has a whole gradient on every part of the sum.
            axes = tuple(
                a
                for a, place in layout
                if place == "partial" and self.mesh[a] > 1 and not self._sums_over(item, a)
            )
            # Shards are scattered first, so that they are all that travels along the other axes.
            axes = joined(axes)
            sharding = self.sharding(access, item)
            # A weight that several ops share is ready after the last of them.
            gradients.pop(tensor.name, None)
            gradients[tensor.name] = WeightGradient(
                tensor, axes, step, item.unit, sharding, self.gradient_share
            )

    @staticmethod
    def _sums_over(item: PlacedOp, axis: str) -> bool:
        return item.op.dim(item.placement[axis]).kind is DimKind.REDUCE

    def _send_back(
        self,
        phase: Phase,
        item: PlacedOp,
        stage: int,
        done: dict[str, int],
    ) -> None:
        """Send gradients back to earlier stages, after the last reader here has added its own."""
        for access in item.op.reads:
            if access.tensor not in self.written or access.tensor not in self.graph.trained:
                continue
            producer, written = self.written[access.tensor]
            readers = [r.op.name for r, _ in self.readers[access.tensor] if r.stage == stage]
            if producer.stage == stage or any(name not in done for name in readers):
                continue
            want = whole(written)
            behind: list[int] = []
            for have, after in self._gradient_layouts(access.tensor, stage, done).items():
                behind += self._convert(phase, access.tensor, have, want, after, "gradient of ")
            key: Key = (access.tensor, "backward", want, stage, producer.stage)
            if any(message.key == key for message in phase.messages):
                continue
            size = local_bytes(self.graph.tensors[access.tensor], want, self.mesh)
            size /= self._parts_sent(want)
            label = f"send gradient of {access.tensor}"
            phase.send(Message("send", "", size, label, done[item.op.name], behind, key))

    def tied(self, stage: int, gradients: list[WeightGradient]) -> list[Message]:
        """Exchanges of gradients for weights with copies in several stages, such as GPT's embedding and
        output layer."""
        messages = []
        for gradient in gradients:
            name = gradient.tensor.name
            for other in sorted({item.stage for item, _ in self.readers[name]} - {stage}):
                key: Key = (name, "backward", (), stage, other)
                label = f"send gradient of tied {name}"
                messages.append(Message("send", "", gradient.bytes, label, -1, [], key))
        return messages

    def sharding(self, access: Access, item: PlacedOp) -> Sharding:
        """How the training state of a weight is divided over the replicas that have copies of the weight."""
        key = item.op.name, access.tensor
        if key not in self._shardings:
            split = {dim for dim in access.axes if dim is not None}
            copies = [a for a in self.sharded if item.placement.get(a) not in split]
            axis = "+".join(copies)
            shards = size_along(self.mesh, axis)
            part = part_of(access, item.parts)
            size = self.graph.tensors[access.tensor].bytes * part
            self._shardings[key] = Sharding(size, item.zero, axis, shards)
        return self._shardings[key]

    def gathered(self, items: list[PlacedOp], zero: int) -> dict[str, dict[str, Sharding]]:
        """For each block, by name, the weights that are kept in shards at a level of ZeRO."""
        weights: dict[str, dict[str, Sharding]] = {}
        for item in items:
            for access in item.op.reads if item.zero == zero else ():
                if self.graph.tensors[access.tensor].role == "parameter":
                    weight = self.sharding(access, item)
                    if weight.axis:
                        weights.setdefault(item.unit, {})[access.tensor] = weight
        return weights
