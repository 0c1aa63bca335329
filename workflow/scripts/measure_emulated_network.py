"""Measure training steps on an emulated network (needs root)."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.ground_truth.emulated_network import measure

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        measure(Path(snakemake.output.folder))
