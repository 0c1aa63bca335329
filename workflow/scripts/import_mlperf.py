"""Import MLPerf power submissions as run records."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.scripts import logged
from joulecast.campaign.config import parse_config
from joulecast.campaign.external import locate_folder
from joulecast.importers.mlperf import import_mlperf

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(configuration: dict[str, object], name: str, out: Path) -> None:
    source = locate_folder(parse_config(configuration), name)
    print(import_mlperf(source, out).text())


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(
            configuration=snakemake.config,
            name=snakemake.wildcards.name,
            out=Path(snakemake.output.records),
        )
