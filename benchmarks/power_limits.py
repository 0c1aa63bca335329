"""Judges the seconds and joules at power limits and clocks, on GPUs that the constants have not seen.

No times are measured. There are four kinds of rows:

* `zeus`: epochs on V100, A40, Quadro RTX 6000 and P100 at each power limit (recorded/zeus-trace). Each GPU is
  left out of the fit. The seconds and watts at the highest limit are given. They say how busy the GPU is.
* `watts`: watts of the simulated step of BERT and ResNet-50 at their largest batch. Only the description of
  the GPU is given.
* `steps`: training steps of pipelines on A40 at power limits (--steps FOLDER of `step_energy`). The A40 is
  left out of the fit.
* `stages`: passes of a stage at set clocks, with the same GPU and the same fit.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _output import parser, show
from scipy.optimize import least_squares
from scipy.stats import kendalltau
from scipy.stats import t as student

import joulecast
from joulecast.graphs.clocks import FLOOR, KNEE, GpuPower, gpu_power_of
from joulecast.runs.files.shipped import ZEUS_TRACE, recorded_folder
from joulecast.runs.platforms import find_platform
from joulecast.tune.traces import MAX_POWER_W

GPUS = {"v100": "v100-pcie", "a40": "a40", "rtx6000": "rtx6000", "p100": "p100"}
HBM = ("v100", "p100")
FOLLOWS = 0.8
"""Share of the busy time that depends on the clock. It is the same for all networks. (It is 0.9 in simulated
steps of BERT, and 0.6 in those of ResNet-50.) The fit cannot separate it from the voltage: with 0.5 to 0.8,
the held-out errors of epochs differ by about one percentage point."""
START = (0.14, 0.25, KNEE, FLOOR)
"""Share of the power limit that an awake GPU draws, with HBM and with GDDR; and the knee and the floor of the
voltage."""
BOUNDS = ((0.1, 0.15, 0.2, 0.4), (0.3, 0.45, 0.95, 0.99))
DISTURBED = 1.3
"""If an epoch at the highest limit takes this many times as long as at a lower limit, another program ran at
the same time."""
LIMITED = [float(np.log(each / 1.45)) for each in (1.9, 1.1, 1.5)]
"""Logarithms of the joules of an operation on P4, T4 and L4, each divided by the value for all three
(graphs/kernel_costs.py)."""
BUSY = {
    "bert_base_uncased": ("bert-base:sequence=384", "adam"),
    "resnet50": ("resnet50", "momentum"),
}


def limits_of(gpu: str) -> pd.DataFrame:
    """Epochs at each limit below the highest: ``slow``, ``watts``, and ``full_w`` at the highest limit."""
    table = pd.read_csv(recorded_folder(ZEUS_TRACE) / f"summary_power_{gpu}.csv")
    rows = []
    for (_, network, batch, _), of in table.groupby(
        ["dataset", "network", "batch_size", "optimizer"]
    ):
        top = of[of["power_limit"] == MAX_POWER_W[gpu]]
        if (
            top.empty
            or float(top["time_per_epoch"].iloc[0]) > DISTURBED * of["time_per_epoch"].min()
        ):
            continue
        known = {
            "gpu": gpu,
            "network": network,
            "batch": batch,
            "full_w": top["average_power"].iloc[0],
        }
        slow = of["time_per_epoch"] / float(top["time_per_epoch"].iloc[0])
        rows.append(of.assign(slow=slow, watts=of["average_power"], **known))
    return pd.concat(rows)


def power_of(gpu: str, constants: Any) -> GpuPower:
    """The described GPU, with other constants."""
    power = gpu_power_of(find_platform(GPUS[gpu]).require_cluster().device, "fp32")
    assert power is not None
    hbm, gddr, knee, floor = constants
    awake_w = (hbm if gpu in HBM else gddr) * power.limit_w
    return replace(power, awake_w=awake_w, knee=knee, floor=floor)


def predicted(rows: pd.DataFrame, constants: Any) -> pd.DataFrame:
    """``slow`` and ``watts`` of rows at their limits, from the watts at the highest."""
    parts = []
    for gpu, of in rows.groupby("gpu", sort=False):
        power = power_of(str(gpu), constants)
        held = power.clock_at(power.limit_w)
        excess_w = power.watts(held) - power.awake_w
        busy = ((of["full_w"] - power.awake_w) / excess_w).clip(0.0, 1.0)
        clock = np.minimum(held, power.clock_at(of["power_limit"].to_numpy(float)))
        longer = busy * (FOLLOWS * held / clock + 1 - FOLLOWS)
        slow = longer + 1 - busy
        watts = power.awake_w + longer / slow * (power.watts(clock) - power.awake_w)
        parts.append(pd.DataFrame({"slow": slow, "watts": watts}, index=of.index))
    return pd.concat(parts)


def fitted(rows: pd.DataFrame) -> Any:
    """The constants that fit the limits best."""

    def errors(constants: Any) -> Any:
        logs = np.log(predicted(rows, constants) / rows[["slow", "watts"]])
        return logs.to_numpy(float).ravel()

    return least_squares(errors, START, bounds=BOUNDS, loss="soft_l1", f_scale=0.1).x


def errors_of(what: str, rows: pd.DataFrame, constants: Any) -> list[dict[str, Any]]:
    """Mean absolute errors in percent: of limits of at least half of the highest limit, and of lower
    limits."""
    told = predicted(rows, constants)
    joules, measured = told["slow"] * told["watts"], rows["slow"] * rows["watts"]
    table = pd.DataFrame(
        {
            "time": told["slow"] / rows["slow"] - 1,
            "energy": joules / measured - 1,
            "told_j": joules,
            "measured_j": measured,
        }
    ).join(rows[["network", "batch", "power_limit", "optimizer"]])
    settings = table.groupby(["network", "batch", "optimizer"])
    order = [
        kendalltau(of["told_j"], of["measured_j"]).statistic for _, of in settings if len(of) > 2
    ]
    regret = [
        of.loc[of["told_j"].idxmin(), "measured_j"] / of["measured_j"].min() - 1
        for _, of in settings
    ]
    half = table["power_limit"] >= table["power_limit"].max() / 2
    below = table["power_limit"] < table["power_limit"].max()
    return [
        {
            "what": what,
            "limits": name,
            "rows": len(of),
            "time_percent": 100 * of["time"].abs().mean(),
            "energy_percent": 100 * of["energy"].abs().mean(),
            "time_90_log": np.log1p(of["time"]).abs().quantile(0.9),
            "tau_of_joules": np.nanmean(order),
            "joules_over_best_percent": 100 * np.mean(regret),
        }
        for name, of in (("half or more", table[half & below]), ("lower", table[~half]))
        if len(of)
    ]


def width_of(logs: list[float]) -> float:
    """Half width of the 90 % interval for a further GPU, by Student's t."""
    return float(
        student.ppf(0.95, len(logs) - 1) * np.std(logs, ddof=1) * np.sqrt(1 + 1 / len(logs))
    )


def watts_of_steps(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Simulated and measured watts of the busiest networks, at their largest batch and the highest limit."""
    found = []
    busiest = rows[rows["network"].isin(BUSY)].groupby("gpu")["full_w"].max()
    said = {gpu: np.log(busiest[gpu] / power_of(gpu, START).full_w) for gpu in GPUS}
    print(f"width of the watts, all: {width_of([*LIMITED, *said.values()]):.2f}")
    for gpu, name in GPUS.items():
        # The interval of a GPU does not use the error of this GPU.
        width = width_of([*LIMITED, *(log for other, log in said.items() if other != gpu)])
        for network, (graph, optimizer) in BUSY.items():
            of = rows[(rows["gpu"] == gpu) & (rows["network"] == network)]
            largest = of[of["batch"] == of["batch"].max()]
            batch, measured_w = int(largest["batch"].iloc[0]), float(largest["full_w"].iloc[0])
            step = joulecast.simulate_step(graph, name, "dp=1", batch=batch, optimizer=optimizer)
            watts = step["gpus_power_w"]
            found.append(
                {
                    "what": f"watts, {network} on {gpu}, batch {batch}",
                    "measured_w": measured_w,
                    "watts": watts,
                    "error_percent": 100 * (watts / measured_w - 1),
                    "width_of_others": width,
                    "inside": -width
                    <= np.log(measured_w / watts)
                    <= min(width, np.log(MAX_POWER_W[gpu] / watts)),
                }
            )
    return found


def steps_at_limits(folder: Path) -> pd.DataFrame:
    """Training steps of pipelines on A40, in the form of :func:`limits_of`. The watts are of one GPU."""
    table = pd.read_csv(folder / "a40_power_limits_same_for_all.csv")
    gpus = table["dp"] * table["tp"] * table["pp"]
    table = table.assign(
        watts=table["energy"] / table["time"] / gpus, power_limit=table["power_limit_0"]
    )
    top = table[table["power_limit"] == MAX_POWER_W["a40"]].set_index("model_name")
    return pd.DataFrame(
        {
            "gpu": "a40",
            "network": table["model_name"],
            "batch": table["batch_size"],
            "optimizer": "",
            "power_limit": table["power_limit"],
            "slow": table["time"] / table["model_name"].map(top["time"]),
            "watts": table["watts"],
            "full_w": table["model_name"].map(top["watts"]),
        }
    )


def passes_at_clocks(folder: Path, power: GpuPower) -> tuple[list[dict[str, Any]], pd.Series]:
    """Errors of passes of one stage at set clocks, and the logarithms of the errors of seconds. The seconds
    and joules at the highest clock are given."""
    table = pd.read_csv(folder / "a40_stage_by_frequency.csv")
    held = power.clock_at(power.limit_w)
    found, logs = [], []
    for (model, kind), of in table.groupby(["model", "instruction"]):
        top = of.loc[of["sm_mhz"].idxmax()]
        clock = np.minimum(held, of["sm_mhz"] / power.boost_mhz)
        slow = FOLLOWS * held / clock + 1 - FOLLOWS
        joules = slow * power.watts(clock.to_numpy()) / power.watts(held)
        time_error = slow / (of["time_s"] / top["time_s"]) - 1
        energy_error = joules / (of["energy_j"] / top["energy_j"]) - 1
        logs.append(np.log1p(time_error).abs())
        found.append(
            {
                "what": f"stages, {model} {kind}, A40 not in the fit",
                "rows": len(of),
                "time_percent": 100 * time_error.abs().mean(),
                "energy_percent": 100 * energy_error.abs().mean(),
                "tau_of_joules": kendalltau(joules, of["energy_j"]).statistic,
            }
        )
    return found, pd.concat(logs)


def main() -> None:
    """Judge, and print."""
    asking = parser(__doc__)
    asking.add_argument("--steps", type=Path, help="folder of step_energy")
    asked = asking.parse_args()
    rows = pd.concat([limits_of(gpu) for gpu in GPUS], ignore_index=True)
    found = errors_of("zeus, all in the fit", rows, fitted(rows))
    names = ("awake_hbm", "awake_gddr", "knee", "floor")
    print({name: round(float(value), 3) for name, value in zip(names, fitted(rows), strict=True)})
    without = {gpu: fitted(rows[rows["gpu"] != gpu]) for gpu in GPUS}
    judged = [(f"zeus, {gpu}", rows[rows["gpu"] == gpu], without[gpu]) for gpu in GPUS]
    if asked.steps:
        judged.append(("steps, A40", steps_at_limits(asked.steps), without["a40"]))
    logs = []
    for name, of, constants in judged:
        found += errors_of(f"{name} not in the fit", of, constants)
        below = of[of["power_limit"] < of["power_limit"].max()]
        logs.append(np.log(predicted(below, constants)["slow"] / below["slow"]).abs())
    if asked.steps:
        passes, of_passes = passes_at_clocks(asked.steps, power_of("a40", without["a40"]))
        found, logs = found + passes, [*logs, of_passes]
    found.append({"what": "all that was held out", "time_90_log": pd.concat(logs).quantile(0.9)})
    show(found, asked)
    show(watts_of_steps(rows), asked)


if __name__ == "__main__":
    main()
