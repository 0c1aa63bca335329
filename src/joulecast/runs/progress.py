"""Progress of a campaign: which runs are done, unfinished, failed or waiting, from records and logs."""

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from joulecast.errors import JoulecastError
from joulecast.quantities import counted, listed
from joulecast.runs.files.reading import read_json_object
from joulecast.runs.files.shipped import MEASURED
from joulecast.runs.folders import measured_names, measured_records
from joulecast.runs.record import RunInfo, read_info
from joulecast.runs.spec import RunSpec

State = Literal["done", "unfinished", "failed", "damaged", "waiting"]
"""State of a run. It is ``unfinished`` if the log of the run does not say how the run ended."""
STATES: tuple[State, ...] = ("done", "unfinished", "failed", "damaged", "waiting")
_LAST_BYTES = 10_000


@dataclass(frozen=True)
class RunState:
    """State of one run.

    Attributes:
        why: the reason if the run is not done.
        left_out: why forecasts do not use a run that is done.
        disturbed: load by other programs during a run that is done.
    """

    run: str
    state: State
    why: str | None = None
    left_out: str | None = None
    disturbed: str | None = None


@dataclass(frozen=True)
class Progress:
    """The progress of a campaign: all known runs, and the pipelines that other programs disturbed."""

    results: str
    runs: list[RunState]
    disturbed_pipelines: list[str]
    training: str | None = None
    """Name of the observed training, if the runs are not those of a campaign."""

    def of(self, state: State) -> list[RunState]:
        """The runs with this state."""
        return [run for run in self.runs if run.state == state]

    @property
    def disturbed(self) -> list[RunState]:
        """The runs that are done and were disturbed by other programs."""
        return [run for run in self.of("done") if run.disturbed]

    @property
    def finished(self) -> bool:
        """Whether all runs are done."""
        return bool(self.runs) and all(run.state == "done" for run in self.runs)

    def as_json(self) -> dict[str, Any]:
        """The progress as plain data."""
        counts = {state: len(self.of(state)) for state in STATES}
        return asdict(self) | {"counts": counts, "finished": self.finished}


def _logged_runs(results: Path) -> set[str]:
    """The runs that have begun. The logs of runs begin with their names; other jobs have logs in the
    same folder."""
    found = set()
    for log in (results / "logs").glob("*.log"):
        with log.open("rb") as file:
            if file.readline(_LAST_BYTES).rstrip() == f"run {log.stem}".encode():
                found.add(log.stem)
    return found


def _state_in(log: Path, run: str) -> RunState:
    """The state of a run without a record, by the last line of its log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LAST_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    last = lines[-1] if lines else ""
    if last == "done":
        return RunState(run, "waiting", "its record was removed; the next start measures it again")
    if last.startswith("error: "):
        why = last.removeprefix("error: ").removeprefix(f"run {run}: ").removeprefix("failed: ")
        return RunState(run, "failed", f"{why}; its log is {log}")
    return RunState(run, "unfinished", "it still runs, or it was killed")


def _done(run: str, info: RunInfo) -> RunState:
    left_out, disturbed = "; ".join(info.left_out), "; ".join(info.disturbed)
    return RunState(run, "done", left_out=left_out or None, disturbed=disturbed or None)


def run_state(results: Path, run: str, spec: RunSpec | None = None) -> RunState:
    """State of one run.

    Args:
        spec: specification of the run, if known. A record of another specification does not count.
    """
    record, log = results / "records" / run, results / "logs" / f"{run}.log"
    if record.is_dir():
        try:
            info = read_info(record)
        except JoulecastError as error:
            return RunState(run, "damaged", str(error))
        if spec is None or info.spec_sha256 == spec.digest():
            return _done(run, info)
        return RunState(
            run,
            "waiting",
            f"{record} was measured with another configuration; the next start replaces it, or asks you to "
            "delete it",
        )
    if log.is_file():
        return _state_in(log, run)
    return RunState(run, "waiting")


def progress_of(results: Path, specs: Iterable[RunSpec] | None = None) -> Progress:
    """Progress of the campaign in a folder.

    Args:
        results: folder of the results. If ``specs`` are given, it need not exist.
        specs: the runs of the configuration. Without them, all runs that have a record or a log are taken.

    Raises:
        JoulecastError: the folder does not exist and there are no ``specs``.
    """
    if specs is None and not results.is_dir():
        raise JoulecastError(
            f"{results}: no such folder; give the folder of a campaign's results, the NAME of a "
            "training that `joulecast measure` ran, or --config FILE; --live shows trainings that run now"
        )
    asked: dict[str, RunSpec | None] = (
        dict.fromkeys(
            sorted(
                {path.name for path in (results / "records").glob("[!.]*")} | _logged_runs(results)
            )
        )
        if specs is None
        else {spec.run: spec for spec in specs}
    )
    runs = [run_state(results, run, spec) for run, spec in asked.items()]
    return Progress(str(results), runs, [file.stem for file in _disturbed_pipelines(results)])


def progress_of_training(name: str) -> Progress | None:
    """The runs of a training that ``joulecast measure`` ran; ``None`` if there is no training of this
    name."""
    states = []
    for folder in measured_records(name):
        try:
            info = read_info(folder)
            failed = [why for why in info.left_out if why.startswith("failed: ")]
            if failed:
                states.append(RunState(folder.name, "failed", failed[0].removeprefix("failed: ")))
                continue
            states.append(_done(folder.name, info))
        except JoulecastError as error:
            states.append(RunState(folder.name, "damaged", str(error)))
    return Progress(str(MEASURED), states, [], name) if states else None


def _disturbed_pipelines(results: Path) -> list[Path]:
    found = []
    for file in sorted((results / "pipelines").glob("*.json")):
        with suppress(JoulecastError):
            if read_json_object(file, "measured pipeline").get("disturbed"):
                found.append(file)
    return found


def how_to_repeat(runs: Sequence[str], results: str) -> str:
    """What a user does to measure some runs of a campaign again."""
    records = shlex.join(f"{results}/records/{run}" for run in runs)
    return f"rm -r {records}, and start the campaign again"


def how_to_leave_out(runs: Sequence[str]) -> str:
    """What a user does with runs that cannot work, for example because they need too much memory."""
    return (
        f"to make tables and page without what cannot run here: scale.without: [{', '.join(runs)}]"
    )


def progress_text(progress: Progress, is_replay: bool = False) -> str:
    """Text with the number of runs in each state, and below it all runs with a problem.

    Args:
        is_replay: whether the runs are of a recorded campaign, so that no command measures them again.
    """
    of = len(progress.runs)
    parts = [f"{len(progress.of('done'))} of {counted(of, 'run')} done"]
    parts += [f"{len(progress.of(state))} {state}" for state in STATES[1:] if progress.of(state)]
    lines = [f"{progress.training or progress.results}: {', '.join(parts)}"]
    if not progress.runs:
        lines.append("no run has left a record (records/) in this folder")
        if names := measured_names():
            lines.append(f"of a training that `measure` ran, give the name: {listed(names)}")
    for state in ("unfinished", "failed", "damaged"):
        lines += [f"{state}: {run.run}: {run.why}" for run in progress.of(state)]
    failed = [run.run for run in progress.of("failed")]
    if failed and not is_replay and progress.training is None:
        lines.append(how_to_leave_out(failed))
    lines += [
        f"left out of forecasts: {run.run}: {run.left_out}"
        for run in progress.of("done")
        if run.left_out
    ]
    lines += [f"disturbed: {run.run}: {run.disturbed}" for run in progress.disturbed]
    lines += [f"disturbed: pipeline {name}" for name in progress.disturbed_pipelines]
    again = []
    if not is_replay:
        again = [run.run for run in [*progress.disturbed, *progress.of("damaged")]]
    if again and progress.training is not None:
        lines.append(f"to measure again: joulecast measure --name {progress.training} -- COMMAND")
    elif again:
        lines.append(f"to measure these again: {how_to_repeat(again, progress.results)}")
    lines += [f"waiting: {run.run}: {run.why}" for run in progress.of("waiting") if run.why]
    return "\n".join(lines)
