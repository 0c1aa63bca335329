"""Replay the policies that are compared, in all settings."""

from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.files.writing import written_aside
from joulecast.tune.policy_experiment import COMPARED, read_settings, replayed
from joulecast.tune.trial import Goal


def main(traces: Path, tuning: dict[str, Any], recurrences: Path) -> None:
    settings, goal = read_settings(traces), Goal(tuning["eta"])
    size = (tuning["seeds"], tuning["recurrences"])
    table = pd.concat([replayed(settings, policy, *size, goal=goal) for policy in COMPARED])
    with written_aside(recurrences) as partial:
        table.to_parquet(partial, index=False)


if __name__ == "__main__":
    run_script(snakemake, main)
