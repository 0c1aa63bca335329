# The parts that all rules share. They are in sections: configuration, wildcards, folders, kept files, params,
# outputs, and messages at the start and the end.
import os
from pathlib import Path
from typing import NamedTuple

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from joulecast.app.campaign.check import require_campaign, require_host
from joulecast.app.campaign.config import parse_config
from joulecast.app.campaign.content_versions import (
    content_version,
    kept_task_graph,
    package_version,
)
from joulecast.errors import JoulecastError
from joulecast.runs.files.shipped import find
from joulecast.runs.platforms import platform_file, recorded_for
from joulecast.measure.training.ranks import CAMPAIGN

# ---- Configuration: it is checked before any rule is read. Each mistake is an error of one line.

PROJECT = Path(workflow.basedir)
PLATFORMS = PROJECT / "config" / "platforms"
try:
    CONFIG = parse_config(config, "configuration")
    SPECS = {spec.run: spec for spec in require_campaign(CONFIG, PLATFORMS, PROJECT)}
    # The recorded campaign that is replayed; None if runs are measured.
    RECORDED = recorded_for(CONFIG.platform, PLATFORMS)
except JoulecastError as error:
    raise WorkflowError(str(error)) from None
# If the user's own command is trained, only this training is shown. No networks are simulated, cut or tuned.
HAS_NETWORKS = CONFIG.workload.command is None

# ---- Wildcards: the names that paths may contain.


wildcard_constraints:
    run=r"[a-z0-9_-]+",
    name=r"[A-Za-z0-9_.-]+",
    network=r"[a-z0-9_]+",
    pipeline=r"[a-z0-9_-]+",
    policy=r"[a-z-]+",


# ---- Folders of the results, and of the data that come with the project.

RESULTS = CONFIG.results
PUBLISHED = find(Path("config"), "published", PROJECT / "config")


def shipped_folder(name):
    """A folder of recorded or published measurements, by its name below `recorded`."""
    folder = find(Path("recorded"), name, PROJECT / "recorded")
    if folder is None:
        raise WorkflowError(f"recorded/{name}: missing; restore it from the repository")
    return folder


# ---- Kept files: inputs that come with the project. Their content counts, and not their date.


class Kept(NamedTuple):
    """Files of the project as an input, and a param that repeats a rule if their content changes."""

    files: str | list[str]
    version: str | list[str] | None


def kept(paths, version_of=None):
    """Input and version of kept files. New content repeats a rule. A new date does not.

    Snakemake's own checksums of inputs do not suffice. They do not cover folders, files above 1 MB, or
    results that were copied without `.snakemake`. They are compared only if a file is newer than the results.
    So a changed file with an old date is missed.

    `paths` is one path or a list. `version_of` is a file that identifies the content of all of them.
    """

    def each(function, paths):
        if isinstance(paths, list):
            return [function(path) for path in paths]
        return function(paths)

    return Kept(ancient(each(str, paths)), each(content_version, version_of or paths))


# Files of published numbers, by paper.
PAPERS = {
    name: kept(PUBLISHED / f"{name}.yaml")
    for name in ("mc2", "proteus", "antichain", "zeus")
}


# ---- Params of scripts.


# A hash of the package. If it changes, everything is fitted, judged and shown again. No rule that measures
# has this param.
SOURCE = package_version()
# If prices change, tables and page are made again, and no measurement is repeated.
PRICES = CONFIG.prices.model_dump()


def own_configfiles():
    """Paths of the configuration files except the default one, in the form that a user's commands need."""
    default = PROJECT / "config" / "config.yaml"
    files = map(os.path.abspath, workflow.configfiles)
    return [os.path.relpath(file) for file in files if Path(file) != default]


# ---- Outputs: folders of tables. They are also in Snakemake's report.


def in_report(output, caption, category, shows, **patterns):
    """An output that Snakemake's report shows, with a caption from workflow/report."""
    # Snakemake refuses a report in which an output is missing.
    if not Path(output).exists():
        return output
    return report(
        output,
        caption=f"../report/{caption}.rst",
        category=category,
        labels={"shows": shows},
        **patterns,
    )


def tables(category, subject, folder=None):
    """The folder of a subject's tables. The report shows their pages."""
    folder = directory(folder or f"{RESULTS}/tables/{subject}")
    return in_report(folder, subject, category, "{table}", patterns=["{table}.html"])


# ---- Start and end: checks before the first job, and messages after the last one.

# If this process ends, the measurements on this host end, too.
if workflow.is_main_process:
    os.environ[CAMPAIGN] = str(os.getpid())


def require_this_host():
    """Refuse a campaign if its runs would be on this host, and the host lacks cores or a GPU for them."""
    # If all runs are already measured, any host can make the tables.
    measures = not all(Path(record).exists() for record in records())
    if workflow.local_exec and measures:
        try:
            require_host(CONFIG, list(SPECS.values()))
        except JoulecastError as error:
            raise WorkflowError(str(error)) from None


def tell_end():
    """Say what to open, what was left out, and how to repeat runs that other programs disturbed."""
    from joulecast.app.campaign.closing_lines import closing_lines

    measures = SPECS if RECORDED is None else ()
    for line in closing_lines(Path(RESULTS), measures):
        logger.info(line)


def tell_failed_runs():
    """Say which runs failed, and why."""
    from joulecast.runs.progress import how_to_leave_out, progress_of

    if RECORDED is not None or not Path(RESULTS).is_dir():
        return
    # The folder may have logs of runs that the configuration now leaves out.
    progress = progress_of(Path(RESULTS), SPECS.values())
    for run in progress.runs:
        if run.state in ("unfinished", "failed", "damaged"):
            logger.error(f"{run.run}: {run.state}: {run.why}")
    if failed := [run.run for run in progress.of("failed")]:
        logger.error(how_to_leave_out(failed))
