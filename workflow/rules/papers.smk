# The tables of the four papers: a verdict on every number, from data that is shipped.

PROFILES = shipped_folder("pipedream-profiles")
PROFILED = sorted(path.stem for path in PROFILES.glob("*.txt"))


use rule partition_network as partition_profile with:
    input:
        graph=lambda wildcards: kept(PROFILES / f"{wildcards.network}.txt").files,
    output:
        experiment=f"{RESULTS}/papers/partition/{{network}}.json",
    log:
        f"{RESULTS}/logs/partition-profile-{{network}}.log",
    params:
        version=lambda wildcards: kept(PROFILES / f"{wildcards.network}.txt").version,
        devices=[4, 8],  # the paper's
        micro_batches=CONFIG.partition.micro_batches,
        source="imported",


rule papers:
    input:
        metered=rules.metered_tables.output.tables,
        profile_experiments=expand(
            f"{RESULTS}/papers/partition/{{network}}.json", network=PROFILED
        ),
        tuning=rules.tuning_report.output.tables,
        simulator=rules.simulator_report.output.tables,
        partition=rules.partition_report.output.tables,
        own_experiments=rules.partition_report.input.experiments,
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
