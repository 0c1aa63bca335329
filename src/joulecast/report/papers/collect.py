"""All four papers' rows from the files of a campaign's results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from joulecast.report.papers.antichain import antichain_rows
from joulecast.report.papers.mc2 import mc2_rows
from joulecast.report.papers.proteus import proteus_rows
from joulecast.report.papers.rows import paper_table
from joulecast.report.papers.zeus import zeus_rows
from joulecast.report.tables.partition import read_published_partitioning
from joulecast.report.tables.published import read_published
from joulecast.report.tables.simulator import read_published_simulators
from joulecast.report.tables.tuning_published import read_published_tuning


@dataclass(frozen=True)
class PaperFiles:
    """What the rows are made of.

    Attributes:
        tables: folder of the tables of the simulator and of the replays.
        published: folder of the papers' numbers.
        metered_tables: folder of the energy tables of metered runs.
        profile_experiments: partitioning of PipeDream's profiles.
        own_experiments: partitioning of the graphs that this project measured.
    """

    tables: Path
    published: Path
    metered_tables: Path
    profile_experiments: Sequence[Path]
    own_experiments: Sequence[Path]


def papers(files: PaperFiles) -> pd.DataFrame:
    """The table of all four papers.

    Raises:
        JoulecastError: a file of published numbers is missing or has wrong keys.
    """
    published = files.published
    return paper_table(
        [
            *zeus_rows(files.tables, read_published_tuning(published / "zeus.yaml")),
            *mc2_rows(files.metered_tables, read_published(published / "mc2.yaml")),
            *proteus_rows(files.tables, read_published_simulators(published / "proteus.yaml")),
            *antichain_rows(
                files.profile_experiments,
                files.own_experiments,
                read_published_partitioning(published / "antichain.yaml"),
                files.tables,
            ),
        ],
        files.tables,
    )
