"""Reads the marks that the observer left in a host's folder, and finds the stages of steps in them.

A step lasts from the end of one update of the main optimizer to the end of the next::

    | other | materials | computing ... backward | exchange | update |
            ^ fetch     ^ batch is there          ^ nothing hides it

In *materials*, the rank waits for batches. *Computing* is the time from the batch to the update, without
waiting, and without the exchange that nothing hides. It contains forward pass, loss and backward pass of all
micro-batches. *Other* is the time from an update to the request for the next batch: logging, checkpoints,
evaluation.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.measure.observer.inside import marks
from joulecast.runs.files.reading import read_json_object, validated
from joulecast.runs.spans import Span, subtract

MARK = np.dtype([("kind", "u1"), ("start", "<f8"), ("length", "<f4"), ("amount", "<f4")])
"""A mark as ``observer/inside/marks.py`` packs it; times in s of the host's monotonic clock."""

Marked = NDArray[np.void]
Floats = NDArray[np.float64]
Stage = tuple[int, str, float, float]
"""One stage of a step: number of the step, name of the stage, start, stop (both in s on the host's clock)."""
_PART_STEPS = 10_000
_LATEST_S, _LARGEST, _MOST_OPTIMIZERS = 1e10, 1e18, 1e6
"""Largest time (s), amount, and number of an optimizer in a mark. Larger values are errors."""
_Number = Annotated[int, Field(ge=0, le=10**9)]
_Parameters = Annotated[int, Field(ge=0, le=10**18)]


def _updates(marked: Marked) -> NDArray[np.int64]:
    """Number of updates of each optimizer; the index is the number of the optimizer."""
    numbers = marked["amount"][marked["kind"] == marks.UPDATE]
    counted: NDArray[np.int64] = np.bincount(numbers[numbers != marks.PART].astype(np.int64))
    return counted


def main_optimizers(marked: Marked) -> list[int]:
    """Numbers of the optimizers whose updates end the steps.

    If a training changes its optimizer, there are several main optimizers, one after the other. So an
    optimizer also counts if all of its updates are before the first update of the main optimizer, or after
    its last one.

    Args:
        marked: marks in the order of their starts.
    """
    main = _main_optimizer(marked)
    updates = marked[(marked["kind"] == marks.UPDATE) & (marked["amount"] != marks.PART)]
    own = updates["start"][updates["amount"] == main]
    found = [main]
    for number in np.unique(updates["amount"]).astype(int).tolist():
        times = updates["start"][updates["amount"] == number]
        if number != main and (times[-1] < own[0] or times[0] > own[-1]):
            found.append(number)
    return found


def _main_optimizer(marked: Marked) -> int:
    """Number of the optimizer with the most updates.

    If several optimizers have equally many updates, it is the one that updates last in a step. After the last
    update, the next batch is fetched, or the next backward pass begins.
    """
    counts = _updates(marked)
    if not len(counts):
        return 0
    as_many = np.flatnonzero(counts == counts.max())
    if len(as_many) == 1:
        return int(as_many[0])
    begins = marks.FETCH if (marked["kind"] == marks.FETCH).any() else marks.BACKWARD
    edges = marked[np.isin(marked["kind"], (marks.UPDATE, begins))]
    edges = edges[edges["amount"] != marks.PART]
    is_update = edges["kind"] == marks.UPDATE
    is_last = is_update & np.append(~is_update[1:], True)
    lasts = np.bincount(edges["amount"][is_last].astype(np.int64), minlength=len(counts))[as_many]
    return int(as_many[lasts == lasts.max()][-1])


class Facts(BaseModel):
    """What a process notes about itself. ``parameters_0`` and so on, by the numbers of its optimizers: how
    many parameters an optimizer trains."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)
    __pydantic_extra__: dict[str, _Parameters]

    rank: _Number | None = None
    ranks: _Number | None = None
    node: str | None = None
    boot: str | None = None
    group_rank: _Number | None = None
    group_ranks: _Number | None = None
    mpi_ranks: _Number = 1
    device: str = "cpu"
    optimizer: str | None = None
    loss: float | None = None
    wrapper: str | None = None
    autocast: str | None = None
    recomputes: bool = False
    compiled: bool = False
    parts: Annotated[int, Field(ge=1)] = 1
    """Number of ranks between which FSDP 1 divides each tensor."""
    precision: str | None = None
    tf32: bool = False
    copies_of: str | None = None
    """Type of the weights with which the network computes, if the optimizer updates others: copies of them
    (DeepSpeed), or those of which FSDP makes copies of another type."""
    whole: _Parameters | None = None
    """Number of parameters that DeepSpeed trains on all ranks."""
    first_batch: _Parameters | None = None
    """A number that differs for first batches with other contents."""
    replayed: bool = False
    """Whether an update is in a CUDA graph. The observer does not see when the graph is replayed."""
    exchange_by: str | None = None
    not_profiled: str | None = None
    not_captured: str | None = None
    captured_parameters: _Parameters | None = None
    captured_samples: _Number | None = None
    """Number of samples with which the captured network was called in the first step."""


@dataclass(frozen=True)
class Process:
    """One process that trained: its facts, and its marks (marks,) of type :data:`MARK`."""

    facts: Facts
    marks: Marked
    graph: Path | None = None
    """The op graph of the network that it trains, if that was captured."""

    @property
    def rank(self) -> int:
        """Rank of the process, from its launcher. If torch knows more ranks than the launcher, the rank comes
        from torch. It is 0 if neither says it."""
        facts = self.facts
        if facts.rank is None or (facts.group_ranks or 1) > (facts.ranks or 1):
            return facts.group_rank or 0
        return facts.rank

    @property
    def updates(self) -> int:
        """Number of updates that the process's main optimizer made."""
        return int(_updates(self.marks).max(initial=0))


def _are_possible(marked: Marked) -> NDArray[np.bool_]:
    kind, amount = marked["kind"], marked["amount"]
    is_time = (np.abs(marked["start"]) <= _LATEST_S) & (marked["length"] >= 0)
    is_number = (amount == np.floor(amount)) & (amount >= marks.PART) & (amount < _MOST_OPTIMIZERS)
    is_amount = np.where(kind == marks.UPDATE, is_number, np.abs(amount) <= _LARGEST)
    possible: NDArray[np.bool_] = (
        (kind <= marks.PREFETCH) & is_time & (marked["length"] <= _LATEST_S) & is_amount
    )
    # An optimizer's update ends before its next one does.
    updates = np.flatnonzero((kind == marks.UPDATE) & (amount != marks.PART))
    ordered = updates[np.lexsort((marked["start"][updates], amount[updates]))]
    ends = (marked["start"] + marked["length"])[ordered]
    longer = (np.diff(ends) < 0) & (np.diff(amount[ordered]) == 0)
    possible[ordered[:-1][longer]] = False
    return possible


def read_processes(folder: Path) -> list[Process]:
    """The processes that trained, in the order of their ranks. A mark that is cut short is left out."""
    found = []
    for path in sorted(folder.glob("*.marks")):
        content = path.read_bytes()
        whole = len(content) // MARK.itemsize * MARK.itemsize
        marked = np.frombuffer(content[:whole], MARK)
        noted, facts = path.with_suffix(".json"), Facts()
        if noted.is_file():
            known = read_json_object(noted, "facts of a process")
            facts = validated(TypeAdapter(Facts), known, str(noted))
        possible = _are_possible(marked)
        if not possible.all():
            raise JoulecastError(
                f"{path}: mark {np.argmin(possible) + 1} is none of a training; without the file, its rank "
                "has no steps"
            )
        graph = path.with_suffix(".graph")
        found.append(Process(facts, marked, graph if graph.is_file() else None))
    return sorted(found, key=lambda process: (process.rank, -process.updates))


@dataclass(frozen=True)
class Steps:
    """The steps of one process. Its marks are in the order of their starts."""

    marks: Marked
    ends: Floats
    """End of each update of the main optimizer (steps,), in s of the host's clock."""
    between_is_exchange: bool = False
    """Whether the time between the last backward pass and the update counts as exchange. This is so if ranks
    exchange their gradients without torch."""

    @classmethod
    def of(cls, marked: Marked, between_is_exchange: bool = False) -> "Steps":
        """The steps, found from all marks of a process."""
        ordered = marked[np.argsort(marked["start"], kind="stable")]
        updates = ordered[ordered["kind"] == marks.UPDATE]
        main = updates[np.isin(updates["amount"], main_optimizers(ordered))]
        return cls(ordered, main["start"] + main["length"], between_is_exchange)

    def _kind(self, kind: int) -> Marked:
        chosen: Marked = self.marks[self.marks["kind"] == kind]
        return chosen

    def _per_step(self, kind: int) -> float:
        """Median number of marks of a kind between two updates of the main optimizer. With fewer than two
        updates: the number of all marks of this kind."""
        if len(self.ends) < 2:
            return float(len(self._kind(kind)))
        counts, _ = np.histogram(self._kind(kind)["start"], bins=self.ends)
        return float(np.median(counts))

    @property
    def begin(self) -> float:
        """Start of the process's first mark, in s on the host's clock."""
        # On a GPU, DDP's statistics have lengths, but no moments.
        timed = self.marks["start"][self.marks["kind"] != marks.HIDDEN]
        return float(timed[0]) if len(timed) else 0.0

    @cached_property
    def fetches(self) -> int:
        """Number of batches for which a step waits. It is above 1 if a step accumulates the gradients of
        several batches, and 0 if no batch was seen.

        It is the median, because a step with an evaluation also fetches the batches of the evaluation.
        """
        return round(self._per_step(marks.FETCH))

    @property
    def loads(self) -> bool:
        """Whether the process fetched batches with samples."""
        kinds = np.isin(self.marks["kind"], (marks.FETCH, marks.PREFETCH))
        return bool((kinds & (self.marks["amount"] > 0)).any())

    @property
    def micro_batches(self) -> int:
        """Median number of backward passes in a step."""
        return round(self._per_step(marks.BACKWARD))

    @property
    def shows_exchange(self) -> bool:
        """Whether the marks show the exchange of gradients separately from computing."""
        # Collectives before the first update may only set up the model.
        after = self.ends[0] if len(self.ends) > 1 else -np.inf
        hooked = self._kind(marks.EXCHANGE)["start"] > after
        return self.between_is_exchange or bool(hooked.any() or len(self._kind(marks.HIDDEN)))

    def samples(self, first: int, last: int) -> Floats:
        """Number of samples in each of the steps ``first`` to ``last`` (both included) of this process
        (steps,). Steps whose batches were not seen are left out. Empty if no batch with tensors was seen. If
        another thread fetched the batches long before the steps, there is one value for each batch of the
        process: the samples of the batch, times the batches of a step.

        A step usually has n batches. Before each update, only the last n batches count. Earlier ones were
        fetched by an evaluation. If each batch has a backward pass of its own, a step has as many batches as
        backward passes. So the last step of an epoch may have fewer than n.
        """
        backward = np.searchsorted(self._kind(marks.BACKWARD)["start"], self.ends)
        for kind in (marks.FETCH, marks.PREFETCH):
            fetched = self._kind(kind)
            fetched = fetched[fetched["amount"] > 0]
            each = round(self._per_step(kind))
            if len(fetched) and each:
                until = np.searchsorted(fetched["start"], self.ends)
                has, ahead = np.full(len(until), each), 0
                if each == self.micro_batches:
                    has = np.diff(backward, prepend=0)
                    # accelerate fetches one batch ahead. So the last step of an epoch fetches one less.
                    ahead = int(kind == marks.FETCH and each > 1)
                since = until - has
                before = np.concatenate([[0], until[:-1]])
                summed = np.concatenate([[0.0], np.cumsum(fetched["amount"], dtype=float)])
                whole = (since >= np.maximum(0, before - ahead)) & (has > 0)
                if 2 * whole.sum() > len(whole):
                    held = summed[until] - summed[np.maximum(since, 0)]
                    of_steps = np.where(whole, held, np.nan)[first : last + 1]
                    return np.asarray(of_steps[~np.isnan(of_steps)])
                # Another thread fetched the batches long before the steps.
                return np.asarray(fetched["amount"], dtype=float) * each
        return np.empty(0)

    def of_window(self, first: int, last: int) -> Iterator[Stage]:
        """Stages of the steps ``first`` to ``last`` (both included). Steps are numbered from 0. Step 0 begins
        with the process's first mark."""
        edges = np.concatenate([[self.begin], self.ends])[first : last + 2]
        places = np.searchsorted(self.marks["start"], edges, side="left")
        # DDP may have measured the exposed exchange in only some of the steps.
        exposed = self._kind(marks.HIDDEN)["amount"]
        mean_exposed = float(exposed.mean()) if len(exposed) else None
        # Plain numbers, of some thousand steps at a time: there may be a million steps.
        for begin in range(0, len(edges) - 1, _PART_STEPS):
            own = edges[begin : begin + _PART_STEPS + 1]
            within = places[begin : begin + _PART_STEPS + 1]
            of_part = self.marks[within[0] : within[-1]]
            rows = list(
                zip(
                    of_part["kind"].tolist(),
                    of_part["start"].tolist(),
                    (of_part["start"] + of_part["length"]).tolist(),
                    strict=True,
                )
            )
            cuts = (within - within[0]).tolist()
            for number, ((start, stop), (low, high)) in enumerate(
                zip(pairwise(own.tolist()), pairwise(cuts), strict=True), begin
            ):
                by_kind: dict[int, list[Span]] = {kind: [] for kind in range(marks.PREFETCH + 1)}
                for kind, mark_start, mark_stop in rows[low:high]:
                    by_kind[kind].append((mark_start, mark_stop))
                for stage, spans in self._stages(by_kind, start, stop, mean_exposed).items():
                    for a, b in spans:
                        yield number, stage, a, b

    def _stages(
        self,
        by_kind: dict[int, list[Span]],
        start: float,
        stop: float,
        mean_exposed: float | None,
    ) -> dict[str, list[Span]]:
        backward = by_kind[marks.BACKWARD]
        last_backward = max((end for _, end in backward), default=start)
        # A closure runs forward and backward inside the optimizer's step.
        updates = [
            (max((b for _, b in backward if begin < b < end), default=begin), end)
            for begin, end in by_kind[marks.UPDATE]
        ]
        fetches = by_kind[marks.FETCH]
        trained_on = fetches[-self.fetches :] if self.fetches else []
        begins = trained_on[0][0] if trained_on else start
        # If there are several optimizers, each may have its own backward pass, also before the next batch.
        ends = updates[-1][0] if updates else stop
        early = [a for a, _ in updates if a < begins and any(start <= b < a for b, _ in backward)]
        exposed = by_kind[marks.EXCHANGE]
        if self.between_is_exchange and start < last_backward < ends:
            exposed = [(last_backward, ends)]
        elif mean_exposed is not None and backward and not by_kind[marks.HIDDEN]:
            exposed.append((max(backward[-1][0], last_backward - mean_exposed), last_backward))
        computing = subtract(
            [*((start, a) for a in early[-1:]), (begins, ends)], [*trained_on, *exposed, *updates]
        )
        return {
            "materials": trained_on,
            "computing": computing,
            "communicating_copy": subtract(exposed, [*trained_on, *updates]),
            "update": [(max(a, start), min(b, stop)) for a, b in updates],
        }
