"""Write the error tables of the campaign, and the findings of checks in its records. If a check finds an
error, the script fails."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.energy.campaign_fit import CampaignFit
from joulecast.errors import JoulecastError
from joulecast.report.tables.checks import check_results, write_checks
from joulecast.report.tables.errors import write_tables
from joulecast.report.tables.published import PublishedErrors
from joulecast.runs.folders import campaign_records


def main(
    records: list[Path], fits: Path, published: Path, digests: list[str], tables: Path, checks: Path
) -> None:
    fit = CampaignFit.load(fits)
    write_tables(tables, fit, PublishedErrors.read(published))
    findings = check_results(campaign_records(records, digests), fit)
    print(findings.to_string(index=False))
    errors = findings[findings["verdict"] == "error"]
    if len(errors):
        raise JoulecastError("; ".join(f"{e.check}: {e.found}" for e in errors.itertuples()))
    write_checks(checks, findings)


if __name__ == "__main__":
    run_script(snakemake, main)
