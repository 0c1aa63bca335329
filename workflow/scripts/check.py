"""Check the records and what was made of them; an error fails the workflow."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.energy.fitting import CampaignFit
from joulecast.errors import JoulecastError
from joulecast.files.writing import write_csv, written_aside
from joulecast.records.record import campaign_records
from joulecast.report.tables.checks import check_results

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(records: list[str], runs: int, fits: str, checks: Path) -> None:
    folders = campaign_records([Path(path) for path in records], runs)
    findings = check_results(folders, CampaignFit.load(Path(fits)))
    print(findings.to_string(index=False))
    errors = findings[findings["verdict"] == "error"]
    if len(errors):
        raise JoulecastError("; ".join(f"{e.check}: {e.found}" for e in errors.itertuples()))
    with written_aside(checks) as partial:
        write_csv(findings, partial)


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(
            records=snakemake.input.records,
            runs=snakemake.params.runs,
            fits=snakemake.input.fits,
            checks=Path(snakemake.output.checks),
        )
