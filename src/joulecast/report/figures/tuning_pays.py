"""Whether tuning pays: yes, no or not known, with the number that says so and what it was measured on."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from joulecast.quantities import counted, is_number, percent, steady

_DRAWS, _ENDS, _FEWEST = 2000, (5, 95), 3


_Costs = NDArray[np.float64]


def _answer(low: float, high: float) -> str:
    return "Yes" if high < 1 else "No" if low > 1 else "Not known"


def _interval(low: float, high: float) -> str:
    return f"90 % interval: {percent(100 * low)} to {percent(100 * high)}"


def pays_live(record: Mapping[str, Any]) -> str:
    """The answer of a training that was tuned live: what all its repeats cost, against those with the batch
    size that the search began with.

    The interval is a bootstrap (Efron and Tibshirani 1993) within the repeats of each batch size. An answer
    that would be another one without any single training of the first batch size is none.
    """
    first = record["recurrences"][0]["batch_size"]
    began, others = costs_of_first(record)
    measured = (
        f"{counted(len(began) + len(others), 'training')} of {record['network']}{_goal(record)}, tuned live "
        "in this campaign"
    )
    scope = "It says nothing of the networks above."
    if len(began) < _FEWEST or not len(others):
        return (
            f"Not known: only {len(began)} of {measured}, had the batch size that the search began with "
            f"({first}), and {len(others)} another. {scope}"
        )
    ratio, low, high = _ratio(began, others)
    answer, without = f"{_answer(low, high)}: ", ""
    less = [_ratio(np.delete(began, k), others) for k in range(len(began))]
    changed = [found for found in less if _answer(*found[1:]) != _answer(low, high)]
    if changed and _answer(low, high) != "Not known":
        answer = "Not known: the answer depends on one training. "
        share, *ends = changed[0]
        without = f" With one of these left out, it is {percent(100 * share)} ({_interval(*ends)})."
    return (
        f"{answer}{measured}, took {percent(100 * ratio)} of what they take with batch size {first}, with "
        f"which the search began ({_interval(low, high)}), the search included. {len(began)} of them had "
        f"that batch size themselves.{without} {scope}"
    )


def costs_of_first(record: Mapping[str, Any]) -> tuple[_Costs, _Costs]:
    """Costs of the trainings with the batch size that the search began with, and of the others."""
    rows = [row for row in record["recurrences"] if is_number(row.get("cost"))]
    first = record["recurrences"][0]["batch_size"]
    began, others = (
        np.array([float(r["cost"]) for r in rows if (r["batch_size"] == first) is same])
        for same in (True, False)
    )
    return began, others


def _goal(record: Mapping[str, Any]) -> str:
    """What a training ends with, where the record says so."""
    target = record.get("target_accuracy")
    return f" to accuracy {target:g}" if is_number(target) else ""


def _ratio(began: _Costs, others: _Costs) -> tuple[float, float, float]:
    """Mean of all over the mean of those that began, and its interval; of the same costs always the same."""
    rng = np.random.default_rng(1)

    def of(one: _Costs, other: _Costs) -> _Costs:
        total: _Costs = (one.sum(-1) + other.sum(-1)) / (one.shape[-1] + other.shape[-1])
        ratio: _Costs = total / one.mean(-1)
        return ratio

    drawn = of(*(rng.choice(each, (_DRAWS, len(each))) for each in (began, others)))
    low, high = np.percentile(drawn, _ENDS)
    return float(of(began, others)), float(low), float(high)


def pays_replayed(last: pd.DataFrame) -> str:
    """The answer of policies replayed from recorded trainings: that of the cheapest of them.

    Args:
        last: ``policy``, ``recurrence``, ``ratio`` of cost so far over the default's, a row a setting, all
            of the last recurrence.
    """
    if last.empty:
        return (
            "Not known: no policy was replayed that searches by itself, so none is compared with the "
            "default."
        )
    means = last.groupby("policy")["ratio"].mean().map(steady).sort_values(kind="stable")
    policy = str(means.index[0])
    best = last[last["policy"] == policy]
    values = best["ratio"].to_numpy(float)
    rng = np.random.default_rng(1)
    low, high = np.percentile(rng.choice(values, (_DRAWS, len(values))).mean(axis=1), _ENDS)
    cheaper = int((values < 1).sum())
    return (
        f"{_answer(float(low), float(high))}: after "
        f"{counted(int(best['recurrence'].iloc[0]), 'training')} {policy} has cost "
        f"{percent(100 * float(values.mean()))} of what the default setting costs "
        f"({_interval(low, high)}), less in {cheaper} of {counted(len(values), 'setting')}. Replayed from "
        "recorded trainings, not run here."
    )
