# Partitioning: task graphs, planners side by side, pipelines that are run, their tables.


# Where runs are replayed nothing is measured, and no pipeline is run.
PIPELINES = {
    run.name: run for run in (CONFIG.partition.pipelines if RECORDED is None else [])
}
ANTICHAIN = PAPERS["antichain"]


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


rule partition_network:
    input:
        graph=lambda wildcards: task_graph(wildcards).files,
    output:
        experiment=f"{RESULTS}/partition/{{network}}.json",
    log:
        f"{RESULTS}/logs/partition-{{network}}.log",
    threads: 1
    resources:
        machine=16,  # planners are timed
    params:
        version=lambda wildcards: task_graph(wildcards).version,
        devices=CONFIG.partition.devices,
        micro_batches=CONFIG.partition.micro_batches,
        source="measured" if CONFIG.partition.graphs is None else "recorded",
    script:
        "../scripts/partition_network.py"


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
        experiments=expand(
            f"{RESULTS}/partition/{{network}}.json", network=CONFIG.partition.networks
        ),
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
