"""Replay what the papers ran: Zeus for as long as its paper, and the reproduction's experiments."""

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from joulecast.files.writing import written_aside
from joulecast.campaign.scripts import logged
from joulecast.report.tables.tuning_published import read_published_tuning
from joulecast.tuning.policy_experiment import read_settings, replayed
from joulecast.tuning.trial import Goal

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

REPRODUCED = ("power-limit-only", "zeus", "curve")


def main(traces: Path, eta: float, seeds: int) -> None:
    theirs = read_published_tuning(Path(snakemake.input.published)).reproduction
    with written_aside(Path(snakemake.output.paper)) as partial:
        replayed(read_settings(traces), "zeus", seeds, None, goal=Goal(eta)).to_parquet(partial)
    settings = read_settings(traces, ["cifar100"], target=theirs.target)
    tables = [
        replayed(settings, name, seeds, theirs.recurrences, goal=Goal(eta)) for name in REPRODUCED
    ]
    with written_aside(Path(snakemake.output.reproduction)) as partial:
        pd.concat(tables, ignore_index=True).to_parquet(partial)


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(Path(snakemake.input.traces[0]).parent, **snakemake.params.tuning)
