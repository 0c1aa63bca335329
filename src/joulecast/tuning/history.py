"""What was tried so far: the only thing a policy knows.

A history also lives in a file, a JSON line a trial after a line that says whose it is, so that a loop that
was killed goes on where it was.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.tuning.trial import EpochAtLimit, Proposal, Trial

_FORMAT = 1
# A size whose first epoch alone is above the bound is taken for this many times the bound.
_NOT_STARTED_PENALTY = 100.0


@dataclass(slots=True)
class Arm:
    """Trials of one batch size.

    Attributes:
        costs: of the trials whose cost is known, in order; one that was not started, because its first
            epoch would have been above the bound, stands there with 100 times that bound.
        limits: epochs under the power limits that were tried, the newest of each.
    """

    costs: list[float] = field(default_factory=list)
    reached: int = 0
    failed: int = 0
    limits: Mapping[int, EpochAtLimit] = field(default_factory=dict)


class History:
    """Trials in order, and what policies ask of them.

    Attributes:
        trials: all of them.
        arms: by batch size.
        experiments: tries that are to tell of a batch size, were submitted, and have not ended.
        totals: cost of every recurrence that reached its target with known cost, in order of their end.
    """

    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self.trials: list[Trial] = []
        self.arms: dict[int, Arm] = {}
        self.experiments = 0
        self.totals: list[float] = []
        self._open: dict[int, float | None] = {}
        for trial in trials:
            self.append(trial)

    def append(self, trial: Trial) -> None:
        """A trial has ended."""
        self.trials.append(trial)
        arm = self.arms.setdefault(trial.proposal.batch_size, Arm())
        if trial.reached:
            arm.reached += 1
        else:
            arm.failed += 1
        if trial.limits:
            arm.limits = {**arm.limits, **trial.limits}
        spent = self._open.get(trial.recurrence, 0.0)
        if trial.cost is None:
            spent = None
        else:
            not_started = trial.stopped_by == "not_started"
            penalty = _NOT_STARTED_PENALTY * trial.proposal.cost_bound
            arm.costs.append(penalty if not_started else trial.cost)
            if spent is not None:
                spent += trial.cost
        self._open[trial.recurrence] = spent
        if trial.reached:
            if spent is not None:
                self.totals.append(spent)
            del self._open[trial.recurrence]

    def least_total(self, window: int | None = None) -> float:
        """The least cost of a recurrence, tries that failed included; of the last ``window`` ones.

        Only recurrences that reached their target count: one that did not was cheap for no good reason.
        """
        totals = self.totals if window is None else self.totals[-window:]
        return min(totals, default=inf)


def _header(whose: Mapping[str, Any]) -> dict[str, Any]:
    return {"format": _FORMAT, **whose}


def _differences(
    then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Keys of ``now`` whose value was another; those of an inner mapping one by one."""
    for key, value in now.items():
        was = then.get(key)
        if isinstance(value, dict) and isinstance(was, dict):
            yield from _differences(was, value, f"{prefix}{key}.")
        elif was != value:
            yield f"{prefix}{key}", was, value


def begin_history_file(path: Path, whose: Mapping[str, Any]) -> History:
    """Begin a history file, or go on with the one that is there.

    Args:
        whose: what the trials are trials of; a file that says otherwise is not gone on with.

    Raises:
        JoulecastError: the file is of something else, or not a history.
    """
    if path.exists():
        said, history = read_history_file(path)
        for key, then, now in _differences(said, json.loads(json.dumps(_header(whose)))):
            raise JoulecastError(
                f"{path}: its `{key}` is {then}, now it is {now}; unlike trials do not mix: move "
                "the file away, or name another"
            )
        return history
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_header(whose)) + "\n")
    return History()


def add_to_history_file(path: Path, trial: Trial) -> None:
    """Append a trial; a line that is not whole (the machine died) is dropped when the file is read."""
    content = asdict(trial)
    bound = trial.proposal.cost_bound
    content["proposal"]["cost_bound"] = None if bound == inf else bound
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(content) + "\n")


def _trial(content: dict[str, Any]) -> Trial:
    proposal = dict(content["proposal"])
    bound = proposal["cost_bound"]
    proposal["cost_bound"] = inf if bound is None else bound
    proposal["power_limits_w"] = tuple(proposal["power_limits_w"])
    limits = {int(watts): EpochAtLimit(**epoch) for watts, epoch in content["limits"].items()}
    return Trial(**content | {"proposal": Proposal(**proposal), "limits": limits})


def read_history_file(path: Path) -> tuple[dict[str, Any], History]:
    """What a history file says it is of, and its trials.

    Raises:
        JoulecastError: no such file, another format, or a line that is no trial (the last one may be cut
            off: it is left out, and removed from the file).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise JoulecastError(f"{path}: cannot be read ({error.strerror})") from None
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        path.write_text(text, encoding="utf-8")
    trials, said = [], None
    for number, line in enumerate(text.splitlines(), 1):
        try:
            content = json.loads(line)
            if said is None:
                if content["format"] != _FORMAT:
                    raise JoulecastError(
                        f"{path}: format {content['format']}, this version reads {_FORMAT}"
                    )
                said = content
            else:
                trials.append(_trial(content))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JoulecastError(f"{path}: line {number} is no trial ({error!r})") from None
    if said is None:
        raise JoulecastError(f"{path}: is empty; remove it")
    return said, History(trials)
