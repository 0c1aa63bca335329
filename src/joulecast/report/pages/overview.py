"""The overview page: one file with the question, the answers, five figures and a table, and how to repeat it.

It works from a folder (``file://``), without a network: the chart libraries stand in it, once. Whatever is
missing in the results has its reason in its place, with the command that makes it.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from joulecast.energy.prices import NO_PRICES, Prices
from joulecast.errors import JoulecastError
from joulecast.files.writing import written_aside
from joulecast.quantities import counted, listed
from joulecast.report import answers
from joulecast.report.figures.front import energy_time_front
from joulecast.report.figures.look import CONFIG, VEGA_LITE, Figure, embedded, save_static
from joulecast.report.figures.pipelines import pipeline_timelines
from joulecast.report.figures.policies import policy_costs
from joulecast.report.figures.predicted import predicted_against_measured
from joulecast.report.figures.time_parts import stage_shares
from joulecast.report.pages import measured_runs, savings
from joulecast.report.pages.metered import metered_section
from joulecast.report.pages.papers import papers_section
from joulecast.report.results_folder import NothingToShow, Results, read_results

T = TypeVar("T")

_EARLIER_DATA = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""Errors of reading results of another form: the page names them in that place, and has the rest."""

FIGURES = {
    "predicted": "How good is the forecast?",
    "stages": "Where does the time go?",
    "front": "Which setting costs least?",
    "policies": "Does tuning the batch size pay?",
    "pipelines": "What does a pipeline wait for?",
}
"""The five figures by name, with their titles."""


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
    configfile: str | None = None

    def command(self, target: str | None) -> str | None:
        return None if target is None else f"{self.snakemake} -- {target}"

    def priced_by(self, prices: Prices) -> str | None:
        """The one file that has the prices; ``None`` where there is none or they are in several."""
        return self.configfile if prices.given and " " not in (self.configfile or " ") else None

    def part(self, make: Callable[[], T]) -> Part:
        try:
            return Part(make())
        except NothingToShow as nothing:
            return Part(None, str(nothing), self.command(nothing.target))
        except JoulecastError as error:
            return Part(None, str(error), self.command("all"))
        except _EARLIER_DATA as error:
            why = f"the results are not of the form that this joulecast reads ({error!r})"
            return Part(None, why, self.command("all"))

    def figure(self, name: str, make: Callable[[], Figure]) -> Figure:
        part = self.part(make)
        if part.content is not None:
            found: Figure = part.content
            return found
        return Figure(name, FIGURES[name], why_none=part.why_none, target=part.command)


def write_overview(
    results: Path,
    out: Path | None = None,
    configfile: str | None = None,
    prices: Prices = NO_PRICES,
) -> None:
    """Write the overview page of a results folder, and its figures as SVG and PDF to ``figures/`` beside it.

    Args:
        results: the folder; nothing in it has to be there.
        out: the page; by default ``index.html`` in the folder.
        configfile: of the campaign, for the commands that the page shows.
        prices: for money and CO2.

    Raises:
        JoulecastError: no such folder, or the page cannot be written.
    """
    page = out or results / "index.html"
    context = page_context(results, configfile, prices)
    for figure in context["figures"]:
        save_static(figure, page.parent / "figures")
    with written_aside(page) as partial:
        partial.write_text(rendered(context), encoding="utf-8")


def page_context(
    results: Path, configfile: str | None = None, prices: Prices = NO_PRICES
) -> dict[str, Any]:
    """What the page shows, part by part; arguments as of :func:`write_overview`.

    Raises:
        JoulecastError: no such folder.
    """
    flags = f" --configfile {configfile}" if configfile else ""
    maker = _Maker(f"./run snakemake --cores all{flags}", configfile)
    return _context(read_results(results, prices), maker, results)


def rendered(context: Mapping[str, Any]) -> str:
    """The page as HTML."""
    return _environment().get_template("overview.html.j2").render(context)


def _context(found: Results, maker: _Maker, folder: Path) -> dict[str, Any]:
    advised = maker.part(lambda: savings.advices(found))
    forecasts = [point for one in advised.content or [] for point in one.points]
    makers: Mapping[str, Callable[[], Figure]] = {
        "predicted": lambda: predicted_against_measured(found),
        "stages": lambda: stage_shares(found),
        "front": lambda: energy_time_front(found, forecasts),
        "policies": lambda: policy_costs(found),
        "pipelines": lambda: pipeline_timelines(found),
    }
    campaigns = sorted({info.spec.campaign for info in found.infos})
    return {
        "campaign": (listed(campaigns, 3) or folder.resolve().name) + _replayed(found),
        "is_empty": found.is_empty,
        "folder": str(folder),
        "costs": maker.part(lambda: answers.cost_sentences(found)),
        "errors": maker.part(lambda: answers.error_sentences(found)),
        "sources": maker.part(lambda: answers.source_sentences(found)),
        "advice": advised,
        "warnings": savings.shared_warnings(advised.content or []),
        "table": maker.part(lambda: answers.settings_table(found)),
        "figures": [maker.figure(name, make) for name, make in makers.items()],
        "facts_part": maker.part(lambda: measured_runs.what_was_measured(found.infos)),
        "left_out": maker.part(lambda: measured_runs.left_out_table(found)),
        "failed": maker.part(lambda: measured_runs.failed_table(found)),
        "metered": maker.part(lambda: metered_section(found)),
        "papers": maker.part(lambda: papers_section(found)),
        "provenance": maker.part(lambda: measured_runs.provenance(found.infos, found.prices)),
        "recorded_notes": _recorded_notes(found),
        "disturbed": found.disturbed,
        "doubtful_meters": found.doubtful_meters,
        "unreadable": found.unreadable,
        "unread": counted(len(found.unreadable), "file") if found.unreadable else "",
        "commands": _commands(maker, folder),
        "advise_command": _advise_command(found, folder, maker.priced_by(found.prices)),
        "config": embedded(CONFIG),
        "bundle": _bundle(),
        "style": _asset("overview.css"),
        "script": _asset("overview.js"),
    }


def _replayed(found: Results) -> str:
    """The recorded campaign that is shown, if the runs were measured elsewhere."""
    named = (info.source.get("recorded_campaign") for info in found.infos)
    recorded = {str(name) for name in named if name is not None}
    return f", replayed from {listed(sorted(recorded), 3)}" if recorded else ""


def _recorded_notes(found: Results) -> list[str]:
    """What those who recorded the campaigns that are shown want a reader to know."""
    notes = {
        (str(info.source["recorded_campaign"]), str(info.source["recorded_note"]))
        for info in found.infos
        if {"recorded_campaign", "recorded_note"} <= info.source.keys()
    }
    return [f"{campaign}: {note}" for campaign, note in sorted(notes)]


def _advise_command(found: Results, folder: Path, prices: str | None) -> str:
    """The question that the page asked, of the records that it asked it of: below the folder there are the
    records of other campaigns, too, where results lie in one another."""
    places = {record.relative_to(folder).parts[0] for record in found.record_folders}
    place = "imported" if places == {"imported"} else "records"
    priced = f" --prices {prices}" if prices else ""
    records = shlex.quote(str(folder / place))
    return f"./run joulecast advise --records {records} --network NAME{priced}"


def _commands(maker: _Maker, folder: Path) -> list[tuple[str, str]]:
    flag = f" --configfile {maker.configfile}" if maker.configfile else ""
    return [
        ("Everything that is missing, measured and drawn", maker.snakemake),
        ("This page alone, from what is in the folder", f"./run joulecast overview {folder}{flag}"),
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
    return environment


def _coded(text: str) -> Markup:
    """Text in which what stands between backquotes is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _asset(name: str) -> str:
    return (files("joulecast.report.pages") / "templates" / name).read_text()


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed of the version that the charts are written for."""
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    return str(bundle).replace("</script", "<\\/script")
