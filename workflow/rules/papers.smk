# The tables of the four papers: external data that may be missing, and a verdict on every number.

LISTED = {
    "mlperf_power": None,
    "pipedream_profiles": str(EXTERNAL / "pipedream_profiles.yaml"),
    "zeus_trace": str(EXTERNAL / "zeus_trace.yaml"),
}
PROFILED = [
    Path(name).stem for name in listed_downloads(Path(LISTED["pipedream_profiles"]))
]
METERED = f"{RESULTS}/papers/metered"


checkpoint find_external_data:
    output:
        found=f"{RESULTS}/external/found.json",
    log:
        f"{RESULTS}/logs/find-external-data.log",
    threads: 1
    params:
        external_data=EXTERNAL_DATA,
        results=unversioned(RESULTS),
        lists=LISTED,
    script:
        "../scripts/find_external_data.py"


use rule fetch_traces as fetch_profiles with:
    output:
        files=expand(
            f"{RESULTS}/external/pipedream_profiles/{{network}}.txt", network=PROFILED
        ),
    log:
        f"{RESULTS}/logs/fetch-profiles.log",
    params:
        external_data=EXTERNAL_DATA,
        results=unversioned(RESULTS),
        listed=LISTED["pipedream_profiles"],
        version=content_version(Path(LISTED["pipedream_profiles"])),
        folder=unversioned(f"{RESULTS}/external/pipedream_profiles"),


use rule partition_network as partition_profile with:
    input:
        graph=f"{RESULTS}/external/pipedream_profiles/{{network}}.txt",
    output:
        experiment=f"{RESULTS}/papers/partition/{{network}}.json",
    log:
        f"{RESULTS}/logs/partition-profile-{{network}}.log",
    params:
        devices=[4, 8],  # the paper's
        micro_batches=CONFIG.partition.micro_batches,
        source="imported",


use rule fit as fit_metered with:
    input:
        records=[f"{RESULTS}/imported/mlperf_power"],
        imported=[],
    output:
        fits=directory(f"{METERED}/fits"),
    log:
        f"{RESULTS}/logs/fit-metered.log",
    params:
        **FITTING,
        runs=None,  # all that were imported


use rule tables as metered_tables with:
    input:
        fits=rules.fit_metered.output.fits,
        published=MC2.files,
    output:
        [f"{METERED}/tables/{Path(path).name}" for path in rules.tables.output],
    log:
        f"{RESULTS}/logs/metered-tables.log",
    params:
        version=MC2.version,
        folder=unversioned(f"{METERED}/tables"),


rule papers:
    input:
        unpack(tables_of_external_data),
        external=rules.find_external_data.output.found,
        simulator=rules.simulator_report.output,
        own_experiments=rules.partition_report.input.experiments,
        published=[paper.files for paper in PAPERS.values()],
    output:
        tables("Papers", ["papers"]),
        f"{RESULTS}/tables/papers.tex",
    log:
        f"{RESULTS}/logs/papers.log",
    threads: 1
    params:
        version=[paper.version for paper in PAPERS.values()],
        published_folder=unversioned(str(PUBLISHED)),
        tables_folder=unversioned(TABLES),
        metered_folder=unversioned(f"{METERED}/tables"),
    script:
        "../scripts/papers.py"
