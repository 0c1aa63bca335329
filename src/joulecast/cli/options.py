"""Options that several commands have, and how their texts are read."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.errors import JoulecastError

AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Platforms = Annotated[Path, typer.Option(help="Folder of your platform files.")]
_MONEY = "in the currency of all prices."
Price = Annotated[float | None, typer.Option(help=f"Of a kWh, {_MONEY}")]
PriceNodeHour = Annotated[float | None, typer.Option(help=f"Of an hour of a whole node, {_MONEY}")]
PriceGpuHour = Annotated[float | None, typer.Option(help=f"Of an hour of a GPU in use, {_MONEY}")]
Co2 = Annotated[float | None, typer.Option(help="Grams of CO2 equivalent for a kWh.")]
Pue = Annotated[
    float | None, typer.Option(help="kWh of the building for one of the nodes; 1 by default.")
]
Currency = Annotated[
    str | None, typer.Option(help="Of the prices, as it is printed; EUR by default.")
]
PricesFile = Annotated[
    Path | None,
    typer.Option(help="Configuration whose section `prices` counts where no option is given."),
]


RECORDS_HELP = "Folder of run records, however deep they lie in it; or a recorded campaign."


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
