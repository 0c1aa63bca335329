"""The overview page: one file with the answer, how sure it is, the figures behind it, and how to repeat it.

It works from a folder (``file://``), without a network and without JavaScript: charts stand in it as SVG.
What the campaign did not make has its reason in its place, with the command that makes it.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from joulecast.energy.prices import NO_PRICES, Prices
from joulecast.quantities import listed
from joulecast.report import answers, measured_runs
from joulecast.report.figures.front import energy_time_front
from joulecast.report.figures.inline import inline_svg, page_colours
from joulecast.report.figures.look import Figure, save_static
from joulecast.report.figures.pipelines import pipeline_timelines
from joulecast.report.figures.policies import policy_costs
from joulecast.report.figures.predicted import predicted_against_measured
from joulecast.report.figures.time_parts import stage_shares
from joulecast.report.pages import cost_and_time, savings
from joulecast.report.pages.metered import metered_section
from joulecast.report.pages.papers import verdicts_by_paper
from joulecast.report.results_folder import NothingToShow, Results, read_results
from joulecast.runs.files.writing import written_aside

T = TypeVar("T")
SNAKEMAKE = "./run snakemake --cores all"

FIGURES = {
    "forecast": "Cost and time",
    "front": "Which setting costs least?",
    "predicted": "Is the forecast right?",
    "stages": "Where does the time go?",
    "policies": "Does tuning pay?",
    "pipelines": "What does a pipeline wait for?",
    "clusters": "How wrong is the energy model on real clusters?",
}
"""The figures by name, with their titles."""


@dataclass(frozen=True)
class Part:
    """A part of the page: what it shows, or why it shows nothing and the command that changes that."""

    content: Any
    why_none: str | None = None
    command: str | None = None


@dataclass(frozen=True)
class _Maker:
    """Makes parts; knows how this campaign's Snakemake is called."""

    snakemake: str

    def command(self, target: str | None) -> str | None:
        return None if target is None else f"{self.snakemake} -- {target}"

    def part(self, make: Callable[[], T]) -> Part:
        try:
            return Part(make())
        except NothingToShow as nothing:
            command = self.command(nothing.target)
            if nothing.configfile is not None:
                command = f"{SNAKEMAKE} --configfile {nothing.configfile}"
            return Part(None, str(nothing), command)

    def figure(self, name: str, part: Part) -> Figure:
        """The figure of a part, or one that says why there is none."""
        if isinstance(part.content, Figure):
            return part.content
        if part.content is not None:
            found: Figure = part.content.figure
            return found
        return Figure(name, FIGURES[name], why_none=part.why_none, target=part.command)


def write_overview(
    results: Path,
    out: Path | None = None,
    configfile: str | None = None,
    prices: Prices = NO_PRICES,
) -> None:
    """Write the overview page of a results folder, and its figures as SVG and PDF to ``figures/`` next to it.

    Args:
        results: the folder of a campaign that was fitted.
        out: the page; by default ``index.html`` in the folder.
        configfile: of the campaign, for the commands that the page shows.
        prices: for money and CO2.

    Raises:
        JoulecastError: there are no fits, a file cannot be read, or the page cannot be written.
    """
    page = out or results / "index.html"
    context = page_context(results, configfile, prices, page.parent)
    for figure in context["figures"].values():
        save_static(figure, page.parent / "figures")
    with written_aside(page) as partial:
        partial.write_text(rendered(context), encoding="utf-8")


def page_context(
    results: Path,
    configfile: str | None = None,
    prices: Prices = NO_PRICES,
    start: Path | None = None,
) -> dict[str, Any]:
    """What the page shows, part by part; arguments as of :func:`write_overview`.

    Args:
        start: folder that the page's links start from, its own; by default the results.

    Raises:
        JoulecastError: there are no fits, or a file cannot be read.
    """
    flags = f" --configfile {configfile}" if configfile else ""
    maker = _Maker(f"{SNAKEMAKE}{flags}")
    return _context(read_results(results, prices), maker, results, start or results)


def rendered(context: Mapping[str, Any]) -> str:
    """The page as HTML."""
    return _environment().get_template("overview.html.j2").render(context)


def _context(found: Results, maker: _Maker, folder: Path, start: Path) -> dict[str, Any]:
    advised = maker.part(lambda: savings.advices(found))
    advice: list[savings.Advice] = advised.content or []
    answer, take = savings.headline(advice)
    points = [point for one in advice for point in one.points]
    forecast = maker.part(lambda: cost_and_time.cost_and_time(found))
    metered = maker.part(lambda: metered_section(found))
    parts = {
        "forecast": forecast,
        "front": maker.part(lambda: energy_time_front(found, points, f"{answer}.")),
        "predicted": maker.part(lambda: predicted_against_measured(found)),
        "stages": maker.part(lambda: stage_shares(found)),
        "policies": maker.part(lambda: policy_costs(found)),
        "pipelines": maker.part(lambda: pipeline_timelines(found)),
        "clusters": metered,
    }
    facts = found.answer("facts")
    return {
        "campaign": listed(facts["campaigns"], 3),
        "badges": cost_and_time.badges(found, facts["nodes_are"], facts["replayed"]),
        "folder": str(folder),
        "answer": answer,
        "take": take,
        "prices": found.prices,
        "forecast": forecast,
        "short": savings.short_table(advice),
        "errors": maker.part(lambda: found.answer("errors")),
        "errors_beyond": maker.part(lambda: found.answer("errors_beyond")),
        "left_out_line": answers.left_out_sentence(found),
        "advice": advised,
        "warnings": [*savings.shared_warnings(advice), *measured_runs.check_warnings(found)],
        "table": maker.part(lambda: answers.settings_table(found)),
        "figures": {name: maker.figure(name, part) for name, part in parts.items()},
        "facts": facts,
        "left_out": measured_runs.left_out_table(found),
        "metered": metered,
        "papers": maker.part(lambda: verdicts_by_paper(found)),
        "recorded_notes": facts["notes"],
        "disturbed": found.disturbed,
        "disturbed_trainings": found.disturbed_trainings,
        "commands": _commands(maker),
        "advise_commands": [f"./run {one.asked.in_shell()}" for one in advice if one.asked],
        "table_links": lambda names: _table_links(names, folder, start),
        "svg": inline_svg,
        "style": page_colours() + "\n" + _asset("overview.css"),
        "script": _asset("overview.js"),
    }


def _table_links(names: Sequence[str | None], folder: Path, start: Path) -> list[tuple[str, str]]:
    """Name and address of those tables of the results that are there.

    Args:
        names: paths below the results, without suffix.
    """
    found = []
    for name in dict.fromkeys(name for name in names if name):
        path = folder / f"{name}.html"
        if path.is_file():
            found.append((Path(name).name, Path(os.path.relpath(path, start)).as_posix()))
    return found


def _commands(maker: _Maker) -> list[tuple[str, str]]:
    return [
        ("Everything that is missing, measured and drawn", maker.snakemake),
        ("This page, and what it is made of", f"{maker.snakemake} -- overview"),
        ("Which settings there are to change", "./run joulecast config default"),
        ("What this machine can measure", "./run joulecast meters"),
    ]


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("joulecast.report.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["coded"] = _coded
    environment.filters["answered"] = _answered
    return environment


def _coded(text: str) -> Markup:
    """Text in which what stands between backquotes is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _answered(text: str) -> Markup:
    """Text whose sentences may begin with an answer, which is strong."""
    found = re.sub(r"(^|\. )(Yes|No|Not known):", r"\1<strong>\2:</strong>", str(_coded(text)))
    return Markup(found)


def _asset(name: str) -> str:
    return (files("joulecast.report.pages") / "templates" / name).read_text()
