"""Tune a training that recurs on this machine, going on where an interrupted loop ended."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.files.writing import written_aside
from joulecast.campaign.scripts import logged
from joulecast.records.spec import Workload
from joulecast.tuning.history import begun_of, read_history_file
from joulecast.tuning.live import LiveJob, LiveTraining, tune_live
from joulecast.tuning.live_record import live_record
from joulecast.tuning.registry import make_policy

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(live: dict[str, Any], history: Path, out: Path, wait_s: float) -> None:
    policy, recurrences = live.pop("policy"), live.pop("recurrences")
    workload = Workload(network=live.pop("network"), image_size=live.pop("image_size"))
    live["batch_sizes"] = tuple(live["batch_sizes"])
    history.parent.mkdir(parents=True, exist_ok=True)
    environment = LiveTraining(LiveJob(workload, **live))
    done = tune_live(
        environment,
        make_policy(policy, environment.space),
        recurrences,
        seed=live["seed"],
        history_file=history,
        whose={"policy": policy},
        say=print,
        quiet_wait_s=wait_s,
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
