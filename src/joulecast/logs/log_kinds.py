"""The registry of logs: every kind, by the name that ``joulecast import`` uses, and its reader."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from joulecast.logs.log import Log, LogOptions


@dataclass(frozen=True)
class Kind:
    """A kind of log.

    Attributes:
        module: the module whose ``read(file, options)`` reads it.
        about: a line that explains it.
        files: patterns of the names of its files.
        options: the options of ``joulecast import`` that only some kinds have, and this one has.
    """

    module: str
    about: str
    files: tuple[str, ...]
    options: tuple[str, ...] = ()

    @property
    def read(self) -> "Callable[[Path, LogOptions], Log]":
        """The reader of this kind. Its module is loaded when it is needed."""
        module = import_module(f"joulecast.logs.{self.module}")
        return cast("Callable[[Path, LogOptions], Log]", module.read)


_OF_TABLES = ("columns", "delimiter", "decimal", "time_unit", "time_format")
_TABLES = ("*.csv", "*.csv.gz", "*.txt", "*.tsv", "*.log")

KINDS: dict[str, Kind] = {
    "csv": Kind(
        "csv_map",
        "Import any CSV table of readings, such as those of a wattmeter or PDU. --map says which "
        "column is what.",
        _TABLES,
        ("records", "node", "unit", "covers", "mapped", *_OF_TABLES),
    ),
    "nvidia-smi": Kind(
        "nvidia_smi",
        "Import the CSV file that `nvidia-smi --query-gpu=... --format=csv` printed, or the table of `dmon`.",
        _TABLES,
        ("records", "node", "unit", *_OF_TABLES),
    ),
    "perun": Kind(
        "perun", "Import an HDF5 or CSV file of perun.", ("*.hdf5", "*.h5", "*.csv"), ("records",)
    ),
    "codecarbon": Kind(
        "codecarbon",
        "Import CodeCarbon's emissions.csv.",
        ("*.csv", "*.csv.bak"),
        ("records", "node", *_OF_TABLES[1:]),
    ),
    "zeus": Kind(
        "zeus",
        "Import logs of Zeus: its windows, or its readings of power.",
        _TABLES,
        ("records", "node", *_OF_TABLES),
    ),
    "jpwr": Kind(
        "jpwr",
        "Import power files of jpwr (CARAML).",
        ("power*.csv", "power*.h5"),
        ("records", "node", "unit", *_OF_TABLES),
    ),
    "slurm": Kind(
        "slurm",
        "Import jobs and their energy, as sacct prints them.",
        ("*.txt", "*.json", "*.csv"),
        _OF_TABLES,
    ),
    "megatron": Kind(
        "megatron",
        "Import the log that Megatron-LM printed with --log-energy.",
        ("*.log", "*.txt"),
        ("records", "node"),
    ),
    "prometheus": Kind(
        "prometheus",
        "Import a range query of Prometheus (Kepler, DCGM), as JSON.",
        ("*.json",),
        ("records", "node", "unit", "covers", "metric", "node_label"),
    ),
}
"""All kinds of logs, by name. In records, the names of the meters begin with this name."""
