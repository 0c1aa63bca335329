"""Find out which external data can be had, and why the rest cannot."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.config import parse_config
from joulecast.external import listed_downloads, why_unavailable
from joulecast.files import written_aside
from joulecast.logs import logged

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(configuration: dict[str, object], lists: dict[str, str | None], found: Path) -> None:
    config = parse_config(configuration, "configuration")
    missing = {
        name: why_unavailable(config, name, listed_downloads(Path(path)) if path else {})
        for name, path in lists.items()
    }
    with written_aside(found) as partial:
        partial.write_text(json.dumps(missing, indent=1) + "\n")
    for name, why in missing.items():
        print(f"{name}: {why or 'found'}")


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(snakemake.config, dict(snakemake.params.lists), Path(snakemake.output.found))
