"""Write the tables of the replays."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.files.columns import read_frame
from joulecast.report.tables.tuning import read_replays, write_tuning_tables
from joulecast.report.tables.published import PublishedTuning
from joulecast.tune.policy_experiment import read_settings


def main(
    traces: Path,
    replays: Path,
    held_out: Path,
    choices: Path,
    paper: Path,
    reproduction: Path,
    published: Path,
    eta: float,
    tables: Path,
) -> None:
    numbers = PublishedTuning.read(published)
    settings = read_settings(traces)
    files = {"replays": replays, "held_out": held_out, "choices": choices, "paper": paper}
    replayed = read_replays(settings, eta, **files)
    reproduced = dict(list(read_frame(reproduction, "replay").groupby("policy", sort=False)))
    theirs = read_settings(traces, ["cifar100"], target=numbers.reproduction.target)
    write_tuning_tables(tables, replayed, reproduced, theirs, numbers)


if __name__ == "__main__":
    run_script(snakemake, main)
