# The answers of a campaign, and the overview page of all results. The page is one file that needs no other.


rule overview:
    input:
        fits=f"{RESULTS}/fits",
        tables=f"{RESULTS}/tables/energy",
        checks=f"{RESULTS}/tables/checks",
        metered=f"{METERED}/tables",
        papers=f"{RESULTS}/tables/papers" if CONFIG.paper_tables else [],
    output:
        page=in_report(f"{RESULTS}/index.html", "overview", "Overview", "overview"),
        tables=tables("Overview", "advice"),
    log:
        f"{RESULTS}/logs/overview.log",
    threads: 1
    params:
        source=SOURCE,
        prices=PRICES,
        configfile=" ".join(own_configfiles()) or None,
        # Another target may have made the papers' table. It is an input only if the configuration asks for
        # it.
        version=(
            None
            if CONFIG.paper_tables
            else content_version(Path(RESULTS) / "tables/papers/papers.parquet")
        ),
    script:
        "../scripts/overview.py"
