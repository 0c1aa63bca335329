# What a campaign answers, and the overview page of everything, one file that needs no other.
CONFIGFILE = " ".join(own_configfiles()) or None


rule advice:
    input:
        fits=f"{RESULTS}/fits",
        # The page's forecast goes as far as this table.
        forecast=f"{RESULTS}/tables/forecast" if HAS_NETWORKS else [],
    output:
        tables=tables("Overview", "advice"),
    log:
        f"{RESULTS}/logs/advice.log",
    threads: 1
    params:
        source=SOURCE,
        prices=PRICES,
        configfile=CONFIGFILE,
    script:
        "../scripts/advice.py"


rule overview:
    input:
        fits=f"{RESULTS}/fits",
        advice=rules.advice.output.tables,
        checks=f"{RESULTS}/tables/checks",
        tables=f"{RESULTS}/tables/energy",
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
        configfile=CONFIGFILE,
        # Results of other targets, which are inputs only where the configuration asks for them.
        version=[
            content_version(Path(RESULTS) / file)
            for file in ("tables/papers/papers.parquet", "tuning/replays/zeus.parquet")
            if not CONFIG.paper_tables
        ],
    script:
        "../scripts/overview.py"
