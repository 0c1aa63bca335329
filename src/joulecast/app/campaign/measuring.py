"""Measuring the runs of a configuration one after the other, without Snakemake."""

import time
from collections.abc import Callable
from pathlib import Path

from joulecast.app.campaign.config import Config
from joulecast.app.campaign.runs import campaign_runs
from joulecast.errors import JoulecastError
from joulecast.measure.training.measure_run import Quiet, measure_run
from joulecast.quantities import counted
from joulecast.runs.files.shipped import PLATFORMS
from joulecast.runs.folders import answers
from joulecast.runs.platforms import recorded_for
from joulecast.runs.record import read_info


def measure_campaign(
    config: Config,
    platforms: Path = PLATFORMS,
    *,
    launcher: str = "mpiexec",
    tell: Callable[[str], None] = print,
) -> list[Path]:
    """The folders of the records of a campaign's measured runs, in the order of the runs.

    The records are in ``records/`` below the configuration's ``results``, as in the workflow. A run that has
    a record there is not measured again.

    Args:
        launcher: command that starts several ranks, as ``mpiexec``.
        tell: called with one line for each run.

    Raises:
        JoulecastError: the configuration cannot be measured, or runs failed. It lists these runs.
    """
    if recorded_for(config.platform, platforms) is not None:
        raise JoulecastError(
            f"configuration {config.campaign}: its platform {config.platform} is a recorded campaign, there "
            "is nothing to measure; name a platform without the key `recorded`"
        )
    results, quiet = Path(config.results), Quiet(**config.quiet.model_dump())
    specs = campaign_runs(config, platforms)
    failed = {}
    for number, spec in enumerate(specs, 1):
        record, log = results / "records" / spec.run, results / "logs" / f"{spec.run}.log"
        label = f"[{number}/{len(specs)}] {spec.run}"
        if answers(record, spec):
            tell(f"{label}: is there already")
            continue
        begin = time.monotonic()
        try:
            measure_run(
                spec,
                record,
                log,
                launcher=launcher if spec.ranks > 1 else None,
                timeout_s=config.run_timeout_s,
                quiet=quiet,
            )
        except JoulecastError as error:
            failed[spec.run] = f"{error}; its log is {log}"
            tell(f"{label}: failed: {error}")
            continue
        info = read_info(record)
        remarks = "".join(f"; {reason}" for reason in [*info.disturbed, *info.left_out])
        tell(f"{label}: {time.monotonic() - begin:.1f} s{remarks}")
    if failed:
        reasons = "".join(f"\n  {run}: {reason}" for run, reason in failed.items())
        raise JoulecastError(
            f"{len(failed)} of {counted(len(specs), 'run')} failed; the others are in {results}, so the same "
            f"call repeats only these:{reasons}"
        )
    return [results / "records" / spec.run for spec in specs]
