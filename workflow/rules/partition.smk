# Partitioning: task graphs, a comparison of planners, pipelines that are run, and their tables.


# If runs are replayed, nothing is measured, and no pipeline is run.
PIPELINES = {
    run.name: run for run in (CONFIG.partition.pipelines if RECORDED is None else [])
}
ANTICHAIN = PAPERS["antichain"]
# Task graphs of the networks to cut. They are measured here, or kept files.
TASK_GRAPHS = (
    Kept(
        expand(
            f"{RESULTS}/task-graphs/{{network}}.json", network=CONFIG.partition.networks
        ),
        None,
    )
    if CONFIG.partition.graphs is None
    else kept(
        [
            kept_task_graph(PROJECT / CONFIG.partition.graphs, network)
            for network in CONFIG.partition.networks
        ]
    )
)


rule measure_task_graph:
    output:
        graph=f"{RESULTS}/task-graphs/{{network}}.json",
    log:
        f"{RESULTS}/logs/task-graph-{{network}}.log",
    threads: 1
    resources:
        machine=16,
    params:
        size=CONFIG.partition.model_dump(include={"batch_size", "image_size"}),
    script:
        "../scripts/measure_task_graph.py"


rule partition_networks:
    input:
        graphs=TASK_GRAPHS.files,
    output:
        experiments=expand(
            f"{RESULTS}/partition/{{network}}.json", network=CONFIG.partition.networks
        ),
    log:
        f"{RESULTS}/logs/partition-networks.log",
    threads: 1
    resources:
        machine=16,  # planners are timed
    params:
        version=TASK_GRAPHS.version,
        devices=CONFIG.partition.devices,
        micro_batches=CONFIG.partition.micro_batches,
        source="measured" if CONFIG.partition.graphs is None else "recorded",
    script:
        "../scripts/partition_networks.py"


rule run_pipeline:
    output:
        record=f"{RESULTS}/pipelines/{{pipeline}}.json",
    log:
        f"{RESULTS}/logs/pipeline-{{pipeline}}.log",
    threads: 1
    resources:
        machine=16,
    params:
        run=lambda wildcards: PIPELINES[wildcards.pipeline].model_dump(mode="json"),
    script:
        "../scripts/run_pipeline.py"


rule partition_report:
    input:
        experiments=rules.partition_networks.output.experiments,
        pipelines=expand(f"{RESULTS}/pipelines/{{pipeline}}.json", pipeline=PIPELINES),
        published=ANTICHAIN.files,
    output:
        tables=tables("Partitioning", "partition"),
    log:
        f"{RESULTS}/logs/partition.log",
    threads: 1
    params:
        source=SOURCE,
        version=ANTICHAIN.version,
    script:
        "../scripts/partition_report.py"
