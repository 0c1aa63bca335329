"""Recording a campaign: all its runs measured one after the other, and kept as data.

Runs leave ordinary records in a work folder, where each one that is there already counts, so that a
recording that was interrupted goes on where it stopped. When all of them are there they are packed
(:mod:`joulecast.records.recorded`).
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from joulecast.campaign.config import Config
from joulecast.campaign.runs import campaign_runs
from joulecast.errors import JoulecastError
from joulecast.files.shipped import PLATFORMS
from joulecast.platforms import recorded_for
from joulecast.records.record import answers, read_info
from joulecast.records.recorded import MAX_BYTES, CampaignInfo, pack
from joulecast.records.spec import RunSpec
from joulecast.training.attempt_to_record import Quiet, measure


@dataclass(frozen=True)
class PlannedRun:
    """A run, when it is ended, and what is done about other programs."""

    spec: RunSpec
    timeout_s: float
    start_timeout_s: float
    quiet: Quiet


def planned_runs(configurations: Sequence[Config], platforms: Path) -> list[PlannedRun]:
    """The runs of several campaigns, each in its shuffled order, under names of their own.

    What an earlier campaign measures already (the same specification) is not measured again; a run
    that differs from an earlier one of the same name gets its campaign's name in front.

    Args:
        platforms: folder of the user's own platform files.

    Raises:
        JoulecastError: a platform is itself a recorded campaign, or as
            :func:`~joulecast.campaign.runs.campaign_runs` says.
    """
    planned: dict[str, PlannedRun] = {}
    digests: set[str] = set()
    for config in configurations:
        if recorded_for(config.platform, platforms) is not None:
            raise JoulecastError(
                f"configuration {config.campaign}: its platform {config.platform} is a recorded "
                "campaign, there is nothing to measure; name a platform without the key `recorded`"
            )
        own = campaign_runs(config, platforms)
        for spec in own:
            if spec.digest() in digests:
                continue
            run = spec.run
            if run in planned:
                run = re.sub(r"[^a-z0-9_-]", "-", f"{config.campaign}-{run}".lower())
            if run in planned:
                raise JoulecastError(
                    f"two configurations are called {config.campaign} and differ in the run "
                    f"{spec.run}; give one of them another `campaign`"
                )
            planned[run] = PlannedRun(
                spec.model_copy(update={"run": run}),
                config.run_timeout_s,
                config.start_timeout_s,
                Quiet(**config.quiet.model_dump()),
            )
        digests |= {spec.digest() for spec in own}
    return list(planned.values())


def measure_all(
    runs: Sequence[PlannedRun], work: Path, *, launcher: str, tell: Callable[[str], None]
) -> dict[str, str]:
    """Measure what ``work`` does not hold yet, and go on when a run fails.

    Args:
        launcher: starts runs of several ranks, as ``mpiexec``.
        tell: gets one line a run.

    Returns:
        The reason of every run that failed, by its name.
    """
    failed = {}
    for number, planned in enumerate(runs, 1):
        spec, record = planned.spec, work / "records" / planned.spec.run
        log = work / "logs" / f"{spec.run}.log"
        label = f"[{number}/{len(runs)}] {spec.run}"
        if answers(record, spec):
            tell(f"{label}: is there already")
            continue
        begin = time.monotonic()
        try:
            measure(
                spec,
                record,
                log,
                launcher=launcher if spec.ranks > 1 else None,
                attempts=work / "attempts",
                timeout_s=planned.timeout_s,
                start_timeout_s=planned.start_timeout_s,
                quiet=planned.quiet,
            )
        except JoulecastError as error:
            failed[spec.run] = f"{error}; its log is {log}"
            tell(f"{label}: failed: {error}")
            continue
        info = read_info(record)
        remarks = "".join(f"; {reason}" for reason in [*info.disturbed, *info.polluted])
        tell(f"{label}: {time.monotonic() - begin:.1f} s{remarks}")
    return failed


def _measured(
    runs: Sequence[PlannedRun],
    work: Path,
    launcher: str,
    tell: Callable[[str], None],
    failing: str = "failed",
) -> list[Path]:
    """The records of all runs; an error that lists those that failed, if any did."""
    failed = measure_all(runs, work, launcher=launcher, tell=tell)
    if failed:
        reasons = "".join(f"\n  {run}: {reason}" for run, reason in failed.items())
        raise JoulecastError(
            f"{len(failed)} of {len(runs)} runs {failing}; the others are in {work}, so the same command "
            f"repeats only these:{reasons}"
        )
    return [work / "records" / planned.spec.run for planned in runs]


def measure_campaign(
    config: Config,
    platforms: Path = PLATFORMS,
    *,
    launcher: str = "mpiexec",
    tell: Callable[[str], None] = print,
) -> list[Path]:
    """Measure the runs of a campaign; the folders of their records, in the order of the runs.

    They lie where the workflow puts them, in ``records/`` of the configuration's ``results``; those that
    are there already are not measured again.

    Raises:
        JoulecastError: the configuration asks for what cannot be measured, or runs failed (lists them).
    """
    return _measured(planned_runs([config], platforms), Path(config.results), launcher, tell)


def record_campaign(
    configurations: Sequence[Config],
    platforms: Path,
    target: Path,
    *,
    work: Path,
    launcher: str = "mpiexec",
    note: str = "",
    max_bytes: int = MAX_BYTES,
    tell: Callable[[str], None] = print,
) -> CampaignInfo:
    """Measure the runs of ``configurations`` and keep them as the recorded campaign ``target``.

    Args:
        platforms: folder of the user's own platform files.
        work: keeps the records (``records/``), logs and the reasons of failed runs; runs whose record
            is there are not repeated. Nobody but the caller removes it.
        max_bytes: what the recorded campaign may weigh.

    Raises:
        JoulecastError: ``target`` is there already, the configurations ask for what cannot be
            measured, or runs failed (lists them; nothing is packed then).
    """
    if target.exists():
        raise JoulecastError(
            f"{target}: is there already, and a recorded campaign is not overwritten; name another "
            "folder, or remove it"
        )
    runs = planned_runs(configurations, platforms)
    return pack(
        _measured(runs, work, launcher, tell, "failed and nothing was packed"),
        target,
        name=target.name,
        configurations=[config.model_dump(mode="json") for config in configurations],
        note=note,
        max_bytes=max_bytes,
    )
