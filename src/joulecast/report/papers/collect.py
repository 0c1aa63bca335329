"""All four papers' rows from the files of a campaign's results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
        tables: folder of the tables of the simulator, and of the replays where the traces were there.
        published: folder of the papers' numbers.
        metered_tables: folder of the energy tables of metered runs, if those were there.
        profile_experiments: partitioning of PipeDream's profiles, if those were there.
        own_experiments: partitioning of the graphs that this project measured.
        missing: why external data was not there, by its name.
    """

    tables: Path
    published: Path
    metered_tables: Path | None
    profile_experiments: Sequence[Path]
    own_experiments: Sequence[Path]
    missing: Mapping[str, str] = field(default_factory=dict)


METERED, PROFILES, TRACES = "mlperf_power", "pipedream_profiles", "zeus_trace"
"""External data that the tables need, by the name of its folder."""


def papers(files: PaperFiles) -> pd.DataFrame:
    """The table of all four papers.

    Raises:
        JoulecastError: a file of published numbers is missing or has wrong keys.
    """
    missing = {name: files.missing.get(name, "") for name in (METERED, PROFILES, TRACES)}
    published = files.published
    return paper_table(
        [
            *mc2_rows(
                files.metered_tables, read_published(published / "mc2.yaml"), missing[METERED]
            ),
            *proteus_rows(files.tables, read_published_simulators(published / "proteus.yaml")),
            *antichain_rows(
                files.profile_experiments,
                files.own_experiments,
                read_published_partitioning(published / "antichain.yaml"),
                missing[PROFILES],
            ),
            *zeus_rows(
                None if missing[TRACES] else files.tables,
                read_published_tuning(published / "zeus.yaml"),
                missing[TRACES],
            ),
        ]
    )
