"""The registry of logs: every kind, by the name that ``joulecast import`` uses, and what reads it."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from joulecast.importers.logs import Log, LogOptions


@dataclass(frozen=True)
class Kind:
    """A kind of log: the module whose ``read(file, options)`` reads it, what it is in a line, and how files
    of it end. ``meter`` names its meters in records."""

    module: str
    about: str
    endings: tuple[str, ...]
    meter: str

    @property
    def read(self) -> "Callable[[Path, LogOptions], Log]":
        """Its reader; loaded when it is needed."""
        module = import_module(f"joulecast.importers.{self.module}")
        return cast("Callable[[Path, LogOptions], Log]", module.read)


_TABLES = (".csv", ".csv.gz", ".txt", ".tsv", ".log")

KINDS: dict[str, Kind] = {
    "csv": Kind(
        "csv_map", "Import readings of a wattmeter or PDU: a table, by --map.", _TABLES, "csv"
    ),
    "nvidia-smi": Kind(
        "nvidia_smi",
        "Import CSV of `nvidia-smi --query-gpu=... --format=csv`.",
        _TABLES,
        "nvidia-smi",
    ),
}
