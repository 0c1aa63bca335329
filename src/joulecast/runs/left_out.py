"""Finds the runs that fits leave out, and why: something disturbed or broke them, or they did no work.

The reasons are in the columns ``left_out`` and ``left_out_for`` of the runs table. A run without a reason is
used.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.quantities import digits, listed
from joulecast.runs.judging import SETTING
from joulecast.runs.observations import is_training, observe_all
from joulecast.runs.provenance import gpus_in_words
from joulecast.runs.record import RunInfo, read_info
from joulecast.runs.spec import THIS_MACHINE


def used(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of the runs table that are not left out."""
    return runs[runs["left_out"] == ""]


def left_out(runs: pd.DataFrame) -> list[dict[str, str]]:
    """Runs that fits leave out, each with its reasons, and with the kinds of the reasons."""
    marked = runs[runs["left_out"] != ""]
    return [
        {"run": row.run, "kind": row.left_out_for, "reason": row.left_out}
        for row in marked.itertuples()
    ]


def runs_to_fit(folders: Sequence[Path]) -> pd.DataFrame:
    """The runs table of some records. A run that fits leave out has the reason in its row.

    Raises:
        JoulecastError: no training run is left to fit (the error says why); or a run is there twice; or
            different trainings have the same name; or different machines have the same name.
    """
    runs = observe_all(folders)
    if runs.empty:
        raise JoulecastError("there are no records to fit")
    runs = _marked(runs, is_training(runs) & ~(runs["samples"] > 0), "no work done")
    disturbed = runs["disturbed"] != ""
    whole = ~disturbed & (runs["left_out"] == "")
    # A disturbed run is used only if its setting has no other.
    spare = disturbed & whole.groupby(
        [runs[key] for key in ("kind", *SETTING)], dropna=False
    ).transform("any")
    runs = _marked(runs, spare, "disturbed", runs["disturbed"])
    runs = _of_one_unit(runs)
    if not is_training(used(runs)).any():
        reasons = [
            f"{listed(list(alike['run']), 3)}: {reason}"
            for reason, alike in runs[runs["left_out"] != ""].groupby("left_out", sort=False)
        ]
        raise JoulecastError(f"no training run is left to fit. Left out: {listed(reasons, 3)}")
    _refuse_copies(used(runs))
    _refuse_two_of_one_name(used(runs))
    _refuse_two_machines(used(runs))
    return runs


def _marked(
    runs: pd.DataFrame, which: pd.Series, kind: str, more: pd.Series | None = None
) -> pd.DataFrame:
    """The runs, some with one more reason to be left out: its kind, and a text."""
    reason = kind if more is None else kind + ": " + more
    reasons, kinds = runs["left_out"] + "; " + reason, runs["left_out_for"] + ", " + kind
    return runs.assign(
        left_out=runs["left_out"].where(~which, reasons.str.removeprefix("; ")),
        left_out_for=runs["left_out_for"].where(~which, kinds.str.removeprefix(", ")),
    )


def _of_one_unit(runs: pd.DataFrame) -> pd.DataFrame:
    """Leave out runs that count their work in another unit than the other runs of the training, because steps
    and samples cannot be compared. Runs that count samples are kept. If no run counts samples, the most
    frequent unit is kept."""
    for _, alike in used(runs)[is_training(used(runs))].groupby(["platform", "workload"]):
        units = alike["work_unit"]
        if units.nunique() < 2:
            continue
        usual = "samples" if (units == "samples").any() else units.mode().iloc[0]
        other = runs.index.isin(alike.index[units != usual])
        words = (
            "its work is counted in " + runs["work_unit"] + f", the work of other runs in {usual}"
        )
        runs = _marked(runs, pd.Series(other, index=runs.index), "another unit of work", words)
    return runs


def _refuse_copies(runs: pd.DataFrame) -> None:
    """Raise an error if two records are of one run, such as a backup, or a copy with one more meter. The copy
    would count as a repeat."""
    found: dict[tuple[str, ...], str] = {}
    same = runs.duplicated(["run", "workload", "platform", "total_s"], keep=False)
    for row in runs[same].itertuples():
        started = read_info(Path(row.folder)).started_utc
        other = found.setdefault((row.run, row.workload, row.platform, started), row.folder)
        if other != row.folder:
            raise JoulecastError(
                f"{row.run} is there twice: {other} and {row.folder}; give a folder that has one of them "
                "(--records)"
            )


def _refuse_two_of_one_name(runs: pd.DataFrame) -> None:
    """Raise an error if runs that count as repeats trained networks of different sizes."""
    trained = runs[(runs["kind"] == "training") & (runs["gradient_bytes"] > 0)]
    # Numbers of ranks are checked separately. With more ranks, a rank of a sharded network has fewer
    # parameters.
    for (name, _), alike in trained.groupby(["workload", "ranks"]):
        first = alike.drop_duplicates("gradient_bytes")
        if len(first) > 1:
            sizes = ", ".join(
                f"{row.run} {digits(row.gradient_bytes / 4)}" for row in first.itertuples()
            )
            raise JoulecastError(
                f"{name}: its runs trained different networks (parameters: {sizes}); measure each under a "
                "separate name (--name), or name the folder of one alone (--records)"
            )


def _refuse_two_machines(runs: pd.DataFrame) -> None:
    """Raise an error if runs on the platform without a name were made on machines with different
    processors, memory or GPUs. Such runs are neither repeats nor scales of each other."""
    here = runs.loc[(runs["platform"] == THIS_MACHINE) & (runs["kind"] != "imported"), "folder"]
    found: dict[str, RunInfo] = {}
    for info in (read_info(Path(folder)) for folder in here):
        if info.hosts:
            found.setdefault(_machine(info), info)
    if len(found) > 1:
        named = [f"{info.spec.run} on {machine}" for machine, info in found.items()]
        raise JoulecastError(
            f"runs of different machines are all called {THIS_MACHINE}: {listed(named, 3)}; give the folder "
            "of one machine alone (--records), or measure each with --platform FILE.yaml, which names it"
        )


def _machine(info: RunInfo) -> str:
    """The processors, the memory and the GPUs of a run's hosts, in words. The memory is rounded to two
    digits, because the kernel takes some of it."""
    facts = {
        f"{host.get('cpu', 'an unknown processor')}, {host.get('memory_bytes', 0) / 2**30:.2g} GiB"
        + gpus_in_words(host)
        for host in info.hosts
    }
    return " and ".join(sorted(facts))
