"""Shows what each constant of plain PyTorch is worth: the error of measured steps if the constant is changed.

    ./run python benchmarks/plain_pytorch.py

The constants of plain PyTorch in ``graphs/kernel_rates.yaml`` were fitted by hand to steps. Each is divided
and multiplied by 1.25 and 1.6, one at a time. The output has three mean errors (%): of the steps to which the
constant was fitted (H100), of steps that were known when it was fitted (H200), and of later steps. It also
names the factor with which each group has the least error. If no step changes, the constant is not needed. No
times are measured.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _output import parser, show

from joulecast.graphs import kernel_costs
from joulecast.graphs.kernel_costs import KernelRates, kernel_rates
from joulecast.runs.files.shipped import recorded_folder
from joulecast.simulate.judged.gpu_steps import GpuStep, read_gpu_steps, simulate_steps

FACTORS = (1 / 1.6, 1 / 1.25, 1.0, 1.25, 1.6)
CONSTANTS = (
    "attention_fp32",
    "attention_dropout",
    "attention_head",
    "rows",
    "passes.nvidia.batch_norm",
    "clock_bytes.mixed",
    "clock_bytes.max_pool",
    "clock_bytes.strided",
    "block_bytes",
    "column_bytes.columns",
    "column_bytes.norm_columns",
    "padded_flops",
    "host_s",
)


def scaled(value: Any, path: list[str], factor: float) -> Any:
    """A value, with every number at ``path`` and below it multiplied by a factor."""
    if isinstance(value, dict):
        return {
            key: scaled(part, path[1:], factor) if not path or key == path[0] else part
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [scaled(part, path, factor) for part in value]
    return value * factor


def errors(steps: list[GpuStep], rates: KernelRates) -> pd.Series:
    """Mean error (%) of the steps with some rates, by group."""
    kernel_costs.kernel_rates = lambda: rates
    found = simulate_steps(steps)
    kernel_costs.kernel_rates = kernel_rates
    group = found["data"].where(found["data"] != "plain_pytorch", "fitted " + found["gpu"])
    return (100 * (found["predicted_s"] / found["measured_s"] - 1).abs()).groupby(group).mean()


def rows(steps: list[GpuStep]) -> Iterator[dict[str, object]]:
    """A row for each constant and group of steps."""
    shipped = kernel_rates().model_dump()
    plain = errors(steps, kernel_rates())
    for constant in CONSTANTS:
        by_factor = {1.0: plain}
        for factor in FACTORS:
            if factor != 1.0:
                moved = KernelRates.model_validate(scaled(shipped, constant.split("."), factor))
                by_factor[factor] = errors(steps, moved)
        for group in plain.index:
            off = [float(by_factor[factor][group]) for factor in FACTORS]
            names = (f"times {factor:.3g}" for factor in FACTORS)
            best = round(FACTORS[int(np.argmin(off))], 3)
            yield {
                "constant": constant,
                "steps": group,
                **dict(zip(names, off, strict=True)),
                "best": best,
            }


def main() -> None:
    """Print the table."""
    given = parser(__doc__).parse_args()
    folder = recorded_folder(Path("recorded/training-steps"))
    steps = [step for step in read_gpu_steps(folder) if step.source.startswith("plain_pytorch")]
    show(list(rows(steps)), given)


if __name__ == "__main__":
    main()
