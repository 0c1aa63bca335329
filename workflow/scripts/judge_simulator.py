"""Predict what was measured, and keep both."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.files.writing import written_aside
from joulecast.campaign.scripts import logged
from joulecast.report.tables.simulator import judged_experiments

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        judged = judged_experiments(
            emulated=Path(snakemake.input.emulated),
            training=Path(training[0]) if (training := snakemake.input.training) else None,
            sources=snakemake.params.source,
        )
        with written_aside(Path(snakemake.output.judged)) as partial:
            judged.to_parquet(partial, index=False)
