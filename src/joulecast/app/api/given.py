"""What the public functions share: paths and choices as people give them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import JoulecastError
from joulecast.runs.files.shipped import recorded_folder

if TYPE_CHECKING:
    from joulecast.energy.prices import Prices

AnyPath = str | PathLike[str]
Records = AnyPath | Sequence[AnyPath]
"""A folder of run records, however deep they lie in it, a recorded campaign, or the name of an observed
training, whose records lie in ``results/measured``; or several of these."""


def paths(records: Records) -> list[Path]:
    """The folders."""
    given = [records] if isinstance(records, str | PathLike) else list(records)
    return [folder for one in given for folder in _folders(Path(one))]


def _folders(given: Path) -> list[Path]:
    """The folder that is given; where there is none, those of the observed training of that name."""
    if given.exists() or len(given.parts) != 1:
        return [given]
    from joulecast.runs.folders import MEASURED, measured_names, measured_records

    found = measured_records(given.name)
    if found or recorded_folder(given).exists():
        return found or [given]
    known = ", ".join(measured_names()) or f"{MEASURED} has none"
    raise JoulecastError(
        f"{given}: holds no run record, and is no training that `joulecast measure` has run ({known}); "
        "give a folder of run records, the name of a recorded campaign, or of such a training"
    )


def path(given: AnyPath | None) -> Path | None:
    """A path, where one is given."""
    return None if given is None else Path(given)


@contextmanager
def naming(*given: AnyPath | None) -> Iterator[None]:
    """Name the files that were given in an error that names none of them."""
    try:
        yield
    except JoulecastError as error:
        files = [str(each) for each in given if each is not None and Path(each).exists()]
        if not files or any(file in str(error) for file in files):
            raise
        raise JoulecastError(f"{error} (from {', '.join(files)})") from None


def check(name: str, value: str | None, known: Collection[str]) -> None:
    """Refuse a value that is none of those known."""
    if value is not None and value not in known:
        raise JoulecastError(f"{name} {value!r}: give one of {', '.join(known)}")


def given_prices(
    configuration: AnyPath | None,
    price: float | None = None,
    price_node_hour: float | None = None,
    price_gpu_hour: float | None = None,
    co2: float | None = None,
    pue: float | None = None,
    currency: str | None = None,
) -> Prices:
    """The prices that are given, and those of a configuration's section ``prices`` for what is not.

    Raises:
        JoulecastError: a price that is none, or a configuration without prices.
    """
    from joulecast.energy.prices import NO_PRICES, Prices

    given: dict[str, Any] = {
        "price": price,
        "price_node_hour": price_node_hour,
        "price_gpu_hour": price_gpu_hour,
        "co2": co2,
        "pue": pue,
        "currency": currency,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if configuration is None:
        return Prices(**given).check()
    from joulecast.app.campaign.config import read_config

    kept = Prices(**read_config(Path(configuration)).prices.model_dump())
    if kept == NO_PRICES:
        raise JoulecastError(
            f"{configuration}: has no prices; give them in its section `prices`, as `prices: {{price: 0.3}}`"
        )
    if given:
        given["source"] = f"options, and {kept.source or configuration}"
    return replace(kept, **given).check()
