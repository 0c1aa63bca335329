"""Settings that were run: the mean of their runs, and how far the model is from this mean.

If a setting was run, a forecast and an advice have the mean of its runs in place of the model's figures.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.energy.intervals import REPEATS, per_work, spreads_on
from joulecast.energy.prices import at_wall
from joulecast.quantities import consumptions, counted, digits, is_number, listed, percent, times
from joulecast.runs.record import read_info
from joulecast.runs.scale import hosts_and_gpus, is_observed, scale_in_words

_SAME_WORK = 0.02
"""Imported runs also count for an amount of work that differs from their own by at most this share."""

_LONG = 10.0
"""A note is given if the work is more than this many times the work of the longest run."""

_MANY = {"gpu": "GPUs", "cpu": "processors", "socket": "sockets"}
"""The plural of each part that a node has several times, in words."""

_IN_WORDS = {"time": ("s", times), "energy": ("j", consumptions)}


def metered_parts(runs: pd.DataFrame) -> str | None:
    """The parts of nodes that had meters, in words; ``None`` if whole nodes or modules had meters, or if
    nothing had a meter."""
    if "energy_covers" not in runs:
        return None
    parts = [str(covers) for covers in runs["energy_covers"].dropna().unique()]
    if {"node", "module"} & {*parts}:
        return None
    return listed(sorted({_MANY.get(p, p) for covers in parts for p in covers.split("+")})) or None


def runs_of(of_workload: pd.DataFrame, setting: Mapping[str, Any]) -> pd.DataFrame:
    """The runs of exactly one setting.

    If imported runs did another amount of work than is requested, they do not count. The start and the pauses
    of such runs do not grow with the work, so they do not show what the asked amount takes.

    Args:
        setting: the setting. If it is to train to its target, its ``samples`` are NaN.
    """
    same = of_workload["nodes"] == setting["nodes"]
    if pd.notna(setting["batch"]):
        same &= of_workload["batch"] == setting["batch"]
    if is_observed(of_workload):
        # Four ranks on one host are no repeat of four ranks on two hosts.
        same &= np.ceil(of_workload["nodes"] / of_workload["ranks_per_host"]) == setting["hosts"]
    runs = of_workload[same]
    is_other = setting["kind"] == "imported" and pd.notna(setting["samples"])
    if is_other and abs(runs["samples"].mean() / setting["samples"] - 1) > _SAME_WORK:
        return runs.iloc[:0]
    return runs


def put_in_measured(
    fitted: pd.DataFrame, of_workload: pd.DataFrame, predicted: pd.DataFrame
) -> pd.DataFrame:
    """If a setting was run, replace the model's time and energy by the mean of its runs.

    The energy is replaced only if the runs have one.

    The 90 % interval of such a mean is the interval of one more run. It follows from how repeats differ on
    the platform.

    Args:
        fitted: the runs to which the model was fitted.
        of_workload: the rows of ``fitted`` for the workload of the settings.
        predicted: a row for each setting, with the columns of :data:`joulecast.runs.judging.ANSWER`.

    Returns:
        ``predicted`` with additional columns: ``basis`` (``measured`` or ``fitted``), ``runs`` and
        ``runs_with_energy`` (their numbers for exactly this setting), ``width_is_assumed`` (no repeats show
        how runs differ), ``fitted_time_s`` and ``fitted_energy_j`` (the answer of the model), and
        ``energy_source`` and ``energy_covers`` (the parts of nodes that had meters).
    """
    spreads = spreads_on(fitted, of_workload)
    # MC2 learns powers from the runs of the platform alone.
    on_platform = fitted[fitted["platform"] == of_workload["platform"].iloc[0]]
    rows = []
    for row in predicted.to_dict("records"):
        own = runs_of(of_workload, row)
        done = per_work(own)
        counts = {name: int(count) for name, count in done.count().items()}
        if row["kind"] == "imported" and len(own):
            # With a target, the work of a setting is the mean work of its runs.
            row["work"] = row["samples"] if pd.notna(row["samples"]) else own["samples"].mean()
        # As in a forecast, the last step is a whole one.
        units = row["work"] if row["kind"] == "imported" else row["steps"]
        for name, spread in spreads.items():
            row[f"fitted_{name}"] = row[name]
            if counts[name]:
                mean, half = float(done[name].mean()) * units, spread.half(counts[name])
                quantity, unit = name.split("_")
                row |= {
                    name: mean,
                    f"{quantity}_low_{unit}": mean * math.exp(-half),
                    f"{quantity}_high_{unit}": mean * math.exp(half),
                }
        rows.append(
            row
            | {
                "basis": "measured" if counts["time_s"] else "fitted",
                "runs": counts["time_s"],
                "runs_with_energy": counts["energy_j"],
                "width_is_assumed": any(
                    counts[name] and spread.is_assumed for name, spread in spreads.items()
                ),
                **_origin(
                    (own if counts["energy_j"] else on_platform)
                    if is_number(row["energy_j"])
                    else fitted.iloc[:0]
                ),
            }
        )
    return pd.DataFrame(rows, index=predicted.index)


def _origin(runs: pd.DataFrame) -> dict[str, str | None]:
    """The sources of the energies of some runs (measured, estimated, ...), and the parts of nodes that these
    energies cover."""
    known = runs.loc[runs["energy_j"].notna()].reindex(columns=["energy_source", "energy_covers"])
    return {name: ", ".join(sorted(known[name].dropna().unique())) or None for name in known}


def differences(rows: pd.DataFrame, are: str) -> list[str]:
    """Notes for the time and for the energy, if the model differs from the mean of a setting's runs by
    more than :data:`REPEATS`.

    Args:
        rows: rows of one workload, from :func:`put_in_measured`.
        are: what these settings are: ``forecast`` or ``compared``.
    """
    notes = []
    for quantity, (unit, in_words) in _IN_WORDS.items():
        name = f"{quantity}_{unit}"
        ran = rows[(rows["runs"] > 0) & (rows[f"fitted_{name}"] > 0)]
        if quantity == "energy":
            # A difference from an estimated energy is no error.
            ran = ran[(ran["runs_with_energy"] > 0) & (ran["energy_source"] != "estimated")]
        far = (ran[f"fitted_{name}"] / ran[name] - 1).abs()
        off = ran[far > REPEATS]
        if off.empty:
            continue
        worst = off.loc[far[off.index].idxmax()].to_dict()
        said, was = in_words(worst[f"fitted_{name}"], worst[name])
        by = percent(100 * (worst[f"fitted_{name}"] / worst[name] - 1), signed=True)
        where = f"of {_setting(worst)}"
        if len(ran) > 1:
            where = f"in {len(off)} of the {len(ran)} {are} settings that were run"
            where += f". The worst is {_setting(worst)}"
        notes.append(
            f"{worst['workload']}: MC2's {quantity} is more than {100 * REPEATS:g} % off the runs to "
            f"which it was fitted, {where}: MC2 says {said}, the runs say {was} ({by}). Settings that were "
            "not run may be as far off"
        )
    return notes


def notes_on(
    of_workload: pd.DataFrame,
    predicted: pd.DataFrame,
    remarks: Sequence[str],
    times_of_others: pd.DataFrame,
    are: str = "forecast",
) -> list[str]:
    """What a reader of predictions should know of the runs behind them.

    The notes say how far the model is off the runs, whether the runs trained in different ways, and whether
    the spread of repeats is assumed. They also say how many times larger the predicted work is than the work
    of any run, which times of others are also used, and which part of a node was metered. Finally, they say
    which runs had more ranks than cores, and how many hosts are assumed for the largest scale.

    Args:
        remarks: remarks of the model. A remark on a workload begins with its name.
        times_of_others: times of others that the model has also seen; may be empty.
        are: as in :func:`differences`.
    """
    workload = str(of_workload["workload"].iloc[0])
    notes = [text for text in remarks if text.startswith(f"{workload}:")]
    notes += _of_several_trainings(workload, of_workload)
    notes += differences(predicted, are)
    if predicted["width_is_assumed"].any():
        notes.append(
            f"{workload}: no repeats show how much runs differ. The "
            "intervals assume that they differ as in MLPerf: nine of ten pairs of repeats differ by less "
            f"than {100 * REPEATS:g} %"
        )
    asked, longest = float(predicted["work"].max()), float(of_workload["samples"].max())
    if asked > _LONG * longest:
        notes.append(
            f"{workload}: the work is {digits(asked / longest)} times that of the longest run. The forecast "
            "assumes that a longer run does not change the time of a step"
        )
    if (of_workload["kind"] == "imported").all():
        notes += _on_other_scales(workload, of_workload, times_of_others)
        if of_workload["supply"].nunique() > 1:
            notes.append(
                f"{workload}: some runs were metered before the power supplies (AC), others behind them "
                "(DC). The fit does not know this: energies may be off by the loss in the power supplies"
            )
    parts = metered_parts(of_workload)
    if parts:
        notes.append(
            f"{workload}: only the {parts} of the nodes had meters. Energy, money and CO2 do not contain "
            "the other parts"
        )
    largest = predicted.loc[predicted["nodes"].idxmax()].to_dict()
    if largest.get("supply") == "DC" and pd.notna(largest["energy_j"]):
        notes.append(f"{workload}: {at_wall(largest['conversion_eff'])}")
    crowded = [
        str(run)
        for run, folder, nodes_are in of_workload[["run", "folder", "nodes_are"]].itertuples(
            index=False
        )
        # Emulated nodes are as fast as a node with its own core, whatever their number.
        if nodes_are != "emulated" and read_info(Path(folder)).oversubscribed
    ]
    if crowded:
        notes.append(
            f"{workload}: {listed(crowded, 3)} had more ranks than cores. Such ranks take longer than ranks "
            "with a core each, and the fit does not know this"
        )
    ran = of_workload.loc[of_workload["nodes"].idxmax()].to_dict()
    hosts_ran, _ = hosts_and_gpus(ran)
    hosts, _ = hosts_and_gpus(largest)
    if is_observed(of_workload) and hosts_ran and hosts and hosts > hosts_ran:
        scale = scale_in_words(largest["nodes"], largest["nodes_are"])
        notes.append(
            f"{workload}: the forecast assumes that {scale} are {counted(round(hosts), 'host')} of up to "
            f"{largest['ranks_per_host']:g} (--gpus-per-node), each with its power, and that they exchange "
            f"as fast as the runs on {counted(round(hosts_ran), 'host')}. Over a slower link they take longer"
        )
    return notes


def _of_several_trainings(workload: str, of_workload: pd.DataFrame) -> list[str]:
    """A note where runs that count as repeats did not train in the same way."""
    seen: dict[str, set[str]] = {}
    for folder in of_workload["folder"]:
        info = read_info(Path(folder))
        spec, fields = info.spec, dict[str, object]()
        if spec.workload is not None and spec.training is not None:
            fields = {
                "image size": spec.workload.image_size,
                "data": spec.workload.dataset,
                "precision": spec.training.precision,
                "threads of a rank": spec.threads_per_rank,
                "emulation": spec.emulation,
            }
        elif spec.observed is not None:
            said = next((text for text in info.remarks if text.startswith("observed: ")), "")
            fields = {"optimizer and precision": said.split(", ")[:2]}
        for name, value in fields.items():
            seen.setdefault(name, set()).add(str(value))
    mixed = [name for name, values in seen.items() if len(values) > 1]
    if not mixed:
        return []
    return [
        f"{workload}: its runs differ in {listed(mixed)}, but count as repeats of one training. Measure each "
        "training under its own name (--name), or name the records of one (--records)"
    ]


def _on_other_scales(workload: str, of_workload: pd.DataFrame, others: pd.DataFrame) -> list[str]:
    """A note that says where the scaling of imported runs comes from: from times of others for a network of
    the same name, or from a guess."""
    network = of_workload["network"].iloc[0]
    known = set(others["network"]) if len(others) else set()
    if network in known:
        submitters = others.loc[others["network"] == network, "submitter"].nunique()
        others_are = counted(submitters, "other submitter")
        return [f"{workload}: the forecast also uses MLPerf times of {others_are} of {network}"]
    if of_workload["nodes"].nunique() > 1:
        return []
    ran = scale_in_words(of_workload["nodes"].iloc[0], of_workload["nodes_are"].iloc[0])
    return [
        f"{workload}: all runs are on {ran}, so the growth of time with nodes is a guess, with a wide "
        "interval. Measure a second count, or import it under the name that recorded MLPerf times have"
        + (f" ({', '.join(sorted(known))})" if known else "")
    ]


def _setting(row: Mapping[str, Any]) -> str:
    batch = (
        ""
        if pd.isna(row["batch"]) or row["work_unit"] == "steps"
        else f", batch {row['batch']:,.10g}"
    )
    return scale_in_words(row["nodes"], row["nodes_are"]) + batch
