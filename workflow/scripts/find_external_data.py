"""Find out which external data can be had, and why the rest cannot."""

import json
from pathlib import Path
from typing import Any

from joulecast.campaign.config import Config, parse_config
from joulecast.campaign.external import listed_downloads, locate_folder, why_unavailable
from joulecast.campaign.scripts import run_script
from joulecast.errors import JoulecastError
from joulecast.files.writing import written_aside
from joulecast.importers.mlperf import require_runs


def missing(config: Config, name: str, listed: Path | None) -> str:
    if listed is not None:
        return why_unavailable(config, name, listed_downloads(listed))
    why = why_unavailable(config, name, {})
    if not why:
        try:
            require_runs(locate_folder(config, name))
        except JoulecastError as error:
            return f"external data {name}: {error}"
    return why


def main(external_data: Any, results: str, lists: dict[str, Path | None], found: Path) -> None:
    given = {"external_data": external_data, "results": results}
    config = parse_config(given, "configuration")
    why = {name: missing(config, name, listed) for name, listed in lists.items()}
    with written_aside(found) as partial:
        partial.write_text(json.dumps(why, indent=1) + "\n")
    for name, reason in why.items():
        print(f"{name}: {reason or 'found'}")


if __name__ == "__main__":
    run_script(snakemake, main)
