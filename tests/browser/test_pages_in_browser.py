"""The overview page in headless Chromium, offline: drawn, readable, printable, accessible."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import ROOT, make_record, make_spec
from pages_fixtures import write_answered, write_campaign

import joulecast
from joulecast.energy.prices import NO_PRICES, Prices
from joulecast.report.figures.style import GREY, PALETTES
from joulecast.report.forecast_lines import forecast_cells
from joulecast.report.pages.overview import write_overview
from joulecast.report.papers.rows import Paper, Row
from joulecast.report.papers.write import write_papers
from joulecast.report.tables.output import write_table
from joulecast.report.tables.published import PublishedErrors, Tolerance
from joulecast.runs.record import write_record

MARKS = "[data-tip]"
PRINTED_WIDTH = 688
"""Pixels of an A4 page between its margins of 14 mm."""
PAGES = ("whole", "one-run")
DRAWN = ("front", "predicted", "stages")
PRICES = Prices(price=0.25, co2=380.0)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    above = tmp_path_factory.mktemp("pages")
    write_campaign(above / "whole")
    write_answered(above / "whole", PRICES)
    write_record(above / "one-run/records/only", make_record(make_spec("only")))
    write_answered(above / "one-run")
    for name in PAGES:
        write_overview(above / name, prices=PRICES if name == "whole" else NO_PRICES)
    return above


class Opened:
    """A page that is open, with what it complained of and asked for."""

    def __init__(self, browser, file, width, **context):
        self.complaints, self.requests = [], []
        opened = browser.new_context(
            viewport={"width": width, "height": 900}, offline=True, **context
        )
        self.page = opened.new_page()
        self.page.on("console", lambda m: self.complaints.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def close(self):
        self.page.context.close()


@pytest.fixture(scope="module", params=PAGES)
def opened(request, browser, pages):
    found = Opened(browser, pages / request.param / "index.html", 1280)
    found.name = request.param
    yield found
    found.close()


@pytest.fixture(scope="module")
def whole(browser, pages):
    found = Opened(browser, pages / "whole/index.html", 1280)
    yield found.page
    found.close()


def overflow(page):
    """Pixels that the page is wider than its window, and what sticks out."""
    return page.evaluate(
        """() => {
        const width = document.documentElement.clientWidth;
        const inBox = (e) => e.closest('.scroll, pre, .skip, svg') !== null;
        const out = [...document.querySelectorAll('body *')].filter(
            (e) => !inBox(e) && e.getBoundingClientRect().right > width + 1);
        return [document.documentElement.scrollWidth - width, out.map((e) => e.outerHTML.slice(0, 99))];
        }"""
    )


def test_nothing_is_complained_of_and_nothing_is_fetched(opened):
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []


def test_axe_finds_no_violation(opened):
    opened.page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    found = Axe().run(opened.page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [1280, 400])
def test_no_page_is_wider_than_its_window(browser, pages, name, width):
    found = Opened(browser, pages / name / "index.html", width)
    assert overflow(found.page) == [0, []]
    found.page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert overflow(found.page) == [0, []]
    # What a chart draws lies inside it: a legend that is cut off cannot be read.
    cut = found.page.evaluate(
        """() => [...document.querySelectorAll('.chart svg')].filter((svg) => {
        const box = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].some(
            (t) => t.textContent && (t.getBoundingClientRect().right > box.right + 2
                || t.getBoundingClientRect().left < box.left - 2));
        }).length"""
    )
    assert cut == 0
    found.close()


def test_headings_are_in_order(opened):
    levels = opened.page.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4')].map((h) => Number(h.tagName[1]))"
    )
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_every_link_leads_somewhere(opened, pages):
    hrefs = opened.page.eval_on_selector_all("a", "all => all.map((a) => a.getAttribute('href'))")
    assert hrefs
    for href in hrefs:
        if href.startswith("#"):
            assert opened.page.locator(f"[id='{href[1:]}']").count() == 1, href
        else:
            assert (pages / opened.name / Path(unquote(href))).stat().st_size > 100, href


@pytest.mark.parametrize("name", ("forecast", *DRAWN))
def test_figures_are_drawn(whole, name):
    section = whole.locator(f"section:has(#title-{name})" if name != "forecast" else "#answer")
    charts = section.locator(".chart:visible")
    assert charts.count() >= 1
    for k in range(charts.count()):
        chart = charts.nth(k)
        assert chart.locator(MARKS).count() >= 2
        box = chart.locator("svg").first.bounding_box()
        assert box["width"] > 250 and box["height"] > 60
        assert len(chart.get_attribute("aria-label")) > 40
    assert section.locator("figcaption").first.inner_text().strip()


def test_a_mark_shows_its_numbers_on_hovering_and_by_keys(whole):
    tip = whole.locator("#tip")
    chart = whole.locator("#answer .chart:visible").first
    chart.scroll_into_view_if_needed()
    box = chart.locator(".mark-symbol path[data-tip]").first.bounding_box()
    # Some pixels off: a point is small.
    whole.mouse.move(box["x"] + box["width"] / 2 + 6, box["y"] + box["height"] / 2 + 4)
    assert re.search(r"energy: [\d.]+\sk(J|Wh) \([\d.]+ to [\d.]+\sk(J|Wh)\)", tip.inner_text())
    whole.mouse.move(1, 1)
    assert tip.is_hidden()
    chart.focus()
    chart.press("ArrowRight")
    first = tip.inner_text()
    chart.press("ArrowRight")
    assert re.search(r"\d", first) and tip.inner_text() != first
    chart.press("Escape")
    assert tip.is_hidden()


@pytest.mark.parametrize("name", DRAWN)
def test_every_figure_has_numbers_to_show(whole, name):
    chart = whole.locator(f"section:has(#title-{name}) .chart").first
    chart.focus()
    chart.press("ArrowRight")
    assert re.search(r"\d", whole.locator("#tip").inner_text())
    chart.press("Escape")


def test_the_first_screen_has_the_answer_and_how_sure_it_is(whole):
    whole.evaluate("scrollTo(0, 0)")
    seen = [whole.locator("h1"), whole.get_by_text("energy is estimated", exact=True)]
    seen += [whole.locator("#answer .chart:visible").nth(k) for k in (0, 1)]
    seen.append(whole.get_by_text("How wrong are these forecasts?"))
    for one in seen:
        box = one.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 900
    assert re.search(r"^Take .* lowest expected (energy|time)", whole.locator("h1").inner_text())
    assert re.search(r"Time: [\d.]+\s% off on average", whole.locator("#answer").inner_text())


def test_costs_are_energy_money_or_co2(whole):
    shown = whole.locator("#answer .chart:visible")
    whole.get_by_label("energy", exact=True).focus()
    for name in ("energy", "cost", "CO2e"):
        assert whole.get_by_label(name, exact=True).is_checked()
        assert shown.count() == 2
        assert f"Forecast {name}" in shown.first.get_attribute("aria-label")
        assert "Forecast time" in shown.nth(1).get_attribute("aria-label")
        whole.keyboard.press("ArrowRight")
    assert whole.get_by_label("energy", exact=True).is_checked()


def test_networks_can_be_left_out(whole):
    marks = whole.locator("#answer [data-tip^='training: vit_ti']")
    row = whole.locator("#answer tr[data-network=vit_ti]").first
    assert row.is_visible()
    whole.get_by_label("vit_ti", exact=True).uncheck()
    assert row.is_hidden() and all(not mark.is_visible() for mark in marks.all())
    assert whole.locator("#answer .chart:visible [data-tip^='training: resnet18']").count()
    none = whole.get_by_text("No network is ticked.")
    assert none.is_hidden()
    whole.get_by_label("resnet18", exact=True).uncheck()
    assert none.is_visible()
    whole.get_by_label("resnet18", exact=True).check()
    whole.get_by_label("vit_ti", exact=True).check()
    assert row.is_visible() and none.is_hidden()


def test_own_work_and_prices_give_what_the_command_forecasts(browser, pages):
    found = Opened(browser, pages / "whole/index.html", 1280)
    page = found.page
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    tables = page.locator("table:has(tr[data-amounts])")
    before = tables.all_inner_texts()
    for name, value in (("samples", 30_000_001), ("price", 0.4), ("co2", 200), ("pue", 1.5)):
        page.locator(f"#own [name={name}]").fill(str(value))
    result = joulecast.forecast(
        pages / "whole/records",
        nodes=(1, 2, 4, 8, 16),
        samples=30_000_001,
        price=0.4,
        co2=200,
        pue=1.5,
    )
    told = {(c["workload"], c["nodes"]): c for c in forecast_cells(result)}
    table = page.locator("table", has_text="Forecasts for 30,000,001 samples")
    names = table.locator("thead th").all_inner_texts()
    rows = [row.locator("th, td").all_inner_texts() for row in table.locator("tbody tr").all()]
    assert len(rows) >= 6
    for row in rows:
        shown = dict(zip(names, row, strict=True))
        asked = told[shown["workload"], shown["nodes"]]
        for name in ("time", "energy", "cost", "CO2e", "basis"):
            assert shown[name].replace("\xa0", " ") == asked[name]
    assert all(before[k] != text for k, text in enumerate(tables.all_inner_texts()))
    page.get_by_role("button", name="reset").click()
    assert tables.all_inner_texts() == before
    found.close()


def test_a_tap_shows_the_numbers_of_a_mark_and_the_verdict_is_in_view(browser, pages):
    found = Opened(browser, pages / "whole/index.html", 400, has_touch=True, is_mobile=True)
    page, tip = found.page, found.page.locator("#tip")
    mark = page.locator("#answer .chart:visible .mark-symbol path[data-tip]").first
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2)
    assert "batch: " in tip.inner_text()
    page.locator("figcaption").first.tap()
    assert tip.is_hidden()
    for cell in page.locator("#answer table.cards td").all():
        place = cell.bounding_box()
        assert place["x"] >= 0 and place["x"] + place["width"] <= 400
    found.close()


def test_without_scripts_charts_and_costs_are_there(browser, pages):
    found = Opened(browser, pages / "whole/index.html", 1280, java_script_enabled=False)
    shown = found.page.locator("#answer .chart:visible")
    assert shown.count() == 2 and shown.first.locator("path").count() > 4
    found.page.get_by_label("cost", exact=True).check()
    assert "Forecast cost" in shown.first.get_attribute("aria-label")
    assert not found.page.get_by_label("vit_ti", exact=True).is_visible()
    found.close()


def test_dark_paper_has_light_ink_in_charts_and_no_violation(browser, pages):
    found = Opened(browser, pages / "whole/index.html", 400, color_scheme="dark")
    of_page, of_chart, greys = found.page.evaluate(
        """(grey) => [getComputedStyle(document.body).color,
        getComputedStyle(document.querySelector('.chart .role-axis text')).fill,
        [...document.querySelectorAll(`.chart [fill="${grey}" i]`)].map((e) => getComputedStyle(e).fill)]""",
        GREY,
    )
    light = tuple(int(GREY[k : k + 2], 16) for k in (1, 3, 5))
    assert of_page == of_chart and greys and f"rgb{light}" not in greys
    found.page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    violations = Axe().run(found.page)
    assert violations.violations_count == 0, violations.generate_report()
    found.close()


def test_a_wide_table_says_that_it_goes_on(browser, pages):
    found = Opened(browser, pages / "whole/index.html", 400)
    grid = found.page.locator("#setting .grid:has(table)").last
    assert grid.locator(".hint").is_visible()
    assert grid.locator(".scroll").evaluate("(box) => box.scrollWidth > box.clientWidth")
    first = grid.locator("tbody th").first
    before = first.bounding_box()["x"]
    grid.locator(".scroll").evaluate("(box) => box.scrollBy(200, 0)")
    assert first.bounding_box()["x"] == pytest.approx(before, abs=1), "the first column stays"
    found.page.set_viewport_size({"width": 2400, "height": 900})
    found.close()


def test_only_colours_that_were_judged_are_drawn(whole):
    fills = whole.eval_on_selector_all(
        "#right .chart .role-mark.mark-symbol path, #time .chart .role-mark.mark-rect path",
        "all => [...new Set(all.map((e) => e.getAttribute('fill')))]",
    )
    judged = {colour.lower() for palette in PALETTES.values() for colour in palette}
    assert len(fills) > 4 and {fill.lower() for fill in fills} <= judged


def test_print_cuts_nothing(browser, pages):
    found = Opened(browser, pages / "whole/index.html", PRINTED_WIDTH)
    page = found.page
    folded = page.locator("details:not([open])").count()
    assert folded
    page.emulate_media(media="print")
    page.wait_for_function("document.querySelectorAll('details:not([open])').length === 0")
    wide = page.evaluate(
        """() => [...document.querySelectorAll('table, pre, svg, figure, .scroll')].filter((e) =>
            e.getBoundingClientRect().right > document.documentElement.clientWidth + 1
            || (e.scrollWidth > e.clientWidth + 1 && e.tagName !== 'svg'))
            .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert wide == []
    printed = page.pdf(format="A4", prefer_css_page_size=True)
    assert printed.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", printed)) > 2
    page.emulate_media(media="screen")
    page.wait_for_function(f"document.querySelectorAll('details:not([open])').length === {folded}")
    found.close()


@pytest.mark.parametrize("media", ["screen", "print"])
def test_no_line_ends_inside_a_quantity_or_a_word_of_a_table_head(browser, pages, media):
    found = Opened(browser, pages / "whole/index.html", PRINTED_WIDTH)
    found.page.emulate_media(media=media)
    found.page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    broken = found.page.evaluate(
        r"""() => {
        const broken = (roots, pattern) => [...document.querySelectorAll(roots)].flatMap((root) => {
          const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), found = [];
          while (texts.nextNode()) for (const match of texts.currentNode.data.matchAll(pattern)) {
            const range = document.createRange();
            range.setStart(texts.currentNode, match.index);
            range.setEnd(texts.currentNode, match.index + match[0].length);
            const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
            if (lines.size > 1) found.push(match[0]);
          }
          return found;
        });
        return [...broken('p, li, dd, figcaption, h1', /\d\s(%|k?Wh|kJ|min)(?!\w)/g),
          ...broken('thead th', /\w+/g)];
        }"""
    )
    assert broken == []
    found.close()


def test_a_page_of_one_table_is_readable_and_accessible(browser, tmp_path):
    wide = pd.DataFrame(
        {f"a column {k}": ["x" * 40, "y"] for k in range(12)} | {"part": ["p", "q"]}
    )
    hostile = "a note, `code`, <script>alert(1)</script>"
    write_table(tmp_path / "table", "A <b>title</b>", [hostile], wide, sections="part")
    page = browser.new_context(viewport={"width": 400, "height": 800}, offline=True).new_page()
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.goto((tmp_path / "table.html").as_uri())
    assert page.title() == "A <b>title</b>" and page.locator("tbody tr").count() == 2
    assert "<script>alert(1)</script>" in page.locator("main").inner_text()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    assert complaints == []
    page.context.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (400, "light")])
def test_the_papers_page_is_readable_and_alone(browser, tmp_path, width, scheme):
    tolerance = Tolerance(absolute=0.5, because="rounding")
    rows = [
        Row("t", f"s{ours}", "q", "%", 10.0, ours, "replayed", tolerance, ours_from=tmp_path)
        for ours in (10.3, 9.2, 112.0, 10.1)
    ]
    rows += [replace(rows[0], published=">60"), replace(rows[1], why_not_comparable="another " * 9)]
    published = PublishedErrors.read(ROOT / "config/published/mc2.yaml")
    write_papers(tmp_path / "papers", [Paper("Zeus", published, "traces", {"q": ["q"]}, rows)])
    context = browser.new_context(
        viewport={"width": width, "height": 900}, offline=True, color_scheme=scheme
    )
    page, requests = context.new_page(), []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((tmp_path / "papers.html").as_uri())
    assert len(requests) == 1, "nothing outside of the file is asked for"
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    context.close()


def test_the_page_is_small_and_alone(pages):
    page = pages / "whole/index.html"
    assert page.stat().st_size < 1_500_000
    html = re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.S)
    assert not re.findall(r"<(?:script|img|iframe)[^>]+src=|<link[^>]+stylesheet|@import", html)
