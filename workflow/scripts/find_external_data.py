"""Find out which external data can be had, and why the rest cannot."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.campaign.config import Config, parse_config
from joulecast.errors import JoulecastError
from joulecast.campaign.external import listed_downloads, locate_folder, why_unavailable
from joulecast.files.writing import written_aside
from joulecast.importers.mlperf import require_runs
from joulecast.campaign.scripts import logged

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def missing(config: Config, name: str, listed: str | None) -> str:
    if listed is not None:
        return why_unavailable(config, name, listed_downloads(Path(listed)))
    why = why_unavailable(config, name, {})
    if not why:
        try:
            require_runs(locate_folder(config, name))
        except JoulecastError as error:
            return f"external data {name}: {error}"
    return why


def main(configuration: dict[str, object], lists: dict[str, str | None], found: Path) -> None:
    config = parse_config(configuration, "configuration")
    why = {name: missing(config, name, listed) for name, listed in lists.items()}
    with written_aside(found) as partial:
        partial.write_text(json.dumps(why, indent=1) + "\n")
    for name, reason in why.items():
        print(f"{name}: {reason or 'found'}")


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(snakemake.config, dict(snakemake.params.lists), Path(snakemake.output.found))
