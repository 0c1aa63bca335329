"""Calibrate the network between nodes by the campaign's stand-alone all-reduces."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.records.record import record_folders
from joulecast.report.tables.scaling import calibrate_campaign

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        records = [r for path in snakemake.input.records for r in record_folders(Path(path))]
        calibrate_campaign(records, Path(snakemake.output.network))
