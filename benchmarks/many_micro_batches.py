"""Compares steps that are continued from shorter ones with the same steps that simulate all micro-batches.

    ./run python benchmarks/many_micro_batches.py [--settings 1000] [--seed 1]

The settings are random: network, GPU, pipeline, replicas, schedule, ZeRO, number of micro-batches, and
sometimes a slow device. The output says how far the seconds of the steps, and their parts, are off.
"""

import argparse
import random
from dataclasses import astuple

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.graphs.kernel_costs import KernelCosts
from joulecast.graphs.network_graphs import network_for
from joulecast.graphs.precision import training_of
from joulecast.runs.platforms import find_platform
from joulecast.simulate.cost_cache import cached
from joulecast.simulate.simulate import Assumptions, simulate
from joulecast.simulate.strategy import parse_strategy

NETWORKS = (
    "gpt:layers=8,hidden=1024,heads=16,sequence=512",
    "gpt:layers=12,hidden=2048,heads=16,sequence=1024",
    "vgg16",
    "resnet50",
)
GPUS = ("h100-sxm", "a100-80gb-sxm", "h100-pcie", "v100-pcie", "a100-80gb-sxm:nics=1x50")
SCHEDULES = ("schedule=1f1b", "schedule=zb-h1", "interleaved=2")
SHARDED = ("", ",zero=1", ",zero=2", ",no-overlap")
TRAINING = training_of("fp16", "adam")


def main() -> None:
    """Print the quantiles of the errors, and the worst setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--settings", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    graphs = {name: network_for(name, TRAINING) for name in NETWORKS}
    platforms = {name: find_platform(name) for name in GPUS}
    costs = {
        name: cached(KernelCosts(platform.require_cluster().device, "fp16"))
        for name, platform in platforms.items()
    }
    found = []
    for _ in range(given.settings):
        network, gpu = draw.choice(NETWORKS), draw.choice(GPUS)
        stages, replicas = draw.choice([2, 4, 8]), draw.choice([1, 2, 4])
        micro = stages * draw.choice([7, 9, 12, 16, 24])
        sharded = draw.choice(SHARDED) if replicas > 1 else ""
        text = f"pp={stages},dp={replicas},micro={micro},{draw.choice(SCHEDULES)}{sharded}"
        slow = {draw.randrange(stages * replicas): draw.choice([1.05, 1.2, 1.5, 2.0])}
        slow = slow if draw.random() < 0.6 else {}
        batch = micro * draw.choice([1, 2])
        try:
            some, every = (
                simulate(
                    graphs[network],
                    platforms[gpu],
                    parse_strategy(text),
                    batch,
                    costs[gpu],
                    Assumptions(training=TRAINING, stragglers=slow, every_micro_batch=every),
                )
                for every in (False, True)
            )
        except JoulecastError:
            continue  # More stages than the network has blocks.
        parts = np.abs(np.subtract(astuple(some.breakdown), astuple(every.breakdown))).max()
        error = abs(some.step_s / every.step_s - 1)
        found.append((error, parts / every.step_s, network, gpu, text, slow, batch))
    errors = 100 * np.array([each[0] for each in found])
    print(f"{len(found)} settings; errors of the step in percent:")
    for share in (50, 90, 99, 100):
        print(f"  {share} % of the settings: at most {np.percentile(errors, share):.2g}")
    print(f"parts: at most {100 * max(each[1] for each in found):.2g} % of the step")
    print("the worst:", *max(found, key=lambda each: each[0])[2:])


if __name__ == "__main__":
    main()
