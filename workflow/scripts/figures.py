"""Draw the figures of the campaign."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.logs import logged
from joulecast.energy.fitting import CampaignFit
from joulecast.records import read_record
from joulecast.tables.figures import (
    power_trace,
    predicted_against_measured,
    stage_energies,
    stage_times,
)

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(fits: str, record: str, folder: Path) -> None:
    fit = CampaignFit.load(Path(fits))
    observations = fit.observations
    trained = observations["kind"].isin(("training", "imported"))
    clean = observations[trained & (observations["polluted"] == "")]
    stage_times(clean, folder / "stage_times")
    stage_energies(clean, folder / "stage_energies")
    power_trace(read_record(Path(record)), folder / "power_trace")
    predicted_against_measured(fit.times, fit.energies, folder / "predicted_against_measured")


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(
            fits=snakemake.input.fits,
            record=snakemake.input.record,
            folder=Path(snakemake.output[0]).parent,
        )
