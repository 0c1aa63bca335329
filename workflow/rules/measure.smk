# Run records: measured here, one at a time on a machine, or unpacked from a recorded campaign.
from joulecast.records.recorded import FILES

# Minutes that a scheduler gives a run with all its repeats: a run ends itself before, and says why.
TRIES = 1 + CONFIG.quiet.repeats
WALLTIME_MIN = ceil(TRIES * (CONFIG.run_timeout_s + CONFIG.quiet.wait_s) / 60) + 5
# How a run is measured, which is no part of what it is to do.
OPTIONS = {
    "attempts": Path(RESULTS) / "attempts",
    "timeout_s": CONFIG.run_timeout_s,
    "start_timeout_s": CONFIG.start_timeout_s,
}

# Runs of one rank need no launcher; their names show it by the node count.
ONE_RANK = r"(idle-n1|[a-z0-9_]+-n1-b\d+-r\d+)"
SEVERAL_RANKS = r"[a-z0-9_]+-n(?!1-)\d+-b\d+-r\d+"
SEVERAL_RANKS_CALIBRATED = r"(allreduce|sleeping_rank)-n\d+"
if CONFIG.scale.ranks_per_node > 1:
    ONE_RANK, SEVERAL_RANKS = r"(?!)", r"[a-z0-9_]+-n\d+-b\d+-r\d+"
    SEVERAL_RANKS_CALIBRATED = r"(idle|allreduce|sleeping_rank)-n\d+"


def specification(wildcards):
    """What a run is to do, as JSON: the only param whose change repeats the run."""
    return SPECS[wildcards.run].model_dump_json()


def place_in_order(wildcards):
    """Priority of a run: earlier runs of the shuffled order come first, and all runs before other jobs."""
    return len(RUNS) - int(RUNS.at[wildcards.run, "order"])


def rank_count(wildcards):
    """MPI tasks of a run."""
    return int(RUNS.at[wildcards.run, "ranks"])


def host_count(wildcards):
    """Physical hosts of a run, which are the nodes that a scheduler gives it."""
    return SPECS[wildcards.run].hosts


if RECORDED is None:

    rule train:
        output:
            record=directory(f"{RESULTS}/records/{{run}}"),
        log:
            f"{RESULTS}/logs/{{run}}.log",
        wildcard_constraints:
            run=SEVERAL_RANKS,
        priority: place_in_order
        threads: 1
        resources:
            machine=16,
            mpi="mpiexec",
            # What a cluster's scheduler is asked for.
            tasks=rank_count,
            nodes=host_count,
            cpus_per_task=CONFIG.scale.threads_per_rank,
            runtime=WALLTIME_MIN,
        params:
            spec=specification,
            options=unversioned(OPTIONS),
            quiet=unversioned(CONFIG.quiet.model_dump()),
        script:
            "../scripts/measure.py"

    use rule train as train_single with:
        wildcard_constraints:
            run=ONE_RANK,
        resources:
            machine=16,
            cpus_per_task=CONFIG.scale.threads_per_rank,
            runtime=WALLTIME_MIN,

    use rule train as calibrate with:
        wildcard_constraints:
            run=SEVERAL_RANKS_CALIBRATED,

else:
    # The first file lists all others with their checksums.
    CAMPAIGN = kept([RECORDED / name for name in FILES], version_of=RECORDED / FILES[0])

    rule replay:
        input:
            CAMPAIGN.files,
        output:
            records=directory(f"{RESULTS}/records"),
        log:
            f"{RESULTS}/logs/replay.log",
        threads: 1
        params:
            version=CAMPAIGN.version,
            campaign=unversioned(str(RECORDED)),
        script:
            "../scripts/replay.py"
