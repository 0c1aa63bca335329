# joulecast measures a few training runs, and forecasts the joules and seconds of others.
from snakemake.utils import min_version

min_version("9.10")


configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/runs.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/energy.smk"
include: "workflow/rules/simulator.smk"
include: "workflow/rules/partition.smk"
include: "workflow/rules/tuning.smk"
include: "workflow/rules/papers.smk"
include: "workflow/rules/pages.smk"


onstart:
    require_this_host()


onsuccess:
    tell_failed_runs()
    tell_end()


onerror:
    tell_failed_runs()
    tell_end()


# These rules take seconds on one core. So they are no jobs of a cluster.
localrules:
    all,
    measure,
    energy_tables,
    simulator_tables,
    partition_tables,
    tuning_tables,
    tables,
    simulator_report,
    partition_report,
    tuning_report,
    papers,
    overview,
    # Nodes of a cluster often cannot reach the internet.
    import_mlperf,


rule all:
    default_target: True
    input:
        # If a record was removed, it is measured again, even if all tables exist.
        records(),
        rules.tables.output,
        rules.metered.output.tables,
        rules.simulator_report.output if HAS_NETWORKS else [],
        rules.partition_report.output if HAS_NETWORKS else [],
        rules.tune_live.output if RECORDED is None and HAS_NETWORKS else [],
        rules.papers.output if CONFIG.paper_tables else [],
        rules.overview.output,
    message:
        f"Everything that this machine can make of campaign {CONFIG.campaign}"


rule measure:
    input:
        records(),
    message:
        f"All run records of campaign {CONFIG.campaign}"


rule energy_tables:
    input:
        records(),
        rules.tables.output,
        rules.metered.output.tables,
    message:
        f"The tables of energy and time of campaign {CONFIG.campaign}"


rule simulator_tables:
    input:
        rules.simulator_report.output,
    message:
        "The tables of the simulator"


rule partition_tables:
    input:
        rules.partition_report.output,
    message:
        f"The tables of partitioning of campaign {CONFIG.campaign}"


rule tuning_tables:
    input:
        rules.tuning_report.output,
        rules.tune_live.output if RECORDED is None else [],
    message:
        f"The tables of tuning of campaign {CONFIG.campaign}"
