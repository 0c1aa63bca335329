"""Measure one run and leave its record."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

from joulecast.campaign.held_records import ASKED_S
from joulecast.campaign.scripts import call_main
from joulecast.errors import JoulecastError
from joulecast.records.spec import RunSpec
from joulecast.training.attempt_to_record import Quiet, measure


def main(
    spec: str, options: dict[str, Any], quiet: Quiet, resources: Any, record: Path, log: Path
) -> None:
    try:
        measure(
            RunSpec.model_validate_json(spec),
            record,
            log,
            launcher=resources.get("mpi"),
            nodes=resources.get("nodes"),
            python=resources.get("rank_python"),
            asked_s=float(os.environ.get(ASKED_S, "inf")),
            quiet=quiet,
            **options,
        )
    except JoulecastError as error:
        logging.error("%s; its log is %s", error, log)
        sys.exit(2)


if __name__ == "__main__":
    call_main(snakemake, main)
