"""Options that several commands have, and how their texts are read."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.errors import JoulecastError

AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Platforms = Annotated[Path, typer.Option(help="Folder of your platform files.")]
_MONEY = "in the currency of all prices."
Price = Annotated[float | None, typer.Option(help=f"Price of a kWh, {_MONEY}")]
PriceNodeHour = Annotated[
    float | None, typer.Option(help=f"Price of an hour of a whole node, {_MONEY}")
]
PriceGpuHour = Annotated[
    float | None, typer.Option(help=f"Price of an hour of a GPU in use, {_MONEY}")
]
Co2 = Annotated[float | None, typer.Option(help="Grams of CO2 equivalent for a kWh.")]
Pue = Annotated[
    float | None, typer.Option(help="kWh of the building for each kWh of the nodes; 1 by default.")
]
Currency = Annotated[
    str | None, typer.Option(help="Currency of the prices, as it is printed; EUR by default.")
]
PricesFile = Annotated[
    Path | None,
    typer.Option(help="Configuration whose section `prices` counts where no option is given."),
]


Named = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Name of a training that `measure` ran.")
]
MeteredPlatform = Annotated[
    str, typer.Option(help="Platform whose watts an estimate takes: a name, or a FILE.yaml.")
]
PowerConfig = Annotated[
    Path | None,
    typer.Option(help="Configuration; its power.sysfs_root and power.command are used."),
]
RECORDS_HELP = "Folder of run records, however deep they lie in it; or a recorded campaign."
Precision = Annotated[
    str, typer.Option(help="fp32, tf32, fp64; bf16, fp16: mixed, weights also kept at fp32.")
]
Optimizer = Annotated[str, typer.Option(help="none, sgd, momentum, adam.")]
Attention = Annotated[
    str | None,
    typer.Option(help="fused (one kernel) or eager, of a network that is given by numbers."),
]
Gradients = Annotated[
    str | None, typer.Option(help="fp32: add gradients up and send them at fp32, at any precision.")
]
Links = Annotated[
    list[str] | None, typer.Option("--link", help="Rate of a link, as nic=12.5e9 (bytes/s).")
]
Calibrate = Annotated[
    Path | None,
    typer.Option(help="A step measured on this platform (YAML), which corrects the ops' costs."),
]


def whole_numbers(option: str, text: str) -> list[int]:
    """Whole numbers of an option that takes several, as ``1,2,4``.

    Raises:
        JoulecastError: something in ``text`` is no whole number.
    """
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise JoulecastError(f"{option} {text}: give numbers, as 1,2,4") from None


def echo_json(content: dict[str, Any]) -> None:
    """Print plain data as JSON."""
    typer.echo(json.dumps(content, indent=1, allow_nan=False))


def pairs(texts: list[str] | None, option: str) -> dict[str, float]:
    """Numbers by name, of an option that may be given several times, as ``nic=12.5e9``."""
    found = {}
    for text in texts or []:
        key, _, value = text.partition("=")
        try:
            found[key] = float(value)
        except ValueError:
            raise JoulecastError(f"{option} {text}: give it as name=number") from None
    return found
