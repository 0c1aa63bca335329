"""Fits the rates that single kernels of GPUs reach to measured kernels. Writes ``graphs/kernel_rates.yaml``.

    ./run python benchmarks/gpu_kernels.py ../shared/data/gpu_kernels [--write]

Prints the error of each kind of kernel on each GPU. The rates come from the other GPUs, and the plateau from
the GPU itself. Source of the kernels: NeuSight (sitar-lab, MIT).
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy.stats import theilslopes

from joulecast.graphs import kernel_costs
from joulecast.graphs.kernel_costs import ProductRates, product_flops
from joulecast.graphs.kernels import Product
from joulecast.runs.platforms import Device, find_platform

RATES = Path(kernel_costs.__file__).with_name("kernel_rates.yaml")
TENSORS = {
    # By file, the number of tensors (operands and result) of the size of the result that a kernel moves.
    "elementwise": {
        "add": 3,
        "mul": 3,
        "div": 3,
        "addu": 2,
        "mulu": 2,
        "divu": 2,
        "gelu": 2,
        "tanh": 2,
        "relu": 2,
    },
    "power": {"powu": 2},
    "softmax": {"softmax": 2},
    "norm": {"ln": 2},
}
LARGE_BYTES = 30e6
DEPTHS, ROUNDS = (40, 55, 70, 85, 100), (0.0, 0.25, 0.5, 1.0)
SAMPLE = 400
ASSUMED = {"dropout": 0.8, "copy": 0.9, "lookup": 0.75}
"""Kinds of kernels that are in no file."""


def device(gpu: str) -> Device:
    """The described device, by the GPU's name in the files."""
    return find_platform(gpu).require_cluster().device


def read(folder: Path, name: str) -> pd.DataFrame:
    """One file, with the seconds of each kernel."""
    frame = pd.read_csv(folder / f"{name}.csv.gz")
    return frame.assign(s=frame["milliseconds"] / 1e3)


def share_by_gpu(folder: Path, files: dict[str, int]) -> dict[str, float]:
    """Share of the bandwidth that large kernels of a kind reach, by GPU."""
    found: dict[str, list[float]] = {}
    for name, tensors in files.items():
        frame = read(folder, name)
        frame["bytes"] = 4.0 * tensors * frame["B"] * frame["H"]
        for gpu, rows in frame.groupby("gpu"):
            large = rows[rows["bytes"] > LARGE_BYTES]
            # The slope leaves out the time of the launch and of the measurement.
            slope = theilslopes(large["s"], large["bytes"]).slope
            found.setdefault(str(gpu), []).append(1 / slope / device(str(gpu)).memory_bytes_per_s)
    return {gpu: min(float(np.median(values)), 0.95) for gpu, values in found.items()}


def products(folder: Path) -> dict[tuple[str, str], list[tuple[Product, float]]]:
    """Sampled products of each file and GPU, with their seconds."""
    found = {}
    for name in ("linear", "bmm"):
        frame = read(folder, name)
        usual = (frame["s"] > 1.5e-4) & (frame[["M", "N"]].min(axis=1) >= 48) & (frame["K"] >= 32)
        for gpu, rows in frame[usual].groupby("gpu"):
            chosen = rows.sample(min(len(rows), SAMPLE), random_state=1)
            found[name, str(gpu)] = [
                (Product(r.B, r.M, r.N, r.K, 4), r.s) for r in chosen.itertuples(index=False)
            ]
    return found


def product_error(
    rows: list[tuple[Product, float]], on: Device, rates: ProductRates, share: float
) -> float:
    """Median relative error with the best plateau for these rows."""
    assert on.units is not None and on.memory_bytes_per_s is not None
    work = np.array([product_flops(product, rates, on.units) for product, _ in rows])
    moved = np.array([product.bytes for product, _ in rows]) / share / on.memory_bytes_per_s
    seconds = np.array([s for _, s in rows])
    plateaus = np.linspace(0.2, 1.2, 51) * on.peak_flops["fp32"]
    errors = [np.median(np.abs(np.maximum(work / p, moved) / seconds - 1)) for p in plateaus]
    return float(min(errors))


def best_rates(
    rows: dict[tuple[str, str], list[tuple[Product, float]]], gpus: Iterable[str], share: float
) -> ProductRates:
    """Depth and rounding with the least median error over some GPUs."""
    shipped = kernel_costs.kernel_rates().products["vector"]
    tried = [shipped.model_copy(update={"depth": d, "round": r}) for d in DEPTHS for r in ROUNDS]
    chosen = list(gpus)

    def error(rates: ProductRates) -> float:
        kept = [(key, value) for key, value in rows.items() if key[1] in chosen]
        return float(np.median([product_error(v, device(k[1]), rates, share) for k, v in kept]))

    return min(tried, key=error)


def main() -> None:
    """Fit, judge by leaving GPUs out, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    shares = {kind: share_by_gpu(given.folder, files) for kind, files in TENSORS.items()}
    for kind, by_gpu in shares.items():
        for gpu, own in sorted(by_gpu.items()):
            line = f"{kind:12s} {gpu:24s} share {own:.2f}"
            if kind != "elementwise":
                others = [g for g in by_gpu if g != gpu and vendor(g) == vendor(gpu)]
                said = relative(shares, kind, others) * shares["elementwise"][gpu]
                line += f", by the other GPUs {said:.2f} ({said / own - 1:+.0%})"
            print(line)
    rows = products(given.folder)
    gpus = sorted({gpu for _, gpu in rows})
    share = float(np.median(list(shares["elementwise"].values())))
    for gpu in gpus:
        others = best_rates(rows, [g for g in gpus if g != gpu], share)
        for name in ("linear", "bmm"):
            error = product_error(rows[name, gpu], device(gpu), others, share)
            print(
                f"{name:12s} {gpu:24s} median error {error:.3f} (depth {others.depth:g}, "
                f"round {others.round:g} of the other GPUs)"
            )
    fitted = best_rates(rows, gpus, share)
    print(f"all GPUs: depth {fitted.depth:g}, round {fitted.round:g}")
    if given.write:
        write(shares, fitted)


def relative(shares: dict[str, dict[str, float]], kind: str, gpus: Iterable[str]) -> float:
    """Bandwidth of a kind of kernels, divided by the bandwidth of element-wise kernels. It is the median over
    GPUs."""
    return float(np.median([shares[kind][gpu] / shares["elementwise"][gpu] for gpu in gpus]))


def vendor(gpu: str) -> str:
    """``nvidia`` or ``amd``."""
    architecture = device(gpu).architecture
    assert architecture is not None
    return architecture.vendor


def read_rates() -> dict[str, Any]:
    """The numbers of the shipped file."""
    content: dict[str, Any] = yaml.safe_load(RATES.read_text())
    return content


def write_rates(content: dict[str, Any]) -> None:
    """Write the numbers to the shipped file, below the comments at its head."""
    head = RATES.read_text().split("source:")[0]
    numbers = yaml.safe_dump(content, sort_keys=False, width=118, default_flow_style=None)
    RATES.write_text(head + numbers)


def write(shares: dict[str, dict[str, float]], fitted: ProductRates) -> None:
    """Put the fitted numbers into the shipped file. Other numbers in the file are not changed."""
    content = read_rates()
    for name in ("nvidia", "amd"):
        content["passes"][name] |= ASSUMED | {
            kind: round(relative(shares, kind, [g for g in by_gpu if vendor(g) == name]), 2)
            for kind, by_gpu in shares.items()
            if kind != "elementwise"
        }
    content["products"]["vector"] |= {"depth": fitted.depth, "round": fitted.round}
    write_rates(content)


if __name__ == "__main__":
    main()
