"""Calibrate the network between nodes by the campaign's stand-alone all-reduces."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.folders import record_folders
from joulecast.report.tables.scaling import calibrate_campaign


def main(records: list[Path], network: Path) -> None:
    folders = [folder for place in records for folder in record_folders(place)]
    calibrate_campaign(folders, network)


if __name__ == "__main__":
    run_script(snakemake, main)
