"""Reads the results folder of a fitted campaign."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.energy.campaign_fit import CampaignFit
from joulecast.energy.prices import NO_PRICES, Prices
from joulecast.errors import JoulecastError
from joulecast.runs.files.columns import read_frame
from joulecast.runs.left_out import used
from joulecast.runs.observations import is_training

PAPERS = ("tables/papers/papers", "paper/tables/papers/papers")
"""Possible paths of the table of the papers' numbers. The folder of the campaign that reproduces them may be
in the folder of another campaign."""
CHECKS = "tables/checks/checks"
"""The table of the findings of checks in the records."""
SCALING = "tables/energy/scaling"
"""The table with the speed of runs by node count, and with the shares of the stages in their time."""
METERED = "metered/tables/energy_summary"
"""The table of errors on clusters that others metered. These clusters are not a part of the campaign."""


class NothingToShow(JoulecastError):
    """Reason why a part of the page is missing, and the target of Snakemake that would make the data."""

    def __init__(self, why: str, target: str | None = None) -> None:
        super().__init__(why)
        self.target = target


@dataclass(frozen=True)
class Part:
    """An answer or a part of the page; or the reason why it is missing, and the target that would make it."""

    content: Any
    why_none: str | None = None
    target: str | None = None

    @classmethod
    def of(cls, make: Callable[[], Any]) -> "Part":
        """The part that a function makes, or the reason why it cannot make it."""
        try:
            return cls(make())
        except JoulecastError as error:
            target = error.target if isinstance(error, NothingToShow) else "all"
            return cls(None, str(error), target)

    def then(self, make: Callable[[Any], Any]) -> "Part":
        """The part that ``make`` makes from the content of this part. If this part has no content, the result
        has none either, for the same reason."""
        return self if self.content is None else Part.of(lambda: make(self.content))


@dataclass(frozen=True)
class Results:
    """A results folder in memory.

    ``tables`` has the tables, by their paths below the folder without suffix. It has only the tables that
    exist.
    """

    folder: Path
    fit: CampaignFit
    tables: dict[str, pd.DataFrame]
    prices: Prices = NO_PRICES

    @property
    def observations(self) -> pd.DataFrame:
        """The runs table."""
        return self.fit.observations

    @property
    def clean(self) -> pd.DataFrame:
        """Training runs, without those that fits leave out.

        Raises:
            NothingToShow: there are no such runs.
        """
        trained = self.observations[is_training(self.observations)]
        kept = used(trained)
        if kept.empty:
            why = "no training run is left" if len(trained) else "no training run was measured"
            raise NothingToShow(why, "measure")
        return kept


def read_results(folder: Path, prices: Prices = NO_PRICES) -> Results:
    """Read a results folder.

    Raises:
        JoulecastError: there are no fits in it, or a file in it cannot be read.
    """
    names = (METERED, CHECKS, SCALING, papers_table(folder))
    paths = {name: folder / f"{name}.parquet" for name in names}
    return Results(
        folder,
        CampaignFit.load(folder / "fits"),
        {name: read_frame(path, "table") for name, path in paths.items() if path.exists()},
        prices,
    )


def papers_table(folder: Path) -> str:
    """Path of the table of the papers' numbers, below the results, without suffix."""
    return next((name for name in PAPERS if (folder / f"{name}.parquet").is_file()), PAPERS[0])


def names_of(networks: Sequence[str], platforms: Sequence[str]) -> list[str]:
    """Names for trainings: their networks, with the platforms if there are several."""
    if len(set(platforms)) == 1:
        return list(networks)
    return [f"{network}, {platform}" for network, platform in zip(networks, platforms, strict=True)]
