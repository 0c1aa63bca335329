# Pages for people: the overview of everything, one file that stands alone.


def content_of_result(name):
    """What names the content of a result that only some campaigns have, for the page that shows it."""
    path = Path(RESULTS) / name
    return sha256_of(path) if path.exists() else None


def own_configfiles():
    """Configuration files beside the default, as the page's commands name them."""
    default = PROJECT / "config" / "config.yaml"
    files = map(os.path.abspath, workflow.configfiles)
    return [os.path.relpath(file) for file in files if Path(file) != default]


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
        papers=lambda wildcards: content_of_result("tables/papers.csv"),
        replays=lambda wildcards: content_of_result("tuning/replays/zeus.parquet"),
    script:
        "../scripts/overview.py"
