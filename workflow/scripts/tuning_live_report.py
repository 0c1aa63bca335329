"""Write the table and figure of the training that was tuned live."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.report.tables.tuning import write_live_table
from joulecast.report.figures.live import live_cost

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        record = json.loads(Path(snakemake.input.record).read_text())
        write_live_table(Path(snakemake.params.tables), record)
        live_cost(record, Path(snakemake.params.figures) / "tuning_live")
