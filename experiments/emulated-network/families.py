"""Jobs of the emulated network: families of configurations on 2, 4 and 8 ranks, and collectives.

Computing and communicating take about as long as each other, and a message is hardly ever shorter
than 128 KiB, so that overlap, pipelining and sharing decide how long a step lasts.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

from jobs import Job
from pydantic import Field

from joulecast.simulate.collectives import Algorithm
from joulecast.simulate.judged.emulated_network import EmulatedStep, Layer, Straggler
from joulecast.simulate.judged.results import Frozen


class Collective(Frozen):
    """A communication by itself: ``all_reduce`` of all ranks, ``send`` from rank 0 to 1."""

    kind: Literal["all_reduce", "send"]
    algorithm: Algorithm = "ring"
    bytes: int = Field(ge=4, multiple_of=4)


class EmulatedJob(Job):
    """Parts that are measured one after the other, each ``iterations`` times after a warm-up."""

    ranks_per_node: int = Field(1, ge=1)
    iterations: int = Field(7, ge=1)
    parts: tuple[EmulatedStep | Collective, ...]


Schedule = Literal["gpipe", "1f1b"]
_RANKS = (2, 4, 8)
_BUCKETS_KIB = {2: (512, 1024, 2048), 4: (512, 1024, 2048), 8: (1024, 1536, 3072)}
_WHOLE_KIB = 1 << 16
_LARGE_BUCKET_BYTES = 3 << 19
_SIZES_BYTES = tuple(size * 1024 for size in (128, 256, 512, 1024, 2048, 4096))
_ALGORITHMS: tuple[Algorithm, ...] = ("ring", "recursive_doubling", "rabenseifner")

REPEATED = (
    "dp2-even-1024k",
    "dp4-even-1024k",
    "dp8-even-1536k",
    "dp8-even-whole-after",
    "pp4-gpipe-m4",
    "pp8-1f1b-m4",
    "tp4-1024k",
    "dp2-pp4-1f1b",
    "dp4-tp2",
    "shared-dp4-tp2",
)
"""Measured again at the end of a session, so that its noise is known (A/A)."""


def _layers(
    forward_ms: Sequence[float],
    gradient_kib: Sequence[int] | int = 0,
    activation_kib: int = 0,
    backward_over_forward: float = 2.0,
) -> tuple[Layer, ...]:
    if isinstance(gradient_kib, int):
        gradient_kib = [gradient_kib] * len(forward_ms)
    return tuple(
        Layer(
            name=f"layer{index}",
            forward_s=round(forward / 1e3, 6),
            backward_s=round(forward * backward_over_forward / 1e3, 6),
            gradient_bytes=gradient * 1024,
            activation_bytes=activation_kib * 1024,
        )
        for index, (forward, gradient) in enumerate(zip(forward_ms, gradient_kib, strict=True))
    )


_SHAPES = {
    # As transformers, as convolutions before large dense layers, as an embedding before the rest.
    "even": ([10.0] * 8, [512] * 8),
    "dense": (
        [22.0, 20.0, 16.0, 10.0, 6.0, 4.0, 3.0, 2.0],
        [64, 64, 128, 256, 384, 768, 1536, 1024],
    ),
    "embedding": ([3.0, 9.0, 11.0, 13.0, 13.0, 12.0, 12.0, 11.0], [1792, *[384] * 6, 256]),
}


def _step(
    family: str,
    layers: tuple[Layer, ...],
    *,
    data: int = 1,
    tensor: int = 1,
    pipeline: tuple[int, Schedule, int] = (1, "gpipe", 1),
    before: str = "",
    after: str = "",
    overlap: bool = True,
    **facts: Any,
) -> EmulatedStep:
    """A configuration whose name has its groups of ranks, with words ``before`` and ``after`` them.

    ``pipeline`` is stages, their schedule, and micro-batches; of ``layers`` it has equal shares.
    """
    stages, schedule, micro_batches = pipeline
    groups = {f"dp{data}": data, f"tp{tensor}": tensor, f"pp{stages}-{schedule}": stages}
    name = before + "-".join(words for words, size in groups.items() if size > 1) + after
    return EmulatedStep(
        name=name if overlap else f"{name}-after",
        family=family,
        ranks=data * tensor * stages,
        data_parallel=data,
        tensor_parallel=tensor,
        pipeline=stages,
        schedule=schedule,
        micro_batches=micro_batches,
        overlap=overlap,
        layers=layers,
        **facts,
    )


def _size(kib: int) -> str:
    return "whole" if kib >= _WHOLE_KIB else f"{kib}k"


def _data_parallel() -> Iterator[EmulatedStep]:
    for ranks in _RANKS:
        small, middle, large = _BUCKETS_KIB[ranks]
        cases = [
            *(("even", kib, True) for kib in (small, middle, large, _WHOLE_KIB)),
            ("even", middle, False),
            ("even", _WHOLE_KIB, False),
            *(("dense", kib, True) for kib in (middle, large)),
            ("dense", middle, False),
            ("embedding", middle, True),
        ]
        for shape, kib, overlap in cases:
            yield _step(
                "data parallel",
                _layers(*_SHAPES[shape]),
                data=ranks,
                after=f"-{shape}-{_size(kib)}",
                overlap=overlap,
                bucket_bytes=kib * 1024,
            )
        yield _step(
            "data parallel",
            _layers([5.0] * 8, 512),
            data=ranks,
            pipeline=(1, "gpipe", 4),
            after=f"-even-{_size(middle)}-m4",
            bucket_bytes=middle * 1024,
        )


def _stages(ranks: int, activation_kib: int = 256, uneven: bool = False) -> tuple[Layer, ...]:
    # A stage computes forward for 24 ms, or for 16 to 34 ms; it may have several of the 8 layers.
    share = ranks / 8
    uneven_ms = [16.0, 20.0, 30.0, 24.0, 34.0, 18.0, 28.0, 22.0]
    forward = [ms * share for ms in uneven_ms] if uneven else [24.0 * share] * 8
    return _layers(forward, 0, activation_kib)


def _pipeline() -> Iterator[EmulatedStep]:
    cases: list[tuple[str, Schedule, int, bool, int]] = [
        ("", "gpipe", 2, False, 256),
        ("", "gpipe", 4, False, 256),
        ("", "1f1b", 4, False, 256),
        ("", "1f1b", 8, False, 256),
        ("-uneven", "gpipe", 4, True, 256),
        ("-uneven", "1f1b", 6, True, 384),
        ("-heavy", "gpipe", 4, False, 1024),
        ("-heavy", "1f1b", 4, False, 768),
    ]
    for ranks in _RANKS:
        for suffix, schedule, count, uneven, kib in cases:
            pipeline, layers = (ranks, schedule, count), _stages(ranks, kib, uneven)
            yield _step("pipeline", layers, pipeline=pipeline, after=f"-m{count}{suffix}")


def _tensor_parallel() -> Iterator[EmulatedStep]:
    family = "tensor parallel"
    for ranks in _RANKS:
        for kib in (1024, 1536):
            layers = _layers([30.0, 24.0, 36.0], 0, kib)
            yield _step(family, layers, tensor=ranks, after=f"-{kib}k")
        kib = max(512, 128 * ranks)
        layers = _layers([20.0, 20.0], 0, kib)
        yield _step(family, layers, tensor=ranks, pipeline=(1, "gpipe", 2), after=f"-{kib}k-m2")


def _data_and_pipeline() -> Iterator[EmulatedStep]:
    cases: list[tuple[Schedule, bool]] = [("gpipe", True), ("1f1b", True), ("1f1b", False)]
    for data, stages in ((2, 2), (2, 4), (4, 2)):
        layers = _layers([6.0 * stages] * 8, 512, 256)
        for schedule, overlap in cases:
            pipeline = (stages, schedule, 4)
            yield _step("data x pipeline", layers, data=data, pipeline=pipeline, overlap=overlap)


def _sharded() -> tuple[Layer, ...]:
    return _layers([25.0] * 4, 1024, 512)


def _with_shards() -> Iterator[EmulatedStep]:
    for data, shards in ((2, 2), (4, 2), (2, 4)):
        for overlap in (True, False):
            yield _step("data x tensor", _sharded(), data=data, tensor=shards, overlap=overlap)
    family = "data x tensor x pipeline"
    yield _step(family, _sharded(), data=2, tensor=2, pipeline=(2, "1f1b", 2))
    yield _step(family, _sharded(), data=2, tensor=2, pipeline=(2, "gpipe", 2), overlap=False)


def _shared_links() -> Iterator[EmulatedStep]:
    shared = partial(_step, "shared link", before="shared-", ranks_per_node=2)
    for data in (2, 4):
        for overlap in (True, False):
            # The two shards of a replica share a node, so both groups of replicas share its link.
            yield shared(_sharded(), data=data, tensor=2, overlap=overlap)
    pipelines: list[tuple[int, Schedule]] = [(2, "gpipe"), (2, "1f1b"), (4, "1f1b")]
    for stages, schedule in pipelines:
        # The replicas of a stage share a node, so do their activations its link.
        layers = _layers([6.0 * stages] * 8, 512, 384)
        yield shared(layers, data=2, pipeline=(stages, schedule, 4))
    even, buckets = _layers(*_SHAPES["even"]), _LARGE_BUCKET_BYTES
    for data in (4, 8):
        for overlap in (True, False):
            yield shared(even, data=data, after="-even", overlap=overlap, bucket_bytes=buckets)


def _stragglers() -> Iterator[EmulatedStep]:
    def slow(rank: int, factor: float, layers: tuple[Layer, ...], **facts: Any) -> EmulatedStep:
        straggler = Straggler(rank=rank, factor=factor)
        return _step("straggler", layers, before="straggler-", straggler=straggler, **facts)

    even, buckets = _layers(*_SHAPES["even"]), _LARGE_BUCKET_BYTES
    for ranks in _RANKS:
        yield slow(ranks - 1, 1.5, even, data=ranks, bucket_bytes=buckets)
    yield slow(3, 2.0, even, data=4, overlap=False, bucket_bytes=buckets)
    for ranks, rank, schedule in ((2, 0, "gpipe"), (4, 1, "1f1b"), (4, 2, "gpipe"), (8, 5, "1f1b")):
        yield slow(rank, 1.6, _stages(ranks), pipeline=(ranks, schedule, 4))
    both = _layers([12.0] * 8, 512, 256)
    yield slow(1, 1.5, both, data=2, pipeline=(2, "1f1b", 4))
    yield slow(2, 1.5, _sharded(), data=2, tensor=2)


def all_configurations() -> list[EmulatedStep]:
    """All configurations, every name once."""
    families = (
        _data_parallel,
        _pipeline,
        _tensor_parallel,
        _data_and_pipeline,
        _with_shards,
        _shared_links,
        _stragglers,
    )
    return [configuration for family in families for configuration in family()]


def step_job(configuration: EmulatedStep, repeat: int = 0) -> EmulatedJob:
    """The measurement of one configuration."""
    suffix = f".again{repeat}" if repeat else ""
    return EmulatedJob(
        name=configuration.name + suffix,
        ranks=configuration.ranks,
        ranks_per_node=configuration.ranks_per_node,
        repeat=repeat,
        parts=(configuration,),
    )


def calibration_jobs() -> list[EmulatedJob]:
    """Stand-alone collectives: nothing in them is a step of training."""
    jobs = []
    sends = [Collective(kind="send", bytes=size) for size in _SIZES_BYTES]
    for ranks in _RANKS:
        parts = [
            Collective(kind="all_reduce", algorithm=algorithm, bytes=size)
            for algorithm in _ALGORITHMS
            for size in _SIZES_BYTES
        ]
        parts += sends if ranks == 2 else []
        jobs.append(EmulatedJob(name=f"collectives-{ranks}", ranks=ranks, parts=tuple(parts)))
    local = [*(Collective(kind="all_reduce", bytes=size) for size in _SIZES_BYTES), *sends]
    name = "collectives-2-on-one-node"
    return [*jobs, EmulatedJob(name=name, ranks=2, ranks_per_node=2, parts=tuple(local))]
