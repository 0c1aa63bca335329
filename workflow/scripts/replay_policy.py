"""Replay one policy in all settings."""

from pathlib import Path
from typing import Any

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.files.writing import written_aside
from joulecast.tune.policy_experiment import read_settings, replayed
from joulecast.tune.trial import Goal


def main(traces: Path, policy: str, tuning: dict[str, Any], recurrences: Path) -> None:
    settings, goal = read_settings(traces), Goal(tuning["eta"])
    table = replayed(settings, policy, tuning["seeds"], tuning["recurrences"], goal=goal)
    with written_aside(recurrences) as partial:
        table.to_parquet(partial)


if __name__ == "__main__":
    run_script(snakemake, main)
