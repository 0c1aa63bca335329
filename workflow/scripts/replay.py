"""Unpack a recorded campaign into run records."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.recorded import unpack_all


def main(campaign: list[Path], records: Path) -> None:
    folder = campaign[0].parent
    print(f"{len(unpack_all(folder, records))} run records from {folder}")


if __name__ == "__main__":
    run_script(snakemake, main)
