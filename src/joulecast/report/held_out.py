"""How wrong the model was on runs that its fit had not seen, with rivals, intervals and spread."""

from collections.abc import Iterator, Sequence

import pandas as pd

from joulecast.energy.splits import USUAL, usual_time
from joulecast.quantities import counted, is_number, percent
from joulecast.report.results_folder import NothingToShow, Results
from joulecast.runs.judging import (
    MEASURED,
    OF_ENERGY,
    OURS,
    SETTING,
    best_rival,
    by_setting,
    run_to_run_cv,
    summarise,
)

_SPLITS = (*USUAL, "in-sample")
BEYOND = ("extrapolation",)
"""The split that judges forecasts beyond what was run."""
_SPLIT_SENTENCES = {
    "leave-one-node-count-out": "The fit had seen no run on the node count that it predicts here.",
    "extrapolation": "The fit had seen runs on at most a quarter of the nodes.",
    "leave-one-workload-out": "The fit had seen the network on its smallest node count only, and others.",
    "in-sample": "The fit had seen these very runs, so this says nothing of settings that are new; more node "
    "counts are needed for that.",
}


def split_sentence(split: str) -> str:
    """What a fit had seen of what it is judged on."""
    return _SPLIT_SENTENCES.get(split, f"Split: {split}.")


def _first_split(frame: pd.DataFrame, splits: Sequence[str]) -> pd.DataFrame:
    """What all models predicted of the first of the splits that there is of MC2."""
    known = frame[frame["measured"].notna() & frame["predicted"].notna()]
    for split in splits:
        rows = known[known["split"] == split]
        if (rows["model"] == OURS).any():
            return rows
    raise NothingToShow(f"the fit has no prediction of {OURS}", "energy_tables")


def _all_times(results: Results, splits: Sequence[str] = _SPLITS) -> pd.DataFrame:
    rows = _first_split(results.fit.judged("time"), splits)
    return by_setting(rows, [*SETTING, "split", "model"])


def _all_energies(
    results: Results, splits: Sequence[str] = _SPLITS
) -> Iterator[tuple[str, pd.DataFrame]]:
    energies = results.fit.judged("energy")
    asked = energies[energies["time"] == energies["split"].map(usual_time)]
    try:
        cells = by_setting(_first_split(asked, splits), [*OF_ENERGY, "split", "model"])
    except NothingToShow:
        return
    for source, of_source in cells.groupby("energy_source", sort=True):
        if (of_source["model"] == OURS).any():
            yield str(source), of_source


def unseen_times(results: Results) -> pd.DataFrame:
    """A row a setting: ``measured`` and MC2's ``predicted`` in s, of the first usual split.

    Raises:
        NothingToShow: nothing was fitted.
    """
    cells = _all_times(results)
    return cells[cells["model"] == OURS]


def unseen_energies(results: Results) -> Iterator[tuple[str, pd.DataFrame]]:
    """Rows as in :func:`unseen_times` in J, for each energy source; none where there is no energy."""
    for source, cells in _all_energies(results):
        yield source, cells[cells["model"] == OURS]


def _best_rival(cells: pd.DataFrame) -> str:
    """The rival that was the least off of those that predicted all that MC2 did, and by how much."""
    table = summarise(cells, ["model"])
    best = best_rival(table)
    if best is None:
        return ""
    ours = table.loc[table["model"] == OURS, "mape_percent"].iloc[0]
    better = " (better than MC2 here)" if best["mape_percent"] < ours else ""
    return f"the best rival, {best['model']}: {percent(best['mape_percent'])}{better}"


def _error(cells: pd.DataFrame) -> str:
    """How far MC2 was off, the best rival, and how many runs its interval held; without a dot."""
    ours = summarise(cells[cells["model"] == OURS], ["split"]).iloc[0]
    seen = ours["split"] == "in-sample"
    text = (
        f"{percent(ours['mape_percent'])} off on average, over {counted(int(ours['settings']), 'setting')}"
        + ("" if seen else " it had not seen")
    )
    held = (
        f"{ours['covered_percent']:.0f} % of the {'' if seen else 'held-out '}runs lie inside the 90 % "
        "interval"
        if is_number(ours["covered_percent"])
        else ""
    )
    bias = ours["bias_percent"]
    leans = f"{percent(abs(bias))} too {'high' if bias > 0 else 'low'} on the whole"
    # In the sample, what has more parameters is closer.
    return "; ".join(
        filter(None, [text, "" if seen else leans, "" if seen else _best_rival(cells), held])
    )


def error_sentences(results: Results, splits: Sequence[str] = _SPLITS) -> list[str]:
    """Sentences on the errors of MC2: one for the time, one for each source of energies.

    Args:
        splits: the first one that was judged counts; :data:`BEYOND` for forecasts beyond what was run.

    Raises:
        NothingToShow: nothing was fitted, or judged on these splits.
    """
    sentences = [f"Time: {_error(_all_times(results, splits))}."]
    for source, cells in _all_energies(results, splits):
        if source in MEASURED:
            sentences.append(f"Energy ({source}): {_error(cells)}.")
        else:
            sentences.append(
                f"Energy: {_error(cells)}; against {source} energy, which no meter measured, so it does not "
                "say how wrong the model is about measured energy."
            )
    return sentences


def more_on_errors(results: Results) -> list[str]:
    """What the errors of :func:`error_sentences` are to be read with: the worst, and how repeats differ.

    Raises:
        NothingToShow: nothing was fitted.
    """
    worst = [f"the time {_worst(unseen_times(results))}"]
    worst += [f"the {source} energy {_worst(cells)}" for source, cells in unseen_energies(results)]
    sentences = [f"At worst {' and '.join(worst)} off."]
    clean = results.clean
    varies = [("the time", clean, "total_s")]
    varies += [(f"the {s} energy", runs, "energy_j") for s, runs in clean.groupby("energy_source")]
    known = [(what, run_to_run_cv(runs.astype({of: float}), of)) for what, runs, of in varies]
    spread = [f"{what} by {percent(cv)}" for what, cv in known if is_number(cv)]
    if spread:
        sentences.append(f"Repeats of one setting vary: {' and '.join(spread)}.")
    return sentences


def _worst(cells: pd.DataFrame) -> str:
    return f"was {percent(cells['difference_percent'].abs().max())}"
