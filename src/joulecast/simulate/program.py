"""The program of a device of a pipeline stage for one micro-batch: steps of computing, and messages between
them.

All devices of a stage run the same program, each on its own part. A step waits for the messages that bring
its input. A message starts after the step that makes its content. If a tensor is written in one layout and
read in another, collectives are put in between. The same rule holds for forward and backward. A tensor that
crosses a cut of the pipeline is sent.
"""

from collections import defaultdict
from functools import cached_property

from joulecast.graphs.costs import part_of
from joulecast.graphs.opgraph import Access, DimKind, OpGraph
from joulecast.simulate.collectives import Layout, Place, conversion, layout_of, local_bytes, whole
from joulecast.simulate.phases import (
    Crossing,
    Message,
    Phase,
    Sharding,
    Step,
    WeightGradient,
    gather_weights,
)
from joulecast.simulate.placement import PlacedOp, Split
from joulecast.simulate.recomputation import recomputed_ops
from joulecast.simulate.strategy import Strategy, joined, shards_state, size_along


class StageProgram:
    """The phases of one stage, and its weights.

    Phases are written only when they are requested. A search looks at many strategies that do not fit in
    memory, and the memory is known without phases.
    """

    def __init__(self, builder: "ProgramBuilder", stage: int) -> None:
        self._builder = builder
        self.stage = stage
        self.items = builder.items[stage]

    @cached_property
    def _reads(self) -> list[tuple[str, str, Sharding]]:
        """The weights that each op reads: the op's block, the weight's name, and how it is sharded."""
        return [
            (item.unit, access.tensor, weight)
            for item in self.items
            for access, weight in self._builder.weights_of(item)
        ]

    @cached_property
    def weights(self) -> dict[str, Sharding]:
        """For each weight: the bytes of the part that a device has while it computes, and how its training
        state is sharded."""
        return {name: weight for _, name, weight in reversed(self._reads)}

    def _sharded(self, least: int) -> dict[str, dict[str, Sharding]]:
        """For each block, by name, the weights that are sharded at least at this level of ZeRO."""
        found: dict[str, dict[str, Sharding]] = {}
        for unit, name, weight in self._reads:
            if weight.zero >= least and weight.axis:
                found.setdefault(unit, {})[name] = weight
        return found

    @cached_property
    def gathered(self) -> dict[str, dict[str, Sharding]]:
        """For each block, the weights that are gathered before it and dropped after it (ZeRO-3)."""
        return self._sharded(3)

    @cached_property
    def scattered(self) -> dict[str, dict[str, Sharding]]:
        """For each block, the weights whose gradients are scattered after it (ZeRO-2 and 3)."""
        return self._sharded(2)

    @cached_property
    def _plain_forward(self) -> Phase:
        return self._builder.forward(self.stage)

    @cached_property
    def first_forward(self) -> Phase:
        """Forward pass of the first micro-batch. It gathers weights, which are then kept for the whole step
        (ZeRO-2)."""
        if self.scattered == self.gathered:
            return self.forward
        return gather_weights(self._plain_forward, self.scattered)

    @cached_property
    def forward(self) -> Phase:
        """Forward of one micro-batch."""
        return gather_weights(self._plain_forward, self.gathered)

    @cached_property
    def _backward(self) -> tuple[Phase, list[WeightGradient]]:
        phase, gradients = self._builder.backward(self.stage)
        return gather_weights(phase, self.gathered), gradients

    @property
    def backward(self) -> Phase:
        """Backward of one micro-batch. Inference has none."""
        return self._backward[0]

    @property
    def gradients(self) -> list[WeightGradient]:
        """Gradients of the weights of the stage, in the order in which the backward pass makes them."""
        return self._backward[1]

    @cached_property
    def tied(self) -> list[Message]:
        """Gradients of weights that other stages have, too, such as GPT's embedding and output layer. At the
        end, they are sent to each of these stages."""
        messages = []
        for gradient in self.gradients:
            name = gradient.parameter
            stages = {item.stage for item, _ in self._builder.readers[name]}
            for other in sorted(stages - {self.stage}):
                crossing = Crossing(name, "backward", (), self.stage, other)
                label = f"send gradient of tied {name}"
                messages.append(Message("send", "", gradient.bytes, label, -1, [], crossing))
        return messages


class ProgramBuilder:
    """Builds the programs of all stages of a placed graph."""

    def __init__(
        self,
        graph: OpGraph,
        placed: list[PlacedOp],
        strategy: Strategy,
        gradient_share: float = 1.0,
        parts_sent: int = 1,
        inference: bool = False,
    ) -> None:
        self.graph = graph
        self.mesh = strategy.mesh
        # Attention receives keys of other devices while it computes with the keys that have arrived.
        self.in_parts = ("tensor", "context") if strategy.tensor_overlap else ("context",)
        """Axes along which activations travel in parts, while the op next to them computes."""
        self.gradient_share = gradient_share
        """Bytes of a gradient over the bytes of its weight."""
        self.shards_kept = strategy.sequence_parallel
        """Whether a tensor that a product gathers is kept for the backward only as a shard (Megatron)."""
        self.parts_sent = parts_sent
        """Number of parts in which the tensor ranks send a tensor to another stage, if each of them has the
        whole tensor (Megatron)."""
        self.inference = inference
        self.items: dict[int, list[PlacedOp]] = defaultdict(list)
        """The ops of each stage."""
        for item in placed:
            self.items[item.stage].append(item)
        self.placed = placed
        self.sharded = [a for a, size in self.mesh.items() if size > 1 and shards_state(a)]
        """Axes along which ZeRO can shard."""
        self._shardings: dict[tuple[Split, int], list[tuple[int, Sharding]]] = {}
        self._layouts: dict[object, Layout] = {}

    # Only phases use the following two properties. Memory does not.
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
            access.tensor: (item, self._layout(access, item, "partial"))
            for item in self.placed
            for access in item.op.writes
        }

    def _layout(self, access: Access, item: PlacedOp, absent: Place) -> Layout:
        """The layout in which an op reads or writes a tensor (:func:`layout_of`). Equal blocks share a
        result."""
        key = item.split, access.axes, absent
        if key not in self._layouts:
            self._layouts[key] = layout_of(access, item.placement, self.mesh, absent)
        return self._layouts[key]

    def weights_of(self, item: PlacedOp) -> list[tuple[Access, Sharding]]:
        """The weights that an op reads, and how the training state of each is divided over the replicas that
        have copies of it. Equal blocks divide it in the same way."""
        key, reads = (item.split, item.zero), item.op.reads
        if key not in self._shardings:
            self._shardings[key] = [
                (place, self._sharding(access, item))
                for place, access in enumerate(reads)
                if self.graph.tensors[access.tensor].is_weight
            ]
        return [(reads[place], weight) for place, weight in self._shardings[key]]

    def _sharding(self, access: Access, item: PlacedOp) -> Sharding:
        split = {dim for dim in access.axes if dim is not None}
        axis = "+".join(a for a in self.sharded if item.placement.get(a) not in split)
        size = self.graph.tensors[access.tensor].bytes * part_of(access, item.parts)
        return Sharding(size, item.zero, axis, size_along(self.mesh, axis))

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

    def _send(
        self, phase: Phase, crossing: Crossing, after: int, behind: list[int], what: str = ""
    ) -> None:
        """Send a tensor to another stage."""
        tensor, layout = crossing.tensor, crossing.layout
        size = local_bytes(self.graph.tensors[tensor], layout, self.mesh) / self._parts_sent(layout)
        phase.send(Message("send", "", size, f"send {what}{tensor}", after, behind, crossing))

    def _receive(self, phase: Phase, step: Step, crossing: Crossing) -> None:
        """Let the next step of a phase wait for a tensor of another stage. If tensor ranks receive the tensor
        in parts, the step also waits until the parts are gathered."""
        tensor, layout = crossing.tensor, crossing.layout
        if self._parts_sent(layout) == 1:
            step.receives.append(crossing)
            return
        known = [n for n, message in enumerate(phase.messages) if message.received == crossing]
        if not known:
            size = local_bytes(self.graph.tensors[tensor], layout, self.mesh)
            after = len(phase.steps) - 1
            label = f"gather {tensor}"
            gather = Message("all_gather", "tensor", size, label, after, received=crossing)
            known = [phase.send(gather)]
        step.needs += known

    def _read(self, access: Access, item: PlacedOp) -> Layout:
        return self._layout(access, item, "copies")

    def forward(self, stage: int) -> Phase:
        """Forward pass of a stage, without gathers of weights."""
        phase = Phase()
        self._add_forward(phase, self.items[stage])
        return phase

    def _add_forward(self, phase: Phase, items: list[PlacedOp], again: bool = False) -> None:
        """Add the forward of some ops, with the collectives between them.

        Args:
            again: whether a block is recomputed. Its inputs were kept, and its output is not sent.
        """
        inside = {access.tensor for item in items for access in item.op.writes}
        converted: dict[tuple[str, Layout], list[int]] = {}
        for item in items:
            step = Step(item, "forward", again)
            for access in item.op.reads:
                want = self._read(access, item)
                if access.tensor in inside:
                    step.needs += converted[access.tensor, want]
                elif access.tensor in self.written and not again:
                    source = self.written[access.tensor][0].stage
                    self._receive(
                        phase, step, Crossing(access.tensor, "forward", want, source, item.stage)
                    )
            phase.steps.append(step)
            for access in item.op.writes:
                self._pass_on(phase, access.tensor, converted, again)

    def _pass_on(
        self,
        phase: Phase,
        tensor: str,
        converted: dict[tuple[str, Layout], list[int]],
        again: bool,
    ) -> None:
        """Bring a written tensor into the layouts of its readers, and to their stages."""
        producer, have = self.written[tensor]
        after, what = len(phase.steps) - 1, "again " if again else ""
        sent = set()
        for reader, access in self.readers[tensor]:
            if again and reader.recompute != producer.recompute:
                continue
            want = self._read(access, reader)
            if (tensor, want) not in converted:
                converted[tensor, want] = self._convert(phase, tensor, have, want, after, what)
            crossing = Crossing(tensor, "forward", want, producer.stage, reader.stage)
            if reader.stage != producer.stage and crossing not in sent and not again:
                sent.add(crossing)
                self._send(phase, crossing, after, converted[tensor, want])

    def backward(self, stage: int) -> tuple[Phase, list[WeightGradient]]:
        """Backward pass of a stage, without gathers of weights. Also the gradients, in the order in which it
        makes them. Inference has neither."""
        phase = Phase()
        done: dict[str, int] = {}
        gradients: dict[str, WeightGradient] = {}
        again: set[str] = set()
        gathered: list[int] = []
        inputs: set[tuple[str, Layout]] = set()
        mine = [] if self.inference else self.items[stage]
        for item in reversed(mine):
            if item.recompute and item.recompute not in again:
                again.add(item.recompute)
                block = [other for other in mine if other.recompute == item.recompute]
                block = block[: recomputed_ops(self.graph, [other.op for other in block])]
                self._add_forward(phase, block, again=True)
            if not item.split.has_backward:
                continue
            step = Step(item, "backward", needs=gathered)
            gathered = self._gather_again(phase, item, inputs)
            for access in item.op.writes:
                want = whole(self.written[access.tensor][1])
                step.needs += self._sum_gradients(phase, access.tensor, want, stage, done)
                readers = {r.stage for r, _ in self.readers[access.tensor] if r.split.has_backward}
                for other in sorted(readers - {stage}):
                    self._receive(
                        phase, step, Crossing(access.tensor, "backward", want, other, stage)
                    )
            phase.steps.append(step)
            done[item.op.name] = len(phase.steps) - 1
            self._collect(item, done[item.op.name], gradients)
            self._send_back(phase, item, stage, done)
        return phase, list(gradients.values())

    def _gather_again(
        self, phase: Phase, item: PlacedOp, known: set[tuple[str, Layout]]
    ) -> list[int]:
        """Gather the input of a product from its shards again, while the gradient of this input is computed.

        The gradient of the weights needs it, in the second half of the step. So the next step waits for it.
        What all-to-alls brought to experts was kept.

        Args:
            known: inputs that products of this backward have already gathered again. They are not gathered
            twice. (For example, queries, keys and values have the same input.) The input is added here.
        """
        messages: list[int] = []
        if not self.shards_kept or item.op.kind != "linear":
            return messages
        for access in item.op.reads:
            if access.tensor in self.written:
                _, have = self.written[access.tensor]
                want = self._read(access, item)
                changes = conversion(self.graph.tensors[access.tensor], have, want, self.mesh)
                is_gather = {kind for kind, *_ in changes} == {"all_gather"}
                if is_gather and (access.tensor, want) not in known:
                    known.add((access.tensor, want))
                    after = len(phase.steps) - 1
                    messages += self._convert(phase, access.tensor, have, want, after, "again ")
        return messages

    def _sum_gradients(
        self, phase: Phase, tensor: str, want: Layout, stage: int, done: dict[str, int]
    ) -> list[int]:
        """Bring the gradients of a tensor from this stage's readers into a layout. Returns the messages to
        wait for."""
        layouts: dict[Layout, int] = {}
        for reader, access in self.readers[tensor]:
            if reader.stage == stage and reader.op.name in done:
                layout = self._layout(access, reader, "partial")
                layouts[layout] = max(layouts.get(layout, -1), done[reader.op.name])
        needs: list[int] = []
        for have, after in layouts.items():
            needs += self._convert(phase, tensor, have, want, after, "gradient of ")
        return needs

    def _collect(self, item: PlacedOp, step: int, gradients: dict[str, WeightGradient]) -> None:
        """Note the gradients of the weights that a step completes."""
        for access, sharding in self.weights_of(item):
            if access.tensor not in self.graph.trained:
                continue
            layout = self._layout(access, item, "partial")
            # A parameter that is added to a sum once (a bias) has a whole gradient on every part of the sum.
            axes = tuple(
                axis
                for axis, place in layout
                if place == "partial"
                and self.mesh[axis] > 1
                and item.op.dim(item.placement[axis]).kind is not DimKind.REDUCE
            )
            # A weight that several ops share is ready after the last of them.
            gradients.pop(access.tensor, None)
            gradients[access.tensor] = WeightGradient(
                access.tensor,
                self.gradient_share * sharding.bytes,
                # Shards are scattered first, so that they are all that travels along the other axes.
                joined(axes),
                step,
                item.unit,
                sharding,
            )

    def _send_back(self, phase: Phase, item: PlacedOp, stage: int, done: dict[str, int]) -> None:
        """Send gradients back to earlier stages, after the last reader here has added its own."""
        for access in item.op.reads:
            if access.tensor not in self.written or access.tensor not in self.graph.trained:
                continue
            producer, written = self.written[access.tensor]
            readers = [r for r, _ in self.readers[access.tensor] if r.stage == stage]
            waits = any(r.op.name not in done for r in readers if r.split.has_backward)
            if producer.stage == stage or waits:
                continue
            want = whole(written)
            behind = self._sum_gradients(phase, access.tensor, want, stage, done)
            crossing = Crossing(access.tensor, "backward", want, stage, producer.stage)
            if all(message.crossing != crossing for message in phase.messages):
                self._send(phase, crossing, done[item.op.name], behind, "gradient of ")
