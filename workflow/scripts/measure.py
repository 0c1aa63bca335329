"""Measure one run and leave its record."""

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.campaign.held_records import ASKED_S
from joulecast.errors import JoulecastError
from joulecast.records.spec import RunSpec
from joulecast.training.attempt_to_record import Quiet, measure

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(specification: str, record: Path, log: Path, **options: Any) -> None:
    attempts = record.parent.parent / "attempts"
    spec = RunSpec.model_validate_json(specification)
    try:
        measure(spec, record, log, attempts=attempts, **options)
    except JoulecastError as error:
        logging.error("%s; its log is %s", error, log)
        sys.exit(2)


if __name__ == "__main__":
    main(
        specification=snakemake.params.specification,
        record=Path(snakemake.output.record),
        log=Path(snakemake.log[0]),
        launcher=snakemake.resources.get("mpi"),
        nodes=snakemake.resources.get("nodes"),
        python=snakemake.resources.get("rank_python"),
        timeout_s=snakemake.config["run_timeout_s"],
        start_timeout_s=snakemake.config["start_timeout_s"],
        asked_s=float(os.environ.get(ASKED_S, "inf")),
        quiet=Quiet(**snakemake.config["quiet"]),
    )
