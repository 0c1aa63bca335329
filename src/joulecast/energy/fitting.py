"""Fitting a campaign: from the records to a folder of fits that tables and figures are made of."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from joulecast.energy.evaluation import evaluate, is_sweep
from joulecast.energy.mc2 import MC2
from joulecast.energy.observations import allreduce_points, observe_all
from joulecast.energy.timeseries import forecast_errors, resampled_power
from joulecast.errors import JoulecastError
from joulecast.files import directory_written_aside
from joulecast.records import read_info, read_record


@dataclass(frozen=True)
class CampaignFit:
    """All that the fits of a campaign produced, one frame each; ``mc2`` is the fit to all runs."""

    observations: pd.DataFrame
    times: pd.DataFrame
    energies: pd.DataFrame
    series: pd.DataFrame
    mc2: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Write the fits to ``folder``, whole or not at all."""
        with directory_written_aside(folder) as partial:
            for name in ("observations", "times", "energies", "series"):
                getattr(self, name).to_parquet(partial / f"{name}.parquet", index=False)
            (partial / "mc2.json").write_text(json.dumps(self.mc2, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "CampaignFit":
        """Read what :meth:`save` wrote.

        Raises:
            JoulecastError: it is not all there.
        """
        try:
            frames = {
                name: pd.read_parquet(folder / f"{name}.parquet")
                for name in ("observations", "times", "energies", "series")
            }
            mc2 = json.loads((folder / "mc2.json").read_text())
        except (OSError, ValueError) as error:
            raise JoulecastError(f"{folder}: the fits cannot be read ({error})") from None
        return cls(**frames, mc2=mc2)


def _series(folders: Sequence[Path], period_s: float, splits: int) -> pd.DataFrame:
    """Forecast errors of the time-series models on the power traces of some runs."""
    parts = []
    for folder in folders:
        record = read_record(folder)
        info = record.info
        errors = forecast_errors(resampled_power(record, period_s), splits)
        parts.append(errors.assign(run=info.spec.run, energy_source=info.energy_source))
    if not parts:
        return pd.DataFrame(columns=["model", "split", "difference_percent", "energy_source"])
    return pd.concat(parts, ignore_index=True)


def _summary(model: MC2) -> dict[str, Any]:
    return {
        "time": asdict(model.time),
        "power": None if model.power is None else asdict(model.power),
        "units": "s, s/sample, s/byte, W; tau, c, m and o by network",
    }


def fit_campaign(
    folders: Sequence[Path], *, bootstrap: int, series_splits: int, series_period_s: float
) -> CampaignFit:
    """Fit and judge all models on the records in ``folders``.

    Args:
        bootstrap: resamples behind the intervals of the full fit.
        series_splits: split points of the time-series models.
        series_period_s: bin of the power traces they see.

    Raises:
        JoulecastError: no training run is left to fit; lists why each was left out.
    """
    observations = observe_all(folders)
    clean = observations[observations["polluted"] == ""]
    if clean[clean["kind"] == "training"].empty:
        reasons = observations.loc[observations["polluted"] != "", ["run", "polluted"]]
        listed = "; ".join(f"{row.run}: {row.polluted}" for row in reasons.itertuples())
        raise JoulecastError(f"no training run is left to fit ({listed or 'there are no records'})")
    kept = [folder for folder in folders if not read_info(folder).polluted]
    platform = read_info(folders[0]).spec.platform
    watts = {"idle_w": platform.idle_w, "full_w": platform.full_w, "tdp_w": platform.tdp_w}
    judged = evaluate(clean, allreduce_points(kept), watts, bootstrap)
    # One trace of every setting is enough to see what forecasting it is worth.
    training = clean[clean["kind"] == "training"]
    first = training[~is_sweep(training) & (training["repeat"] == training["repeat"].min())]
    traces = [folder for folder in kept if folder.name in set(first["run"])]
    series = _series(traces, series_period_s, series_splits)
    return CampaignFit(
        observations, judged.times, judged.energies, series, _summary(judged.full_fit)
    )
