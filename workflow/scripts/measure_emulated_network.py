"""Measure training steps on an emulated network (needs root)."""

from pathlib import Path

from joulecast.campaign.scripts import run_script
from joulecast.ground_truth.emulated_network import measure


def main(folder: Path) -> None:
    measure(folder)


if __name__ == "__main__":
    run_script(snakemake, main)
