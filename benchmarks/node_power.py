"""Predicts the power of metered nodes for networks that they never ran. Writes the shipped fit.

    ./run python benchmarks/node_power.py [--write]

Errors are of workloads that the fit had not seen.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from real_clusters import metered_records
from scipy.stats import t as student

from joulecast.energy import node_power
from joulecast.energy.campaign_fit import KnownRuns
from joulecast.energy.mc2_phases import PhaseMC2
from joulecast.energy.node_power import MeteredNode, shipped_nodes
from joulecast.energy.priors import UNSEEN, Gaussian
from joulecast.graphs.clocks import gpu_power_of
from joulecast.runs.platforms.platform import find_platform

HEAD = """\
# Written by benchmarks/node_power.py --write from recorded/mlperf-power (MLPerf Training v4.0, submission
# smc-dc-power, Apache-2.0; see its provenance.json). Powers in W of a node: idle_w of a loaded node,
# excess_w of training at full duty above it. kappa: power at partial duty
# (docs/explanation/real-clusters.md).
"""


GPUS = 8
"""GPUs of a node in these runs. The number is in the provenance, and not in the tables."""


def _least_share(runs: pd.DataFrame, paces: pd.Series) -> float:
    """The lowest computing share of the runs. A computing share is the node-seconds of the same work on the
    fewest nodes, divided by the node-seconds of the run."""
    needed_s = runs["workload"].map(paces) * runs["samples"]
    return float((needed_s / (runs["nodes"] * runs["training_s"])).clip(upper=1.0).min())


def fitted(runs: pd.DataFrame) -> list[MeteredNode]:
    """The node types of some runs."""
    phases = PhaseMC2().fit(runs).coefficients()
    known = runs[runs["workload"].isin(phases["workloads"]) & runs["energy_j"].notna()]
    found = []
    for platform, idle_w in phases["idle_w"].items():
        of = {n: w for n, w in phases["workloads"].items() if w["platform"] == platform}
        own = known[known["platform"] == platform]
        if not of or own.empty:
            continue
        paces = pd.Series({name: base["computes"] * base["pace"] for name, base in of.items()})
        found.append(
            MeteredNode(
                platform=platform,
                gpus=GPUS,
                idle_w=idle_w,
                excess_w={name: base["training_w"] for name, base in of.items()},
                kappa=Gaussian(**phases["kappa"][UNSEEN]),
                node_spread=phases["node_spread"],
                smallest_nodes=min(base["nodes"] for base in of.values()),
                most_nodes=float(own["nodes"].max()),
                least_share=_least_share(own, paces),
                runs=len(own),
                energy_source=", ".join(sorted(own["energy_source"].dropna().unique())),
                supply=own["supply"].iloc[0],
            )
        )
    return found


def shipped_runs() -> pd.DataFrame:
    """The clean runs of ``recorded/mlperf-power``."""
    with metered_records() as folders:
        return KnownRuns.of_records(folders).trained


def held_out(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each workload and node count: the metered W of a node in training, and the W predicted from
    the other workloads."""
    rows = []
    for workload, own in runs.groupby("workload"):
        (node,) = fitted(runs[runs["workload"] != workload])
        paces = own["nodes"] * own["training_s"] / own["samples"]
        pace = float(paces[own["nodes"] == own["nodes"].min()].mean())
        for nodes, of in own.groupby("nodes"):
            share = min(1.0, pace / float(paces[of.index].mean()))
            # While training stalls, a node draws its idle power.
            steady_j = of["training_j"] - nodes * node.idle_w * of["stalled_training_s"]
            power = node.power([GPUS] * int(nodes), share, GPUS)
            metered_w = float((steady_j / of["training_s"]).mean()) / nodes
            rows.append(
                {
                    "workload": workload,
                    "nodes": nodes,
                    "share": share,
                    "metered_w": metered_w,
                    "predicted_w": power.watts / nodes,
                    "error_percent": 100 * (power.watts / nodes / metered_w - 1),
                    "low_w": power.low_w / nodes,
                    "high_w": power.high_w / nodes,
                }
            )
    return pd.DataFrame(rows)


METERED_TRAINS_KW, AIR_COOLED_TRAINS_KW = 5.8, 7.1
"""Power of a node of 8 H100 in MLPerf trainings: of the metered node, and of another maker's node."""
MOST_KW = {"v100": (300, 3.5), "a100": (400, 6.5), "h100": (700, 10.2), "b200": (1000, 14.3)}
"""Power limit of a GPU in W, and the most power of a node of eight GPUs in kW, from NVIDIA's data sheets of
the DGX."""


def known_rests() -> tuple[float, float]:
    """Power of everything in a node except its GPUs, divided by the power limits of the GPUs: for the metered
    node, and for the other one."""
    (node,) = shipped_nodes()
    power = gpu_power_of(find_platform("h100-sxm").require_cluster().device, "bf16")
    limit_w = GPUS * power.limit_w
    metered = (node.idle_w - GPUS * power.awake_w) / limit_w
    return metered, metered + 1e3 * (AIR_COOLED_TRAINS_KW - METERED_TRAINS_KW) / limit_w


def rest_of_node() -> tuple[float, float]:
    """The share of :func:`known_rests` for a further type of node, and the half width of its logarithm by
    Student's t."""
    known = np.log(known_rests())
    sheets = np.log([(1e3 * kw - GPUS * w) / (GPUS * w) for w, kw in MOST_KW.values()])
    freedom = len(known) + len(sheets) - 2
    squares = sum(((logs - logs.mean()) ** 2).sum() for logs in (known, sheets))
    sd = float(np.sqrt(squares / freedom * (1 + 1 / len(known))))
    return float(np.exp(known.mean())), float(student.ppf(0.95, freedom)) * sd


def left_out_types() -> Iterator[str]:
    """Power in training of a node of each of the two types, predicted with the share of the other type."""
    power = gpu_power_of(find_platform("h100-sxm").require_cluster().device, "bf16")
    limit_kw = GPUS * power.limit_w / 1e3
    drawn, rests = (METERED_TRAINS_KW, AIR_COOLED_TRAINS_KW), known_rests()
    for was, own, other in zip(drawn, rests, reversed(rests), strict=True):
        error = (other - own) * limit_kw / was
        yield f"a node that draws {was} kW, by the rest of the other type: {100 * error:+.0f} % off"


def main() -> None:
    """Judge, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write energy/metered_nodes.yaml")
    given = parser.parse_args()
    runs = shipped_runs()
    pd.set_option("display.width", 200, "display.max_columns", 30)
    table = held_out(runs)
    inside = table["metered_w"].between(table["low_w"], table["high_w"]).mean()
    print(table.round(3).to_string())
    print(
        f"mean absolute error {table['error_percent'].abs().mean():.2f} %, {100 * inside:.0f} % inside"
    )
    print(*left_out_types(), sep="\n")
    print("rest of a node, and its width: {:.3f} {:.3f}".format(*rest_of_node()))
    if given.write:
        file = Path(node_power.__file__).with_name("metered_nodes.yaml")
        content = {"nodes": [node.as_plain() for node in fitted(runs)]}
        file.write_text(HEAD + yaml.safe_dump(content, sort_keys=False))


if __name__ == "__main__":
    main()
