"""Bring the files of a list, and check them."""

from pathlib import Path
from typing import Any

from joulecast.campaign.config import parse_config
from joulecast.campaign.external import bring_listed, listed_downloads
from joulecast.campaign.scripts import run_script


def main(external_data: Any, results: str, listed: Path, folder: Path) -> None:
    given = {"external_data": external_data, "results": results}
    bring_listed(parse_config(given, "configuration"), listed_downloads(listed), folder)


if __name__ == "__main__":
    run_script(snakemake, main)
