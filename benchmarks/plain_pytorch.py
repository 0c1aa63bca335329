"""Fits the constants of plain PyTorch to measured steps. Shows the errors of steps that the fit did not see.

    ./run python benchmarks/plain_pytorch.py [--write | --host]

The constants are in ``graphs/kernel_rates.yaml``. Each gets a factor, by least squares of the relative
errors. A factor far from 1 counts as an error, too, because few steps depend on some of the constants.

The first fit is to the H100 steps of round 1, so the steps on the H200 are held out. The second fit is to all
steps of round 1. ``--write`` writes its constants to the file. The later steps are held out from both. It
takes 15 minutes. No times are measured.

The pace of the host differs between machines. ``--host`` shows the pace (``host_s``) that explains the steps
of each machine best, and the mean error with it. It compares several host times of a cast and of a weight,
relative to that of a kernel (``CAST_LAUNCHES``). It takes 4 minutes.
"""

from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from _output import parser, show
from gpu_kernels import read_rates, write_rates
from scipy.optimize import least_squares

from joulecast.graphs import kernel_costs, kernels
from joulecast.graphs.kernel_costs import KernelRates, kernel_rates
from joulecast.runs.files.shipped import recorded_folder
from joulecast.simulate.judged.gpu_steps import GpuStep, read_gpu_steps, simulate_steps

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
)
USUAL_ERROR, USUAL_FACTOR = 0.06, 0.3
"""Relative error of a step, and relative change of a constant, that count the same."""
LEAST, MOST = 0.3, 3.0
STEP_OF_DERIVATIVE, TRIES = 0.06, 5
CAST_LAUNCHES = (1.0, 1.5, 2.0)
HOST_S = tuple(1e-6 * number for number in range(24, 44, 2))


def scaled(value: Any, path: list[str], factor: float) -> Any:
    """A value, with every number at ``path`` and below it multiplied by a factor, to three digits."""
    if isinstance(value, dict):
        return {
            key: scaled(part, path[1:], factor) if not path or key == path[0] else part
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [scaled(part, path, factor) for part in value]
    return value if path else float(f"{value * factor:.3g}")


def with_factors(rates: Any, factors: Iterable[float]) -> Any:
    """Rates, with a factor for each of the constants."""
    named = zip(CONSTANTS, map(float, factors), strict=True)
    return reduce(lambda known, each: scaled(known, each[0].split("."), each[1]), named, rates)


def simulated(steps: list[GpuStep], rates: KernelRates) -> pd.DataFrame:
    """The steps, simulated with other rates."""
    kernel_costs.kernel_rates = lambda: rates
    try:
        return simulate_steps(steps)
    finally:
        kernel_costs.kernel_rates = kernel_rates


def scaled_rates(factors: Iterable[float]) -> KernelRates:
    """The rates, with a factor for each of the constants."""
    return KernelRates.model_validate(with_factors(kernel_rates().model_dump(), factors))


def fitted(steps: list[GpuStep]) -> npt.NDArray[np.float64]:
    """The factor of each constant with the least errors of some steps."""

    def errors(factors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        found = simulated(steps, scaled_rates(factors))
        of_steps = np.log(found["predicted_s"] / found["measured_s"]) / USUAL_ERROR
        return np.concatenate([of_steps, np.log(factors) / USUAL_FACTOR])

    found = least_squares(
        errors,
        np.ones(len(CONSTANTS)),
        bounds=(LEAST, MOST),
        loss="soft_l1",
        diff_step=STEP_OF_DERIVATIVE,
        max_nfev=TRIES,
    )
    return np.asarray(found.x)


def mean_errors(steps: list[GpuStep], factors: Iterable[float]) -> dict[str, float]:
    """Mean error (%) of the steps by their group."""
    found = simulated(steps, scaled_rates(factors))
    group = np.where(
        found["data"] == "plain_pytorch", "round 1, " + found["gpu"], "later steps (held out)"
    )
    return (
        (100 * (found["predicted_s"] / found["measured_s"] - 1).abs())
        .groupby(group)
        .mean()
        .to_dict()
    )


def host_paces(steps: list[GpuStep]) -> Iterator[dict[str, Any]]:
    """For each machine and each host time of a cast: the best pace of the host, and the mean error with
    it."""
    for launches in CAST_LAUNCHES:
        kernels.CAST_LAUNCHES = kernel_costs.CAST_LAUNCHES = launches
        errors = {}
        for host_s in HOST_S:
            found = simulated(steps, kernel_rates().model_copy(update={"host_s": host_s}))
            errors[host_s] = (
                (100 * (found["predicted_s"] / found["measured_s"] - 1).abs())
                .groupby([found["data"], found["gpu"]])
                .mean()
            )
        for machine, row in pd.DataFrame(errors).iterrows():
            yield {
                "machine": ", ".join(machine),
                "cast_launches": launches,
                "host_s": row.idxmin(),
                "mean_error_percent": row.min(),
            }


def main() -> None:
    """Fit, judge, and write if asked."""
    options = parser(__doc__)
    options.add_argument("--write", action="store_true", help="write the constants to the file")
    options.add_argument("--host", action="store_true", help="show the pace of each machine's host")
    given = options.parse_args()
    folder = recorded_folder(Path("recorded/training-steps"))
    steps = [step for step in read_gpu_steps(folder) if step.source.startswith("plain_pytorch")]
    if given.host:
        show([*host_paces(steps)], given)
        return
    first = [step for step in steps if step.source == "plain_pytorch"]
    factors = {
        "as it is": np.ones(len(CONSTANTS)),
        "fitted to the H100": fitted([step for step in first if "H100" in step.platform]),
        "fitted to round 1": fitted(first),
    }
    rows = [
        {"what": f"factor of {name}", **{basis: found[place] for basis, found in factors.items()}}
        for place, name in enumerate(CONSTANTS)
    ]
    errors = {basis: mean_errors(steps, found) for basis, found in factors.items()}
    rows += [
        {"what": f"mean error (%), {group}", **{basis: errors[basis][group] for basis in factors}}
        for group in errors["as it is"]
    ]
    show(rows, given)
    if given.write:
        write_rates(with_factors(read_rates(), factors["fitted to round 1"]))


if __name__ == "__main__":
    main()
