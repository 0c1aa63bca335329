# Runs of the campaign: their records as inputs, and what a rule asks for to measure one.
from math import ceil

from joulecast.app.campaign.runs import run_table

RUNS = run_table(list(SPECS.values()))


def records(query="index == index"):
    """Folders of the records of the runs that a query on the run table selects.

    Where a recorded campaign is replayed it is one folder with all records: Snakemake compares each input
    with each output of a rule, and a campaign may have ten thousand runs.
    """
    if RECORDED is not None:
        return [f"{RESULTS}/records"]
    return [f"{RESULTS}/records/{run}" for run in sorted(RUNS.query(query).index)]


def specification(wildcards):
    """What a run is to do, as JSON: the only param whose change repeats the run."""
    return SPECS[wildcards.run].model_dump_json()


def place_in_order(wildcards):
    """Priority of a run: earlier runs of the shuffled order come first, and all runs before other jobs."""
    return len(RUNS) - int(RUNS.at[wildcards.run, "order"])


def rank_count(wildcards):
    """MPI tasks of a run."""
    return int(RUNS.at[wildcards.run, "ranks"])


def mpi(wildcards):
    """What marks a run of several ranks for a scheduler, as resource `launcher` starts them."""
    return "launcher" if rank_count(wildcards) > 1 else None


def cores_of_rank(wildcards):
    """Cores of each of several ranks; one rank has the `threads` of its job, so that it may have all cores."""
    return CONFIG.scale.threads_per_rank if rank_count(wildcards) > 1 else None


def host_count(wildcards):
    """Physical hosts of a run, which are the nodes that a scheduler gives it."""
    return SPECS[wildcards.run].hosts


# Minutes that a scheduler gives a run with all its repeats: a run ends itself before, and says why.
TRIES = 1 + CONFIG.quiet.repeats
WALLTIME_MIN = ceil(TRIES * (CONFIG.run_timeout_s + CONFIG.quiet.wait_s) / 60) + 5
