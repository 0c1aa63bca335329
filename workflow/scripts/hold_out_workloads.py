"""Judge the curve policy on each workload with constants that the other workloads chose."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.files.writing import written_aside
from joulecast.campaign.scripts import logged
from joulecast.tuning.comparison import leave_one_workload_out
from joulecast.tuning.policy_experiment import read_settings

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        settings = read_settings(Path(snakemake.input.traces[0]).parent)
        held_out = leave_one_workload_out(settings, **snakemake.params.tuning)
        with written_aside(Path(snakemake.output.recurrences)) as partial:
            held_out.table.to_parquet(partial)
        with written_aside(Path(snakemake.output.choices)) as partial:
            partial.write_text(json.dumps(held_out.choices, indent=1) + "\n")
