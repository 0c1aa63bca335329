"""Capture the op graph of a network as the campaign trains it."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.graphs.capture import capture_network


def main(network: str, size: dict[str, int], graph: Path) -> None:
    capture_network(network, **size).write(graph)


if __name__ == "__main__":
    run_script(snakemake, main)
