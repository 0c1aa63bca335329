"""Recording a campaign: all its runs measured one after the other, and packed as a recorded campaign.

Runs leave ordinary records in a work folder. Records that are there already are not measured again, so an
interrupted recording continues where it stopped. :mod:`joulecast.records.recorded` packs the records.
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
from joulecast.records.folders import answers
from joulecast.records.record import read_info
from joulecast.records.recorded import MAX_BYTES, CampaignInfo, pack
from joulecast.records.spec import RunSpec
from joulecast.training.attempt_to_record import Quiet, measure


@dataclass(frozen=True)
class PlannedRun:
    """A run with its time limits and its handling of other programs."""

    spec: RunSpec
    timeout_s: float
    start_timeout_s: float
    quiet: Quiet


def planned_runs(configurations: Sequence[Config], platforms: Path) -> list[PlannedRun]:
    """The runs of several campaigns, each in its shuffled order, with unique names.

    A specification that an earlier campaign has too is not measured again. A run that differs from an earlier
    one of the same name gets its campaign's name as a prefix.

    Args:
        platforms: folder of the user's own platform files.

    Raises:
        JoulecastError: a platform is itself a recorded campaign, or an error of
            :func:`~joulecast.campaign.runs.campaign_runs`.
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
    """The reasons of the runs that failed, by name, after all runs that ``work`` lacks have been measured.

    Args:
        launcher: command that starts several ranks, as ``mpiexec``.
        tell: called with one line for each run.
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
    """The records of all runs; raises an error that lists the failed runs, if any."""
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
    """The folders of the records of a campaign's measured runs, in the order of the runs.

    They lie where the workflow puts them, in ``records/`` of the configuration's ``results``. Runs with a
    record there are not measured again.

    Raises:
        JoulecastError: the configuration cannot be measured, or runs failed (lists them).
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
    """Measure the runs of ``configurations`` and pack them as the recorded campaign ``target``.

    Args:
        platforms: folder of the user's own platform files.
        work: folder of records (``records/``), logs and journals; runs with a record there are not
            repeated. It is left to the caller to remove.
        max_bytes: largest size of the recorded campaign.

    Raises:
        JoulecastError: ``target`` exists, the configurations cannot be measured, or runs failed (lists
            them; nothing is packed then).
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
