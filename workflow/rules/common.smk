# What the rules share, by section: configuration, names, folders, kept files, params, outputs, and what is
# said at the start and the end.
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

# ---- Configuration: checked before any rule is read; each mistake is an error of one line.

PROJECT = Path(workflow.basedir)
PLATFORMS = PROJECT / "config" / "platforms"
try:
    CONFIG = parse_config(config, "configuration")
    SPECS = {spec.run: spec for spec in require_campaign(CONFIG, PLATFORMS, PROJECT)}
    # The recorded campaign that is replayed; None where runs are measured.
    RECORDED = recorded_for(CONFIG.platform, PLATFORMS)
except JoulecastError as error:
    raise WorkflowError(str(error)) from None
# Of a training of the user's own, what is shown is the training: no networks are simulated, cut or tuned.
HAS_NETWORKS = CONFIG.workload.command is None

# ---- Wildcards: the names that paths may hold.


wildcard_constraints:
    run=r"[a-z0-9_-]+",
    name=r"[A-Za-z0-9_.-]+",
    network=r"[a-z0-9_]+",
    pipeline=r"[a-z0-9_-]+",
    policy=r"[a-z-]+",


# ---- Folders: of the results, and of the data that comes with the project.

RESULTS = CONFIG.results
PUBLISHED = find(Path("config"), "published", PROJECT / "config")


def shipped_folder(name):
    """Folder of what others measured, by its name below `recorded`."""
    folder = find(Path("recorded"), name, PROJECT / "recorded")
    if folder is None:
        raise WorkflowError(f"recorded/{name}: missing; restore it from the repository")
    return folder


# ---- Kept files: inputs that come with the project, whose content counts and not their date.


class Kept(NamedTuple):
    """An input that is kept as data, and the param that repeats a rule when its content changes."""

    files: str | list[str]
    version: str | list[str] | None


def kept(paths, version_of=None):
    """Input and version of kept files: new content repeats a rule, a new date does not.

    The checksums of inputs that Snakemake records cover less: not folders, not files above 1 MB, and not
    results that were copied without `.snakemake`. It also compares them only where a file is newer than
    the results, and misses a changed file with an old date.

    `paths` is one path or a list; `version_of` is a file that names the content of all of them.
    """

    def each(function, paths):
        if isinstance(paths, list):
            return [function(path) for path in paths]
        return function(paths)

    return Kept(ancient(each(str, paths)), each(content_version, version_of or paths))


# Numbers of the papers, by the paper.
PAPERS = {
    name: kept(PUBLISHED / f"{name}.yaml")
    for name in ("mc2", "proteus", "antichain", "zeus")
}


# ---- Params: what a script is given.


# The package's content: another one fits, judges and shows anew. No rule that measures has it.
SOURCE = package_version()
# Prices make tables and page anew, and no measurement.
PRICES = CONFIG.prices.model_dump()


def own_configfiles():
    """Configuration files other than the default, as a user's commands name them."""
    default = PROJECT / "config" / "config.yaml"
    files = map(os.path.abspath, workflow.configfiles)
    return [os.path.relpath(file) for file in files if Path(file) != default]


# ---- Outputs: folders of tables, as files and in Snakemake's report.


def in_report(output, caption, category, shows, **patterns):
    """An output that Snakemake's report shows, under a caption of workflow/report."""
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
    """The folder of a subject's tables, of which the report shows the pages."""
    folder = directory(folder or f"{RESULTS}/tables/{subject}")
    return in_report(folder, subject, category, "{table}", patterns=["{table}.html"])


# ---- Start and end: what is refused before the first job, and what is said after the last.

# The measurements on this host end with this process.
if workflow.is_main_process:
    os.environ[CAMPAIGN] = str(os.getpid())


def require_this_host():
    """Refuse a campaign whose runs would be on this host, which lacks cores or a GPU for them."""
    # Where all runs are measured, tables are made on any host.
    measures = not all(Path(record).exists() for record in records())
    if workflow.local_exec and measures:
        try:
            require_host(CONFIG, list(SPECS.values()))
        except JoulecastError as error:
            raise WorkflowError(str(error)) from None


def tell_end():
    """Say what to open, what was left out, and how to repeat what other programs disturbed."""
    from joulecast.app.campaign.closing_lines import closing_lines

    for line in closing_lines(Path(RESULTS), own_configfiles()):
        logger.info(line)


def tell_failed_runs():
    """Say which runs failed, and why."""
    from joulecast.runs.progress import progress_of

    if RECORDED is not None or not Path(RESULTS).is_dir():
        return
    for run in progress_of(Path(RESULTS)).runs:
        if run.state in ("failed", "damaged"):
            logger.error(f"{run.run}: {run.state}: {run.why}")
