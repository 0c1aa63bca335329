"""Judge the curve policy on each workload with constants that the other workloads chose."""

import json
from pathlib import Path
from typing import Any

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.files.writing import written_aside
from joulecast.tune.comparison import leave_one_workload_out
from joulecast.tune.policy_experiment import read_settings


def main(traces: Path, tuning: dict[str, Any], recurrences: Path, choices: Path) -> None:
    table, chosen = leave_one_workload_out(read_settings(traces), **tuning)
    with written_aside(recurrences) as partial:
        table.to_parquet(partial)
    with written_aside(choices) as partial:
        partial.write_text(json.dumps(chosen, indent=1) + "\n")


if __name__ == "__main__":
    run_script(snakemake, main)
