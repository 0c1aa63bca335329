"""Fits links to some collectives of a cluster, and judges them on its other collectives.

    ./run python benchmarks/cluster_links.py

The collectives are in ``recorded/cluster-links``. Each test has the mean and the highest bus bandwidth over
its sizes. We take the highest bandwidth for the bandwidth of the largest size. Links are fitted to it. For
the other tests, the means also show how large the errors for smaller sizes are.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from joulecast.logs.nccl_tests import CollectiveTest
from joulecast.runs.files.shipped import recorded_folder
from joulecast.runs.platforms import find_platform
from joulecast.simulate.cluster_links import fit_links, simulated_seconds


def bus_bytes(collective: str, ranks: int) -> float:
    """The bytes that nccl-tests counts as moved, divided by the bytes of the buffer."""
    return {"all_reduce": 2 * (ranks - 1) / ranks, "sendrecv": 1.0}.get(
        collective, (ranks - 1) / ranks
    )


def as_test(row: dict[str, object], sizes: list[float]) -> CollectiveTest:
    """The test of a row, at some sizes. All sizes have the highest bandwidth."""
    collective = str(row["test"]).removesuffix("_perf")
    nodes, gpus = int(row["N"]), int(row["G"])
    moved = bus_bytes(collective, nodes * gpus)
    rate = float(row["peak_busbw_GBs"]) * 1e9
    points = tuple((size, size * moved / rate) for size in sizes)
    return CollectiveTest(Path(str(row["file"])), collective, nodes, gpus, "H100", points)


def main() -> None:
    """Fit links to some groups of files, judge them on the others, and print the errors."""
    folder = recorded_folder(Path("recorded/cluster-links"))
    frame = pd.concat([pd.read_csv(file) for file in sorted(folder.glob("*.csv"))])
    frame = frame[frame["test"] != "sendrecv_perf"]
    frame["group"] = "N" + frame["N"].astype(str) + "_G" + frame["G"].astype(str)
    base = find_platform("h100-sxm")
    own = {"N1_G4", "N1_G8"}
    # Links are fitted to these groups of files, or to one of their tests. None: the platform is known only by
    # its name.
    ways = {
        "the name alone": None,
        "one node": (own, None),
        "one node, pairs of 1 GPU": (own | {"N2_G1"}, None),
        "one node, ten nodes of 4": (own | {"N10_G4"}, None),
        "one node, ten nodes of 8": (own | {"N10_G8"}, None),
        "all-gathers of one node and of ten": (own | {"N10_G8"}, "all_gather_perf"),
        "all-reduces of one node and of ten": (own | {"N10_G8"}, "all_reduce_perf"),
    }
    rows = []
    for way, taken in ways.items():
        platform, known = base, pd.Series(False, frame.index)
        if taken is not None:
            groups, test = taken
            known = frame["group"].isin(groups) & ((test is None) | (frame["test"] == test))
            # Of two files of a group, one is fitted, and the other one is judged.
            known &= ~(known & (frame.groupby(["group", "test"]).cumcount() % 2 == 1))
            tests = [as_test(row, [row["maxBytes"]]) for row in frame[known].to_dict("records")]
            platform = fit_links(base, tests).platform
            links = ", ".join(
                f"{link.name} {link.bytes_per_s / 1e9:.0f} GB/s" for link in platform.cluster.links
            )
            print(f"{way}: {links}")
        for row in frame[~known].to_dict("records"):
            sizes = [row["minBytes"] * 2.0**step for step in range(64)]
            sizes = [size for size in sizes if size <= row["maxBytes"]]
            test = as_test(row, sizes)
            busy = np.array(sizes) * bus_bytes(test.collective, test.nodes * test.gpus) / 1e9
            rates = busy / simulated_seconds(platform, test)
            rows.append(
                {
                    "fitted to": way,
                    "group": row["group"],
                    "test": test.collective,
                    "peak": 100 * (rates[-1] / row["peak_busbw_GBs"] - 1),
                    "mean": 100 * (rates.mean() / row["avg_bus_bw_GBs"] - 1),
                }
            )
    errors = pd.DataFrame(rows)
    pd.set_option("display.width", 200)
    table = errors.pivot_table(
        index=["group", "test"], columns="fitted to", values=["peak", "mean"], sort=False
    )
    print("simulated over measured bus bandwidth, %, files that links were not fitted to:")
    for what in ("peak", "mean"):
        print(what)
        print(table[what].round(0).to_string())
    cells = (
        errors.groupby(["fitted to", "group", "test"], sort=False)[["peak", "mean"]].mean().abs()
    )
    print("mean absolute errors, each group and test the same:")
    print(cells.groupby("fitted to", sort=False).mean().round(1).to_string())


if __name__ == "__main__":
    main()
