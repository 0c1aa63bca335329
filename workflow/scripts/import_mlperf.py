"""Import MLPerf power submissions as run records."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.logs.mlperf import import_mlperf


def main(submissions: Path, records: Path) -> None:
    print(import_mlperf(submissions, records).text())


if __name__ == "__main__":
    run_script(snakemake, main)
