# Pages for people: the overview of everything, one file that stands alone.


rule overview:
    input:
        # By path: beside an input that names a rule, Snakemake hashes all records once for every record.
        records=records(),
        fits=f"{RESULTS}/fits",
        forecast=f"{RESULTS}/tables/scaling_forecast.csv",
        experiments=expand(
            f"{RESULTS}/partition/{{network}}.json", network=CONFIG.partition.networks
        ),
        pipelines=expand(f"{RESULTS}/pipelines/{{pipeline}}.json", pipeline=PIPELINES),
        papers=f"{RESULTS}/tables/papers.csv" if CONFIG.paper_tables else [],
        live=[] if RECORDED is not None else f"{RESULTS}/tuning/live.json",
    output:
        page=in_report(f"{RESULTS}/index.html", "Overview", "overview"),
        figures=expand(
            f"{RESULTS}/figures/overview_{{figure}}.{{suffix}}",
            figure=["predicted", "stages", "front", "policies", "pipelines"],
            suffix=["svg", "pdf"],
        ),
    log:
        f"{RESULTS}/logs/overview.log",
    threads: 1
    params:
        configfile=lambda wildcards: " ".join(own_configfiles()) or None,
        # What other targets left; where it is asked for it is an input.
        left=lambda wildcards: (
            None
            if CONFIG.paper_tables
            else [
                content_of_result("tables/papers.csv"),
                content_of_result("tuning/replays/zeus.parquet"),
            ]
        ),
    script:
        "../scripts/overview.py"
