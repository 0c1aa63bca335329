"""Requests. A command and the Python function of the same name share their options, which a request defines
once.

This module also defines the sections of the configuration. The requests and sections of a room are in
``<room>/request.py``. Defaults are written as ``default=...``, because the type checkers of users understand
this form. Each field makes an option of the command, a parameter of the function, a key in the result's
``request``, and the error message for a wrong value.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, ValuesView
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from joulecast.errors import JoulecastError
from joulecast.quantities import MOST_NODES, MOST_SAMPLES

_LONGEST_NAME = 255
_LARGEST = 10**12
"""Largest number in a configuration. Sizes in bytes need it."""


class Section(BaseModel):
    """A section of keys. Other keys are refused."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _possible(cls, value: Any) -> Any:
        values = value.values() if isinstance(value, dict) else value
        for each in values if isinstance(values, list | tuple | ValuesView) else [values]:
            if isinstance(each, int | float) and abs(each) > _LARGEST:
                raise ValueError(f"{str(each)[:20]} is more than any campaign can have")
            if isinstance(each, str) and max(map(len, each.split("/"))) > _LONGEST_NAME:
                raise ValueError("is too long for the name of a file")
        return value


@dataclass(frozen=True)
class Shell:
    """Another name of a field on the command line, in place of ``--name-of-the-field``.

    Attributes:
        name: ``--flag``, or the name of an argument without dashes.
    """

    name: str


def shell_name(name: str, field: FieldInfo) -> str:
    """The name of a field on the command line."""
    named = [each.name for each in field.metadata if isinstance(each, Shell)]
    return named[0] if named else f"--{name.replace('_', '-')}"


class Request(BaseModel):
    """A question. Fields that are not given, or are given as ``None``, have their defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    command: ClassVar[str] = ""
    """The command that takes these options."""

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**{name: v for name, v in given.items() if v is not None})
        except ValidationError as error:
            raise JoulecastError(in_one_line(error, type(self))) from error

    def asked(self) -> dict[str, Any]:
        """The given values as plain data: the parameters of the Python function."""
        return self.model_dump(mode="json", exclude_unset=True)

    @classmethod
    def in_order(cls) -> dict[str, FieldInfo]:
        """The fields in the order in which people see them: required fields come first."""
        fields = cls.model_fields
        return {
            name: fields[name] for name in sorted(fields, key=lambda n: not fields[n].is_required())
        }

    def in_shell(self) -> str:
        """The command that asks the same question."""
        words, given = ["joulecast", self.command], self.asked()
        for name, field in self.in_order().items():
            flag = shell_name(name, field)
            value = given.get(name)
            each = value if name == "records" else [value]
            for one in each or []:
                words += _words(flag if flag.startswith("--") else None, one)
        return shlex.join(words)


def _words(flag: str | None, value: Any) -> Iterable[str]:
    if value is None or value is False or value == []:
        return []
    if value is True:
        return [str(flag)]
    if isinstance(value, Mapping):
        return [word for key, each in value.items() for word in (str(flag), f"{key}={each}")]
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return [text] if flag is None else [flag, text]


def in_one_line(
    error: ValidationError,
    model: type[Request],
    called: Callable[[str, FieldInfo], str] | None = None,
) -> str:
    """One line about the first wrong field: what is wrong, and what to give.

    Args:
        called: function that gives a field's name for the reader; by default its name in Python.
    """
    wrong = error.errors()[0]
    if not wrong["loc"]:
        return _message(wrong)
    field = model.model_fields.get(str(wrong["loc"][0]))
    if field is None:
        return f"{wrong['loc'][0]}: no such option; there are {', '.join(model.model_fields)}"
    name = called(str(wrong["loc"][0]), field) if called else str(wrong["loc"][0])
    if wrong["type"] == "missing":
        return f"{name} is missing; give: {field.description}"
    value = wrong["input"]
    if isinstance(value, list):
        value = " ".join(map(str, value))
    shown = f"{value:g}" if isinstance(value, float) else repr(value)[:60]
    return f"{name} {shown}: {_message(wrong)}"


_GIVE = {
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "give one of {expected}",
    "finite_number": "give a finite number",
}


def _message(wrong: ErrorDetails) -> str:
    context = wrong.get("ctx", {})
    if wrong["type"] == "value_error":
        return str(context["error"])
    if wrong["type"] in _GIVE:
        text = _GIVE[wrong["type"]].format(**context)
        return text.replace("'", "").replace(" or ", ", ")
    text = wrong["msg"].replace("Input should be", "give").split(", unable")[0]
    return re.sub(r"^\w+ should", "must", text)


def from_text(read: Callable[[str], Any]) -> BeforeValidator:
    """A validator that also accepts text, as people type it."""

    def reading(given: Any) -> Any:
        if not isinstance(given, str):
            return given
        try:
            return read(given)
        except JoulecastError as error:
            # The message already names the option and the text.
            raise ValueError(str(error).removeprefix(f"{given}: ")) from None

    return BeforeValidator(reading)


def _counts(given: Any) -> Any:
    """Counts, from any iterable of them, from a single one, or from the text ``1,2,4``."""
    if isinstance(given, str):
        try:
            return [int(number) for number in given.split(",")]
        except ValueError:
            raise ValueError("give numbers, such as 1,2,4") from None
    if isinstance(given, Iterable):
        return [int(each) if isinstance(each, Integral) else each for each in given]
    return [given]


def _pairs(given: Any) -> Any:
    """Values by name, also from texts as ``nic=12.5e9``."""
    if isinstance(given, Mapping):
        return given
    pairs = [text.partition("=") for text in ([given] if isinstance(given, str) else given)]
    if not all(equals and value for _, equals, value in pairs):
        raise ValueError("give it as name=value")
    return {key: value for key, _, value in pairs}


def _paths(given: Any) -> Any:
    return [given] if isinstance(given, str | PathLike) else given


_ONCE = AfterValidator(lambda given: tuple(dict.fromkeys(given)))
"""Keeps the first of equal values. Otherwise a setting would be compared with itself."""
Counts = Annotated[
    tuple[Annotated[int, Field(ge=1, le=MOST_NODES)], ...], BeforeValidator(_counts), _ONCE
]
"""Counts of nodes or devices; also as the text ``1,2,4``."""
Batches = Annotated[
    tuple[Annotated[int, Field(ge=1, le=MOST_SAMPLES)], ...], BeforeValidator(_counts), _ONCE
]
"""Counts of samples; also as the text ``4,8``."""
Name = Annotated[
    str, BeforeValidator(lambda given: str(given) if isinstance(given, PathLike) else given)
]
"""A name, or a path."""
Rates = Annotated[
    dict[str, Annotated[float, Field(ge=0, le=1e30)]], BeforeValidator(_pairs), Shell("--link")
]
"""Numbers by name; also as texts ``name=number``."""
Called = Annotated[dict[str, str], BeforeValidator(_pairs)]
"""Names by name; also as texts ``name=other``."""
Slow = Annotated[
    dict[int, Annotated[float, Field(ge=0, le=1e30)]], BeforeValidator(_pairs), Shell("--straggler")
]
"""Numbers by device; also as texts ``device=number``."""
RecordFolders = Annotated[tuple[Path, ...], BeforeValidator(_paths)]
"""Folders of run records, recorded campaigns, or names of observed trainings; one or several."""


RECORDS = (
    "Folder with run records in it or in its subfolders, a recorded campaign, or the NAME of a training "
    "that `measure` ran."
)
"""Description of the field with records."""


class Recorded(Request):
    """A request that rests on run records."""

    records: RecordFolders = Field(min_length=1, description=RECORDS)


class Scale(Request):
    """Scales of a training, in nodes or GPUs."""

    nodes: Counts = Field(
        default=(),
        description="Node counts, such as 16,32,64. By default up to four times the largest that was run.",
    )
    gpus: Counts = Field(
        default=(),
        description="Numbers of GPUs, such as 8,16,64, in place of node counts. On CPUs: numbers of ranks.",
    )
    gpus_per_node: int | None = Field(
        default=None,
        ge=1,
        description="GPUs that a node has (on CPUs: ranks). By default as many as ran on one host.",
    )

    @model_validator(mode="after")
    def _in_one_unit(self) -> Self:
        if self.nodes and self.gpus:
            raise ValueError("nodes and gpus say the scale in different ways; give one")
        return self


_MOST_MONEY = 1e12


class NodePrices(BaseModel):
    """Prices of energy and nodes, all in one currency. If a price is not given, this part costs nothing."""

    price: float | None = Field(
        default=None, ge=0, le=_MOST_MONEY, description="Price of a kWh at the building's meter."
    )
    price_node_hour: float | None = Field(
        default=None, ge=0, le=_MOST_MONEY, description="Price of a node for an hour."
    )
    co2: float | None = Field(
        default=None, ge=0, le=_MOST_MONEY, description="Grams of CO2 equivalent for each kWh."
    )
    pue: float = Field(
        default=1.0,
        ge=1,
        le=_MOST_MONEY,
        description="PUE: kWh that the building takes for each kWh of the nodes.",
    )
    currency: Annotated[str, StringConstraints(strip_whitespace=True)] = Field(
        default="EUR",
        min_length=1,
        max_length=12,
        description="Currency of all prices.",
    )


class PriceList(NodePrices):
    """Prices of energy, nodes and GPUs, all in one currency."""

    price_gpu_hour: float | None = Field(
        default=None, ge=0, le=_MOST_MONEY, description="Price of a GPU in use for an hour."
    )


class WithPrices(NodePrices, Request):
    """A request whose answer has prices."""

    prices: Path | None = Field(
        default=None,
        description="Configuration file with a section `prices`. An option for a price overrides it.",
    )


class Priced(PriceList, WithPrices):
    """A request about GPUs of one kind, whose answer has prices."""


def _by_name(given: Any) -> Any:
    """Numbers by name. A single number is for all names, and stands under the empty name. Texts
    ``name=number,name=number`` are read, too."""
    if isinstance(given, int | float):
        return {"": given}
    texts = [given] if isinstance(given, str) else given
    if isinstance(texts, Mapping):
        return texts
    parts = [part for text in texts for part in text.split(",")]
    # A name may contain the sign, too: l40s:gpus=4.
    return {name: number for name, _, number in (part.rpartition("=") for part in parts)}


def _doublings(given: Any) -> Any:
    """Counts. The text ``8:64`` means 8, 16, 32, 64."""
    least, colon, most = given.partition(":") if isinstance(given, str) else ("", "", "")
    if not colon:
        return _counts(given)
    if not (least.isdigit() and most.isdigit() and 1 <= int(least) <= int(most) <= MOST_NODES):
        raise ValueError(f"give the least and the most, up to {MOST_NODES:,}, such as 8:256")
    doublings = range((int(most) // int(least)).bit_length())
    return [int(least) << times for times in doublings]


def split_names(given: Any) -> Any:
    """Names, from a list or from a text as ``one,other``."""
    return given.split(",") if isinstance(given, str) else given


Doublings = Annotated[
    tuple[Annotated[int, Field(ge=1, le=MOST_NODES)], ...], BeforeValidator(_doublings), _ONCE
]
"""Counts of devices; also as the texts ``8,16`` and ``8:256``."""
Names = Annotated[tuple[str, ...], BeforeValidator(split_names), _ONCE]
"""Names; also as the text ``one,other``."""
Percents = Annotated[
    tuple[Annotated[int, Field(ge=1, le=100)], ...], BeforeValidator(_counts), _ONCE
]
"""Shares in percent; also as the text ``100,80``."""
RatesByName = Annotated[
    dict[str, Annotated[float, Field(ge=0, le=_MOST_MONEY)]], BeforeValidator(_by_name)
]
"""Prices by name; one number for all; also as the text ``one=2.5,other=1.2``."""
