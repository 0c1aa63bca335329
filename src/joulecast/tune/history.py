"""The history: everything that was tried so far. A policy knows nothing else.

A history is also kept in a file, so that a killed loop can continue. The first line of the file says what was
trained. Each further line is a trial, as JSON.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import json_of, read_bytes, validated
from joulecast.runs.files.writing import written_aside
from joulecast.tune.trial import EpochAtLimit, Trial

_TRIAL = TypeAdapter(Trial)
_LEAST = 1e-9
_FORMAT = 1
BEGUN = "begun"
"""Key of the first line that has the provenance of the first trial."""
# The text for a missing value in messages. No header contains it.
_ABSENT = "not given"
# If the first epoch of a size alone costs more than the bound, the cost of this size is taken as this many
# times the bound.
_NOT_STARTED_PENALTY = 100.0


@dataclass(slots=True)
class Arm:
    """Trials of one batch size.

    Attributes:
        costs: known costs of the trials, in order. If a trial was not started, because its first epoch would
            have cost more than the bound, its cost is 100 times the bound.
        limits: for each power limit that was tried, the newest epoch under it.
    """

    costs: list[float] = field(default_factory=list)
    reached: int = 0
    limits: Mapping[int, EpochAtLimit] = field(default_factory=dict)


class History:
    """Trials in order, and the figures that policies need from them.

    Attributes:
        trials: all trials.
        arms: the trials by batch size.
        totals: costs of the recurrences that reached the target, in the order in which they ended. A
            recurrence without a known cost is not in it.
    """

    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self.trials: list[Trial] = []
        self.arms: dict[int, Arm] = {}
        self.totals: list[float] = []
        self._open: dict[int, float | None] = {}
        for trial in trials:
            self.append(trial)

    def append(self, trial: Trial) -> None:
        """Add a trial that has ended."""
        self.trials.append(trial)
        arm = self.arms.setdefault(trial.proposal.batch_size, Arm())
        arm.reached += trial.reached
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
        """The least cost of a recurrence, with its failed tries, among the last ``window`` recurrences.

        Only recurrences that reached their target count. A recurrence that did not reach it may be cheap
        for this reason.
        """
        totals = self.totals if window is None else self.totals[-window:]
        return min(totals, default=inf)


def _differences(
    then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Keys whose values differ between the two mappings. The keys of inner mappings are compared one by
    one."""
    for key in dict.fromkeys([*now, *then]):
        was, value = then.get(key, _ABSENT), now.get(key, _ABSENT)
        if isinstance(value, dict) and isinstance(was, dict):
            yield from _differences(was, value, f"{prefix}{key}.")
        elif was != value:
            yield f"{prefix}{key}", was, value


def begin_history_file(
    path: Path, header: Mapping[str, Any], *, begun: Mapping[str, Any] | None = None
) -> History:
    """Begin a history file, or continue an existing one.

    If the last line of an existing file was cut off, it is removed, so that the next trial gets a line of
    its own.

    Args:
        header: describes what is trained. A file with another header is not continued.
        begun: where a new file comes from (host, versions). It is kept in the first line, and not compared.

    Raises:
        JoulecastError: the file is the history of another training, is no history, or cannot be written; or
            its folder does not exist.
    """
    described = {"format": _FORMAT, **header}
    if path.exists():
        content = read_bytes(path, "history of trials")
        first_line, history = _read(path, content)
        first_line.pop(BEGUN, None)
        for key, then, now in _differences(first_line, json.loads(json.dumps(described))):
            raise JoulecastError(
                f"{path}: its `{key}` is {then}, now it is {now}; unlike trials do not mix: move "
                "the file away, or name another"
            )
        with _explained(path), open(path, "r+b") as file:
            whole = _whole_lines(content)
            if len(whole) < len(content):
                file.truncate(len(whole))
        return history
    if not path.parent.is_dir():
        raise JoulecastError(f"{path}: there is no folder {path.parent}; make it, or name another")
    described |= {} if begun is None else {BEGUN: begun}
    with _explained(path), written_aside(path) as aside:
        aside.write_text(json.dumps(described) + "\n", encoding="utf-8")
    return History()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise JoulecastError(f"{path}: cannot be written ({error.strerror})") from None


def add_to_history_file(path: Path, trial: Trial) -> None:
    """Append a trial to the file. If the machine fails meanwhile, the last line may be cut off. Readers skip
    such a line.

    Raises:
        JoulecastError: the file cannot be written.
    """
    content = asdict(trial)
    bound = trial.proposal.cost_bound
    content["proposal"]["cost_bound"] = None if bound == inf else bound
    with _explained(path), open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(content, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file)


def _trial(content: Any, where: str) -> Trial:
    if isinstance(content, dict) and isinstance(content.get("proposal"), dict):
        proposal = content["proposal"]
        if proposal.get("cost_bound", inf) is None:
            content = content | {"proposal": proposal | {"cost_bound": inf}}
    trial = validated(_TRIAL, content, where)
    # A trial that ran has taken some time and energy. Policies compare ratios, so values near 0 are refused.
    spent = (("time_s", trial.time_s), ("energy_j", trial.energy_j), ("cost", trial.cost))
    for key, value in spent:
        if trial.epochs and value is not None and value < _LEAST * trial.epochs:
            raise JoulecastError(f"{where}: {key} is {value:g} for {trial.epochs:g} epochs")
    if (trial.reached and not trial.epochs) or 0 < trial.epochs < _LEAST:
        raise JoulecastError(f"{where}: epochs is {trial.epochs:g}, too few to have trained")
    return trial


def read_history_file(path: Path) -> tuple[dict[str, Any], History]:
    """The header of a history file, and its trials. The file is not changed.

    Raises:
        JoulecastError: there is no such file, it has another format, or a line is no trial. (If only the
            last line is cut off, it is skipped.)
    """
    return _read(path, read_bytes(path, "history of trials"))


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _read(path: Path, content: bytes) -> tuple[dict[str, Any], History]:
    if not content:
        raise JoulecastError(f"{path}: is empty; remove it")
    try:
        lines = _whole_lines(content).decode("utf-8").split("\n")[:-1]
    except UnicodeDecodeError:
        raise JoulecastError(f"{path}: is no history of trials, nor any text") from None
    if not lines:
        raise JoulecastError(
            f"{path}: is no history of trials (or one that was cut off in its first line)"
        )
    trials, first_line = [], None
    for number, line in enumerate(lines, 1):
        where = f"{path}: line {number} is no trial"
        parsed = json_of(line, where)
        if first_line is not None:
            trials.append(_trial(parsed, where))
            continue
        if not isinstance(parsed, dict) or "format" not in parsed:
            raise JoulecastError(f"{path}: line 1 does not say what the trials are of")
        if parsed["format"] != _FORMAT:
            raise JoulecastError(f"{path}: format {parsed['format']}, this version reads {_FORMAT}")
        first_line = parsed
    assert first_line is not None
    return first_line, History(trials)
