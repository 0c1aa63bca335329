"""Write the error tables of the campaign."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.energy.fitting import CampaignFit
from joulecast.report.tables.errors import write_tables
from joulecast.report.tables.published import read_published

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(fits: str, published: str, folder: Path) -> None:
    write_tables(folder, CampaignFit.load(Path(fits)), read_published(Path(published)))


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(
            fits=snakemake.input.fits,
            published=snakemake.input.published,
            folder=Path(snakemake.output[0]).parent,
        )
