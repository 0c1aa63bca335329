"""Fit and judge all models on the campaign's records."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.energy.campaign_fit import fit_campaign
from joulecast.runs.folders import campaign_records, record_folders


def main(
    records: list[Path],
    imported: list[Path],
    digests: list[str],
    series_splits: int,
    series_period_s: float,
    fits: Path,
) -> None:
    places = [*campaign_records(records, digests), *imported]
    folders = [folder for place in places for folder in record_folders(place)]
    fit_campaign(
        folders,
        series_splits=series_splits,
        series_period_s=series_period_s,
    ).save(fits)


if __name__ == "__main__":
    run_script(snakemake, main)
