# Energy and time models: fits to the campaign's and to imported records, error tables, figures, checks; and
# the same on clusters that were metered (MLPerf), whose records are shipped.

MC2 = PAPERS["mc2"]
FITTING = {
    "series_splits": CONFIG.evaluation.series_splits,
    "series_period_s": CONFIG.power.sample_period_s,
}

# Clusters that others metered: what is fitted and judged by itself, as it is no part of the campaign.
MLPERF_POWER = kept(shipped_folder("mlperf-power"))
METERED = f"{RESULTS}/metered"

# Folders of the user's own submissions, by the name of each.
IMPORTS = {Path(folder).name: folder for folder in CONFIG.evaluation.imports}


rule import_mlperf:
    output:
        records=directory(f"{RESULTS}/imported/{{name}}"),
    log:
        f"{RESULTS}/logs/import-{{name}}.log",
    threads: 1
    params:
        source=SOURCE,
        submissions=lambda wildcards: IMPORTS[wildcards.name],
    script:
        "../scripts/import_mlperf.py"


rule fit:
    input:
        records=records(),
        imported=expand(f"{RESULTS}/imported/{{name}}", name=IMPORTS),
    output:
        fits=directory(f"{RESULTS}/fits"),
    log:
        f"{RESULTS}/logs/fit.log",
    benchmark:
        f"{RESULTS}/benchmarks/fit.tsv"
    threads: 1
    params:
        **FITTING,
        source=SOURCE,
        # The number of records that there have to be: a folder of records may have been filled in part.
        runs=len(SPECS),
    script:
        "../scripts/fit.py"


rule tables:
    input:
        records=records(),
        # By path: together with an input like `rules.fit.output.fits`, Snakemake hashes the whole list
        # of records once for every record.
        fits=f"{RESULTS}/fits",
        published=MC2.files,
    output:
        tables=tables("Energy and time", "energy"),
        checks=tables("Records", "checks"),
    log:
        f"{RESULTS}/logs/tables.log",
    threads: 1
    params:
        source=SOURCE,
        version=MC2.version,
        runs=len(SPECS),
    script:
        "../scripts/tables.py"


rule metered:
    input:
        submissions=MLPERF_POWER.files,
        published=MC2.files,
    output:
        records=directory(f"{METERED}/records"),
        fits=directory(f"{METERED}/fits"),
        tables=tables("Energy on real clusters", "energy", f"{METERED}/tables"),
    log:
        f"{RESULTS}/logs/metered.log",
    benchmark:
        f"{RESULTS}/benchmarks/metered.tsv"
    threads: 1
    params:
        **FITTING,
        source=SOURCE,
        version=[MLPERF_POWER.version, MC2.version],
    script:
        "../scripts/metered.py"
