"""The page of the Python API: every public function and class, from signatures and docstrings."""

import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joulecast
from joulecast.app.api.forecast_result import Forecast
from joulecast.app.api.observing import Observing
from joulecast.energy.campaign_fit import CampaignFit
from reference_pages.words import markdown, table

FUNCTIONS = (
    *("observe", "read_records", "fit", "evaluate", "forecast", "advise"),
    *("plan", "choose_start", "simulate_step", "search", "partition_network", "tune_training"),
)
"""In the order of the page: what has runs first."""
CLASSES = (Forecast, Observing, CampaignFit, joulecast.JoulecastError)
_SECTIONS = ("Args", "Attributes", "Returns", "Raises")
_COMMANDS = {
    "observe": "measure",
    "evaluate": "evaluate",
    "forecast": "forecast",
    "advise": "advise",
    "plan": "plan",
    "choose_start": "when",
    "simulate_step": "simulate",
    "search": "search",
    "partition_network": "partition",
    "tune_training": "tune",
}
"""The commands whose options are the parameters of a function."""
_EXAMPLES = "../how-to/use-from-python.md"
_HEAD = f"""# Python API

`import joulecast` has {{count}} functions. [Use joulecast from Python]({_EXAMPLES}) has an example of each.
`help(joulecast.forecast)` shows types and meanings of the parameters.

* A value that is not known is `None`, with a reason. A function that has no answer raises
  [`JoulecastError`](#joulecasterror).
* **Units:** times are in s, energies in J, powers in W, rates in bytes/s, memory and messages in bytes.
* **Records** are one of these, or a list of them: a folder with run records in it or in its subfolders; a
  recorded campaign (its folder, or the name of a shipped one, such as `two-core-vm`); the name of a training
  that `joulecast measure` ran.
* **Your own files take precedence.** A name is looked up below the working directory
  (`config/platforms/NAME.yaml`, `recorded/task-graphs/NETWORK.json`, `recorded/CAMPAIGN/`), then among
  the files that joulecast ships.
* For [`evaluate`](#evaluate) and all functions below it, the key
  [`request`](../how-to/use-from-python.md#requests) of the result has the parameters of the call.
  Parameters can also be texts, as for the commands
  (`"30min"`, `"1,2,4"`).

"""


def sections(docstring: str) -> dict[str, str]:
    """The parts of a docstring by name: ``""`` is what stands before the first one."""
    found, name = {"": ""}, ""
    for line in docstring.splitlines():
        if line.rstrip(":") in _SECTIONS and line.endswith(":"):
            name = line.rstrip(":")
            found[name] = ""
        else:
            found[name] += f"{line}\n"
    return {name: textwrap.dedent(text).strip() for name, text in found.items()}


def entries(text: str) -> list[tuple[str, str]]:
    """``name: meaning`` of each entry of a part; lines that are indented continue the one before."""
    joined = re.sub(r"\n +", " ", text)
    pairs = [line.partition(": ") for line in joined.splitlines() if line.strip()]
    return [(name, meaning) for name, _, meaning in pairs]


def _parameter(parameter: inspect.Parameter) -> str:
    kind = parameter.annotation
    kind = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    kind = re.sub(r"pathlib\.|collections\.abc\.", "", kind)
    kind = re.sub(r"^Optional\[(.*)\]$", r"\1 | None", kind)
    text = f"{parameter.name}: {kind}"
    if parameter.default is inspect.Parameter.empty:
        return text
    return f"{text} = {_shown(parameter.default)}"


def _shown(default: Any) -> str:
    if callable(default):
        return str(default.__name__)
    return repr(str(default) if isinstance(default, Path) else default).replace(", ", ",")


def signature(name: str, function: Callable[..., Any], typed: bool) -> str:
    """The signature, in lines of at most 100 characters; ``typed`` shows types and what it returns."""
    found = inspect.signature(function)
    parts = []
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(_parameter(parameter) if typed else _untyped(parameter))
    line = f"{name}({', '.join(parts)})" + (f" -> {found.return_annotation}" if typed else "")
    return textwrap.fill(line, 100, subsequent_indent="    ", break_long_words=False)


def _untyped(parameter: inspect.Parameter) -> str:
    default = parameter.default
    return parameter.name if default is parameter.empty else f"{parameter.name}={_shown(default)}"


def _documented(docstring: str, command: str | None = None) -> str:
    parts = sections(inspect.cleandoc(docstring))
    text = markdown(parts[""]).rstrip() + "\n\n"
    if command is not None:
        parts.pop("Args", None)
        link = f"[`joulecast {command}`](commands.md#joulecast-{command})"
        text += f"The parameters are the options of {link}.\n\n"
    for name, head in (("Args", "argument"), ("Attributes", "attribute")):
        if name in parts:
            rows = [
                [", ".join(f"`{each}`" for each in names.split(", ")), markdown(meaning)]
                for names, meaning in entries(parts[name])
            ]
            text += table([head, "meaning"], rows) + "\n"
    if "Returns" in parts:
        text += f"**Returns:** {markdown(parts['Returns'])}\n\n"
    return text


def _function(name: str) -> str:
    function = getattr(joulecast, name)
    command = _COMMANDS.get(name)
    shown = signature(f"joulecast.{name}", function, typed=command is None)
    return f"## {name}\n\n```python\n{shown}\n```\n\n{_documented(function.__doc__, command)}"


def _members(model: type) -> list[list[str]]:
    rows = []
    for name, member in vars(model).items():
        if name.startswith("_"):
            continue
        function = member.fget if isinstance(member, property) else member
        if not inspect.isfunction(function) or not function.__doc__:
            continue
        brackets = "" if isinstance(member, property) else "()"
        first = inspect.cleandoc(function.__doc__).split("\n\n")[0]
        rows.append([f"`{name}{brackets}`", markdown(first)])
    return rows


def _class(model: type) -> str:
    text = f"## {model.__name__}\n\n{_documented(model.__doc__ or '')}"
    rows = _members(model)
    return text + (table(["member", "meaning"], rows) + "\n" if rows else "")


def page() -> str:
    """The page, from the functions and the classes that they return."""
    parts = [_HEAD.replace("{count}", str(len(FUNCTIONS)))]
    parts += [_function(name) for name in FUNCTIONS]
    parts += [_class(model) for model in CLASSES]
    return "".join(parts).rstrip() + "\n"
