"""Put the papers' numbers beside ours."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.report.papers.collect import PaperFiles, papers
from joulecast.report.papers.rows import verdict_counts
from joulecast.report.papers.write import write_papers

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main() -> None:
    found = snakemake.input
    metered = found.get("metered_tables", [])
    stem = Path(snakemake.output[0]).with_suffix("")
    table = papers(
        PaperFiles(
            tables=stem.parent,
            published=Path(found.published[0]).parent,
            metered_tables=Path(metered[0]).parent if metered else None,
            profile_experiments=[Path(path) for path in found.get("profile_experiments", [])],
            own_experiments=[Path(path) for path in found.own_experiments],
            missing=json.loads(Path(found.external).read_text()),
        )
    )
    write_papers(stem, table)
    print(verdict_counts(table).to_string())


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main()
