"""Measure one run and leave its record."""

import logging
import signal
import sys
from pathlib import Path
from typing import Any

from joulecast.app.campaign.config import Config
from joulecast.app.campaign.scripts import call_main
from joulecast.errors import JoulecastError
from joulecast.runs.spec import RunSpec
from joulecast.measure.training.measure_run import measure_run


def main(spec: str, config: Config, resources: Any, record: Path, log: Path) -> None:
    try:
        measure_run(
            RunSpec.model_validate_json(spec),
            record,
            log,
            launcher=resources.launcher if resources.get("mpi") else None,
            nodes=resources.get("nodes"),
            python=resources.get("rank_python"),
            timeout_s=config.run_timeout_s,
            quiet_wait_s=config.quiet.wait_s,
            repeats=config.quiet.repeats,
        )
    except JoulecastError as error:
        logging.error("%s; its log is %s", error, log)
        sys.exit(2)
    except KeyboardInterrupt:
        # The log says it. Snakemake would show a traceback.
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    call_main(snakemake, main)
