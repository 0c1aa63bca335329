"""Draw the figures of the campaign."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.energy.fitting import CampaignFit
from joulecast.records.record import largest_record, read_record, record_folders
from joulecast.report.figures.power import power_trace
from joulecast.report.figures.predicted import campaign_predictions
from joulecast.report.figures.time_parts import stage_energies, stage_times
from joulecast.report.tables.published import read_published

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    fits: str, record: str, traced_run: str, imported: list[str], published: str, folder: Path
) -> None:
    fit = CampaignFit.load(Path(fits))
    band = read_published(Path(published)).error_percent["MC2"]
    observations = fit.observations
    trained = observations["kind"].isin(("training", "imported"))
    clean = observations[trained & (observations["polluted"] == "")]
    stage_times(clean, folder / "stage_times")
    stage_energies(clean, folder / "stage_energies")
    (traced,) = (path for path in record_folders(Path(record)) if path.name == traced_run)
    power_trace(read_record(traced), folder / "power_trace")
    campaign_predictions(fit, folder / "predicted_against_measured", band)
    for name in imported:
        power_trace(largest_record(Path(name)), folder / f"power_trace_{Path(name).name}")


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(
            fits=snakemake.input.fits,
            record=snakemake.input.record[0],
            traced_run=snakemake.params.traced_run,
            imported=snakemake.input.imported,
            published=snakemake.input.published,
            folder=Path(snakemake.params.figures),
        )
