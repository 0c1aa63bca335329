# Tuning: traces, policies replayed on them, a training tuned live, their tables.


rule fetch_traces:
    output:
        files=TRACES,
    log:
        f"{RESULTS}/logs/fetch-traces.log",
    threads: 1
    params:
        external_data=CONFIG.model_dump(mode="json")["external_data"],
        listed=str(EXTERNAL / "zeus_trace.yaml"),
        listed_sha256=sha256_of(EXTERNAL / "zeus_trace.yaml"),
    script:
        "../scripts/fetch_listed.py"


rule replay_policy:
    input:
        traces=TRACES,
    output:
        recurrences=f"{RESULTS}/tuning/replays/{{policy}}.parquet",
    log:
        f"{RESULTS}/logs/replay-{{policy}}.log",
    threads: 1
    params:
        tuning=CONFIG.tuning.model_dump(include={"eta", "seeds", "recurrences"}),
    script:
        "../scripts/replay_policy.py"


rule hold_out_workloads:
    input:
        traces=TRACES,
    output:
        recurrences=f"{RESULTS}/tuning/held-out.parquet",
        choices=f"{RESULTS}/tuning/held-out.json",
    log:
        f"{RESULTS}/logs/hold-out-workloads.log",
    threads: 1
    params:
        tuning=CONFIG.tuning.model_dump(include={"eta", "seeds", "recurrences"}),
    script:
        "../scripts/hold_out_workloads.py"


rule replay_published:
    input:
        traces=TRACES,
        published=ancient(str(PUBLISHED / "zeus.yaml")),
    output:
        paper=f"{RESULTS}/tuning/paper-zeus.parquet",
        reproduction=f"{RESULTS}/tuning/reproduction.parquet",
    log:
        f"{RESULTS}/logs/replay-published.log",
    threads: 1
    params:
        tuning=CONFIG.tuning.model_dump(include={"eta", "seeds"}),
        published_sha256=sha256_of(PUBLISHED / "zeus.yaml"),
    script:
        "../scripts/replay_published.py"


rule tuning_report:
    input:
        traces=TRACES,
        replays=expand(f"{RESULTS}/tuning/replays/{{policy}}.parquet", policy=COMPARED),
        held_out=rules.hold_out_workloads.output,
        published_replays=rules.replay_published.output,
        published=ancient(str(PUBLISHED / "zeus.yaml")),
    output:
        tables=tables(
            "Tuning",
            [
                "tuning_potential",
                "tuning_savings",
                "tuning_reproduction",
                "tuning_break_even",
                "tuning_comparison",
            ],
        ),
        figures=figures("Tuning", ["tuning_cumulative_cost", "tuning_maps"]),
    log:
        f"{RESULTS}/logs/tuning.log",
    threads: 1
    params:
        eta=CONFIG.tuning.eta,
        published_sha256=sha256_of(PUBLISHED / "zeus.yaml"),
        tables=folder_of("tables"),
        figures=folder_of("figures"),
    script:
        "../scripts/tuning_report.py"


rule tune_live:
    output:
        record=f"{RESULTS}/tuning/live.json",
    log:
        f"{RESULTS}/logs/tune-live.log",
    threads: 1
    resources:
        machine=16,
    params:
        live=CONFIG.tuning.live.model_dump(mode="json"),
        # Trials that have ended; an interrupted loop goes on from here.
        history=LIVE_HISTORY,
    script:
        "../scripts/tune_live.py"


rule tuning_live_report:
    input:
        record=rules.tune_live.output.record,
    output:
        tables=tables("Tuning", ["tuning_live"]),
        figures=figures("Tuning", ["tuning_live"]),
    log:
        f"{RESULTS}/logs/tuning-live.log",
    threads: 1
    params:
        tables=folder_of("tables"),
        figures=folder_of("figures"),
    script:
        "../scripts/tuning_live_report.py"
