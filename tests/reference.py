"""Pages and pictures of the documentation that come from the code: ``python tests/reference.py``."""

import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml
from playwright.sync_api import sync_playwright
from reference_pages import api, commands, configuration, platforms, records, tables

import joulecast
from joulecast.energy.campaign_fit import fit_campaign
from joulecast.logs.mlperf import import_mlperf
from joulecast.report.pages.overview import write_overview
from joulecast.report.tables.checks import check_results, write_checks
from joulecast.report.tables.errors import write_tables
from joulecast.report.tables.published import Citation, PublishedErrors
from joulecast.runs.files.shipped import recorded_folder

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_BEGIN, _END = "<!-- made by tests/reference.py -->\n", "<!-- end -->\n"


def cite() -> str:
    """The page about citing, with the papers' BibTeX made anew."""
    page = DOCS / "how-to/cite.md"
    found = []
    for file in sorted((ROOT / "config/published").glob("*.yaml")):
        of_paper = yaml.safe_load(file.read_text())["citation"]
        citation = Citation(**of_paper)
        left_out = f"% left out: {citation.left_out}\n" if citation.left_out else ""
        found.append(left_out + citation.bibtex)
    made = "```bibtex\n" + "\n\n".join(found) + "\n```\n"
    fenced = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.S)
    return fenced.sub(lambda _: _BEGIN + made + _END, page.read_text())


PAGES: dict[Path, Callable[[], str]] = {
    DOCS / "reference/commands.md": commands.page,
    DOCS / "reference/configuration.md": configuration.page,
    DOCS / "reference/records.md": records.page,
    DOCS / "reference/platforms.md": platforms.page,
    DOCS / "reference/api.md": api.page,
    DOCS / "reference/tables.md": tables.page,
    DOCS / "how-to/cite.md": cite,
}


def draw_forecast(picture: Path) -> None:
    """README's picture: forecasts from the shipped runs of MLPerf Training on one and eight nodes."""
    with tempfile.TemporaryDirectory() as folder:
        import_mlperf(recorded_folder(Path("recorded/mlperf-power")), Path(folder))
        joulecast.forecast(folder, nodes=[2, 4, 8, 16, 32, 64]).plot().save(picture)


def draw_overview(picture: Path, quick: bool = False) -> None:
    """The first screen of the page of the same runs, in headless Chromium.

    To fit and judge all models takes a quarter of a minute: a ``quick`` picture has one workload.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        import_mlperf(recorded_folder(Path("recorded/mlperf-power")), results / "records")
        records = sorted((results / "records").iterdir())
        if quick:
            for record in records:
                if "llama2_70b" not in record.name:
                    shutil.rmtree(record)
            records = sorted((results / "records").iterdir())
        fit = fit_campaign(records, series_splits=2, series_period_s=60.0)
        fit.save(results / "fits")
        write_checks(results / "tables/checks", check_results(records, fit))
        write_tables(
            results / "tables/energy", fit, PublishedErrors.read(Path("config/published/mc2.yaml"))
        )
        write_overview(results)
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            page.goto((results / "index.html").as_uri())
            page.screenshot(path=picture)
            browser.close()


PICTURES: dict[Path, Callable[[Path], None]] = {
    DOCS / "images/forecast.svg": draw_forecast,
    DOCS / "images/overview.png": draw_overview,
}


if __name__ == "__main__":
    for picture, draw in PICTURES.items():
        draw(picture)
    for page, made in PAGES.items():
        page.write_text(made())
