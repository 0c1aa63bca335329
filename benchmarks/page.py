"""The overview page of a results folder: seconds to make, size, milliseconds until its charts are drawn.

In headless Chromium, offline; next to a peer, the same charts one below the other by Altair alone
(`inline=True`).

    ./run python benchmarks/page.py RESULTS

The median of several loads counts: from asking for a page until its charts are there and the browser has
shown them (two frames later), and until it first showed anything.
"""

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import altair
from _output import parser, show
from playwright.sync_api import Browser, sync_playwright

from joulecast.report.figures.style import Chart
from joulecast.report.pages.overview import page_context, rendered, write_overview

_LOADS = 5


def _peer(charts: list[Chart], page: Path) -> None:
    """All charts below each other, as Altair writes them."""
    sized = [chart.properties(width=420) for chart in charts]
    altair.vconcat(*sized).save(str(page), inline=True)


def _drawn_ms(browser: Browser, page: Path, drawings: int) -> tuple[float, float]:
    """Medians: from asking for the page until so many drawings are shown, and until its first paint."""
    shown = f"""() => new Promise((done) => {{
        const look = () => document.readyState === 'complete'
            && document.querySelectorAll('canvas, .vega-embed svg, .chart svg').length >= {drawings}
            ? requestAnimationFrame(() => requestAnimationFrame(done)) : requestAnimationFrame(look);
        look();
    }})"""
    paint = "performance.getEntriesByName('first-contentful-paint')[0]"
    outside, first = [], []
    for _ in range(_LOADS):
        context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
        opened = context.new_page()
        began = time.perf_counter()
        opened.goto(page.as_uri(), wait_until="commit")
        opened.evaluate(shown)
        outside.append(1e3 * (time.perf_counter() - began))
        opened.wait_for_function(paint)
        first.append(float(opened.evaluate(f"{paint}.startTime")))
        context.close()
    return statistics.median(outside), statistics.median(first)


def _row(
    what: str, page: Path, seconds: dict[str, float], drawn: tuple[float, float]
) -> dict[str, Any]:
    row: dict[str, Any] = {"page": what} | seconds
    size_mb = page.stat().st_size / 1e6
    return row | {"size_mb": size_mb, "drawn_ms": drawn[0], "first_paint_ms": drawn[1]}


def measure(results: Path, folder: Path) -> list[dict[str, Any]]:
    """A row of the page and one of the peer."""
    ours, peer = folder / "index.html", folder / "peer.html"
    began = time.perf_counter()
    write_overview(results, ours)
    made = time.perf_counter()
    context = page_context(results)
    gathered = time.perf_counter()
    rendered(context)
    once_more = time.perf_counter()
    charts = [
        chart for name in ("front", "predicted", "stages") for chart in context[name].content.charts
    ]
    before = time.perf_counter()
    _peer(charts, peer)
    after = time.perf_counter()
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            mine = _drawn_ms(browser, ours, len(charts))
            theirs = _drawn_ms(browser, peer, 1)
        finally:
            browser.close()
    seconds = {"made_s": made - began, "of_it_reading_s": gathered - made}
    seconds |= {"of_it_writing_html_s": once_more - gathered}
    return [
        _row("overview (with SVG and PDF)", ours, seconds, mine),
        _row(f"altair inline, {len(charts)} charts", peer, {"made_s": after - before}, theirs),
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("results", type=Path, help="folder of a campaign's results")
    given = arguments.parse_args()
    if shutil.which("chromium") is None:
        raise SystemExit(
            "benchmarks/page.py: there is no chromium; on Debian: apt-get install chromium"
        )
    with tempfile.TemporaryDirectory() as folder:
        show(measure(given.results, Path(folder)), given)


if __name__ == "__main__":
    main()
