# The tables of the four papers, with a verdict on every number. All data are shipped.

PROFILES = kept(sorted(shipped_folder("pipedream-profiles").glob("*.txt")))


use rule partition_networks as partition_profiles with:
    input:
        graphs=PROFILES.files,
    output:
        experiments=expand(
            f"{RESULTS}/papers/partition/{{network}}.json",
            network=[Path(file).stem for file in PROFILES.files],
        ),
    log:
        f"{RESULTS}/logs/partition-profiles.log",
    params:
        version=PROFILES.version,
        devices=[4, 8],  # as in the paper
        micro_batches=CONFIG.partition.micro_batches,
        source="imported",


rule papers:
    input:
        metered=rules.metered.output.tables,
        profile_experiments=rules.partition_profiles.output.experiments,
        tuning=rules.tuning_report.output.tables,
        simulator=rules.simulator_report.output.tables,
        partition=rules.partition_report.output.tables,
        own_experiments=rules.partition_networks.output.experiments,
        published=[paper.files for paper in PAPERS.values()],
    output:
        tables=tables("Papers", "papers"),
    log:
        f"{RESULTS}/logs/papers.log",
    threads: 1
    params:
        source=SOURCE,
        version=[paper.version for paper in PAPERS.values()],
    script:
        "../scripts/papers.py"
