# The runs of the campaign: their records as inputs, and the resources to measure one.
from math import ceil

from joulecast.app.campaign.runs import run_table

RUNS = run_table(list(SPECS.values()))


def records(query="index == index"):
    """Folders of the records of some runs. A query on the run table selects them.

    If a recorded campaign is replayed, this is one folder with all records. Snakemake compares each input
    with each output of a rule, and a campaign may have ten thousand runs.
    """
    if RECORDED is not None:
        return [f"{RESULTS}/records"]
    return [f"{RESULTS}/records/{run}" for run in sorted(RUNS.query(query).index)]


def specification(wildcards):
    """The specification of a run, as JSON. No other param repeats the run if it changes."""
    return SPECS[wildcards.run].model_dump_json()


def place_in_order(wildcards):
    """Priority of a run. Runs begin in their shuffled order, and before all other jobs."""
    return len(RUNS) - int(RUNS.at[wildcards.run, "order"])


def rank_count(wildcards):
    """MPI tasks of a run."""
    return int(RUNS.at[wildcards.run, "ranks"])


def mpi(wildcards):
    """Resource that says that a run has several ranks. A scheduler starts them by the resource `launcher`."""
    return "launcher" if rank_count(wildcards) > 1 else None


def cores_of_rank(wildcards):
    """Cores of each rank, if there are several. A single rank has the `threads` of its job. So it may have
    all cores."""
    return CONFIG.scale.threads_per_rank if rank_count(wildcards) > 1 else None


def host_count(wildcards):
    """Physical hosts of a run. A scheduler calls them nodes."""
    return SPECS[wildcards.run].hosts


# Minutes that a scheduler gives a run, with all its repeats. The run ends itself earlier, and says why.
TRIES = 1 + CONFIG.quiet.repeats
WALLTIME_MIN = ceil(TRIES * (CONFIG.run_timeout_s + CONFIG.quiet.wait_s) / 60) + 5
