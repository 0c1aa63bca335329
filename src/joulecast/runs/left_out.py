"""Which runs no fit sees, and why: what disturbed or broke them, and what did no work.

The reasons stand in the columns ``polluted`` and ``left_out_for`` of the runs table; a run without any is
used.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.quantities import digits
from joulecast.runs.judging import SETTING
from joulecast.runs.observations import is_training, observe_all


def used(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of the runs table that nothing leaves out."""
    return runs[runs["polluted"] == ""]


def left_out(runs: pd.DataFrame) -> list[dict[str, str]]:
    """Runs that no fit sees, each with the kinds of its reasons and the reasons themselves."""
    marked = runs[runs["polluted"] != ""]
    return [
        {"run": row.run, "kind": row.left_out_for, "reason": row.polluted}
        for row in marked.itertuples()
    ]


def runs_to_fit(folders: Sequence[Path]) -> pd.DataFrame:
    """The runs table of some records, in which runs that no fit may see have the reason.

    Raises:
        JoulecastError: no training run is left to fit, with why each was left out; or different trainings
            have one name.
    """
    runs = observe_all(folders)
    if runs.empty:
        raise JoulecastError("there are no records to fit")
    runs = _marked(runs, is_training(runs) & ~(runs["samples"] > 0), "no work done")
    disturbed = runs["disturbed"] != ""
    whole = ~disturbed & (runs["polluted"] == "")
    # A disturbed run serves where its setting has no other.
    spare = disturbed & whole.groupby(
        [runs[key] for key in ("kind", *SETTING)], dropna=False
    ).transform("any")
    runs = _marked(runs, spare, "disturbed", runs["disturbed"])
    if not is_training(used(runs)).any():
        reasons = "; ".join(f"{out['run']}: {out['reason']}" for out in left_out(runs))
        raise JoulecastError(f"no training run is left to fit ({reasons})")
    _refuse_two_of_one_name(used(runs))
    return runs


def _marked(
    runs: pd.DataFrame, which: pd.Series, kind: str, more: pd.Series | None = None
) -> pd.DataFrame:
    """The runs, of which some have one more reason to be left out: a kind, and more words on it."""
    reason = kind if more is None else kind + ": " + more
    reasons, kinds = runs["polluted"] + "; " + reason, runs["left_out_for"] + ", " + kind
    return runs.assign(
        polluted=runs["polluted"].where(~which, reasons.str.removeprefix("; ")),
        left_out_for=runs["left_out_for"].where(~which, kinds.str.removeprefix(", ")),
    )


def _refuse_two_of_one_name(runs: pd.DataFrame) -> None:
    """Raise where runs that count as repeats trained networks of different sizes."""
    trained = runs[(runs["kind"] == "training") & (runs["gradient_bytes"] > 0)]
    # Per number of ranks: a sharded network has fewer parameters on each of more ranks.
    for (name, _), alike in trained.groupby(["workload", "ranks"]):
        first = alike.drop_duplicates("gradient_bytes")
        if len(first) > 1:
            sizes = ", ".join(
                f"{row.run} {digits(row.gradient_bytes / 4)}" for row in first.itertuples()
            )
            raise JoulecastError(
                f"{name}: its runs trained different networks (parameters: {sizes}); measure each under a "
                "name of its own (--name), or give the folder of one alone (--records)"
            )
