"""Write the overview page of the results."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.report.pages.overview import write_overview
from joulecast.report.tables.failed_runs import write_failed_runs

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        page = Path(snakemake.output.page)
        if (page.parent / "attempts").is_dir():
            # As they are now, and not as they were when the campaign was started.
            write_failed_runs(page.parent)
        write_overview(page.parent, page, snakemake.params.configfile)
