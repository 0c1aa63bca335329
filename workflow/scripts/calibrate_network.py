"""Calibrate the network between nodes by the campaign's stand-alone all-reduces."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.folders import record_folders
from joulecast.runs.observations import allreduce_points
from joulecast.simulate.network_calibration import calibrate_network, write_calibration


def main(records: list[Path], network: Path) -> None:
    points = allreduce_points(folder for place in records for folder in record_folders(place))
    points = points.rename(columns={"copy_s": "seconds"}).assign(kind="all_reduce")
    write_calibration(calibrate_network(points), network)


if __name__ == "__main__":
    run_script(snakemake, main)
