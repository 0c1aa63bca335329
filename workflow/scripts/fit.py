"""Fit and judge all models on the campaign's records."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.energy.fitting import fit_campaign
from joulecast.records.record import campaign_records, record_folders

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    records: list[str], runs: int | None, imported: list[str], fits: str, **options: float
) -> None:
    places = [Path(path) for path in records]
    if runs is not None:
        places = campaign_records(places, runs)
    places += [Path(path) for path in imported]
    folders = [folder for place in places for folder in record_folders(place)]
    fit_campaign(folders, **options).save(Path(fits))


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(
            records=snakemake.input.records,
            runs=snakemake.params.runs,
            imported=snakemake.input.imported,
            fits=snakemake.output.fits,
            bootstrap=snakemake.params.bootstrap,
            series_splits=snakemake.params.series_splits,
            series_period_s=snakemake.params.series_period_s,
        )
