# The overview page of everything, one file that needs no other.


rule overview:
    input:
        # By path: rule `check` says why.
        records=records(),
        fits=f"{RESULTS}/fits",
        forecast=f"{RESULTS}/tables/forecast" if HAS_NETWORKS else [],
        experiments=expand(
            f"{RESULTS}/partition/{{network}}.json",
            network=CONFIG.partition.networks if HAS_NETWORKS else [],
        ),
        pipelines=expand(
            f"{RESULTS}/pipelines/{{pipeline}}.json",
            pipeline=PIPELINES if HAS_NETWORKS else [],
        ),
        metered=f"{METERED}/tables",
        papers=f"{RESULTS}/tables/papers" if CONFIG.paper_tables else [],
        live=(
            f"{RESULTS}/tuning/live.json" if RECORDED is None and HAS_NETWORKS else []
        ),
    output:
        page=in_report(f"{RESULTS}/index.html", "overview", "Overview", "overview"),
        figures=expand(
            f"{RESULTS}/figures/overview_{{figure}}.{{suffix}}",
            figure=[
                "forecast",
                "front",
                "predicted",
                "stages",
                "policies",
                "pipelines",
                "clusters",
            ],
            suffix=["svg", "pdf"],
        ),
    log:
        f"{RESULTS}/logs/overview.log",
    threads: 1
    params:
        source=SOURCE,
        prices=PRICES,
        configfile=" ".join(own_configfiles()) or None,
        # Results of other targets, which are inputs only where the configuration asks for them.
        version=[
            content_version(Path(RESULTS) / file)
            for file in ("tables/papers/papers.parquet", "tuning/replays/zeus.parquet")
            if not CONFIG.paper_tables
        ],
    script:
        "../scripts/overview.py"
