# The simulator: op graphs and costs, networks it is judged on, error tables, forecasts of scaling.

from joulecast.measure.workloads.networks import NETWORKS as KNOWN_NETWORKS

# Networks of the campaign; a recorded one may have others than are known here.
NETWORKS = (
    CONFIG.workload.networks
    if RECORDED is None
    else sorted(
        {spec.workload.network for spec in SPECS.values() if spec.workload}
        & set(KNOWN_NETWORKS)
    )
)
# Ops of a platform whose runs are replayed cannot be measured on this machine.
PROFILES_OPS = CONFIG.simulator.profile_ops and RECORDED is None
# What the simulator is judged on.
EMULATED = kept(PROJECT / CONFIG.simulator.emulated_network)
TRAINING = (
    kept(PROJECT / CONFIG.simulator.real_training)
    if CONFIG.simulator.real_training
    else Kept([], None)
)
GPU_STEPS = (
    kept(PROJECT / CONFIG.simulator.gpu_steps)
    if CONFIG.simulator.gpu_steps
    else Kept([], None)
)
FORECAST_ON = kept(PLATFORM_FILES)
HC2 = kept(platform_file("hc2", PLATFORMS))
PROTEUS = PAPERS["proteus"]


rule capture_graph:
    output:
        graph=f"{RESULTS}/graphs/{{network}}.json",
    log:
        f"{RESULTS}/logs/capture-{{network}}.log",
    threads: 1
    resources:
        # Not at the same time as a measurement, which it would disturb.
        machine=1,
    params:
        source=SOURCE,
        size=CONFIG.workload.model_dump(include={"image_size", "patch_size", "classes"}),
    script:
        "../scripts/capture_graph.py"


rule profile_ops:
    output:
        database=f"{RESULTS}/ops/{{network}}.json",
    log:
        f"{RESULTS}/logs/ops-{{network}}.log",
    threads: 1
    resources:
        machine=16,
    params:
        size=CONFIG.workload.model_dump(include={"image_size", "patch_size", "classes"}),
        batches=forecast_batches(),
    script:
        "../scripts/profile_ops.py"


rule calibrate_network:
    input:
        records=records("kind == 'allreduce'"),
    output:
        network=f"{RESULTS}/network.json",
    log:
        f"{RESULTS}/logs/calibrate-network.log",
    threads: 1
    resources:
        machine=1,  # as capture_graph
    params:
        source=SOURCE,
    script:
        "../scripts/calibrate_network.py"


rule judge_simulator:
    input:
        emulated=EMULATED.files,
        training=TRAINING.files,
    output:
        judged=f"{RESULTS}/simulator/judged.parquet",
    log:
        f"{RESULTS}/logs/judge-simulator.log",
    benchmark:
        f"{RESULTS}/benchmarks/judge-simulator.tsv"
    threads: 1
    resources:
        machine=1,  # as capture_graph
    params:
        source=SOURCE,
        version=[EMULATED.version, TRAINING.version],
    script:
        "../scripts/judge_simulator.py"


rule judge_on_gpus:
    input:
        steps=GPU_STEPS.files,
    output:
        judged=f"{RESULTS}/simulator/judged_on_gpus.parquet",
        collectives=f"{RESULTS}/simulator/all_reduces_on_gpus.parquet",
    log:
        f"{RESULTS}/logs/judge-on-gpus.log",
    benchmark:
        f"{RESULTS}/benchmarks/judge-on-gpus.tsv"
    threads: 1
    resources:
        machine=1,  # as capture_graph
    params:
        source=SOURCE,
        version=GPU_STEPS.version,
    script:
        "../scripts/judge_on_gpus.py"


rule scaling_forecast:
    input:
        fits=rules.fit.output.fits,
        network=f"{RESULTS}/network.json",
        graphs=expand(f"{RESULTS}/graphs/{{network}}.json", network=NETWORKS),
        ops=expand(
            f"{RESULTS}/ops/{{network}}.json", network=NETWORKS if PROFILES_OPS else []
        ),
        platforms=FORECAST_ON.files,
    output:
        forecast=f"{RESULTS}/simulator/scaling_forecast.parquet",
    log:
        f"{RESULTS}/logs/scaling-forecast.log",
    benchmark:
        f"{RESULTS}/benchmarks/scaling-forecast.tsv"
    threads: 1
    params:
        source=SOURCE,
        sections=CONFIG.model_dump(
            mode="json", include={"simulator", "scale", "training", "emulation"}
        ),
        version=FORECAST_ON.version,
    script:
        "../scripts/scaling_forecast.py"


rule simulator_report:
    input:
        judged=rules.judge_simulator.output.judged,
        on_gpus=rules.judge_on_gpus.output.judged if CONFIG.simulator.gpu_steps else [],
        collectives=(
            rules.judge_on_gpus.output.collectives
            if CONFIG.simulator.gpu_steps
            else []
        ),
        published=PROTEUS.files,
        platform=HC2.files,
    output:
        tables=tables("Simulator", "simulator"),
    log:
        f"{RESULTS}/logs/simulator.log",
    threads: 1
    params:
        source=SOURCE,
        version=[PROTEUS.version, HC2.version],
        speed_devices=CONFIG.simulator.speed_devices,
    script:
        "../scripts/simulator_report.py"


rule scaling_table:
    input:
        forecast=rules.scaling_forecast.output.forecast,
    output:
        tables=tables("Simulator", "forecast"),
    log:
        f"{RESULTS}/logs/scaling-table.log",
    threads: 1
    params:
        source=SOURCE,
        prices=PRICES,
        device=CONFIG.training.device,
    script:
        "../scripts/scaling_table.py"
