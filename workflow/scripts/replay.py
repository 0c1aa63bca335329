"""Unpack a recorded campaign into run records."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.recorded import unpack_all


def main(campaign: Path, records: Path) -> None:
    print(f"{len(unpack_all(campaign, records))} run records from {campaign}")


if __name__ == "__main__":
    run_script(snakemake, main)
