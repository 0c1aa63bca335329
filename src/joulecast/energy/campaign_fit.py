"""Fitting a campaign: from the records to a folder of fits. Tables and figures are made from these fits."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from joulecast.energy.evaluation import evaluate
from joulecast.energy.models import EnergyModel, MC2OnPhases, MC2OnStages
from joulecast.energy.proportional_models import Watts
from joulecast.energy.splits import is_sweep
from joulecast.energy.timeseries import forecast_errors, resampled_power
from joulecast.errors import JoulecastError
from joulecast.quantities import counted, listed
from joulecast.runs.files.columns import read_frame
from joulecast.runs.files.reading import read_json_object
from joulecast.runs.files.writing import directory_written_aside
from joulecast.runs.json_values import json_value
from joulecast.runs.judging import SETTING, judge
from joulecast.runs.left_out import left_out, runs_to_fit, used
from joulecast.runs.observations import allreduce_points, is_training
from joulecast.runs.record import read_info, read_record
from joulecast.runs.runs_table import COLUMNS

_FRAMES = ("observations", "predictions", "series")
_MOST_BINS = 150


@dataclass(frozen=True)
class CampaignFit:
    """All that the fits of a campaign produced.

    ``observations`` is the runs table. ``predictions`` has the predictions of each model on every split.
    ``mc2`` is the fit to all runs.
    """

    observations: pd.DataFrame
    predictions: pd.DataFrame
    series: pd.DataFrame
    mc2: dict[str, Any]

    def judged(self, of: Literal["time", "energy", "ablation"]) -> pd.DataFrame:
        """The predictions, joined with the runs; see :func:`joulecast.runs.judging.judge`."""
        return judge(self.predictions, self.observations, of)

    def save(self, folder: Path) -> None:
        """Write the fits to ``folder``, whole or not at all."""
        with directory_written_aside(folder) as partial:
            for name in _FRAMES:
                getattr(self, name).to_parquet(partial / f"{name}.parquet", index=False)
            (partial / "mc2.json").write_text(json.dumps(self.mc2, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "CampaignFit":
        """Read what :meth:`save` wrote.

        Raises:
            JoulecastError: a part of the fits is missing, or was changed.
        """
        try:
            frames = {name: read_frame(folder / f"{name}.parquet", "the fits") for name in _FRAMES}
            mc2 = read_json_object(folder / "mc2.json", "coefficients of MC2")
            every = {name for name, column in COLUMNS.items() if column.of == "all"}
            lacking = every - {*frames["observations"]}
            if lacking:
                raise JoulecastError(
                    f"{folder / 'observations.parquet'}: lacks {', '.join(sorted(lacking))}"
                )
        except JoulecastError as error:
            raise JoulecastError(f"{error}; delete {folder} to have it made again") from None
        return cls(**frames, mc2=mc2)


def _series(folders: Sequence[Path], period_s: float, splits: int) -> pd.DataFrame:
    """Forecast errors of the time-series models on the power traces of some runs."""
    parts = []
    for folder in folders:
        record = read_record(folder)
        info = record.info
        # A long trace gets no more bins than a short one, because ARIMA's time grows with their square.
        bins = (info.outcome.stop_s - info.outcome.start_s) / _MOST_BINS
        errors = forecast_errors(resampled_power(record, max(period_s, bins)), splits)
        parts.append(errors.assign(run=info.spec.run, energy_source=info.energy_source))
    if not parts:
        return pd.DataFrame(columns=["model", "split", "difference_percent", "energy_source"])
    return pd.concat(parts, ignore_index=True)


def _summary(fits: Sequence[EnergyModel]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for fit in fits:
        if isinstance(fit, MC2OnStages):
            summary |= {
                "time": asdict(fit.mc2.time),
                "power": None if fit.mc2.power is None else asdict(fit.mc2.power),
                "units": "s, s/sample, s/byte, W, J/sample; tau, c, s, m, o and e by network",
            }
        if isinstance(fit, MC2OnPhases):
            summary["phases"] = fit.mc2.coefficients()
    return {name: json_value(value) for name, value in summary.items()}


def disturbance_notes(observations: pd.DataFrame) -> list[str]:
    """Notes on disturbed runs that are used because their setting has no other; empty if there are none."""
    clean = used(observations)
    disturbed = clean[clean["disturbed"] != ""]
    if disturbed.empty:
        return []
    trained, trainings = is_training(clean), is_training(disturbed)
    kinds = (
        ("training run", int(trainings.sum()), int(trained.sum())),
        ("calibration run", int((~trainings).sum()), int((~trained).sum())),
    )
    counts = " and ".join(f"{some} of {counted(of, kind)}" for kind, some, of in kinds if some)
    again = "measure them again on a quiet machine (in a campaign, `joulecast status` says how)"
    return [
        f"Disturbed: of the runs that are used, other programs were at work during {counts} "
        f"({listed(sorted(disturbed['run']), 2)}). "
        f"These runs took more time and energy; {again}"
    ]


def _dark_note(trained: pd.DataFrame) -> list[str]:
    """Notes on imported runs whose energy is not known: one line for each reason."""
    dark = trained[(trained["kind"] == "imported") & trained["energy_j"].isna()]
    unread = dark[dark["energy_source"].notna()]
    bare = len(dark) - len(unread)
    notes = []
    if bare:
        notes.append(f"{counted(bare, 'imported run')} without power: their times are used")
    if len(unread):
        notes.append(
            f"of {counted(len(unread), 'imported run')} the times alone are used, as no meter was read over "
            f"most of the run: {listed(sorted(unread['run']))}"
        )
    return notes


def known_watts(folders: Sequence[Path]) -> dict[str, Watts]:
    """The watts in the file of each platform, by the platform's name."""
    platforms = [read_info(folder).spec.platform for folder in folders]
    return {p.name: {"idle_w": p.idle_w, "full_w": p.full_w, "tdp_w": p.tdp_w} for p in platforms}


@dataclass(frozen=True)
class KnownRuns:
    """What models are fitted to: all observations, the all-reduces of the calibrations, and the watts of
    platforms."""

    observations: pd.DataFrame
    allreduce: pd.DataFrame
    watts: dict[str, Watts]

    @classmethod
    def of_records(cls, folders: Sequence[Path]) -> "KnownRuns":
        """The runs of some records."""
        observations = runs_to_fit(folders)
        kept = [Path(folder) for folder in used(observations)["folder"]]
        return cls(observations, allreduce_points(kept), known_watts(folders))

    @classmethod
    def of_fit(cls, fit: CampaignFit) -> "KnownRuns":
        """The runs to which the models of a campaign were fitted.

        Records are read again only for the watts of each platform and for the all-reduces.
        """
        runs = used(fit.observations)
        calibrated = runs.loc[runs["kind"] == "allreduce", "folder"]
        one_each = fit.observations.drop_duplicates("platform")["folder"]
        watts = known_watts([Path(folder) for folder in one_each])
        return cls(fit.observations, allreduce_points(map(Path, calibrated)), watts)

    @property
    def clean(self) -> pd.DataFrame:
        """The runs that may be fitted."""
        return used(self.observations)

    @property
    def trained(self) -> pd.DataFrame:
        """The trainings among the clean runs."""
        return self.clean[is_training(self.clean)]

    @property
    def left_out(self) -> list[dict[str, str]]:
        """The runs that no fit sees, with their reasons."""
        return left_out(self.observations)

    @property
    def notes(self) -> list[str]:
        """Notes on the runs for a reader."""
        return [*disturbance_notes(self.observations), *_dark_note(self.trained)]


def fit_campaign(
    folders: Sequence[Path], *, series_splits: int, series_period_s: float
) -> CampaignFit:
    """Fit and judge all models on the records in ``folders``.

    Args:
        series_splits: number of points at which a trace is split for the time-series models.
        series_period_s: the time-series models see power traces as means over bins of this length.

    Raises:
        JoulecastError: no training run is left to fit. The error says why.
    """
    runs = KnownRuns.of_records(folders)
    judged = evaluate(runs.clean, runs.allreduce, runs.watts)
    # One trace of every setting is enough to judge the time-series models.
    training = runs.trained
    once = training[~is_sweep(training)].drop_duplicates(SETTING)
    traces = [Path(folder) for folder in once["folder"]]
    series = _series(traces, series_period_s, series_splits)
    return CampaignFit(
        runs.observations,
        judged.predictions,
        series,
        _summary(judged.full_fits),
    )
