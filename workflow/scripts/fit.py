"""Fit and judge all models on the campaign's records."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.logs import logged
from joulecast.energy.fitting import fit_campaign

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(records: list[str], fits: str, **options: float) -> None:
    fit_campaign([Path(r) for r in records], **options).save(Path(fits))


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(
            records=snakemake.input.records,
            fits=snakemake.output.fits,
            bootstrap=snakemake.params.bootstrap,
            series_splits=snakemake.params.series_splits,
            series_period_s=snakemake.params.series_period_s,
        )
