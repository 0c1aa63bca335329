"""The documentation's site in headless Chromium: accessible, readable on a telephone, searchable, alone."""

import functools
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import ROOT


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Print no request."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run(build, cwd=ROOT, check=True)
    server = ThreadingHTTPServer(("localhost", 0), functools.partial(_Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}/"
    server.shutdown()


@pytest.fixture
def opened(request, browser, site):
    """A page of the site, by its width and colours; what it asks for and complains of is among its facts."""
    width, scheme = getattr(request, "param", (1440, "light"))
    page = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    ).new_page()
    strange = []
    page.on("console", lambda one: one.type in ("error", "warning") and strange.append(one.text))
    page.on("pageerror", lambda error: strange.append(str(error)))
    page.on("request", lambda one: one.url.startswith((site, "data:")) or strange.append(one.url))
    yield page
    page.context.close()
    assert strange == []


@pytest.mark.parametrize(
    "opened", [(1440, "light"), (1440, "dark"), (400, "light")], indirect=True, ids=str
)
@pytest.mark.parametrize("address", ["", "how-good/", "reference/commands/"])
def test_axe_finds_no_violation_and_only_tables_scroll(opened, site, address):
    opened.goto(site + address)
    found = Axe().run(opened)
    assert found.violations_count == 0, found.generate_report()
    split = r"[...document.querySelectorAll('p, td, li')].filter((of) => /\d %/.test(of.textContent)).length"
    assert opened.evaluate(split) == 0, "a line may end between a number and %"
    too_wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert opened.evaluate(too_wide) == 0


@pytest.mark.parametrize("word", ["torchrun", "carbon", "confidence", "troubleshoot", "quan"])
def test_the_search_finds_what_is_typed_before_its_index_is_there(opened, site, word):
    opened.goto(site)
    opened.get_by_role("searchbox").press_sequentially(word)
    results = opened.locator("#mkdocs-search-results a")
    results.first.wait_for()
    pages = [link.get_attribute("href").split("#")[0] for link in results.all()]
    assert len(pages) == len(set(pages))
    results.first.click()
    opened.wait_for_url(lambda url: url != site)
    assert word in opened.locator("main").inner_text().lower()


def test_the_search_is_used_by_keys(opened, site):
    opened.goto(site)
    opened.get_by_role("searchbox").press_sequentially("pipeline")
    results = opened.locator("#mkdocs-search-results a")
    results.nth(1).wait_for()
    second = results.nth(1).get_attribute("href").split("#")[0]
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
        opened.keyboard.press(key)
    opened.wait_for_url(lambda url: url.split("#")[0].endswith(second.lstrip("./")))
    opened.goto(site)
    opened.get_by_role("searchbox").press_sequentially("pipeline")
    results.first.wait_for()
    opened.keyboard.press("Enter")
    opened.wait_for_url(lambda url: url != site)
    assert "pipeline" in opened.locator("main").inner_text().lower()


def test_a_telephone_has_a_way_to_all_pages(opened, site):
    opened.set_viewport_size({"width": 400, "height": 800})
    opened.goto(site)
    opened.get_by_role("link", name="All pages").click()
    opened.locator("#pages").get_by_role("link", name="Your own training", exact=True).click()
    assert "my own training" in opened.locator("h1").inner_text()


def test_code_is_copied_and_what_scrolls_takes_the_focus(browser, site):
    context = browser.new_context(viewport={"width": 400, "height": 800})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{site}tutorials/own-training/")
    first = page.locator(".highlight").first
    first.get_by_role("button", name="Copy").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == first.locator("code").inner_text().strip()
    page.goto(f"{site}reference/commands/")
    scrolls = page.evaluate(
        "[...document.querySelectorAll('.scroll')].map((b) => [b.scrollWidth > b.clientWidth, b.tabIndex])"
    )
    assert any(wide for wide, _ in scrolls)
    assert all((index == 0) is wide for wide, index in scrolls)
    context.close()
