"""Replay one policy in all settings."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.files.writing import written_aside
from joulecast.campaign.scripts import logged
from joulecast.tuning.policy_experiment import read_settings, replayed
from joulecast.tuning.trial import Goal

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        settings = read_settings(Path(snakemake.input.traces[0]).parent)
        tuning = snakemake.params.tuning
        table = replayed(
            settings,
            snakemake.wildcards.policy,
            tuning["seeds"],
            tuning["recurrences"],
            goal=Goal(tuning["eta"]),
        )
        with written_aside(Path(snakemake.output.recurrences)) as partial:
            table.to_parquet(partial)
