"""Unpack a recorded campaign into run records."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.records.recorded import unpack_all

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(campaign: Path, records: Path) -> None:
    print(f"{len(unpack_all(campaign, records))} run records from {campaign}")


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(
            campaign=Path(snakemake.input[0]).parent,
            records=Path(snakemake.output.records),
        )
