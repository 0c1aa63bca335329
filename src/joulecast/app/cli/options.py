"""The options of commands: those that come from the fields of a request, and a few others."""

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
from pydantic import BeforeValidator, ValidationError
from pydantic.fields import FieldInfo

from joulecast.errors import JoulecastError
from joulecast.measure.observer.request import MeasureRequest
from joulecast.quantities import MOST_NODES
from joulecast.report.advice.request import PlanRequest
from joulecast.runs.request import Request, in_one_line, shell_name

R = TypeVar("R", bound=Request)
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Platforms = Annotated[Path, typer.Option(help=PlanRequest.model_fields["platforms"].description)]
MeteredPlatform = Annotated[
    str, typer.Option(help=MeasureRequest.model_fields["platform"].description)
]
PowerConfig = Annotated[
    Path | None, typer.Option(help=MeasureRequest.model_fields["config"].description)
]
_NAME = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Training that `measure` ran.")]
_FROM_NAME = ("records", "network")
"""Fields of a request of records that the NAME of a training fills."""


def asks(model: type[R]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that makes a command from a function whose argument is a request object.

    The options of the command are the fields of the request, and the function's other parameters. A request
    that reads records also takes the NAME of a training.
    """
    types, has_name = get_type_hints(model), "records" in model.model_fields

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        own = [*inspect.signature(function).parameters.values()][1:]
        options = [_keyword("context", typer.Context), *([_keyword("name", _NAME)] * has_name)]
        for name, field in model.in_order().items():
            options.append(_option(name, field, types[name], has_name and name in _FROM_NAME))
        options += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]

        def command(context: typer.Context, **values: Any) -> None:
            given = {
                name: values[name]
                for name in model.model_fields
                # An option that the user typed counts as given, even if its value is the default.
                if str(context.get_parameter_source(name)).rpartition(".")[2] != "DEFAULT"
            }
            request = _request(model, given, values.get("name"))
            function(request, **{each.name: values[each.name] for each in own})

        command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in options}
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        return command

    return decorated


def _request(model: type[R], given: dict[str, Any], name: str | None) -> R:
    """The request that a command line makes; an error names the option as it is typed."""
    if name is not None:
        if "records" in given:
            network = (
                f"; for the network of these records, say --network {name}"
                if "network" in model.model_fields
                else ""
            )
            raise JoulecastError(
                f"{name} and --records: the NAME of a measured training stands for its records; give one of "
                f"the two{network}"
            )
        given = {field: name for field in _FROM_NAME if field in model.model_fields} | given
    for field in _FROM_NAME:
        if (
            field not in given
            and field in model.model_fields
            and model.model_fields[field].is_required()
        ):
            raise JoulecastError(
                f"--{field} is missing; give it, or the NAME of a training that `measure` ran"
            )
    try:
        return model(**given)
    except JoulecastError as error:
        if isinstance(error.__cause__, ValidationError):
            raise JoulecastError(in_one_line(error.__cause__, model, shell_name)) from None
        raise


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _option(name: str, field: FieldInfo, kind: Any, from_name: bool) -> inspect.Parameter:
    """The parameter of which typer makes an option or argument. Values stay text: the request reads them."""
    default = inspect.Parameter.empty if field.is_required() and not from_name else field.default
    if default in ((), {}) or from_name:
        default = None
    shown: dict[str, Any] = {"help": field.description}
    if name == "records" or isinstance(field.default, dict):
        kind = list[str] | None
    elif kind not in (bool, Path, Path | None):
        shown["metavar"] = _metavar(field, kind)
        kind, default = (str | None, None) if default is None else (str, default)
    flag = shell_name(name, field)
    is_option = flag.startswith("--")
    if not is_option:
        shown["metavar"] = flag.upper()
    made = typer.Option(flag, **shown) if is_option else typer.Argument(**shown)
    return _keyword(name, Annotated[kind, made], default)


def _metavar(field: FieldInfo, kind: Any) -> str:
    """What an option takes: words, or a kind of number and its bounds."""
    options = [each for each in (kind, *get_args(kind)) if each is not type(None)]
    words = [word for each in options if get_origin(each) is Literal for word in get_args(each)]
    if words:
        return f"<{'|'.join(words)}>"
    if any(isinstance(each, BeforeValidator) for each in field.metadata):
        return "<text>"
    name = next(word for each, word in _NUMBERS.items() if each in options)
    least = [f">={each.ge:g}" for each in field.metadata if hasattr(each, "ge")]
    least += [f">{each.gt:g}" for each in field.metadata if hasattr(each, "gt")]
    # A limit that no user can reach is not shown.
    most = [getattr(each, "le", MOST_NODES) for each in field.metadata]
    least += [f"<={each:g}" for each in most if each < MOST_NODES]
    return " ".join([f"<{name}", *least]) + ">"


_NUMBERS = {int: "int", float: "float", str: "text"}


def echo_json(content: dict[str, Any]) -> None:
    """Print plain data as JSON."""
    typer.echo(json.dumps(content, indent=1, allow_nan=False))


PATIENCE_S = 10.0
"""Number of seconds after which a command says that it is still working."""


@contextmanager
def report_waiting(what: str) -> Iterator[None]:
    """If the work takes long, say once on stderr what takes long."""
    timer = Timer(PATIENCE_S, lambda: typer.echo(f"note: {what}", err=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
