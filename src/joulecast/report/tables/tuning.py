"""Tables of the tuning experiments: how much could be saved, how much policies save, and when they pay
back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.report.tables.output import write_table
from joulecast.report.tables.published import PublishedTuning
from joulecast.runs.files.columns import read_frame
from joulecast.runs.files.reading import read_json_object
from joulecast.tune.comparison import (
    HELD_OUT,
    QUANTITIES,
    STEADY,
    Choice,
    Estimate,
    break_even,
    cumulative_ratios,
    paired_bootstrap,
    recurrences_of,
)
from joulecast.tune.expectation import (
    energy_potential,
    expected_default,
)
from joulecast.tune.policy_experiment import Setting
from joulecast.tune.trial import Goal

_SOURCE = "recorded"
_COMPARED_AT = (5, 10, 20, 50)
PAPER_ZEUS = "zeus, as long as the paper"
_RECORDED_NOTE = (
    "Energies and times are `recorded`: measured by the authors of the traces on their GPUs, replayed here. "
    "In the traces, the number of epochs to the target is the same on all GPUs."
)


@dataclass(frozen=True)
class Replays:
    """Everything that was replayed.

    Attributes:
        by_policy: the recurrences of every policy, also of the curve policy on workloads that were held out.
            Policies are in the order of the tables.
        paper_zeus: recurrences of Zeus, with the number of recurrences in the paper.
        choices: for each workload, the constants of the curve policy that were chosen on the other workloads.
    """

    settings: Sequence[Setting]
    by_policy: Mapping[str, pd.DataFrame]
    paper_zeus: pd.DataFrame
    choices: Mapping[str, Choice]
    eta: float


def read_replays(
    settings: Sequence[Setting],
    eta: float,
    *,
    replays: Path,
    held_out: Path,
    choices: Path,
    paper: Path,
) -> Replays:
    """Read what was replayed from the files that the rules of tuning wrote.

    Raises:
        JoulecastError: a file is missing or cannot be read.
    """
    by_policy = dict(list(read_frame(replays, "replay").groupby("policy", sort=False)))
    by_policy[HELD_OUT] = read_frame(held_out, "replay")
    chosen = read_json_object(choices, "choices of settings held out")
    return Replays(settings, by_policy, read_frame(paper, "replay"), chosen, eta)


def potential(settings: Sequence[Setting], published: PublishedTuning) -> pd.DataFrame:
    """Figure 1 of the Zeus paper as a table, with our numbers next to it."""
    rows = []
    for setting in settings:
        workload, gpu = setting.name
        ours = energy_potential(setting.trace)
        theirs = published.potential.get(workload) if gpu == "v100" else None
        for tuned in ("batch_size_only", "power_limit_only", "both"):
            printed = None if theirs is None else getattr(theirs, tuned)
            value = getattr(ours, tuned)
            rows.append(
                {
                    "workload": workload,
                    "gpu": gpu,
                    "tuned": tuned.replace("_", " "),
                    "source": _SOURCE,
                    "published": printed,
                    "ours": value,
                    "difference": None if printed is None else value - printed,
                    "batch_size": ours.batch_size if tuned == "both" else None,
                    "power_limit_w": ours.power_limit_w if tuned == "both" else None,
                }
            )
    return pd.DataFrame(rows)


def _ratios(
    tables: Mapping[str, pd.DataFrame], settings: Sequence[Setting], eta: float
) -> Iterator[tuple[dict[str, Any], dict[str, Estimate]]]:
    """For each policy and setting, the quantities relative to the default: of the last recurrences
    (``steady``), and of all."""
    for policy, table in tables.items():
        curves = {
            name: recurrences_of(policy, table, settings, column, Goal(eta))
            for name, column in QUANTITIES.items()
        }
        for setting, stretch in product(settings, ("steady", "all")):
            default, ratios = expected_default(setting.trace, eta), {}
            for name, column in QUANTITIES.items():
                recurrences = curves[name][setting.name]
                kept = recurrences[:, -STEADY:] if stretch == "steady" else recurrences
                ratios[name] = Estimate.of(kept.mean(axis=1) / getattr(default, column))
            seeds, count = recurrences.shape
            facts = {
                "policy": policy,
                "workload": setting.name[0],
                "gpu": setting.name[1],
                "source": _SOURCE,
                "recurrences": count,
                "seeds": seeds if seeds > 1 else None,
                "stretch": stretch,
            }
            yield facts, ratios


def savings(replays: Replays) -> pd.DataFrame:
    """Savings in percent, compared with the default: in the last five recurrences, and in all."""
    tables = {**replays.by_policy, PAPER_ZEUS: replays.paper_zeus}
    for policy in ("default", "grid-search"):
        del tables[policy]
    rows = []
    for row, ratios in _ratios(tables, replays.settings, replays.eta):
        for name, ratio in ratios.items():
            saved = {"saving_percent": ratio.mean, "low": ratio.high, "high": ratio.low}
            for what, of_default in saved.items():
                row[f"{name}_{what}"] = None if of_default is None else 100 * (1 - of_default)
        rows.append(row)
    return pd.DataFrame(rows)


def reproduction(
    tables: Mapping[str, pd.DataFrame],
    settings: Sequence[Setting],
    published: PublishedTuning,
    eta: float,
) -> pd.DataFrame:
    """The two experiments of the reproduction, on four GPUs, as ratios to the default."""
    theirs = published.reproduction
    simulated = {
        ("power-limit-only", "steady"): "power_limit_only",
        ("zeus", "steady"): "last_five",
        ("zeus", "all"): "all",
    }
    rows = []
    for facts, ratios in _ratios(tables, settings, eta):
        gpu, policy, stretch = (facts[name] for name in ("gpu", "policy", "stretch"))
        printed = theirs.simulator.get(gpu, {}).get(simulated.get((policy, stretch), ""))
        row = {
            "gpu": gpu,
            "policy": policy,
            "recurrences": "last five" if stretch == "steady" else "all",
            "source": _SOURCE,
        }
        for place, name in enumerate(("energy", "time")):
            ratio = ratios[name]
            row[f"{name}_ratio"] = ratio.mean
            row[f"{name}_low"], row[f"{name}_high"] = ratio.low, ratio.high
            row[f"{name}_authors_simulator"] = None if printed is None else printed[place]
            row[f"{name}_difference"] = None if printed is None else ratio.mean - printed[place]
        row["energy_saving_percent"] = 100 * (1 - row["energy_ratio"])
        rows.append(row)
    return pd.DataFrame(rows)


def comparison(replays: Replays) -> pd.DataFrame:
    """Every policy, compared with Zeus by a paired bootstrap over the settings."""
    ratios = {
        policy: cumulative_ratios(
            recurrences_of(policy, table, replays.settings, "cost", Goal(replays.eta)),
            replays.settings,
            replays.eta,
        )
        for policy, table in replays.by_policy.items()
        if policy != "default"
    }
    last = min(curve.shape[1] for curve in ratios["zeus"].values())
    rows = []
    for policy, curves in ratios.items():
        paid = [break_even(curve) for curve in curves.values()]
        for n in (n for n in _COMPARED_AT if n <= last):
            means = [curve[:, n - 1].mean() for curve in curves.values()]
            row: dict[str, Any] = {
                "policy": policy,
                "recurrences": n,
                "source": _SOURCE,
                "mean_cost_ratio": float(np.mean(means)),
                "largest_cost_ratio": float(np.max(means)),
            }
            if policy != "zeus":
                difference = paired_bootstrap(curves, ratios["zeus"], n)
                row |= {
                    "difference_to_zeus": difference.difference,
                    "low": difference.over_settings[0],
                    "high": difference.over_settings[1],
                    "low_workloads": difference.over_workloads[0],
                    "high_workloads": difference.over_workloads[1],
                    "better_than_zeus_in": f"{difference.better_in} of {difference.settings}",
                }
            paid_or_not = [last + 1 if p is None else p for p in paid]
            row["mean_break_even"] = float(np.mean(paid_or_not))
            row["median_break_even"] = float(np.median(paid_or_not))
            row["pays_back_in"] = f"{sum(p is not None for p in paid)} of {len(paid)}"
            rows.append(row)
    return pd.DataFrame(rows)


def write_tuning_tables(
    folder: Path,
    replays: Replays,
    of_reproduction: Mapping[str, pd.DataFrame],
    reproduction_settings: Sequence[Setting],
    published: PublishedTuning,
) -> None:
    """Write the four tables of the replays."""
    low, high = published.energy_saving_percent
    theirs_low, theirs_high = published.reproduction.energy_saving_percent
    paper = f"Published: {published.paper}; {published.where}."
    write_table(
        folder / "tuning_potential",
        "What tuning could save: least energy relative to the default",
        [
            "Mean over the recorded runs, relative to the default batch size at the highest power limit. A "
            "batch size counts only if all of its runs reached the target. The paper prints the V100.",
            _RECORDED_NOTE,
            paper,
        ],
        potential(replays.settings, published),
    )
    write_table(
        folder / "tuning_savings",
        "What policies save",
        [
            "Savings relative to the expected default, in percent: mean over seeds, with a 95 % interval. A "
            "policy without randomness has no interval. `stretch`: `steady`, the last "
            f"{STEADY} recurrences, or `all`, with exploration.",
            f"`{PAPER_ZEUS}` has as many recurrences as the paper. The paper prints a range of its "
            f"workloads, in the steady state and over its own measurements: {low:g} to {high:g} % of "
            f"energy, up to {published.time_saving_percent_up_to:g} % of time.",
            f"Cost = {replays.eta:g} x energy + {1 - replays.eta:g} x time x the highest power limit.",
            _RECORDED_NOTE,
            paper,
        ],
        savings(replays),
        sections="policy",
    )
    write_table(
        folder / "tuning_reproduction",
        "The reproduction's experiments: CIFAR-100 to an accuracy of 0.5",
        [
            "Ratios to the default. `authors_simulator`: results of the authors' public simulator on the "
            "same traces, run for this project. No paper prints them. The "
            f"reproduction itself ({published.reproduction.paper}) reports savings of energy of "
            f"{theirs_low:g} to {theirs_high:g} %, and worse ones with the power limit "
            "alone.",
            _RECORDED_NOTE,
        ],
        reproduction(of_reproduction, reproduction_settings, published, replays.eta),
    )

    chosen = "; ".join(
        f"{workload}: " + ", ".join(f"{name} {value:g}" for name, value in choice.items())
        for workload, choice in replays.choices.items()
    )
    write_table(
        folder / "tuning_comparison",
        "Policies against Zeus",
        [
            "Mean over settings of the cumulative cost, relative to that of the default. The difference to "
            "Zeus has the 95 % interval of a paired bootstrap over settings, and (`low_workloads`, "
            "`high_workloads`) over whole workloads, whose settings share their epochs. In "
            "`mean_break_even` and `median_break_even`, a setting that does not pay back counts as one "
            "recurrence more than there are. `largest_cost_ratio`: of the worst setting.",
            f"`{HELD_OUT}`: the curve policy with three constants chosen on the other workloads ({chosen}); "
            "its form, its prior and its other constants were found on these traces. `warm-start` has seen "
            "one run of every batch size on another GPU. The cost of these runs is not counted.",
        ],
        comparison(replays),
        sections="policy",
    )


def write_live_table(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the table of a training that was tuned live, with a row for each recurrence."""
    reached = sum(bool(row["reached"]) for row in record["recurrences"])
    metered = sum(row["energy_j"] is not None for row in record["recurrences"])
    write_table(
        folder / "tuning_live",
        f"Tuned live: {record['network']} on digits",
        [
            f"Measured here: {len(record['recurrences'])} recurrences of a training to an accuracy of "
            f"{record['target_accuracy']:g} on the test split, policy {record['policy']}; {reached} reached "
            f"it, in {record['training_s']:.1f} s of training altogether.",
            f"The cost is in {record['cost_unit']}. The energy of {metered} of the recurrences is known"
            + (f"; elsewhere: {record['why_no_energy']}." if record["why_no_energy"] else "."),
            *record["notes"],
        ],
        pd.DataFrame(record["recurrences"]),
    )
