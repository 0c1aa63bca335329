"""Logs as nccl-tests prints them, of a cluster that is made up."""

TIMES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}
"""Bytes that a GPU sends, over (ranks - 1) / ranks of the buffer."""


def moved(collective, ranks):
    return 1.0 if collective == "sendrecv" else TIMES[collective] * (ranks - 1) / ranks


def _number(value, digits):
    return (
        f"{value:{digits}.2f}"
        if value < 100
        else f"{value:{digits}.1f}"
        if value < 1e4
        else f"{value:{digits}.0f}"
    )


def nccl_log(
    collective="all_reduce",
    nodes=1,
    gpus=8,
    rate=350e9,
    node_rate=300e9,
    first_us=36.0,
    gpu="NVIDIA H100 80GB HBM3",
    sizes=tuple(8 << 2 * step for step in range(15)),
    said=True,
    rank=lambda number: number,
):
    """The text of one test.

    Args:
        collective: as nccl-tests calls it.
        nodes: of the test.
        gpus: of each node.
        rate: bytes/s of a GPU's link.
        node_rate: bytes/s of a node's links to the others.
        first_us: microseconds of the smallest.
        gpu: as the driver calls it.
        sizes: bytes of the buffers.
        said: whether the log says what it timed, as newer versions do.
        rank: the number that is printed for each rank.
    """
    ranks = nodes * gpus
    share = moved(collective, ranks)
    redop = "sum" if "reduce" in collective else "none"
    head = (
        "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807\n"
        f"# Collective test starting: {collective}_perf\n"
        if said
        else ""
    )
    lines = [
        f"{head}# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: 4(factor) warmup iters: 5 "
        "iters: 20 agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
    ]
    for number in range(ranks):
        node, place = divmod(number, gpus)
        lines.append(
            f"#  Rank {rank(number):2d} Group  0 Pid {4000 + number:6d} on {f'node{node:02d}':>10s} device "
            f"{place:2d} [0000:{0x1B + 16 * place:02x}:00] {gpu}"
        )
    lines += [
        "NCCL version 2.28.7+cuda13.0",
        "#",
        f"#{'out-of-place':>74s}{'in-place':>31s}          ",
        "#       size         count      type   redop    root "
        + 2 * "    time   algbw   busbw #wrong",
        "#        (B)    (elements)                           "
        + 2 * "    (us)  (GB/s)  (GB/s)       ",
    ]
    for size in sizes:
        crossing = gpus * (1 - 1 / nodes) if collective == "alltoall" else share * (nodes > 1)
        us = first_us + size * max(share / rate, crossing / node_rate) * 1e6
        algorithm = size / us / 1e3
        count = size // 4 if redop == "sum" else size // 4 // ranks
        size = size if count else 0
        row = f"{_number(us, 8)}  {algorithm:6.2f}  {algorithm * share:6.2f}"
        wrong = "N/A" if collective == "alltoall" else "  0"
        lines.append(
            f"{size:12d}  {count:12d}  {'float':>8s}  {redop:>6s}      -1  {row}      0  {row}    {wrong}"
        )
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 123.456 ", "#"]
    lines += [f"# Collective test concluded: {collective}_perf", ""] if said else [""]
    return "\n".join(lines)
