"""All four papers' rows from the files of a campaign's results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from joulecast.report.papers.antichain import antichain_rows, of_antichain
from joulecast.report.papers.mc2 import mc2_rows, of_mc2
from joulecast.report.papers.proteus import of_proteus, proteus_rows
from joulecast.report.papers.rows import paper_table
from joulecast.report.papers.summary import Paper
from joulecast.report.papers.zeus import of_zeus, zeus_rows
from joulecast.report.tables.partition import read_published_partitioning
from joulecast.report.tables.published import read_published
from joulecast.report.tables.simulator import read_published_simulators
from joulecast.report.tables.tuning_published import read_published_tuning


@dataclass(frozen=True)
class PaperFiles:
    """What the rows are made of.

    Attributes:
        simulator: folder of the simulator's tables.
        partition: folder of the tables of partitioning.
        tuning: folder of the tables of the replays.
        metered: folder of the energy tables of metered runs.
        published: folder of the papers' numbers.
        profile_experiments: partitioning of PipeDream's profiles.
        own_experiments: partitioning of the graphs that this project measured.
    """

    simulator: Path
    partition: Path
    tuning: Path
    metered: Path
    published: Path
    profile_experiments: Sequence[Path]
    own_experiments: Sequence[Path]


def papers(files: PaperFiles, folder: Path) -> tuple[pd.DataFrame, list[Paper]]:
    """The table of all four papers, and the papers in its order.

    Args:
        files: what the rows are made of.
        folder: of the table; its links start there.

    Raises:
        JoulecastError: a file of published numbers is missing or has wrong keys.
    """
    zeus = read_published_tuning(files.published / "zeus.yaml")
    mc2 = read_published(files.published / "mc2.yaml")
    proteus = read_published_simulators(files.published / "proteus.yaml")
    antichain = read_published_partitioning(files.published / "antichain.yaml")
    rows = [
        *zeus_rows(files.tuning, zeus),
        *mc2_rows(files.metered, mc2),
        *proteus_rows(files.simulator, proteus),
        *antichain_rows(
            files.profile_experiments, files.own_experiments, antichain, files.partition
        ),
    ]
    order = (
        of_zeus(zeus),
        of_mc2(mc2, files.metered),
        of_proteus(proteus),
        of_antichain(antichain),
    )
    return paper_table(rows, folder), list(order)
