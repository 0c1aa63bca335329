"""Import MLPerf power submissions as run records."""

from pathlib import Path
from typing import Any

from joulecast.campaign.config import parse_config
from joulecast.campaign.external import locate_folder
from joulecast.campaign.scripts import run_script
from joulecast.importers.mlperf import import_mlperf


def main(external_data: Any, results: str, name: str, records: Path) -> None:
    given = {"external_data": external_data, "results": results}
    submissions = locate_folder(parse_config(given, "configuration"), name)
    print(import_mlperf(submissions, records).text())


if __name__ == "__main__":
    run_script(snakemake, main)
