# Energy and time models: fits to the campaign's and to imported records, error tables, figures, checks.

FITTING = {
    "bootstrap": CONFIG.evaluation.bootstrap,
    "series_splits": CONFIG.evaluation.series_splits,
    "series_period_s": CONFIG.power.sample_period_s,
}


rule import_mlperf:
    output:
        records=directory(f"{RESULTS}/imported/{{name}}"),
    log:
        f"{RESULTS}/logs/import-{{name}}.log",
    threads: 1
    params:
        external_data=CONFIG.model_dump(mode="json")["external_data"],
    script:
        "../scripts/import_mlperf.py"


rule fit:
    input:
        records=records(),
        imported=expand(f"{RESULTS}/imported/{{name}}", name=CONFIG.evaluation.imports),
    output:
        fits=directory(f"{RESULTS}/fits"),
    log:
        f"{RESULTS}/logs/fit.log",
    threads: 1
    params:
        **FITTING,
        # So many records, and no fewer: a folder with all of them may have been filled in part.
        runs=len(SPECS),
    script:
        "../scripts/fit.py"


rule tables:
    input:
        fits=rules.fit.output.fits,
        # A clone makes this file newer than restored results: its content counts, not its age.
        published=ancient(str(PUBLISHED / "mc2.yaml")),
    output:
        tables(
            "Energy and time",
            [
                "time_error",
                "energy_error",
                "energy_summary",
                "energy_improvement",
                "energy_ablation",
                "scaling",
            ],
        ),
    log:
        f"{RESULTS}/logs/tables.log",
    threads: 1
    params:
        published_sha256=sha256_of(PUBLISHED / "mc2.yaml"),
    script:
        "../scripts/tables.py"


rule figures:
    input:
        fits=rules.fit.output.fits,
        record=records(f"index == '{traced_run()}'"),
        imported=rules.fit.input.imported,
        published=ancient(str(PUBLISHED / "mc2.yaml")),
    output:
        figures=[
            *figures(
                "Energy and time",
                ["stage_times", "stage_energies", "predicted_against_measured"],
            ),
            *figures(
                "Energy and time",
                [
                    "power_trace",
                    *(f"power_trace_{name}" for name in CONFIG.evaluation.imports),
                ],
                caption="power_trace",
            ),
        ],
    log:
        f"{RESULTS}/logs/figures.log",
    threads: 1
    params:
        published_sha256=sha256_of(PUBLISHED / "mc2.yaml"),
        traced_run=traced_run(),
        figures=folder_of("figures"),
    script:
        "../scripts/figures.py"


rule check:
    input:
        records=records(),
        # By path, not `rules.fit.output.fits`: beside an input that names a rule, Snakemake hashes the
        # whole list of records once for every record.
        fits=f"{RESULTS}/fits",
    output:
        checks=in_report(f"{RESULTS}/checks.csv", "Records"),
    log:
        f"{RESULTS}/logs/check.log",
    threads: 1
    params:
        runs=len(SPECS),
    script:
        "../scripts/check.py"
