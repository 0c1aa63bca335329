"""Write the table and figure of the training that was tuned live."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.report.tables.tuning import write_live_table
from joulecast.report.figures.tuning import live_cost

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        record = json.loads(Path(snakemake.input.record).read_text())
        tables = Path(snakemake.output[0]).parent
        write_live_table(tables, record)
        live_cost(record, tables.parent / "figures" / "tuning_live")
