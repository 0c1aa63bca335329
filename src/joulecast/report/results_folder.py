"""What lies in a results folder, as far as it can be read; what cannot be is named and left out."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.energy.fitting import CampaignFit, KnownRuns, disturbance_notes
from joulecast.energy.prices import NO_PRICES, Prices
from joulecast.errors import JoulecastError
from joulecast.runs.files.columns import read_frame
from joulecast.runs.files.reading import read_json_object
from joulecast.runs.folders import record_folders
from joulecast.runs.observations import is_training, observe_all
from joulecast.runs.record import RunInfo, read_info

FORECAST = "tables/forecast/scaling_forecast"
"""The table of the scaling forecast."""
PAPERS = ("tables/papers/papers", "paper/tables/papers/papers")
"""Where the table of the papers' numbers may lie: a campaign that reproduces them may lie in another."""
CHECKS = "tables/checks/checks"
"""The table of what checks found in the records."""
MOST_READ = 500
"""Records that are read while a page is made, some 20 ms each."""
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

    ``fit`` is ``None`` where there are no fits; ``observations`` (one row a run) then come from the records
    alone. Where there are fits, ``infos`` and ``record_folders`` are of the runs that they know.
    ``tables`` are named by their paths below the folder, without suffix. ``unreadable`` says of files that
    are there why they are not shown.
    """

    folder: Path
    fit: CampaignFit | None
    observations: pd.DataFrame
    infos: list[RunInfo]
    record_folders: list[Path]
    tables: dict[str, pd.DataFrame]
    experiments: list[dict[str, Any]]
    pipelines: list[dict[str, Any]]
    live: dict[str, Any] | None
    replays: dict[str, pd.DataFrame]
    unreadable: list[str]
    prices: Prices = NO_PRICES

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

    @cached_property
    def known_runs(self) -> KnownRuns:
        """The runs of the records, as forecasts and advice take them.

        Raises:
            JoulecastError: no training run is left to fit.
        """
        return KnownRuns.of_records(self.record_folders)

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
            *(self.infos, self.tables, self.experiments, self.pipelines, self.replays),
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
    folders, infos = _infos(folder, unreadable)
    if fit is not None and "run" in fit.observations:
        # Others lie there without having been fitted: imported runs that no table of the campaign uses.
        folders, infos = _fitted(folders, infos, set(fit.observations["run"]))
    observations = fit.observations if fit else _observed(folders, unreadable)
    experiments = list(_json_files(folder / "partition", unreadable))
    pipelines = list(_json_files(folder / "pipelines", unreadable))
    live = next(_json_files(folder / "tuning", unreadable, "live.json"), None)
    return Results(
        folder,
        fit,
        observations,
        infos,
        folders,
        dict(_tables(folder, unreadable)),
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


def _infos(folder: Path, unreadable: list[str]) -> tuple[list[Path], list[RunInfo]]:
    """Records measured or replayed here, and imported ones."""
    folders, infos = [], []
    for place in ("records", "imported"):
        try:
            found = record_folders(folder / place)
        except JoulecastError:
            continue
        for record in found:
            try:
                infos.append(read_info(record))
                folders.append(record)
            except (JoulecastError, OSError, ValueError) as error:
                unreadable.append(str(error))
    return folders, infos


def _fitted(
    folders: list[Path], infos: list[RunInfo], runs: set[str]
) -> tuple[list[Path], list[RunInfo]]:
    kept = [pair for pair in zip(folders, infos, strict=True) if pair[1].spec.run in runs]
    return [folder for folder, _ in kept], [info for _, info in kept]


def _observed(folders: list[Path], unreadable: list[str]) -> pd.DataFrame:
    parts = []
    for folder in folders:
        try:
            parts.append(observe_all([folder]))
        except (JoulecastError, KeyError, ValueError) as error:
            unreadable.append(f"{folder}: {error}")
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


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
    for name in (FORECAST, METERED, CHECKS, papers_table(folder)):
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
