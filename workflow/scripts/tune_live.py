"""Tune a training that recurs on this machine; an interrupted tuning continues."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.campaign.scripts import logged
from joulecast.files.writing import written_aside
from joulecast.tuning.history import begun_of, read_history_file
from joulecast.tuning.live_job import live_job
from joulecast.tuning.live_record import live_record
from joulecast.tuning.tune import tuned_here

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(live: dict[str, Any], history: Path, out: Path, wait_s: float) -> None:
    history.parent.mkdir(parents=True, exist_ok=True)
    policy, recurrences = live.pop("policy"), live.pop("recurrences")
    environment, done, _ = tuned_here(
        live_job(**live), policy, {}, recurrences, history, print, quiet_wait_s=wait_s
    )
    with written_aside(out) as partial:
        said, trials = read_history_file(history)
        record = live_record(environment, policy, done, trials, begun_of(said))
        partial.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(
            dict(snakemake.params.live),
            Path(snakemake.params.history),
            Path(snakemake.output.record),
            snakemake.config["quiet"]["wait_s"],
        )
