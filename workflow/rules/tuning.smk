# Tuning: traces, policies that are replayed on them, a training that is tuned live, and their tables.

from hashlib import sha256

TRACES = kept(shipped_folder("zeus-trace"))
ZEUS = PAPERS["zeus"]
# Live tuning is a measurement. The path of its history depends on everything that decides its result.
LIVE_DIGEST = sha256(CONFIG.tuning.live.model_dump_json().encode()).hexdigest()[:12]
LIVE_HISTORY = f"{RESULTS}/tuning/live-{LIVE_DIGEST}.jsonl"


rule replay_policies:
    input:
        traces=TRACES.files,
    output:
        recurrences=f"{RESULTS}/tuning/replays.parquet",
    log:
        f"{RESULTS}/logs/replay-policies.log",
    benchmark:
        f"{RESULTS}/benchmarks/replay-policies.tsv"
    threads: 1
    params:
        source=SOURCE,
        tuning=CONFIG.tuning.model_dump(include={"eta", "seeds", "recurrences"}),
        version=TRACES.version,
    script:
        "../scripts/replay_policies.py"


rule hold_out_workloads:
    input:
        traces=TRACES.files,
    output:
        recurrences=f"{RESULTS}/tuning/held-out.parquet",
        choices=f"{RESULTS}/tuning/held-out.json",
    log:
        f"{RESULTS}/logs/hold-out-workloads.log",
    benchmark:
        f"{RESULTS}/benchmarks/hold-out-workloads.tsv"
    threads: 1
    params:
        source=SOURCE,
        tuning=CONFIG.tuning.model_dump(include={"eta", "seeds", "recurrences"}),
        version=TRACES.version,
    script:
        "../scripts/hold_out_workloads.py"


rule replay_published:
    input:
        traces=TRACES.files,
        published=ZEUS.files,
    output:
        paper=f"{RESULTS}/tuning/paper-zeus.parquet",
        reproduction=f"{RESULTS}/tuning/reproduction.parquet",
    log:
        f"{RESULTS}/logs/replay-published.log",
    benchmark:
        f"{RESULTS}/benchmarks/replay-published.tsv"
    threads: 1
    params:
        source=SOURCE,
        tuning=CONFIG.tuning.model_dump(include={"eta", "seeds"}),
        version=[TRACES.version, ZEUS.version],
    script:
        "../scripts/replay_published.py"


rule tuning_report:
    input:
        traces=TRACES.files,
        replays=rules.replay_policies.output.recurrences,
        held_out=rules.hold_out_workloads.output.recurrences,
        choices=rules.hold_out_workloads.output.choices,
        paper=rules.replay_published.output.paper,
        reproduction=rules.replay_published.output.reproduction,
        published=ZEUS.files,
    output:
        tables=tables("Tuning", "tuning"),
    log:
        f"{RESULTS}/logs/tuning.log",
    threads: 1
    params:
        source=SOURCE,
        eta=CONFIG.tuning.eta,
        version=[TRACES.version, ZEUS.version],
    script:
        "../scripts/tuning_report.py"


rule tune_live:
    output:
        record=f"{RESULTS}/tuning/live.json",
        tables=tables("Tuning", "tuning_live"),
    log:
        f"{RESULTS}/logs/tune-live.log",
    threads: 1
    resources:
        machine=16,
    params:
        live=CONFIG.tuning.live.model_dump(mode="json"),
        # The trials that have ended. If a tuning was interrupted, it continues after them.
        history=LIVE_HISTORY,
    script:
        "../scripts/tune_live.py"
