# Run records. They are measured here, one at a time on each machine, or unpacked from a recorded campaign.
from joulecast.runs.recorded import CAMPAIGN_FILE, RECORDS_FILE

if RECORDED is None:

    rule train:
        output:
            # A record is not removed before its job, because a killed campaign may have finished it.
            record=update(directory(f"{RESULTS}/records/{{run}}")),
        log:
            f"{RESULTS}/logs/{{run}}.log",
        priority: place_in_order
        threads: 1
        resources:
            machine=16,
            launcher="mpiexec",
            # Requests to a cluster's scheduler.
            mpi=mpi,
            tasks=rank_count,
            nodes=host_count,
            cpus_per_task=cores_of_rank,
            runtime=WALLTIME_MIN,
        params:
            spec=specification,
        script:
            "../scripts/measure.py"

    rule record:
        input:
            records=records(),
        output:
            recorded=directory(f"{RESULTS}/recorded"),
        log:
            f"{RESULTS}/logs/record.log",
        threads: 1
        params:
            configuration=CONFIG.model_dump(mode="json"),
        script:
            "../scripts/record.py"

else:
    # The first file contains the checksum of the second one.
    REPLAYED = kept(
        [RECORDED / CAMPAIGN_FILE, RECORDED / RECORDS_FILE],
        version_of=RECORDED / CAMPAIGN_FILE,
    )

    rule replay:
        input:
            campaign=REPLAYED.files,
        output:
            records=directory(f"{RESULTS}/records"),
        log:
            f"{RESULTS}/logs/replay.log",
        threads: 1
        params:
            version=REPLAYED.version,
        script:
            "../scripts/replay.py"
