"""What lies in a results folder, as far as it can be read; what cannot be is named and left out."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.energy.fitting import CampaignFit, disturbance_notes
from joulecast.energy.prices import NO_PRICES, Prices
from joulecast.errors import JoulecastError
from joulecast.runs.files.columns import read_frame
from joulecast.runs.files.reading import read_json_object
from joulecast.runs.observations import is_training

FORECAST = "tables/forecast/scaling_forecast"
"""The table of the scaling forecast."""
PAPERS = ("tables/papers/papers", "paper/tables/papers/papers")
"""Where the table of the papers' numbers may lie: a campaign that reproduces them may lie in another."""
CHECKS = "tables/checks/checks"
"""The table of what checks found in the records."""
COSTS = "tables/advice/costs"
"""The table of what the settings cost that were run."""
METERED = "metered/tables/energy_summary"
"""The table of errors on clusters that others metered, which are no part of the campaign."""


class NothingToShow(JoulecastError):
    """Reason why a part of the page is missing, and what makes what it needs: a target of Snakemake, or a
    campaign of another configuration."""

    def __init__(self, why: str, target: str | None = None, configfile: str | None = None) -> None:
        super().__init__(why)
        self.target, self.configfile = target, configfile


@dataclass(frozen=True)
class Results:
    """A results folder in memory.

    ``tables`` are named by their paths below the folder, without suffix; ``answered`` are what the rule
    ``advice`` wrote, by name. ``unreadable`` says of files that are there why they are not shown.
    """

    folder: Path
    fit: CampaignFit | None
    tables: dict[str, pd.DataFrame]
    answered: dict[str, dict[str, Any]]
    experiments: list[dict[str, Any]]
    pipelines: list[dict[str, Any]]
    live: dict[str, Any] | None
    replays: dict[str, pd.DataFrame]
    unreadable: list[str]
    prices: Prices = NO_PRICES

    @property
    def observations(self) -> pd.DataFrame:
        """A row a run that the fits know; none where there are no fits."""
        return pd.DataFrame() if self.fit is None else self.fit.observations

    def answer(self, name: str) -> Any:
        """What the rule ``advice`` answered.

        Raises:
            NothingToShow: there is no answer, with the reason.
        """
        part = self.answered.get(name)
        if part is None:
            raise NothingToShow(f"tables/advice/{name}.json is not here", "advice")
        if "why_none" in part:
            raise NothingToShow(part["why_none"], part["target"])
        return part["content"]

    @property
    def clean(self) -> pd.DataFrame:
        """Training runs that no fit leaves out.

        Raises:
            NothingToShow: there is none, or a column is missing.
        """
        needed = ("run", "kind", "polluted", "network", "nodes")
        observations = having(self.observations, needed, "fits/observations.parquet", "fits")
        trained = is_training(observations)
        kept = observations[trained & (observations["polluted"].astype(object).fillna("") == "")]
        if kept.empty:
            why = "no training run is left" if trained.any() else "no training run was measured"
            raise NothingToShow(why, "measure")
        return kept

    @property
    def disturbed(self) -> str | None:
        """What a reader must know of disturbed runs; ``None`` if no figure rests on any."""
        notes = [] if self.observations.empty else disturbance_notes(self.observations)
        return notes[0] if notes else None

    @property
    def disturbed_trainings(self) -> bool:
        """Whether figures rest on training runs that were disturbed, and not on calibrations alone."""
        if not {"polluted", "disturbed"} <= set(self.observations.columns):
            return False
        used = self.observations[self.observations["polluted"] == ""]
        return bool((is_training(used) & (used["disturbed"] != "")).any())

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing at all, not even a file that cannot be read."""
        parts = (
            *(self.tables, self.answered, self.experiments, self.pipelines, self.replays),
            self.unreadable,
        )
        begun = (self.folder / "logs").is_dir()
        return not begun and self.fit is None and self.live is None and not any(map(len, parts))


def having(
    frame: pd.DataFrame, columns: Collection[str], file: str, target: str | None = None
) -> pd.DataFrame:
    """The frame, if it has the columns.

    Raises:
        NothingToShow: names the file and the columns that it lacks.
    """
    lacking = [column for column in columns if column not in frame.columns]
    if len(lacking) == len(columns) and frame.empty:
        raise NothingToShow("no run was measured", "measure")
    if lacking:
        raise NothingToShow(f"{file} lacks the columns {', '.join(lacking)}", target)
    return frame


def read_results(folder: Path, prices: Prices = NO_PRICES) -> Results:
    """Read a results folder; nothing in it has to be there.

    Args:
        prices: that its costs are given in.

    Raises:
        JoulecastError: there is no such folder.
    """
    if not folder.is_dir():
        raise JoulecastError(
            f"{folder}: no such folder; name the results of a campaign (key `results` of its configuration)"
        )
    unreadable: list[str] = []
    fit = _fit(folder, unreadable)
    experiments = list(_json_files(folder / "partition", unreadable))
    pipelines = list(_json_files(folder / "pipelines", unreadable))
    live = next(_json_files(folder / "tuning", unreadable, "live.json"), None)
    return Results(
        folder,
        fit,
        dict(_tables(folder, unreadable)),
        {
            Path(part["file"]).stem: part
            for part in _json_files(folder / "tables/advice", unreadable)
        },
        experiments,
        pipelines,
        live,
        dict(_replays(folder / "tuning" / "replays", unreadable)),
        unreadable,
        prices,
    )


def _fit(folder: Path, unreadable: list[str]) -> CampaignFit | None:
    if not (folder / "fits").is_dir():
        return None
    try:
        return CampaignFit.load(folder / "fits")
    except JoulecastError as error:
        unreadable.append(str(error))
        return None


def _json_files(
    folder: Path, unreadable: list[str], pattern: str = "[!.]*.json"
) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob(pattern)):
        try:
            content = read_json_object(path, "result")
        except JoulecastError as error:
            unreadable.append(str(error))
            continue
        yield content | {"file": f"{folder.name}/{path.name}"}


def _tables(folder: Path, unreadable: list[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    for name in (FORECAST, METERED, CHECKS, COSTS, papers_table(folder)):
        path = folder / f"{name}.parquet"
        if not path.exists():
            continue
        try:
            yield name, read_frame(path, "table")
        except JoulecastError as error:
            unreadable.append(str(error))


def papers_table(folder: Path) -> str:
    """Path below the results, without suffix, of the table of the papers' numbers."""
    return next((name for name in PAPERS if (folder / f"{name}.parquet").is_file()), PAPERS[0])


def _replays(folder: Path, unreadable: list[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    for path in sorted(folder.glob("[!.]*.parquet")):
        try:
            yield path.stem, read_frame(path, "replay")
        except JoulecastError as error:
            unreadable.append(str(error))
