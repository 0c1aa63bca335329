"""Capture the op graph of a network as the campaign trains it."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.graphs.capture import capture_network

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        graph = capture_network(snakemake.wildcards.network, **snakemake.params.size)
        graph.write(Path(snakemake.output.graph))
