"""Output that all benchmarks share: a table, `--json` for programs, `--keep` for docs/how-good.md."""

import argparse
import json
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tabulate import tabulate

from joulecast.runs.json_values import json_value
from joulecast.runs.provenance import cpu_model, source_state, usable_cores

MEASURED = Path(__file__).parent / "measured"
"""Folder of the measured figures that docs/how-good.md shows."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with `--json` and `--keep`."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", action="store_true", help="print an object with `rows`")
    made.add_argument(
        "--keep",
        action="store_true",
        help="keep the rows in benchmarks/measured, for docs/how-good.md",
    )
    return made


def keep(name: str, command: str, rows: list[dict[str, Any]], **facts: Any) -> Path:
    """Write rows to benchmarks/measured, with the machine, the commit and the day. Returns the file."""
    source = source_state()
    known = {
        "command": command,
        "measured": datetime.now(UTC).date().isoformat(),
        "commit": source.get("git_commit"),
        "machine": f"{cpu_model()}, {usable_cores()} cores",
        **facts,
        "rows": [{key: json_value(value) for key, value in row.items()} for row in rows],
    }
    MEASURED.mkdir(exist_ok=True)
    path = MEASURED / f"{name}.json"
    path.write_text(json.dumps(known, indent=1, allow_nan=False) + "\n")
    return path


def show(rows: list[dict[str, Any]], asked: argparse.Namespace) -> None:
    """Print rows as a table, or as an object with `rows`. With `--keep`, also keep them."""
    script = Path(sys.argv[0])
    if asked.keep:
        words = [word for word in sys.argv[1:] if word not in ("--keep", "--json")]
        keep(
            script.stem, shlex.join(["./run", "python", f"benchmarks/{script.name}", *words]), rows
        )
    if asked.json:
        known = [{name: json_value(value) for name, value in row.items()} for row in rows]
        print(json.dumps({"rows": known}, allow_nan=False))
    else:
        print(tabulate(rows, headers="keys", floatfmt=".4g"))
