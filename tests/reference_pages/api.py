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
from joulecast.runs.record import RunRecord
from reference_pages.words import markdown, table

FUNCTIONS = (
    *("observe", "read_records", "fit", "evaluate", "forecast", "advise"),
    *("plan", "choose_start", "simulate_step", "search", "partition_network", "tune_training"),
)
"""In the order of the page: what has runs first."""
CLASSES = (Forecast, Observing, RunRecord, CampaignFit, joulecast.JoulecastError)
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
`help(joulecast.forecast)` explains the parameters, too.

* A value that is not known is `None`, with a reason.
* **Units:** times are in s, energies in J, powers in W, rates in bytes/s, memory and messages in bytes.
* **Records** are one of these, or a list of them: a folder with run records in it or in its subfolders; a
  recorded campaign (its folder, or the name of a shipped one, as `two-core-vm`); the name of a training
  that `joulecast measure` ran.
* A **network** is a [name](simulator.md#networks).
* **Your own files take precedence.** A name is looked up below the working directory
  (`config/platforms/NAME.yaml`, `recorded/task-graphs/NETWORK.json`, `recorded/CAMPAIGN/`), then among
  the files that joulecast ships.
* **Requests.** From [`evaluate`](#evaluate) on, the result of a function repeats the question under
  `request`: `joulecast.forecast(**result["request"])` asks it again. Parameters can also be texts, as for
  the commands (`"30min"`, `"1,2,4"`).

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
    default = parameter.default
    return f"{text} = {default.__name__ if callable(default) else _shown(default)}"


def _shown(default: Any) -> str:
    return repr(str(default) if isinstance(default, Path) else default)


def signature(name: str, function: Callable[..., Any]) -> str:
    """The signature, a line a parameter where it is long."""
    found = inspect.signature(function)
    parts = []
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(_parameter(parameter))
    line = f"{name}({', '.join(parts)}) -> {found.return_annotation}"
    if len(line) <= 100:
        return line
    return f"{name}(\n{''.join(f'    {part},' + chr(10) for part in parts)}) -> {found.return_annotation}"


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
    if "Raises" in parts:
        for name, meaning in entries(parts["Raises"]):
            text += f"**Raises** `{name}`: {markdown(meaning)}\n\n"
    return text


def _function(name: str) -> str:
    function = getattr(joulecast, name)
    shown = f"```python\n{signature(f'joulecast.{name}', function)}\n```\n\n"
    example = f"[Example]({_EXAMPLES}#{name})\n\n"
    return f"## {name}\n\n{shown}{_documented(function.__doc__, _COMMANDS.get(name))}{example}"


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
