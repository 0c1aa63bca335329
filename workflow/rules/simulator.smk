# The simulator: op graphs and costs, networks it is judged on, error tables, forecasts of scaling.


rule capture_graph:
    output:
        graph=f"{RESULTS}/graphs/{{network}}.json",
    log:
        f"{RESULTS}/logs/capture-{{network}}.log",
    threads: 1
    resources:
        # Not beside a measurement, which it would disturb; nothing else has to come before it.
        machine=1,
    params:
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
        batches=sorted({CONFIG.scale.batch_size, *CONFIG.calibration.batch_sizes}),
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
    script:
        "../scripts/calibrate_network.py"


rule measure_emulated_network:
    output:
        folder=directory(f"{RESULTS}/emulated-network"),
    log:
        f"{RESULTS}/logs/emulated-network.log",
    threads: 1
    resources:
        machine=16,
    script:
        "../scripts/measure_emulated_network.py"


rule measure_real_training:
    output:
        folder=directory(f"{RESULTS}/real-training"),
    log:
        f"{RESULTS}/logs/real-training.log",
    threads: 1
    resources:
        machine=16,
    script:
        "../scripts/measure_real_training.py"


rule judge_simulator:
    input:
        emulated=kept_or_measured(EMULATED_NETWORK, "emulated-network"),
        training=ancient([str(PROJECT / REAL_TRAINING)] if REAL_TRAINING else []),
    output:
        judged=f"{RESULTS}/simulator/judged.parquet",
    log:
        f"{RESULTS}/logs/judge-simulator.log",
    threads: 1
    resources:
        machine=1,  # as capture_graph
    params:
        content=[content_of(EMULATED_NETWORK), content_of(REAL_TRAINING)],
        source={
            "emulated": "measured" if EMULATED_NETWORK is None else "recorded",
            "training": "recorded",
        },
    script:
        "../scripts/judge_simulator.py"


rule scaling_forecast:
    input:
        fits=rules.fit.output.fits,
        network=f"{RESULTS}/network.json",
        graphs=expand(f"{RESULTS}/graphs/{{network}}.json", network=NETWORKS),
        ops=expand(
            f"{RESULTS}/ops/{{network}}.json", network=NETWORKS if PROFILES_OPS else []
        ),
        platforms=ancient(PLATFORM_FILES),
    output:
        forecast=f"{RESULTS}/simulator/scaling_forecast.parquet",
    log:
        f"{RESULTS}/logs/scaling-forecast.log",
    threads: 1
    params:
        config=CONFIG.model_dump(
            mode="json", include={"simulator", "scale", "training", "emulation"}
        ),
        platforms_sha256=[sha256_of(file) for file in PLATFORM_FILES],
    script:
        "../scripts/scaling_forecast.py"


rule simulator_report:
    input:
        judged=rules.judge_simulator.output.judged,
        forecast=rules.scaling_forecast.output.forecast,
        published=ancient(str(PUBLISHED / "proteus.yaml")),
        platform=ancient(str(platform_file("hc2", PLATFORMS))),
    output:
        tables=tables(
            "Simulator",
            [
                "simulator_error",
                "simulator_order",
                "simulator_ablation",
                "simulator_speed",
                "scaling_forecast",
            ],
        ),
        figures=figures(
            "Simulator",
            ["simulator_predicted_against_measured", "step_by_node_count"],
        ),
    log:
        f"{RESULTS}/logs/simulator.log",
    threads: 1
    params:
        published_sha256=sha256_of(PUBLISHED / "proteus.yaml"),
        speed_devices=CONFIG.simulator.speed_devices,
        tables=folder_of("tables"),
        figures=folder_of("figures"),
    script:
        "../scripts/simulator_report.py"
