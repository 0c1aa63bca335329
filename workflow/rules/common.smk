# What the rules share: the checked configuration, the runs it asks for, and where results lie.
import json
import os
import sys
from hashlib import sha256
from math import ceil
from pathlib import Path
from time import time

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from joulecast.campaign.held_records import ASKED_S
from joulecast.campaign.runs import run_table
from joulecast.campaign.check import require_campaign, require_host
from joulecast.campaign.config import parse_config
from joulecast.errors import JoulecastError
from joulecast.files.writing import sha256_of
from joulecast.platforms import platform_file, recorded_for
from joulecast.records.recorded import FILES
from joulecast.campaign.external import listed_downloads
from joulecast.files.shipped import find
from joulecast.tuning.policy_experiment import COMPARED
from joulecast.workloads.networks import NETWORKS as KNOWN_NETWORKS

PLATFORMS = Path(workflow.basedir) / "config" / "platforms"
try:
    CONFIG = parse_config(config, "configuration")
    SPECS = {
        spec.run: spec
        for spec in require_campaign(CONFIG, PLATFORMS, Path(workflow.basedir))
    }
    # The recorded campaign that is replayed; None where runs are measured.
    RECORDED = recorded_for(CONFIG.platform, PLATFORMS)
    # Files of the platforms that are forecast on: the campaign's own first.
    PLATFORM_FILES = [
        str(platform_file(name, PLATFORMS))
        for name in [CONFIG.platform, *CONFIG.simulator.platforms]
    ]
except JoulecastError as error:
    raise WorkflowError(str(error)) from None
# Scripts get `config`, in which what `--config` gave inside of a section is text.
config.update(
    CONFIG.model_dump(
        mode="json", include={"quiet", "run_timeout_s", "start_timeout_s"}
    )
)

REPORTS = any(word.startswith("--report") for word in sys.argv)
RUNS = run_table(list(SPECS.values()))
RESULTS = CONFIG.results
PROJECT = Path(workflow.basedir)
PUBLISHED = find(Path("config"), "published", PROJECT / "config")
EXTERNAL = find(Path("config"), "external", PROJECT / "config")
# Those of the campaign; of a recorded one, which may be of others, as far as they are known here.
NETWORKS = (
    CONFIG.workload.networks
    if RECORDED is None
    else sorted(
        {spec.workload.network for spec in SPECS.values() if spec.workload}
        & set(KNOWN_NETWORKS)
    )
)
# Measured here only where the configuration says so; else taken from what the project keeps as data.
EMULATED_NETWORK = CONFIG.simulator.emulated_network
REAL_TRAINING = CONFIG.simulator.real_training
# Ops of a platform whose runs are replayed cannot be measured on this machine.
PROFILES_OPS = CONFIG.simulator.profile_ops and RECORDED is None
# Task graphs that are kept: files of the networks in a folder of the project.
TASK_GRAPHS = (
    None if CONFIG.partition.graphs is None else PROJECT / CONFIG.partition.graphs
)
# Where runs are replayed nothing is measured, and no pipeline is run.
PIPELINES = {
    run.name: run for run in (CONFIG.partition.pipelines if RECORDED is None else [])
}
# Traces of tuning, wherever they come from.
TRACES = [
    f"{RESULTS}/external/zeus_trace/{name}"
    for name in listed_downloads(EXTERNAL / "zeus_trace.yaml")
]
# A training that is tuned live is a measurement, and has a history of its own for everything it depends on.
LIVE_DIGEST = sha256(CONFIG.tuning.live.model_dump_json().encode()).hexdigest()[:12]
LIVE_HISTORY = f"{RESULTS}/tuning/live-{LIVE_DIGEST}.jsonl"
# When this campaign was started, for its jobs wherever they run.
if workflow.is_main_process:
    os.environ[ASKED_S] = str(time())
# Minutes that a scheduler gives a run, as often as it may be measured: it ends itself before, and says why.
TRIES = 1 + CONFIG.quiet.repeats
WALLTIME_MIN = ceil(TRIES * (CONFIG.run_timeout_s + CONFIG.quiet.wait_s) / 60) + 5
# Runs that need a launcher are told from those of a single rank by their node count.
ONE_RANK = r"(idle-n1|[a-z0-9_]+-n1-b\d+-r\d+)"
SEVERAL_RANKS = r"[a-z0-9_]+-n(?!1-)\d+-b\d+-r\d+"
SEVERAL_RANKS_CALIBRATED = r"(allreduce|sleeping_rank)-n\d+"
if CONFIG.scale.ranks_per_node > 1:
    ONE_RANK, SEVERAL_RANKS = r"(?!)", r"[a-z0-9_]+-n\d+-b\d+-r\d+"
    SEVERAL_RANKS_CALIBRATED = r"(idle|allreduce|sleeping_rank)-n\d+"


wildcard_constraints:
    run=r"[a-z0-9_-]+",
    name=r"[A-Za-z0-9_.-]+",
    network=r"[a-z0-9_]+",
    pipeline=r"[a-z0-9_-]+",
    policy=r"[a-z-]+",


def records(query="index == index"):
    """Folders of the records of the runs that a query on the run table selects.

    Where a recorded campaign stands for them it is one folder with all: Snakemake compares each input with
    each output of a rule, and a campaign may have ten thousand runs.
    """
    if RECORDED is not None:
        return [f"{RESULTS}/records"]
    return [f"{RESULTS}/records/{run}" for run in sorted(RUNS.query(query).index)]


def traced_run():
    """The run whose power trace is drawn: a training on the most nodes."""
    query = "kind == 'training' and nodes == nodes.max() and repeat == 1"
    return min(RUNS.query(query).index)


def specification(wildcards):
    """What a run is to do, as JSON: a change of it, and of nothing else, repeats the run."""
    return SPECS[wildcards.run].model_dump_json()


def place_in_order(wildcards):
    """Earlier runs of the shuffled order come first; they stand before everything else."""
    return len(RUNS) - int(RUNS.at[wildcards.run, "order"])


def rank_count(wildcards):
    """MPI tasks of a run."""
    return int(RUNS.at[wildcards.run, "ranks"])


def host_count(wildcards):
    """Physical hosts of a run, which are the nodes that a scheduler gives it."""
    return SPECS[wildcards.run].hosts


def in_report(path, category, caption=None):
    """An output that Snakemake's report shows, under the caption of its name (workflow/report)."""
    # A report of what there is: Snakemake refuses one in which a file is missing.
    if REPORTS and not Path(path).exists():
        return path
    name = Path(path).stem
    return report(
        path,
        caption=f"../report/{caption or name}.rst",
        category=category,
        labels={"shows": name.replace("_", " ")},
    )


def tables(category, names):
    """Tables as CSV, as Markdown, and as pages that the report shows."""
    stems = [f"{RESULTS}/tables/{name}" for name in names]
    return [
        *(in_report(f"{stem}.html", category) for stem in stems),
        *(f"{stem}.{suffix}" for stem in stems for suffix in ("csv", "md")),
    ]


def figures(category, names, caption=None):
    """Figures as SVG, which the report shows, and as PDF."""
    stems = [f"{RESULTS}/figures/{name}" for name in names]
    return [
        *(in_report(f"{stem}.svg", category, caption) for stem in stems),
        *(f"{stem}.pdf" for stem in stems),
    ]


def folder_of(name):
    """Parameter of a rule: the folder of its outputs of this name."""
    return lambda wildcards, output: os.path.dirname(output.get(name)[0])


def content_of_result(name):
    """What names the content of a result that only some campaigns have, for the page that shows it."""
    path = Path(RESULTS) / name
    return sha256_of(path) if path.exists() else None


def own_configfiles():
    """Configuration files beside the default, as the page's commands name them."""
    default = PROJECT / "config" / "config.yaml"
    files = map(os.path.abspath, workflow.configfiles)
    return [os.path.relpath(file) for file in files if Path(file) != default]


def kept_or_measured(kept, name):
    """Folder of measurements the simulator is judged on, as input of a rule."""
    return f"{RESULTS}/{name}" if kept is None else ancient(str(PROJECT / kept))


def content_of(kept):
    """What names the content of kept measurements: a change of it judges the simulator again."""
    provenance = None if kept is None else PROJECT / kept / "provenance.json"
    return sha256_of(provenance) if provenance and provenance.exists() else None


def kept_task_graph(network):
    """A network's file among the kept task graphs: one of our own, or a PipeDream profile."""
    files = [TASK_GRAPHS / f"{network}{suffix}" for suffix in (".json", ".txt")]
    return next((file for file in files if file.exists()), files[0])


def task_graph(wildcards):
    """Task graph of a network, kept or measured, as input of a rule."""
    if TASK_GRAPHS is None:
        return f"{RESULTS}/task-graphs/{wildcards.network}.json"
    return ancient(str(kept_task_graph(wildcards.network)))


def content_of_graph(wildcards):
    """What names the content of a kept task graph: a change of it cuts the network again."""
    file = None if TASK_GRAPHS is None else kept_task_graph(wildcards.network)
    return sha256_of(file) if file and file.exists() else None


def tables_of_external_data(wildcards):
    """Tables that need data from outside, as far as it can be had."""
    found = checkpoints.find_external_data.get().output.found
    missing = json.loads(Path(found).read_text())
    tables = {
        "mlperf_power": {"metered_tables": rules.metered_tables.output},
        "pipedream_profiles": {
            "profile_experiments": expand(
                f"{RESULTS}/papers/partition/{{network}}.json", network=PROFILED
            )
        },
        "zeus_trace": {"replays": rules.tuning_report.output},
    }
    return {
        key: files
        for name, needed in tables.items()
        if not missing[name]
        for key, files in needed.items()
    }


def require_this_host():
    """Refuse a campaign whose runs would be on this host, which lacks cores or a GPU for them."""
    # Where all is measured, tables are made on any host.
    measures = not all(Path(record).exists() for record in records())
    if workflow.local_exec and measures:
        try:
            require_host(CONFIG, list(SPECS.values()))
        except JoulecastError as error:
            raise WorkflowError(str(error)) from None


def require_targets():
    """Refuse a target after `--` that no rule has by name and that is no path."""
    # Snakemake tells a Snakefile no targets, and later only says that no rule makes them.
    asked = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    known = {rule.name for rule in workflow.rules}
    for target in asked:
        if target not in known and "/" not in target:
            raise WorkflowError(
                f"no target `{target}`; targets: {', '.join(TARGETS)}, or the path of a file"
            )


def tell_end():
    """Say what to open, what was left out, and how to repeat what other programs disturbed."""
    from joulecast.campaign.ending import ending

    for line in ending(Path(RESULTS), own_configfiles()):
        logger.info(line)


def tell_failed_runs(check_records=False):
    """Write the table of failed runs, and say which ones there are now."""
    from joulecast.report.tables.failed_runs import write_failed_runs

    if RECORDED is not None:
        return
    try:
        failed = write_failed_runs(Path(RESULTS), check_records)
    except JoulecastError as error:
        logger.error(f"no table of failed runs: {error}")
        return
    unmeasured = failed[failed["now"].isin(("failed", "waiting", "damaged"))]
    for row in unmeasured.drop_duplicates("run", keep="last").itertuples():
        logger.error(f"{row.run}: {row.now}: {row.reason}")
    if len(unmeasured):
        logger.error(f"a page of what there is: ./run joulecast overview {RESULTS}")
