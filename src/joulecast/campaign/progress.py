"""Progress of a campaign: runs done, running, failed and waiting, and the time left.

It is read from the records and the journals of attempts, without writing or locking anything, so that a
running campaign can be watched from another process.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from joulecast.campaign.held_records import forget_record
from joulecast.campaign.journal import UNEXPLAINED_END, Attempt, attempts_at, is_running
from joulecast.errors import JoulecastError
from joulecast.files.reading import read_json_object
from joulecast.quantities import counted, lasting
from joulecast.records.frames import FRAMES
from joulecast.records.record import RunInfo, read_info
from joulecast.records.spec import RunSpec

State = Literal["done", "running", "failed", "damaged", "waiting"]
STATES: tuple[State, ...] = ("done", "running", "failed", "damaged", "waiting")


@dataclass(frozen=True)
class RunState:
    """State of one run, with the reason where it is not done.

    Attributes:
        seconds: wall time of the attempt that succeeded, or so far of the one that is running.
        disturbed: load by other programs during a run that is done.
    """

    run: str
    state: State
    kind: str | None = None
    network: str | None = None
    nodes: int | None = None
    seconds: float | None = None
    why: str | None = None
    disturbed: str | None = None


@dataclass(frozen=True)
class Progress:
    """All known runs of a campaign."""

    results: str
    runs: list[RunState]
    total: int | None
    """Number of runs in the configuration; ``None`` without a configuration."""
    time_left_s: float | None
    time_left_is: str
    """Basis of the time left, or why it is not known."""
    not_asked_for: list[str] = field(default_factory=list)

    def of(self, state: State) -> list[RunState]:
        """The runs of one state."""
        return [run for run in self.runs if run.state == state]

    @property
    def disturbed(self) -> list[RunState]:
        """The runs that are done and were disturbed by other programs."""
        return [run for run in self.of("done") if run.disturbed]

    @property
    def finished(self) -> bool:
        """Whether all runs of the configuration are done; without one, all that were begun."""
        return bool(self.runs) and all(run.state == "done" for run in self.runs)

    def as_json(self) -> dict[str, Any]:
        """The progress as plain data."""
        counts: dict[str, int] = {state: len(self.of(state)) for state in STATES}
        counts["disturbed"] = len(self.disturbed)
        return asdict(self) | {"counts": counts, "finished": self.finished}


Seen = dict[Path, tuple[tuple[int, int], RunInfo]]
"""Records read before, with the age and size of their ``run.json``."""


def _info(folder: Path, seen: Seen) -> RunInfo:
    """``run.json`` of a complete record.

    Raises:
        JoulecastError: a file is missing or broken.
    """
    try:
        facts = (folder / "run.json").stat()
        age = (facts.st_mtime_ns, facts.st_size)
        if folder not in seen or seen[folder][0] != age:
            seen[folder] = (age, read_info(folder))
    except FileNotFoundError:
        raise JoulecastError(f"{folder}: holds no run.json") from None
    except (OSError, ValueError, AttributeError) as error:
        raise JoulecastError(f"{folder / 'run.json'}: cannot be read ({error})") from None
    missing = [f"{name}.parquet" for name in FRAMES if not (folder / f"{name}.parquet").is_file()]
    if missing:
        raise JoulecastError(f"{folder}: lacks {', '.join(missing)}")
    return seen[folder][1]


def _seconds(start_utc: str, end_utc: str | None, now: datetime) -> float | None:
    try:
        start = datetime.fromisoformat(start_utc)
        end = now if end_utc is None else datetime.fromisoformat(end_utc)
        return max(0.0, (end - start).total_seconds())
    except (TypeError, ValueError):
        return None


def _of_attempts(attempts: Sequence[Attempt], now: datetime) -> dict[str, Any]:
    """State, reason and seconds of a run that has no record."""
    for attempt in attempts:
        if is_running(attempt):
            return {"state": "running", "seconds": _seconds(attempt.started_utc, None, now)}
    if not attempts:
        return {"state": "waiting"}
    last = attempts[-1]
    if last.ended_utc is None:
        return {"state": "failed", "why": UNEXPLAINED_END}
    if last.reason is not None:
        return {"state": "failed", "why": last.reason}
    return {"state": "waiting", "why": "it ended well, and its record was removed"}


def run_state(
    results: Path, run: str, spec: RunSpec | None = None, seen: Seen | None = None
) -> RunState:
    """State of one run, from its record and its attempts.

    Args:
        results: folder of the campaign's results.
        spec: specification of the run, if known; a record of another one does not count.
        seen: cache of unchanged records, to be passed to the next call.
    """
    seen, now = {} if seen is None else seen, datetime.now(UTC)
    attempts = attempts_at(results / "attempts", run)
    record = results / "records" / run
    facts: dict[str, Any] = {}
    if record.is_dir():
        try:
            info = _info(record, seen)
        except JoulecastError as error:
            facts = {"state": "damaged", "why": str(error)}
        else:
            if spec is None or info.spec_sha256 == spec.digest():
                spec = info.spec
                well = [a for a in attempts if a.ended_utc is not None and a.reason is None]
                seconds = _seconds(well[-1].started_utc, well[-1].ended_utc, now) if well else None
                disturbed = "; ".join(info.disturbed) or None
                facts = {"state": "done", "seconds": seconds, "disturbed": disturbed}
            else:
                facts = {"state": "waiting", "why": "its record answers another specification"}
    if facts.get("state") != "done":
        by_attempts = _of_attempts(attempts, now)
        # With a record, an earlier failure does not matter, but a running attempt does.
        if not facts or by_attempts["state"] == "running":
            facts = by_attempts
    setting: dict[str, Any] = {}
    if spec is not None:
        network = spec.network
        setting = {"kind": spec.kind, "network": network, "nodes": spec.nodes}
    return RunState(run=run, **(setting | facts))


def _found(results: Path) -> set[str]:
    records = (path.name for path in (results / "records").glob("[!.]*") if path.is_dir())
    journals = (path.stem for path in (results / "attempts").glob("[!.]*.jsonl"))
    return {*records, *journals}


def expected(
    run: RunState, done: Sequence[RunState], known: Mapping[str, float | None]
) -> float | None:
    """Mean of what is ``known`` of the ended runs that are most like ``run``; ``None`` if none is."""
    for like in (("kind", "network", "nodes"), ("kind", "nodes"), ("kind",), ()):
        values = [
            value
            for other in done
            if (value := known.get(other.run)) is not None
            and all(getattr(other, key) == getattr(run, key) for key in like)
        ]
        if values:
            return sum(values) / len(values)
    return None


def _time_left(runs: Sequence[RunState], asked: bool) -> tuple[float | None, str]:
    if not asked:
        return None, "the number of runs is not known (give --config)"
    open_runs = [run for run in runs if run.state != "done"]
    if not open_runs:
        return 0.0, "all is done"
    timed = [run for run in runs if run.state == "done" and run.seconds is not None]
    if not timed:
        return None, "no run has ended whose time was noted"
    left, lasted = 0.0, {run.run: run.seconds for run in timed}
    for run in open_runs:
        spent = run.seconds or 0.0 if run.state == "running" else 0.0
        left += max(0.0, (expected(run, timed, lasted) or 0.0) - spent)
    together = max(1, sum(run.state == "running" for run in runs))
    at_a_time = "one at a time" if together == 1 else f"{together} at a time, as now"
    return left / together, f"an estimate from {counted(len(timed), 'ended run')}, {at_a_time}"


def progress_of(
    results: Path, specs: Iterable[RunSpec] | None = None, seen: Seen | None = None
) -> Progress:
    """Progress of the campaign in a folder.

    Args:
        results: folder of its results; need not exist if ``specs`` are given.
        specs: the runs of the configuration; without them, all runs with a record or a journal.
        seen: cache of unchanged records, to be passed to the next call.

    Raises:
        JoulecastError: the folder does not exist and there are no ``specs``.
    """
    if specs is None and not results.is_dir():
        raise JoulecastError(
            f"{results}: no such folder; give the folder of a campaign's results, or --config FILE"
        )
    cache: Seen = {} if seen is None else seen
    found = _found(results)
    asked = None if specs is None else {spec.run: spec for spec in specs}
    names = found if asked is None else asked
    runs = [
        run_state(results, run, None if asked is None else asked[run], cache)
        for run in sorted(names)
    ]
    left, why = _time_left(runs, asked is not None)
    strangers = [] if asked is None else sorted(found - set(asked))
    total = None if asked is None else len(asked)
    return Progress(str(results), runs, total, left, why, strangers)


def disturbed_pipelines(results: Path) -> list[Path]:
    """Files of the pipelines that other programs disturbed."""
    found = []
    for pipeline in sorted((results / "pipelines").glob("*.json")):
        with suppress(JoulecastError):
            if read_json_object(pipeline, "run of a pipeline").get("disturbed"):
                found.append(pipeline)
    return found


def remove_disturbed(results: Path) -> list[str]:
    """Names of the runs and pipelines that were removed because other programs had disturbed them.

    The checks, the page and the table of pipelines, which show them, are removed too. The next start makes
    all of these again.

    Raises:
        JoulecastError: no runs were measured in this folder, or one is being measured.
    """
    if not (results / "attempts").is_dir():
        raise JoulecastError(
            f"{results}: no run was measured there (no folder attempts/); give the folder of a campaign's "
            "results"
        )
    progress = progress_of(results)
    running = progress.of("running")
    if running:
        raise JoulecastError(f"{results}: {running[0].run} is being measured; wait for its end")
    if any(Path(".snakemake/locks").glob("*")):
        raise JoulecastError(
            "a campaign is running in this folder (.snakemake/locks); wait for its end, or if it was killed: "
            "`./run snakemake --unlock`"
        )
    removed = [run.run for run in progress.disturbed]
    for run in removed:
        forget_record(results / "attempts", run, results / "records" / run)
    for pipeline in disturbed_pipelines(results):
        pipeline.unlink()
        removed.append(pipeline.stem)
    if removed:
        # Made from all records: where these files are missing, the next start looks for the records.
        for made in ("checks.csv", "index.html", "tables/partition_pipeline.csv"):
            (results / made).unlink(missing_ok=True)
    return removed


def progress_line(progress: Progress, *, brief: bool = False) -> str:
    """The counts and the time left in one line; if ``brief``, without names and reasons."""
    done, running = progress.of("done"), progress.of("running")
    of = "" if progress.total is None else f" of {progress.total}"
    disturbed = f" ({len(progress.disturbed)} of them disturbed)" if progress.disturbed else ""
    parts = [f"{len(done)}{of} runs done{disturbed}", f"{len(running)} running"]
    if running and not brief:
        first = running[0]
        since = "" if first.seconds is None else f" for {lasting(first.seconds)}"
        more = f" and {len(running) - 1} more" if len(running) > 1 else ""
        parts[-1] += f" ({first.run}{since}{more})"
    parts.append(f"{len(progress.of('failed'))} failed")
    if progress.of("damaged"):
        parts.append(f"{len(progress.of('damaged'))} damaged")
    if progress.total is not None:
        parts.append(f"{len(progress.of('waiting'))} waiting")
    line = ", ".join(parts)
    if progress.finished and progress.total is not None:
        return line
    if brief:
        known = progress.time_left_s is not None
        return f"{line}; about {lasting(progress.time_left_s or 0.0)} left" if known else line
    if progress.time_left_s is None:
        return f"{line}; time left not known: {progress.time_left_is}"
    return f"{line}; about {lasting(progress.time_left_s)} left ({progress.time_left_is})"


def progress_text(progress: Progress) -> str:
    """The line of :func:`progress_line`, and below it all runs with a problem."""
    lines = [f"{progress.results}: {progress_line(progress)}"]
    if not progress.runs:
        lines.append("no run has left a record (records/) or an attempt (attempts/) in this folder")
    for run in [*progress.of("failed"), *progress.of("damaged")]:
        lines.append(f"{run.state}: {run.run}: {run.why}")
    lines += [f"disturbed: {run.run}: {run.disturbed}" for run in progress.disturbed]
    pipelines = disturbed_pipelines(Path(progress.results))
    lines += [f"disturbed: pipeline {file.stem}" for file in pipelines]
    if progress.disturbed or pipelines:
        lines.append(
            f"`joulecast remeasure {progress.results}` removes disturbed runs; the next start of the "
            "campaign measures them again"
        )
    again = [run for run in progress.of("waiting") if run.why]
    lines += [f"waiting: {run.run}: {run.why}" for run in again]
    if progress.of("damaged"):
        lines.append("a damaged record is measured again once its folder is deleted")
    if progress.not_asked_for:
        names = progress.not_asked_for
        lines.append(
            f"{len(names)} runs there were not asked for: {', '.join(names[:3])}"
            + (", ..." if len(names) > 3 else "")
        )
    return "\n".join(lines)
