"""Measure steps of real training on two ranks, and the parts that predict them."""

from pathlib import Path

from joulecast.campaign.scripts import run_script
from joulecast.ground_truth.real_training import measure


def main(folder: Path) -> None:
    measure(folder)


if __name__ == "__main__":
    run_script(snakemake, main)
