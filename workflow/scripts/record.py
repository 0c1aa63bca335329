"""Pack the run records of a campaign as a recorded campaign."""

from pathlib import Path
from typing import Any

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.recorded import RECORDS_FILE, pack


def main(records: list[Path], configuration: dict[str, Any], recorded: Path) -> None:
    info = pack(
        records, recorded, name=str(configuration["campaign"]), configurations=[configuration]
    )
    size = (recorded / RECORDS_FILE).stat().st_size
    left_out = f"{len(info.left_out)} of them disturbed or left out of fits"
    print(f"{recorded}: {info.runs} runs, {left_out}, {size / 1e6:.2f} MB")


if __name__ == "__main__":
    run_script(snakemake, main)
