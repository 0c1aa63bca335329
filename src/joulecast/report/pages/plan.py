"""The page of a plan: the front as a chart, and everything that the command prints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joulecast.report.advice.request import PlanRequest
from joulecast.report.advice.text import advice_text
from joulecast.report.figures.inline import inline_svg
from joulecast.report.figures.plan import plan_front
from joulecast.report.pages.overview import rendered
from joulecast.report.results_folder import Part
from joulecast.runs.files.writing import written_aside


def write_plan_page(planned: Mapping[str, Any], page: Path) -> None:
    """Write the page of a plan. It needs no network and no JavaScript.

    Args:
        planned: the result of :func:`joulecast.report.advice.plan.plan`.

    Raises:
        JoulecastError: the page cannot be written.
    """
    context = {
        "network": planned["network"],
        "front": Part.of(lambda: plan_front(planned)),
        "text": advice_text(planned),
        "command": PlanRequest(**planned["request"]).in_shell(),
        "svg": inline_svg,
    }
    with written_aside(page) as partial:
        partial.write_text(rendered(context, "plan.html.j2"), encoding="utf-8")
