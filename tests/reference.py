"""Pages and pictures of the documentation that come from the code: ``python tests/reference.py`` writes them.

``docs/reference/commands.md`` has every command with its options, ``docs/reference/configuration.md`` every key.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import joulecast
from joulecast.campaign.config import documented_defaults
from joulecast.files.shipped import recorded_folder
from joulecast.importers.mlperf import import_mlperf

DOCS = Path(__file__).resolve().parents[1] / "docs"


def commands() -> str:
    """Every command with its options, as its ``--help`` says them."""
    words = [
        sys.executable,
        "-m",
        "typer",
        "joulecast.cli.main",
        "utils",
        "docs",
        "--name",
        "joulecast",
    ]
    made = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    head = "# Commands\n\nEach command says this with `--help`, too. Most have `--json`, and do what a "
    head += "function of the [Python API](api.md) does.\n"
    text = made.replace("# `joulecast`\n", head, 1)
    return re.sub(r"[ \t]+$", "", text, flags=re.M).rstrip() + "\n"


def configuration() -> str:
    """Every key of the configuration with its default, as `joulecast config default` prints them."""
    head = """# Configuration

Every key, with its default and what it means: the file `config/config.yaml`. A campaign's own file has only
the keys that differ ([run a campaign](how-to/run-a-campaign.md)). `joulecast config check FILE` checks one,
and `joulecast config schema` prints the JSON schema, which editors complete keys by.
"""
    return f"{head}\n```yaml\n{documented_defaults().rstrip()}\n```\n"


PAGES = {DOCS / "commands.md": commands, DOCS / "configuration.md": configuration}


def draw_forecast(picture: Path) -> None:
    """README's picture: forecasts from the shipped runs of MLPerf Training on one and eight nodes."""
    with tempfile.TemporaryDirectory() as folder:
        import_mlperf(recorded_folder(Path("recorded/mlperf-power")), Path(folder))
        joulecast.forecast(folder, nodes=[2, 4, 8, 16, 32, 64]).plot().save(picture)


if __name__ == "__main__":
    draw_forecast(DOCS / "images/forecast.svg")
    for page, made in PAGES.items():
        page.write_text(made())
