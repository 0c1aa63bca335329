"""The steps that a simulator is tried on: families of configurations at 2, 4 and 8 ranks.

Computing and communicating take about as long as each other, and a message is hardly ever shorter
than 128 KiB, so that overlap, pipelining and sharing decide how long a step lasts.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from joulecast.ground_truth.configurations import Configuration, Layer, Straggler

_RANKS = (2, 4, 8)
_BUCKETS_KIB = {2: (512, 1024, 2048), 4: (512, 1024, 2048), 8: (1024, 1536, 3072)}
_WHOLE_KIB = 1 << 16

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
"""Measured again at the end of a session, so that its noise can be told (A/A)."""


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


def _size(kib: int) -> str:
    return "whole" if kib >= _WHOLE_KIB else f"{kib}k"


def _data_parallel() -> Iterator[Configuration]:
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
            yield Configuration(
                name=f"dp{ranks}-{shape}-{_size(kib)}{'' if overlap else '-after'}",
                family="data parallel",
                ranks=ranks,
                data_parallel=ranks,
                bucket_bytes=kib * 1024,
                overlap=overlap,
                layers=_layers(*_SHAPES[shape]),
            )
        yield Configuration(
            name=f"dp{ranks}-even-{_size(middle)}-m4",
            family="data parallel",
            ranks=ranks,
            data_parallel=ranks,
            micro_batches=4,
            bucket_bytes=middle * 1024,
            layers=_layers([5.0] * 8, 512),
        )


def _stages(ranks: int, activation_kib: int = 256, uneven: bool = False) -> tuple[Layer, ...]:
    # A stage computes forward for 24 ms, or for 16 to 34 ms; it may have several of the 8 layers.
    share = ranks / 8
    uneven_ms = [16.0, 20.0, 30.0, 24.0, 34.0, 18.0, 28.0, 22.0]
    forward = [ms * share for ms in uneven_ms] if uneven else [24.0 * share] * 8
    return _layers(forward, 0, activation_kib)


def _pipeline() -> Iterator[Configuration]:
    cases: list[tuple[str, Any, int, bool, int]] = [
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
        for suffix, schedule, micro_batches, uneven, kib in cases:
            yield Configuration(
                name=f"pp{ranks}-{schedule}-m{micro_batches}{suffix}",
                family="pipeline",
                ranks=ranks,
                pipeline=ranks,
                micro_batches=micro_batches,
                schedule=schedule,
                layers=_stages(ranks, kib, uneven),
            )


def _tensor_parallel() -> Iterator[Configuration]:
    for ranks in _RANKS:
        for kib, micro_batches in ((1024, 1), (1536, 1), (max(512, 128 * ranks), 2)):
            yield Configuration(
                name=f"tp{ranks}-{kib}k" + (f"-m{micro_batches}" if micro_batches > 1 else ""),
                family="tensor parallel",
                ranks=ranks,
                tensor_parallel=ranks,
                micro_batches=micro_batches,
                layers=_layers([30.0, 24.0, 36.0] if micro_batches == 1 else [20.0, 20.0], 0, kib),
            )


def _data_and_pipeline() -> Iterator[Configuration]:
    for data, stages in ((2, 2), (2, 4), (4, 2)):
        for schedule, overlap in (("gpipe", True), ("1f1b", True), ("1f1b", False)):
            yield Configuration(
                name=f"dp{data}-pp{stages}-{schedule}{'' if overlap else '-after'}",
                family="data x pipeline",
                ranks=data * stages,
                data_parallel=data,
                pipeline=stages,
                micro_batches=4,
                schedule=schedule,
                bucket_bytes=1 << 20,
                overlap=overlap,
                layers=_layers([6.0 * stages] * 8, 512, 256),
            )


def _with_shards() -> Iterator[Configuration]:
    for data, shards in ((2, 2), (4, 2), (2, 4)):
        for overlap in (True, False):
            yield Configuration(
                name=f"dp{data}-tp{shards}{'' if overlap else '-after'}",
                family="data x tensor",
                ranks=data * shards,
                data_parallel=data,
                tensor_parallel=shards,
                bucket_bytes=1 << 20,
                overlap=overlap,
                layers=_layers([25.0] * 4, 1024, 512),
            )
    for schedule, overlap in (("1f1b", True), ("gpipe", False)):
        yield Configuration(
            name=f"dp2-tp2-pp2-{schedule}{'' if overlap else '-after'}",
            family="data x tensor x pipeline",
            ranks=8,
            data_parallel=2,
            tensor_parallel=2,
            pipeline=2,
            micro_batches=2,
            schedule=schedule,
            bucket_bytes=1 << 20,
            overlap=overlap,
            layers=_layers([25.0] * 4, 1024, 512),
        )


def _shared_links() -> Iterator[Configuration]:
    def shared(name: str, **facts: Any) -> Configuration:
        return Configuration(name=f"shared-{name}", family="shared link", ranks_per_node=2, **facts)

    for data in (2, 4):
        for overlap in (True, False):
            # The two shards of a replica share a node, so both groups of replicas share its link.
            yield shared(
                f"dp{data}-tp2{'' if overlap else '-after'}",
                ranks=2 * data,
                data_parallel=data,
                tensor_parallel=2,
                bucket_bytes=1 << 20,
                overlap=overlap,
                layers=_layers([25.0] * 4, 1024, 512),
            )
    for stages, schedule in ((2, "gpipe"), (2, "1f1b"), (4, "1f1b")):
        # The replicas of a stage share a node, so do their activations its link.
        yield shared(
            f"dp2-pp{stages}-{schedule}",
            ranks=2 * stages,
            data_parallel=2,
            pipeline=stages,
            micro_batches=4,
            schedule=schedule,
            layers=_layers([6.0 * stages] * 8, 512, 384),
        )
    for data in (4, 8):
        for overlap in (True, False):
            yield shared(
                f"dp{data}-even{'' if overlap else '-after'}",
                ranks=data,
                data_parallel=data,
                bucket_bytes=3 << 19,
                overlap=overlap,
                layers=_layers(*_SHAPES["even"]),
            )


def _stragglers() -> Iterator[Configuration]:
    def slow(name: str, rank: int, factor: float, **facts: Any) -> Configuration:
        straggler = Straggler(rank=rank, factor=factor)
        return Configuration(
            name=f"straggler-{name}", family="straggler", straggler=straggler, **facts
        )

    for ranks, factor, overlap in ((2, 1.5, True), (4, 1.5, True), (8, 1.5, True), (4, 2.0, False)):
        yield slow(
            f"dp{ranks}{'' if overlap else '-after'}",
            ranks - 1,
            factor,
            ranks=ranks,
            data_parallel=ranks,
            bucket_bytes=3 << 19,
            overlap=overlap,
            layers=_layers(*_SHAPES["even"]),
        )
    for ranks, rank, schedule in ((2, 0, "gpipe"), (4, 1, "1f1b"), (4, 2, "gpipe"), (8, 5, "1f1b")):
        yield slow(
            f"pp{ranks}-{schedule}",
            rank,
            1.6,
            ranks=ranks,
            pipeline=ranks,
            micro_batches=4,
            schedule=schedule,
            layers=_stages(ranks),
        )
    yield slow(
        "dp2-pp2-1f1b",
        1,
        1.5,
        ranks=4,
        data_parallel=2,
        pipeline=2,
        micro_batches=4,
        schedule="1f1b",
        layers=_layers([12.0] * 8, 512, 256),
    )
    yield slow(
        "dp2-tp2",
        2,
        1.5,
        ranks=4,
        data_parallel=2,
        tensor_parallel=2,
        layers=_layers([25.0] * 4, 1024, 512),
    )


def all_configurations() -> list[Configuration]:
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
