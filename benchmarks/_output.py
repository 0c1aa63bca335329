"""Output that all benchmarks share: a table for people, `--json` for programs."""

import argparse
import json
from typing import Any

from tabulate import tabulate

from joulecast.energy.plain import plain


def parser(description: str | None) -> argparse.ArgumentParser:
    """An argument parser with `--json`."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", action="store_true", help="print an object with `rows`")
    return made


def show(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Print rows as a table, or as an object with `rows`."""
    if as_json:
        known = [{name: plain(value) for name, value in row.items()} for row in rows]
        print(json.dumps({"rows": known}, allow_nan=False))
    else:
        print(tabulate(rows, headers="keys", floatfmt=".4g"))
