"""Draw the figures of the campaign."""

from pathlib import Path

from joulecast.campaign.scripts import run_script
from joulecast.energy.fitting import CampaignFit
from joulecast.records.folders import largest_record, record_folders
from joulecast.records.record import read_record
from joulecast.report.figures.power import power_trace
from joulecast.report.figures.predicted import campaign_predictions
from joulecast.report.figures.time_parts import stage_energies, stage_times
from joulecast.report.tables.published import read_published


def main(
    fits: Path,
    record: list[Path],
    traced_run: str,
    imported: list[Path],
    published: Path,
    folder: Path,
) -> None:
    fit = CampaignFit.load(fits)
    band = read_published(published).error_percent["MC2"]
    observations = fit.observations
    trained = observations["kind"].isin(("training", "imported"))
    clean = observations[trained & (observations["polluted"] == "")]
    stage_times(clean, folder / "stage_times")
    stage_energies(clean, folder / "stage_energies")
    (traced,) = (path for path in record_folders(record[0]) if path.name == traced_run)
    power_trace(read_record(traced), folder / "power_trace")
    campaign_predictions(fit, folder / "predicted_against_measured", band)
    for source in imported:
        power_trace(largest_record(source), folder / f"power_trace_{source.name}")


if __name__ == "__main__":
    run_script(snakemake, main)
