# Measurements: every rule leaves one run record, and one of them runs at a time on a machine.


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
        machine=1,
        mpi="mpiexec",
        tasks=rank_count,
    params:
        specification=specification,
    script:
        "../scripts/measure.py"


use rule train as train_single with:
    wildcard_constraints:
        run=ONE_RANK,
    resources:
        machine=1,


use rule train as calibrate with:
    wildcard_constraints:
        run=r"(idle|allreduce|sleeping_rank)-n\d+",
