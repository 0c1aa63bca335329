"""Arguments of the public functions: how they become a request, and how paths and prices are read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, get_type_hints

from joulecast.errors import JoulecastError
from joulecast.quantities import listed
from joulecast.runs.files.shipped import MEASURED, recorded_folder
from joulecast.runs.request import NodePrices, Priced, PriceList, Request, WithPrices

if TYPE_CHECKING:
    from joulecast.energy.prices import Prices

R = TypeVar("R", bound=Request)
T = TypeVar("T")
P = ParamSpec("P")
AnyPath = str | PathLike[str]
Records = AnyPath | Sequence[AnyPath]
"""A folder with run records in it or in its subfolders; a recorded campaign; or the name of an observed
training, whose records are in ``results/measured``. Also several of these."""


def paths(records: Records) -> list[Path]:
    """The folders that the argument ``records`` of a public function means."""
    given = [records] if isinstance(records, str | PathLike) else list(records)
    return [folder for one in given for folder in _folders(Path(one))]


def _folders(given: Path) -> list[Path]:
    """The folder, if it contains a record. Otherwise the folders of the observed training of this name.

    A campaign's results also have runs of others (``metered``), which are no part of the campaign.
    """
    if (given / "records").is_dir() and (given / "metered").is_dir():
        imported = given / "imported"
        return [given / "records", *([imported] if any(imported.rglob("run.json")) else [])]
    if any(given.rglob("run.json")):
        return [given]
    _check_is_no_log(given)
    if len(given.parts) != 1:
        if not given.exists() and not recorded_folder(given).exists():
            raise JoulecastError(f"{given}: no such folder; give a folder of run records")
        return [given]
    from joulecast.runs.folders import measured_names, measured_records

    found, shipped = measured_records(given.name), recorded_folder(given)
    if not found and not given.exists():
        _check_is_no_log(shipped)
    if found or given.exists() or shipped.exists():
        return found or [given]
    names = measured_names()
    known = f"has {listed(names, 3)}" if names else "has none"
    raise JoulecastError(
        f"{given}: no such folder here, no recorded campaign, and no training that `joulecast measure` has "
        f"run ({MEASURED} {known})"
    )


def _check_is_no_log(folder: Path) -> None:
    if (folder / "runs.csv.gz").exists():
        raise JoulecastError(
            f"{folder}: comes with joulecast as logs of others, not as records; make these with `joulecast "
            f"import mlperf {folder.name} FOLDER`, and give the FOLDER"
        )


@contextmanager
def naming(*given: AnyPath | None) -> Iterator[None]:
    """Add the request's files or trainings to an error, unless it names one of them or an option."""
    try:
        yield
    except JoulecastError as error:
        files = [str(each) for each in given if each is not None and _is_there(Path(each))]
        if not files or str(error).startswith("--") or any(file in str(error) for file in files):
            raise
        raise JoulecastError(f"{error} (from {listed(files)})") from None


def _is_there(given: Path) -> bool:
    from joulecast.runs.folders import measured_records

    return given.exists() or bool(measured_records(given.name))


def prices_of(request: WithPrices) -> Prices:
    """The prices of a request. Prices that it does not set come from the section ``prices`` of its
    configuration. Prices that differ between platforms are not among them: the request itself reads these.

    Raises:
        JoulecastError: the configuration has no prices.
    """
    from joulecast.energy.prices import NO_PRICES, Prices

    prices = PriceList if isinstance(request, Priced) else NodePrices
    named = request.model_fields_set & prices.model_fields.keys()
    given: dict[str, Any] = {name: getattr(request, name) for name in named}
    if request.prices is None:
        return Prices(**given)
    from joulecast.app.campaign.config import read_config

    kept = Prices(**read_config(request.prices).prices.model_dump())
    if kept == NO_PRICES:
        raise JoulecastError(
            f"{request.prices}: has no prices; give them in its section `prices`, such as "
            "`prices: {price: 0.3}`"
        )
    if given:
        given["source"] = f"options, and {kept.source or request.prices}"
    return kept.model_copy(update=given)


def takes_request(
    model: type[R], *positional: str
) -> Callable[[Callable[Concatenate[R, P], T]], Callable[..., T]]:
    """A decorator for a function that takes a request. The decorated function has the fields of the request
    as its parameters.

    The caller gives these parameters, or a ready request in place of them. Signature and docstring list all
    of them. A result of plain data also has the question, under ``request``.

    Args:
        positional: fields that may be given without their names, in addition to those that must be given.
    """

    def decorated(function: Callable[Concatenate[R, P], T]) -> Callable[..., T]:
        own = [*inspect.signature(function, eval_str=True).parameters.values()][1:]
        signature = inspect.Signature(
            [*_parameters(model, positional), *own],
            return_annotation=function.__annotations__["return"],
        )

        @wraps(function)
        def public(*args: Any, **named: Any) -> T:
            rest = {each.name: named.pop(each.name) for each in own if each.name in named}
            if len(args) == 1 and isinstance(args[0], model) and not named:
                request = args[0]
            else:
                request = model(**signature.bind(*args, **named).arguments)
            answer = function(request, **rest)  # type: ignore[call-arg]
            if isinstance(answer, dict):
                answer["request"] = request.asked()
            return answer

        public.__signature__ = signature  # type: ignore[attr-defined]
        fields = [f"    {name}: {field.description}" for name, field in model.in_order().items()]
        described = "\n".join(["Args:", *fields, "", "Returns:"])
        public.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("Returns:", described, 1)
        return public

    return decorated


def _parameters(model: type[Request], positional: tuple[str, ...]) -> list[inspect.Parameter]:
    types, parameters = get_type_hints(model), []
    for name, field in model.in_order().items():
        leads = field.is_required() or name in positional
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if leads else inspect.Parameter.KEYWORD_ONLY
        default = inspect.Parameter.empty if field.is_required() else field.default
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=types[name]))
    return sorted(parameters, key=lambda each: each.kind)
