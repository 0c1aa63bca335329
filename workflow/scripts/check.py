"""Check the records and what was made of them; an error fails the workflow."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.energy.fitting import CampaignFit
from joulecast.errors import JoulecastError
from joulecast.runs.folders import campaign_records
from joulecast.report.tables.checks import check_results, write_checks


def main(records: list[Path], runs: int, fits: Path, tables: Path) -> None:
    findings = check_results(campaign_records(records, runs), CampaignFit.load(fits))
    print(findings.to_string(index=False))
    errors = findings[findings["verdict"] == "error"]
    if len(errors):
        raise JoulecastError("; ".join(f"{e.check}: {e.found}" for e in errors.itertuples()))
    write_checks(tables, findings)


if __name__ == "__main__":
    run_script(snakemake, main)
