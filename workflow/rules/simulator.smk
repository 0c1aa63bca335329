# The simulator: the measurements on which it is judged, its error tables, and measurements of this machine
# that it can use.

# The measurements on which the simulator is judged.
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
HC2 = kept(platform_file("hc2", PLATFORMS))
PROTEUS = PAPERS["proteus"]


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
        batches=CONFIG.calibration.batch_sizes,
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
        machine=1,  # it would disturb a measurement at the same time
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
        machine=1,  # as calibrate_network
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
        machine=1,  # as calibrate_network
    params:
        source=SOURCE,
        version=GPU_STEPS.version,
    script:
        "../scripts/judge_on_gpus.py"


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
