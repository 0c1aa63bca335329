"""Tune a training that recurs on this machine, and write its table. An interrupted tuning continues."""

import json
from pathlib import Path
from typing import Any

from joulecast.app.campaign.config import Config
from joulecast.app.campaign.scripts import run_script
from joulecast.runs.files.writing import written_aside
from joulecast.report.tables.tuning import write_live_table
from joulecast.tune.live import LiveJob, live_record, tune_on_this_machine


def main(live: dict[str, Any], history: Path, config: Config, record: Path, tables: Path) -> None:
    history.parent.mkdir(parents=True, exist_ok=True)
    job = dict(live)
    policy, recurrences = job.pop("policy"), job.pop("recurrences")
    environment, done, _ = tune_on_this_machine(
        LiveJob(**job), policy, {}, recurrences, history, print, quiet_wait_s=config.quiet.wait_s
    )
    content = live_record(environment, policy, done, history)
    with written_aside(record) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n")
    write_live_table(tables, content)


if __name__ == "__main__":
    run_script(snakemake, main)
