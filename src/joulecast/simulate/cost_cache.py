"""A cache of costs. Equal ops occur many times: in the blocks of a network, and in many strategies.

The cost of an op depends on its kind, dims, attributes and tensors, and not on its name. These are its
signature. A search asks for the cost of the same few signatures thousands of times.
"""

from joulecast.graphs.autocast import cast_reads, casts_first
from joulecast.graphs.costs import Cost, Costs, Direction, Parts, Scaled
from joulecast.graphs.kernel_costs import with_gradient_passes
from joulecast.graphs.opgraph import Access, Op, OpGraph
from joulecast.graphs.precision import DEFAULT_TRAINING, TrainingSetup
from joulecast.simulate.correction import MeasuredSteps, step_setting
from joulecast.simulate.strategy import Strategy, gradient_passes

Signature = tuple[object, ...]


def signature_of(graph: OpGraph, op: Op) -> Signature:
    """The signature of an op: everything that decides its cost. Names are not in it."""
    places: dict[str, int] = {}
    cast = cast_reads(graph, op)

    def described(access: Access) -> Signature:
        tensor = graph.tensors[access.tensor]
        # A tensor that an op reads twice is not two tensors of one shape.
        place = places.setdefault(access.tensor, len(places))
        # Gradients of a tensor that several ops read are added up.
        readers = graph.readers[access.tensor]
        ends = bool(readers) and (readers[0] is op, readers[-1] is op)
        # If several ops need a weight at another size, one of them makes the cast.
        casts = access in cast and casts_first(graph, op, access)
        kind = tensor.role, access.tensor in graph.trained
        return place, access.axes, tensor.shape, tensor.itemsize, kind, ends, casts

    reads, writes = (tuple(map(described, accesses)) for accesses in (op.reads, op.writes))
    return op.kind, op.dims, reads, writes, repr(op.attributes)


class OpCache:
    """Numbers of ops that all strategies of a network share."""

    def __init__(self) -> None:
        self._numbers: dict[Signature, int] = {}
        # A graph holds a dict and has no hash of its own; what is numbered is its tuple of ops.
        self._of_graph: dict[int, tuple[OpGraph, dict[str, int]]] = {}

    def numbers(self, graph: OpGraph) -> dict[str, int]:
        """A number for each op of a graph, by the op's name. Ops with the same signature have the same
        number."""
        if id(graph) not in self._of_graph:
            numbers = {
                each.name: self._numbers.setdefault(signature_of(graph, each), len(self._numbers))
                for each in graph.ops
            }
            self._of_graph[id(graph)] = graph, numbers
        return self._of_graph[id(graph)][1]


class CachedCosts:
    """Costs with a cache. The cost of a signature, with its parts and direction, is computed only once."""

    def __init__(
        self, costs: Costs, op_cache: OpCache | None = None, evidence: MeasuredSteps | None = None
    ) -> None:
        self.costs = costs
        self.op_cache = op_cache or OpCache()
        self.evidence = evidence
        """Measured steps that correct the costs of other steps."""
        self._known: dict[tuple[object, ...], Cost] = {}
        self._in_steps: dict[tuple[float, float | None], CachedCosts] = {(0.0, None): self}

    def in_step(self, graph: OpGraph, strategy: Strategy, inference: bool) -> "CachedCosts":
        """Costs of ops in a step. They contain the step's passes over gradients. Measured
        steps, if any, correct these costs by a factor. The factor depends on the step that is simulated."""
        known, passes = self._in_steps, gradient_passes(strategy)
        if (passes, None) not in known:
            priced = with_gradient_passes(self.costs, passes)
            known[passes, None] = CachedCosts(priced, self.op_cache)
        if self.evidence is None:
            return known[passes, None]
        factor = self.evidence.factor(step_setting(graph, strategy, inference))
        if (passes, factor) not in known:
            scaled = Scaled(known[passes, None], factor, "calibrated")
            known[passes, factor] = CachedCosts(scaled, self.op_cache)
        return known[passes, factor]

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        key = (self.op_cache.numbers(graph)[op.name], direction, *sorted(parts.items()))
        if key not in self._known:
            self._known[key] = self.costs.cost(graph, op, parts, direction)
        return self._known[key]

    def optimizer(self, parameter_bytes: float, training: TrainingSetup = DEFAULT_TRAINING) -> Cost:
        return self.costs.optimizer(parameter_bytes, training)


def cached(costs: Costs) -> CachedCosts:
    """Costs with a cache. If the costs already have one, the same object is returned."""
    return costs if isinstance(costs, CachedCosts) else CachedCosts(costs)
