"""Import the shipped power submissions, fit and judge all models on them, and write their error tables."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.energy.campaign_fit import fit_campaign
from joulecast.logs.mlperf import import_mlperf
from joulecast.report.tables.errors import write_tables
from joulecast.report.tables.published import PublishedErrors
from joulecast.runs.folders import record_folders


def main(
    submissions: Path,
    published: Path,
    series_splits: int,
    series_period_s: float,
    records: Path,
    fits: Path,
    tables: Path,
) -> None:
    print(import_mlperf(submissions, records).text())
    fit = fit_campaign(
        record_folders(records),
        series_splits=series_splits,
        series_period_s=series_period_s,
    )
    fit.save(fits)
    write_tables(tables, fit, PublishedErrors.read(published))


if __name__ == "__main__":
    run_script(snakemake, main)
