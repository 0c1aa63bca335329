"""Power of metered nodes for networks they never ran: errors by held-out workload; writes the shipped fit.

./run python benchmarks/node_power.py [--write]
"""

import argparse
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import yaml

from joulecast.energy import node_power
from joulecast.energy.fitting import KnownRuns
from joulecast.energy.mc2_phases import PhaseMC2
from joulecast.energy.node_power import MeteredNode, metered_nodes
from joulecast.logs.mlperf import import_mlperf
from joulecast.runs.files.shipped import recorded_folder

HEAD = """\
# Written by benchmarks/node_power.py --write from recorded/mlperf-power (MLPerf Training v4.0, submission
# smc-dc-power, Apache-2.0; see its provenance.json). Powers in W of a node: idle_w of a loaded node,
# excess_w of training at full duty above it. kappa: power at partial duty
# (docs/explanation/real-clusters.md).
"""


GPUS = 8
"""GPUs of a node of these runs: the provenance says it, the tables do not."""


def fitted(runs: pd.DataFrame) -> list[MeteredNode]:
    """The node types of some runs."""
    nodes = metered_nodes(PhaseMC2().fit(runs).coefficients(), runs)
    return [replace(node, gpus=GPUS) for node in nodes]


def shipped_runs() -> pd.DataFrame:
    """The clean runs of ``recorded/mlperf-power``."""
    with TemporaryDirectory() as folder:
        import_mlperf(recorded_folder(Path("recorded/mlperf-power")), Path(folder) / "records")
        return KnownRuns.of_records(sorted((Path(folder) / "records").iterdir())).trained


def held_out(runs: pd.DataFrame) -> pd.DataFrame:
    """A row a workload and node count: metered W of a node in training, and what the others predict."""
    rows = []
    for workload, own in runs.groupby("workload"):
        (node,) = fitted(runs[runs["workload"] != workload])
        paces = own["nodes"] * own["training_s"] / own["samples"]
        pace = float(paces[own["nodes"] == own["nodes"].min()].mean())
        for nodes, of in own.groupby("nodes"):
            share = min(1.0, pace / float(paces[of.index].mean()))
            # Standing still inside training costs the floor.
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
    if given.write:
        file = Path(node_power.__file__).with_name("metered_nodes.yaml")
        content = {"nodes": [node.as_plain() for node in fitted(runs)]}
        file.write_text(HEAD + yaml.safe_dump(content, sort_keys=False))


if __name__ == "__main__":
    main()
