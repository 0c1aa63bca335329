"""Compares joulecast with torch DistributedDataParallel (gloo): samples/s and peak memory of 2 ranks.

Both train the same network on the same batches with the same fused SGD. Their blocks take turns. So a drift
of the machine affects both. `torch` blocks run DDP with its own settings (buckets as views, overlap with the
backward pass). `ours` blocks run the library's loop Trainer. Each is measured in processes of its own, which
are launched as its users launch it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _output import parser, show

HERE = Path(__file__).resolve()


def _spec(network: str, batch: int, image_size: int, steps: int) -> str:
    from joulecast.runs.platforms import Platform
    from joulecast.runs.spec import RunSpec, Training, Workload

    return RunSpec(
        run=f"bench-{network}",
        campaign="benchmark",
        platform=Platform(name="bench", hosts=1),
        nodes=2,
        workload=Workload(network=network, image_size=image_size),
        training=Training(global_batch_size=2 * batch, steps=steps, warmup_steps=2),
        meters=(),
    ).model_dump_json()


def _ours(spec: str) -> dict[str, float]:
    from joulecast.measure.training.measure_run import measure_run
    from joulecast.runs.record import read_record
    from joulecast.runs.spec import RunSpec

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record"
        measure_run(RunSpec.model_validate_json(spec), out, Path(folder) / "log")
        record = read_record(out)
        outcome = record.info.outcome
    return {
        "samples_per_s": outcome.samples / (outcome.stop_s - outcome.start_s),
        "peak_rss_bytes": float(outcome.peak_rss_bytes or 0),
    }


def _ddp(spec: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "spec.json").write_text(spec)
        answer = Path(folder) / "answer.json"
        ranks = [
            subprocess.Popen(
                [sys.executable, str(HERE), "--ddp-rank", str(rank), folder],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            for rank in range(2)
        ]
        if any(rank.wait() for rank in ranks):
            raise SystemExit("a DDP rank failed")
        measured: dict[str, float] = json.loads(answer.read_text())
    return measured


def ddp_rank(rank: int, folder: str) -> None:
    """One rank of the training with DDP."""
    import resource

    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from joulecast.measure.training.loader import Loader, batch_indices
    from joulecast.measure.workloads.datasets import open_dataset
    from joulecast.measure.workloads.networks import build_network
    from joulecast.runs.spec import RunSpec

    spec = RunSpec.model_validate_json((Path(folder) / "spec.json").read_text())
    training, w = spec.training, spec.workload
    assert training is not None and w is not None
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    torch.manual_seed(1)
    network = build_network(w.network, w.image_size, w.patch_size, w.classes)
    replica = DistributedDataParallel(network, gradient_as_bucket_view=True)
    optimiser = torch.optim.SGD(
        network.parameters(), training.learning_rate, training.momentum, fused=True
    )
    images = open_dataset(w.dataset, None, w.image_size, w.classes)
    loader = Loader(images, batch_indices(len(images), training.global_batch_size, 2, rank, 1))
    start = 0.0
    for step in range(-training.warmup_steps, training.steps):
        if step == 0:
            distributed.barrier()
            start = time.monotonic()
        pictures, labels = next(loader)
        optimiser.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(replica(pictures), labels).backward()
        optimiser.step()
    distributed.barrier()
    seconds = time.monotonic() - start
    mine = torch.tensor([float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)])
    distributed.all_reduce(mine, op=distributed.ReduceOp.MAX)
    if rank == 0:
        samples = training.steps * training.global_batch_size
        result = {"samples_per_s": samples / seconds, "peak_rss_bytes": float(mine)}
        (Path(folder) / "answer.json").write_text(json.dumps(result))
    distributed.destroy_process_group()


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--networks", nargs="+", default=["vgg16", "resnet50", "vit_b"])
    arguments.add_argument("--batch", type=int, default=8, help="samples of a rank")
    arguments.add_argument("--image-size", type=int, default=32)
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--ddp-rank", nargs=2, metavar=("RANK", "FOLDER"))
    options = arguments.parse_args()
    if options.ddp_rank:
        ddp_rank(int(options.ddp_rank[0]), options.ddp_rank[1])
        return
    rows = []
    for network in options.networks:
        spec = _spec(network, options.batch, options.image_size, options.steps)
        ours, peers = [], []
        for _ in range(options.rounds):
            ours.append(_ours(spec))
            peers.append(_ddp(spec))
        ratios = [a["samples_per_s"] / b["samples_per_s"] for a, b in zip(ours, peers, strict=True)]
        memory = max(a["peak_rss_bytes"] for a in ours) / max(b["peak_rss_bytes"] for b in peers)
        rows.append(
            {
                "network": network,
                "image_size": options.image_size,
                "batch_per_rank": options.batch,
                "samples_per_s": float(np.median([a["samples_per_s"] for a in ours])),
                "ddp_samples_per_s": float(np.median([b["samples_per_s"] for b in peers])),
                "ratio_to_ddp": float(np.median(ratios)),
                "lowest_ratio": min(ratios),
                "peak_rss_ratio_to_ddp": memory,
            }
        )
    show(rows, options)


if __name__ == "__main__":
    main()
