"""Bring the files of a list, and check them."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.config import parse_config
from joulecast.campaign.external import bring_listed, listed_downloads
from joulecast.campaign.scripts import logged

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        bring_listed(
            parse_config(snakemake.config, "configuration"),
            listed_downloads(Path(snakemake.params.listed)),
            Path(snakemake.output.files[0]).parent,
        )
