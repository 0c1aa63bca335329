"""Measure steps of real training on two ranks, and the parts that predict them."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.ground_truth.real_training import measure

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        measure(Path(snakemake.output.folder))
