# Energy and time models: fits to the records of the campaign and to imported ones, error tables, figures and
# checks. The same is done for metered clusters (MLPerf), whose records are shipped.

MC2 = PAPERS["mc2"]
FITTING = {
    "series_splits": CONFIG.evaluation.series_splits,
    "series_period_s": CONFIG.power.sample_period_s,
}

# Clusters that others metered are not a part of the campaign. So they are fitted and judged separately.
MLPERF_POWER = kept(shipped_folder("mlperf-power"))
METERED = f"{RESULTS}/metered"

# Folders of the user's own submissions, by their names.
IMPORTS = {Path(folder).name: folder for folder in CONFIG.evaluation.imports}

# They identify the records. A folder may contain only some of them, or records of another configuration.
DIGESTS = [spec.digest() for spec in SPECS.values()]


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
        digests=DIGESTS,
    script:
        "../scripts/fit.py"


rule tables:
    input:
        records=records(),
        # This is a path, and not `rules.fit.output.fits`. With the latter, Snakemake would hash the whole
        # list of records once for every record.
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
        digests=DIGESTS,
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
