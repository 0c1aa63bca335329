"""The documentation: every example is run, the reference is that of the code, the site builds."""

import contextlib
import importlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import house
import pandas as pd
import pytest
import reference
import yaml
from conftest import ROOT
from same_text import assert_alike
from typer.testing import CliRunner

import joulecast
from joulecast.app.cli.main import app
from joulecast.energy.proportional_models import MODELS
from joulecast.logs.log_kinds import KINDS, Kind
from joulecast.measure.power.meter_registry import METERS
from joulecast.measure.workloads.networks import NETWORKS, NetworkInfo
from joulecast.runs.recorded import unpack_all
from joulecast.tune.policy_registry import POLICIES

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its title, its text."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = re.findall(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', page.read_text(), re.M | re.S)
    return [Block(*parts) for parts in found]


def the(page: str, title: str) -> str:
    (block,) = [b for b in blocks(DOCS / "how-to" / page) if b.title == title]
    return block.text


def add_module(page: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the module that a page shows, as if its file were there."""
    text = the(page, f"src/{name.replace('.', '/')}.py")
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(text, f"{page}: {name}", "exec"), module.__dict__)
    return module


def row_of(page: str, title: str, **names: Any) -> dict[str, Any]:
    """The row of a dictionary that a page shows."""
    return eval("{" + the(page, title) + "}", names)


def try_it(page: str) -> None:
    """Run what the page says to try, and compare with what it says is printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(the(page, "try it"), f"{page}: try it", "exec"), {"__name__": "tried"})
    assert_alike(said.getvalue(), the(page, "prints"))


def commands(page: Path) -> list[list[str]]:
    """The joulecast commands of a page, as lists of arguments."""
    lines = [line for b in blocks(page) if b.language == "sh" for line in b.text.splitlines()]
    return [
        shlex.split(line, comments=True)[2:]
        for line in lines
        if line.startswith("./run joulecast ")
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run examples in, with the project's configuration."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_adding_a_network(folder, monkeypatch):
    page = "add-a-network.md"
    for name, info in row_of(page, "a row of NETWORKS", NetworkInfo=NetworkInfo).items():
        monkeypatch.setitem(NETWORKS, name, info)
    try_it(page)
    (folder / "mine.yaml").write_text(the(page, "mine.yaml"))
    (command,) = commands(DOCS / "how-to" / page)
    # The dry run is another process, which the row was not added to.
    monkeypatch.setattr("joulecast.app.cli.main.dry_run", lambda *_: 1)
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0 and "all right" in said.output


def test_adding_a_meter(folder, monkeypatch):
    page = "add-a-meter.md"
    acpi = add_module(page, "joulecast.measure.power.acpi", monkeypatch)
    try_it(page)
    for name, opener in row_of(page, "a row of METERS", acpi=acpi).items():
        monkeypatch.setitem(METERS, name, opener)
    said = CliRunner().invoke(app, ["meters"])
    assert re.search(r"^acpi +(missing: acpi:|[0-9.]+ W)", said.output, re.M), said.output


def test_adding_a_platform(folder):
    page = "add-a-platform.md"
    file = "config/platforms/our-cluster.yaml"
    (folder / file).write_text(the(page, file))
    simulate, plan = commands(DOCS / "how-to" / page)
    said = CliRunner().invoke(app, simulate)
    assert said.exit_code == 0 and "8 devices of our-cluster, bf16" in said.output, said.output
    said = CliRunner().invoke(app, plan)
    assert said.exit_code == 0 and "nothing was run" in said.output, said.output
    assert CliRunner().invoke(app, ["meters", "--platform", file]).exit_code == 0


def test_adding_an_importer(folder, monkeypatch):
    page = "add-an-importer.md"
    add_module(page, "joulecast.logs.wattlog", monkeypatch)
    for name, kind in row_of(page, "a row of KINDS", Kind=Kind).items():
        monkeypatch.setitem(KINDS, name, kind)
    try_it(page)
    said = CliRunner().invoke(app, ["advise", "--network", "net", "--records", "records"])
    assert said.exit_code == 0 and "imported" in said.output, said.output


def test_adding_a_policy(folder, monkeypatch):
    page = "add-a-policy.md"
    module = add_module(page, "joulecast.tune.shuffled", monkeypatch)
    for name, policy in row_of(page, "a row of POLICIES", Shuffled=module.Shuffled).items():
        monkeypatch.setitem(POLICIES, name, policy)
    try_it(page)


def test_adding_a_rival(folder, monkeypatch):
    page = "add-a-rival.md"
    module = add_module(page, "joulecast.energy.median_power", monkeypatch)
    for name, rival in row_of(page, "a row of MODELS", median_power=module.median_power).items():
        monkeypatch.setitem(MODELS, name, rival)
    try_it(page)


@pytest.mark.parametrize(
    "page", sorted((DOCS / "how-to").glob("add-*.md")), ids=lambda page: page.stem
)
def test_files_that_pages_show_pass_the_linter(page):
    shown = [b for b in blocks(page) if b.title.startswith("src/")]
    for block in shown:
        for command in (["check"], ["format", "--check"]):
            # From standard input it is judged as the file that it would be.
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "ruff",
                    *command,
                    "--no-cache",
                    "--stdin-filename",
                    block.title,
                    "-",
                ],
                cwd=ROOT,
                input=block.text,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr
    assert shown or page.stem in ("add-a-network", "add-a-platform")


@pytest.mark.parametrize("command", ["forecast", "advise"])
def test_the_tutorial_prints_what_the_commands_do(folder, command):
    tutorial = DOCS / "tutorials/default-campaign.md"
    (shown,) = [b.text for b in blocks(tutorial) if b.title == command]
    (asked,) = [c for c in commands(tutorial) if c[0] == command]
    unpack_all(ROOT / "recorded/two-core-vm", Path(asked[asked.index("--records") + 1]))
    said = CliRunner().invoke(app, asked)
    assert said.exit_code == 0, said.output
    assert_alike(said.output, shown)


def test_texts_are_alike_but_for_the_last_digits_of_numbers():
    shown = "*  2  8  dp=2  1,660 J (9.76 to 31.9 J)\n"
    assert_alike("* 2 8 dp=2 1,661 J (9.77 to 31.8 J)\n", shown)
    for other in (
        "*  3  8  dp=2  1,660 J (9.76 to 31.9 J)\n",
        "*  2  8  dp=3  1,660 J (9.76 to 31.9 J)\n",
        "*  2  8  dp=2  1,760 J (9.76 to 31.9 J)\n",
        "*  2  8  dp=2  1,660 kJ (9.76 to 31.9 kJ)\n",
        shown + shown,
        "",
    ):
        with pytest.raises(AssertionError):
            assert_alike(other, shown)


def test_every_command_of_the_pages_has_these_options():
    for page in [*PAGES, ROOT / "README.md"]:
        for arguments in commands(page):
            # What a command is given may not be there; that it takes these options must be so.
            own = arguments[: arguments.index("--")] if "--" in arguments else arguments
            asked = [a for a in own if a.startswith("--")]
            name = arguments[:2] if arguments[0] in ("config", "import") else arguments[:1]
            said = CliRunner().invoke(app, [*name, "--help"], env={"COLUMNS": "300"})
            assert said.exit_code == 0, f"{page.name}: {' '.join(arguments)}"
            for option in asked:
                assert option.split("=")[0] in said.output, f"{page.name}: {' '.join(arguments)}"


# --- the site -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "most"),
    [("Measured and judged", 20), ("Any command, measured", 15), ("A simulated step", 25)],
)
def test_every_station_is_there_and_is_used_by_an_earlier_one(title, most):
    sections = (DOCS / "explanation/one-run.md").read_text().split("\n## ")
    (section,) = (text for text in sections if text.startswith(f"{title}\n"))
    named = re.findall(r"^\d+\. `([\w/]+\.py)`", section, re.M)
    assert most - 5 < len(named) <= most
    files = [ROOT / n if n.startswith("workflow/") else ROOT / "src/joulecast" / n for n in named]
    rules = "".join(file.read_text() for file in (ROOT / "workflow/rules").glob("*.smk"))
    for number, (name, file) in enumerate(zip(named, files, strict=True)):
        assert file.is_file(), name
        if file.parent.name == "scripts":
            assert f"scripts/{file.name}" in rules, name
        elif number:
            earlier = "".join(each.read_text() for each in files[:number])
            assert re.search(rf"{re.escape(module_of(name))}\b", earlier), name


def module_of(path: str) -> str:
    """The dotted name by which other modules import a file of the library."""
    name = f"joulecast.{path.removesuffix('.py').replace('/', '.')}"
    return name.removesuffix(".__main__")


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_a_page_has_one_title_and_its_blocks_end(page):
    prose, code = [], False
    for line in page.read_text().splitlines():
        fence = line.lstrip().startswith("```")
        code = code != fence
        prose += [] if code or fence else [line]
    assert not code
    assert sum(line.startswith("# ") for line in prose) == 1


def test_every_page_is_in_the_navigation_and_nothing_comes_from_elsewhere():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = set(re.findall(r"[\w/-]+\.md", yaml.safe_dump(site["nav"])))
    assert listed == {str(page.relative_to(DOCS)) for page in PAGES}
    assert site["theme"]["name"] is None and "extra_javascript" not in site
    assert "analytics" not in yaml.safe_dump(site)


def test_the_site_builds_strictly(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            tmp_path / "site",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site/tutorials/default-campaign/index.html").is_file()
    pages = "".join(file.read_text() for file in (tmp_path / "site").rglob("*.html"))
    assert not re.search(r'(src|href)="https?://[^"]*\.(js|css|woff2?)', pages)


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.name)
def test_pages_of_the_reference_are_those_of_the_code(page):
    assert page.read_text() == reference.PAGES[page](), (
        "./run python tests/reference.py makes it anew"
    )


def test_the_picture_of_the_house_is_that_of_the_code():
    text = house.PAGE.read_text()
    assert house.page(text) == text, "./run python tests/house.py makes it anew"


# --- figures ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def how_good():
    """The module that makes docs/how-good.md."""
    folder = ROOT / "benchmarks"
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("how_good")
    finally:
        sys.path.remove(str(folder))


def test_the_page_of_figures_is_that_of_the_kept_figures(how_good):
    assert how_good.PAGE.read_text() == how_good.page(), "./run python benchmarks/how_good.py"


def _kept(name):
    return json.loads((ROOT / f"benchmarks/measured/{name}.json").read_text())["rows"]


def test_the_readme_names_figures_that_were_kept():
    text = (ROOT / "README.md").read_text()
    judgements = pd.DataFrame(_kept("metered_energy")).groupby(["split", "time"])
    ours, better = {}, 0
    for (split, time), rows in judgements:
        errors = rows.set_index("model")["mape_percent"].dropna()
        ours[split, time] = errors.pop("MC2")
        better += bool(errors.min() < ours[split, time])
        if (split, time) != ("leave-one-workload-out", "given"):
            said = rf"\| [*]*{ours[split, time]:.1f} %[*]* \| [*]*{errors.min():.1f} %[*]* \|"
            assert re.search(said, text), f"README's table lacks {split}, time {time}"
    # The third is the power law, on the three of four settings that it predicts.
    assert (len(ours), better) == (6, 2) and "In three of the six tests, a rival is better" in text
    ours = [*ours.values()]
    (row,) = (line for line in text.splitlines() if "MC2, the energy model" in line)
    assert (
        f"{min(ours):.1f} to {max(ours):.1f} %" in row
        and "six tests" in row
        and "three of them" in row
    )
    rows = _kept("simulator_real_gpus")
    errors = {
        row["data"]: row["error_percent"]
        for row in rows
        if (row["gpu"] == "all" and row["kind"] not in ("dense networks", "mixtures of experts"))
        or row["data"] == "vtrain"
    }
    del errors["megatron_bridge"]
    recipes = {
        row["kind"]: row["error_percent"] for row in rows if row["data"] == "megatron_bridge"
    }
    assert f"{recipes['dense networks']:.1f} % for dense networks" in text
    assert f"{recipes['mixtures of experts']:.0f} % for mixtures of experts" in text
    ours = [errors.pop(name) for name in [*errors] if name.startswith("plain_pytorch")]
    assert f"measured by us: {min(ours):.1f} to" in text
    errors = list(errors.values())
    assert f"{min(errors):.1f} to {max(errors):.1f} % on training and inference steps" in text
    emulated = {
        row["configuration"]: row["predicted_error_percent"] for row in _kept("simulator_error")
    }
    assert f"{emulated['(mean of 104: all)']:.2f} % (104)" in text


def test_the_readmes_example_is_what_the_commands_say(tmp_path):
    """Its figures, each to a unit of the last digit that it prints: processors differ beyond."""
    records = tmp_path / "mlperf"
    assert (
        CliRunner().invoke(app, ["import", "mlperf", "mlperf-power", str(records)]).exit_code == 0
    )
    text = (ROOT / "README.md").read_text()

    def llama(**asked):
        rows = joulecast.forecast(records, nodes=[16], price=0.30, co2=380, pue=1.3, **asked)
        return next(row for row in rows["forecasts"] if row["workload"].startswith("llama2"))

    def check(pattern, amounts, unit):
        shown = re.search(pattern, text, re.DOTALL).groups()
        assert [float(value) for value in shown] == pytest.approx(amounts, abs=unit)

    row, number = llama(), r"([\d.]+)"
    kwh = [row[f"energy{end}_j"] / 3.6e6 for end in ("", "_low", "_high")]
    check(rf"energy of the nodes \| {number} kWh \| {number} to {number}", kwh, 0.011)
    money, co2 = (
        [row[f"{name}{end}{unit}"] for end in ("", "_low", "_high")]
        for name, unit in (("cost", ""), ("co2", "_kg"))
    )
    check(rf"EUR {number} \| {number} to {number}", money, 0.011)
    check(rf"\| {number} kg \| {number} to {number}", co2, 0.011)
    seconds = [part for end in ("", "_low", "_high") for part in divmod(row[f"time{end}_s"], 60)]
    ends = " to ".join([rf"{number} min {number} s"] * 2)
    check(rf"time \| {number} min {number} s \| {ends}", seconds, 1.1)
