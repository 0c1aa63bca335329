"""A cache of costs. The same ops occur again and again, in the blocks of a network and in many strategies.

The cost of an op depends on its kind, dims, attributes and tensors, and not on its name. These are its
signature. A search asks for the cost of the same few signatures thousands of times.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from joulecast.graphs.autocast import cast_reads, casts_first
from joulecast.graphs.costs import Cost, Costs, Direction, Parts, Scaled, Source
from joulecast.graphs.kernel_costs import with_gradient_passes
from joulecast.graphs.opgraph import Access, Op, OpGraph
from joulecast.graphs.precision import DEFAULT_TRAINING, TrainingSetup

Signature = tuple[object, ...]
T = TypeVar("T")


def _accesses(
    graph: OpGraph, op: Op, accesses: tuple[Access, ...], places: dict[str, int]
) -> Signature:
    found, cast = [], cast_reads(graph, op)
    for access in accesses:
        tensor = graph.tensors[access.tensor]
        # A tensor that an op reads twice is not two tensors of one shape.
        place = places.setdefault(access.tensor, len(places))
        # Gradients of a tensor that several ops read are added up.
        readers = graph.readers[access.tensor]
        ends = bool(readers) and (readers[0] is op, readers[-1] is op)
        # Of a weight that several need at another size, one makes the cast.
        casts = access in cast and casts_first(graph, op, access)
        found.append((place, access.axes, tensor.shape, tensor.itemsize, tensor.role, ends, casts))
    return tuple(found)


def signature_of(graph: OpGraph, op: Op) -> Signature:
    """The signature of an op: all that tells it from another op but names."""
    places: dict[str, int] = {}
    return (
        op.kind,
        op.dims,
        _accesses(graph, op, op.reads, places),
        _accesses(graph, op, op.writes, places),
        repr(op.attributes),
    )


class OpCache:
    """What strategies of a network have in common, and is worked out once."""

    def __init__(self) -> None:
        self._numbers: dict[Signature, int] = {}
        # A graph holds a dict and has no hash of its own; what is numbered is its tuple of ops.
        self._of_graph: dict[int, tuple[OpGraph, dict[str, int]]] = {}
        self._done: dict[Hashable, Any] = {}

    def numbers(self, graph: OpGraph) -> dict[str, int]:
        """For each op of a graph, by name, a number that ops of the same signature share."""
        if id(graph) not in self._of_graph:
            numbers = {
                each.name: self._numbers.setdefault(signature_of(graph, each), len(self._numbers))
                for each in graph.ops
            }
            self._of_graph[id(graph)] = graph, numbers
        return self._of_graph[id(graph)][1]

    def once(self, graph: OpGraph, key: Hashable, work: Callable[[], T]) -> T:
        """The result of some work on a graph. The work is done once for each key."""
        # The graph is kept, so that its id stays its own.
        self.numbers(graph)
        of_graph = id(graph), key
        if of_graph not in self._done:
            self._done[of_graph] = work()
        found: T = self._done[of_graph]
        return found


class CachedCosts:
    """Costs that are asked once for each signature, parts and direction."""

    def __init__(self, costs: Costs, op_cache: OpCache | None = None) -> None:
        self.costs = costs
        self.op_cache = op_cache or OpCache()
        self._known: dict[tuple[object, ...], Cost] = {}
        self._passing: dict[float, CachedCosts] = {0.0: self}

    def passing(self, passes: float) -> "CachedCosts":
        """The costs with so many passes over the gradients of weights, remembered too."""
        if passes not in self._passing:
            priced = with_gradient_passes(self.costs, passes)
            self._passing[passes] = CachedCosts(priced, self.op_cache)
        return self._passing[passes]

    def scaled(self, factor: float, source: Source | None) -> "CachedCosts":
        """The costs that are ``factor`` times as long, remembered too."""
        return CachedCosts(Scaled(self, factor, source), self.op_cache)

    def stretched(self, factor: float) -> "CachedCosts":
        """The costs whose ops, and not the optimizer, take ``factor`` times as long, remembered too."""
        return CachedCosts(Scaled(self, factor, updates=False), self.op_cache)

    def cost(self, graph: OpGraph, op: Op, parts: Parts, direction: Direction) -> Cost:
        key = (self.op_cache.numbers(graph)[op.name], direction, *sorted(parts.items()))
        if key not in self._known:
            self._known[key] = self.costs.cost(graph, op, parts, direction)
        return self._known[key]

    def optimizer(self, parameter_bytes: float, training: TrainingSetup = DEFAULT_TRAINING) -> Cost:
        return self.costs.optimizer(parameter_bytes, training)


def cached(costs: Costs) -> CachedCosts:
    """Costs with a cache. If they have one already, the same object."""
    return costs if isinstance(costs, CachedCosts) else CachedCosts(costs)
