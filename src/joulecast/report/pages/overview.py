"""The overview page: one file with the answer, how sure it is, the figures behind it, and how to repeat
it.

It works from a folder (``file://``), without a network and without JavaScript, because it contains the charts
as SVG. If the campaign did not make some part, the page shows the reason, and the command that makes this
part.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from joulecast.energy.campaign_fit import disturbance_notes
from joulecast.energy.prices import NO_PRICES, Prices
from joulecast.quantities import listed
from joulecast.report import measured_runs
from joulecast.report.advice.text import advice_text
from joulecast.report.campaign import (
    ADVICE,
    Advised,
    campaign_answers,
    write_answers,
)
from joulecast.report.figures.front import energy_time_front
from joulecast.report.figures.inline import inline_svg, page_colours
from joulecast.report.figures.predicted import predicted_against_measured
from joulecast.report.figures.time_parts import stage_shares
from joulecast.report.pages.clusters_and_papers import metered_section, verdicts_by_paper
from joulecast.report.pages.cost_and_time import badges, cost_and_time
from joulecast.report.pages.settings import cautions, headline, settings_table, short_table
from joulecast.report.results_folder import Part, read_results
from joulecast.report.tables.errors import EXTRAPOLATION, error_sentences, errors_explained
from joulecast.runs.files.writing import written_aside
from joulecast.runs.record import read_info

SNAKEMAKE = "./run snakemake --cores all"
_INSIDE_QUANTITY = re.compile(
    r"(?<=\d) (?=(?:%|[smhdgt]|[mµ]s|min|[mkMG]?J|[kMG]?Wh|W|[mk]g|[KMG]iB)(?!\w))|(?<=\b[A-Z]{3}) (?=\d)"
)
"""Pattern of the space between a number and its unit or currency. ``overview.js`` has the same pattern."""


def write_overview(
    results: Path,
    out: Path | None = None,
    configfile: str | None = None,
    prices: Prices = NO_PRICES,
) -> None:
    """Write the answers of a campaign to ``tables/advice`` in its results, and the overview page of the
    campaign.

    Args:
        results: the folder of a campaign that was fitted.
        out: the page; by default ``index.html`` in the folder.
        configfile: the campaign's configuration file, for the commands on the page.

    Raises:
        JoulecastError: there are no fits, a file cannot be read, or the page cannot be written.
    """
    page = out or results / "index.html"
    context = page_context(results, configfile, prices, page.parent)
    write_answers(context["answers"], results / ADVICE, prices)
    with written_aside(page) as partial:
        partial.write_text(rendered(context), encoding="utf-8")


def page_context(
    results: Path,
    configfile: str | None = None,
    prices: Prices = NO_PRICES,
    start: Path | None = None,
) -> dict[str, Any]:
    """The content of the page, part by part. The arguments are the same as for :func:`write_overview`.

    Args:
        start: the folder of the page. Links are relative to it. By default the results.

    Raises:
        JoulecastError: there are no fits, or a file cannot be read.
    """
    found = read_results(results, prices)
    answers = campaign_answers(found, configfile)
    snakemake = SNAKEMAKE + (f" --configfile {configfile}" if configfile else "")
    advice: list[Advised] = answers.advice.content or []
    answer, take = headline(advice)
    forecast = answers.forecast.content
    notes = forecast.notes if forecast else disturbance_notes(found.observations)
    facts = measured_runs.facts_of(
        [read_info(Path(record)) for record in found.observations["folder"]], found
    )
    return {
        "answers": answers,
        "campaign": listed(facts["campaigns"], 3),
        "badges": badges(found, facts["nodes_are"], facts["replayed"]),
        "folder": str(results),
        "answer": answer,
        "take": take,
        "prices": found.prices,
        "forecast": answers.forecast.then(lambda rows: cost_and_time(rows, found.prices)),
        "short": short_table(advice, found.prices),
        "errors": Part.of(lambda: errors_explained(found.fit)),
        "errors_beyond": Part.of(lambda: error_sentences(found.fit, EXTRAPOLATION)),
        "advice": answers.advice,
        "advice_text": advice_text,
        "cautions": [*cautions(notes, advice), *measured_runs.check_warnings(found)],
        "table": answers.costs.then(lambda costs: settings_table(costs, found.prices)),
        "front": answers.advice.then(lambda _: energy_time_front(advice, f"{answer}.")),
        "predicted": Part.of(lambda: predicted_against_measured(found.fit)),
        "stages": Part.of(lambda: stage_shares(found)),
        "facts": facts,
        "left_out": measured_runs.left_out_table(found),
        "metered": Part.of(lambda: metered_section(found)),
        "papers": Part.of(lambda: verdicts_by_paper(found)),
        "recorded_notes": facts["notes"],
        "commands": [
            ("Measure and draw everything that is missing", snakemake),
            ("Make this page, and what it needs", f"{snakemake} -- overview"),
            ("See which settings you can change", "./run joulecast config default"),
            ("See what this machine can measure", "./run joulecast meters"),
        ],
        "advise_commands": [f"./run {one.request.in_shell()}" for one in advice],
        "command": lambda part: part.target and f"{snakemake} -- {part.target}",
        "table_links": lambda names: _table_links(names, results, start or results),
        "svg": inline_svg,
    }


def rendered(context: Mapping[str, Any], template: str = "overview.html.j2") -> str:
    """A page as HTML."""
    templates = Environment(
        loader=PackageLoader("joulecast.report.pages"),
        autoescape=True,
        finalize=_with_whole_quantities,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["coded"] = _coded
    return templates.get_template(template).render(context, colours=page_colours())


def _table_links(names: Sequence[str | None], folder: Path, start: Path) -> list[tuple[str, str]]:
    """Name and address of those tables of the results that exist.

    Args:
        names: paths below the results, without suffix.
    """
    found = []
    for name in dict.fromkeys(name for name in names if name):
        path = folder / f"{name}.html"
        if path.is_file():
            found.append((Path(name).name, Path(os.path.relpath(path, start)).as_posix()))
    return found


def _with_whole_quantities(value: Any) -> Any:
    """Text in which no line breaks between a number and its unit or currency."""
    if not isinstance(value, str):
        return value
    # The result has the type of the argument. So text that is already HTML is not escaped again.
    return type(value)(_INSIDE_QUANTITY.sub("\xa0", value))


def _coded(text: str) -> Markup:
    """Text in which words between backquotes are marked as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
