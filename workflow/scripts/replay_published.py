"""Replay two papers: Zeus with the number of recurrences in its paper, and the experiments of its
reproduction."""

from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.files.writing import written_aside
from joulecast.report.tables.published import PublishedTuning
from joulecast.tune.policy_experiment import read_settings, replayed
from joulecast.tune.trial import Goal

REPRODUCED = ("power-limit-only", "zeus", "curve")


def main(
    traces: Path, published: Path, tuning: dict[str, Any], paper: Path, reproduction: Path
) -> None:
    seeds, goal = tuning["seeds"], Goal(tuning["eta"])
    theirs = PublishedTuning.read(published).reproduction
    with written_aside(paper) as partial:
        replayed(read_settings(traces), "zeus", seeds, None, goal=goal).to_parquet(partial)
    settings = read_settings(traces, ["cifar100"], target=theirs.target)
    tables = [replayed(settings, name, seeds, theirs.recurrences, goal=goal) for name in REPRODUCED]
    with written_aside(reproduction) as partial:
        pd.concat(tables, ignore_index=True).to_parquet(partial)


if __name__ == "__main__":
    run_script(snakemake, main)
