"""What a training costs: kWh, money and CO2 in forecasts, advice, tables and on the page."""

import json
import re

import pandas as pd
import pytest
import yaml
from conftest import ROOT, make_observed
from hypothesis import given
from hypothesis import strategies as st
from pages_fixtures import write_answered, write_campaign
from typer.testing import CliRunner

import joulecast
from joulecast.app.campaign.config import parse_config
from joulecast.app.cli.main import app
from joulecast.energy.prices import NO_PRICES, Prices, cost_text
from joulecast.errors import JoulecastError
from joulecast.quantities import energy_j, mass_kg, money, with_range
from joulecast.report.campaign import campaign_answers, write_answers
from joulecast.report.pages.overview import page_context, rendered
from joulecast.report.results_folder import read_results
from joulecast.runs.record import write_record
from joulecast.runs.scale import hosts_and_gpus

RECORDED = str(ROOT / "recorded/two-core-vm")
PAID = Prices(
    price=0.3,
    price_node_hour=2.0,
    co2=400.0,
    pue=1.5,
    currency="CHF",
    source="a tariff that was made up",
)


def command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def said(html: str) -> str:
    """The words of a page."""
    bare = re.sub(r"<(script|style)>.*?</\1>|<[^>]+>", " ", html, flags=re.S)
    return re.sub(r"\s+", " ", bare)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "small"
    write_campaign(folder)
    return folder


@pytest.mark.parametrize(
    ("text", "joules"),
    [
        ("90", 90),
        ("1e6", 1e6),
        ("2kWh", 7.2e6),
        ("500 Wh", 1.8e6),
        ("5MJ", 5e6),
        (".5kj", 500),
        ("1MWH", 3.6e9),
    ],
)
def test_energies_are_read_as_people_type_them(text, joules):
    assert energy_j(text) == pytest.approx(joules)


@pytest.mark.parametrize("text", ["5mJ", "500 mWh", "2m", "kW", ""])
def test_a_milli_is_never_read_as_a_mega(text):
    with pytest.raises(JoulecastError, match="no energy"):
        energy_j(text)


def test_masses_are_read_as_people_type_them():
    assert [mass_kg(text) for text in ("2", "2kg", "500g", "1.5 t")] == [2, 2, 0.5, 1500]
    for wrong in ("two", "2 kWh", "", "nan", "-", "1kg2"):
        with pytest.raises(JoulecastError, match=r"no mass; give kilograms"):
            mass_kg(wrong)


@given(st.floats(1e-9, 1e12))
def test_money_is_written_as_people_say_it(amount):
    (text,) = money("EUR", amount)
    assert re.fullmatch(r"EUR [\d,]+(\.\d+)?", text)
    assert float(text[4:].replace(",", "")) == pytest.approx(amount, rel=0.051)
    assert with_range(*money("EUR", 0.57, 0.4, 12)) == "EUR 0.57 (0.40 to 12.00)"


def test_what_has_a_price_and_is_not_known_makes_no_money():
    assert Prices(price=0.3).money(3600, None, 1, None) is None
    assert Prices(price=0.3).money(None, 3.6e6, None, None) == pytest.approx(0.3)
    rent = Prices(price_gpu_hour=2.0)
    assert rent.money(3600, None, 1, None) is None and rent.money(3600, None, 1, 8) == 16
    assert "no GPU of it is known" in rent.why_no_money(None, None)
    assert cost_text({"cost": None, "cost_rests_on": None}, "EUR") == "—"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"nodes": 4, "nodes_are": "hosts", "accelerators_per_node": 8}, (4, 32)),
        ({"nodes": 4, "nodes_are": "emulated"}, (4, None)),
        ({"nodes": 6, "nodes_are": "GPUs", "ranks_per_host": 4}, (2, 6)),
        ({"nodes": 6, "nodes_are": "ranks", "ranks_per_host": 4}, (2, None)),
    ],
)
def test_hosts_and_gpus_of_what_the_records_count(row, expected):
    assert hosts_and_gpus(row) == expected


def test_a_configuration_has_prices_with_their_source(tmp_path):
    given_prices = {"price": 0.25, "co2": 380, "pue": 1.2, "source": "our bill of 2026"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"prices": given_prices}))
    (tmp_path / "none.yaml").write_text("campaign: mine\n")
    asked = ["forecast", "--records", RECORDED, "--nodes", "4", "--samples", "1e8", "--prices"]
    code, text = command(*asked, str(tmp_path / "mine.yaml"))
    assert code == 0 and "source: our bill of 2026" in text
    assert re.search(r"EUR [\d.]+ \([\d.]+ to [\d.]+\), estimated power", text) and " kWh (" in text
    code, text = command(*asked, str(tmp_path / "mine.yaml"), "--price", "0.5", "--json")
    result = json.loads(text)
    assert (result["prices"]["price"], result["prices"]["co2"]) == (0.5, 380)
    for row in result["forecasts"]:
        assert row["cost"] == pytest.approx(0.5 * row["energy_kwh"])
        assert row["energy_kwh"] == pytest.approx(1.2 * row["energy_j"] / 3.6e6)
        assert row["cost_rests_on"] == row["co2_rests_on"] == "estimated"
    code, text = command(*asked, str(tmp_path / "none.yaml"))
    assert code == 2 and "has no prices" in text
    for wrong, key in (({"price": -1}, "prices.price"), ({"pue": 0.5}, "prices.pue")):
        with pytest.raises(JoulecastError, match=key):
            parse_config({"prices": wrong})


def test_rent_alone_says_that_no_energy_is_in_it():
    result = joulecast.forecast(RECORDED, nodes=[2], price_node_hour=1.0)
    for row in result["forecasts"]:
        assert row["cost"] == pytest.approx(2 * row["time_s"] / 3600)
        assert row["cost_rests_on"] == "rent alone"


def test_tables_have_money_where_there_are_prices_alone(results, tmp_path):
    for name, prices in (("bare", NO_PRICES), ("paid", PAID)):
        answers = campaign_answers(read_results(results, prices))
        write_answers(answers, tmp_path / name, prices)
    bare, paid = (pd.read_parquet(tmp_path / name / "costs.parquet") for name in ("bare", "paid"))
    assert bare["cost"].isna().all()
    assert set(paid["cost_rests_on"]) == {"estimated"}
    hours, kwh = paid["time_s"] / 3600, paid["energy_j"] / 3.6e6 * 1.5
    assert paid["cost"].to_numpy() == pytest.approx(0.3 * kwh + 2 * paid["nodes"] * hours)
    assert paid["co2_kg"].to_numpy() == pytest.approx(0.4 * kwh)
    text = (tmp_path / "paid/costs.md").read_text()
    assert "CHF 0.3 a kWh" in text and "source: a tariff that was made up" in text
    assert "the money is estimated too" in text


@pytest.mark.long
def test_the_page_has_money_next_to_joules_and_says_where_prices_are_from(results):
    bare = said(rendered(page_context(results)))
    # The box for a reader's own prices asks for CO2 a kWh, and the list of words explains it.
    unpriced = bare.replace("CO2e a kWh", "").replace("PUE, CO2e", "")
    assert "CHF" not in bare and "CO2e" not in unpriced
    assert "Prices" not in bare
    write_answered(results, PAID, "mine.yaml")
    context = page_context(results, "mine.yaml", PAID)
    text = said(rendered(context))
    assert "source: a tariff that was made up" in text and " CHF 0.3 a kWh" in text
    amounts = re.findall(r"CHF [\d.,]+\d(?: \([^)]*\))?(.{17})", text)
    assert len(amounts) > 10
    assert all(after.startswith((", estimated power", " a kWh", " an hour")) for after in amounts)
    assert "CO2e" in text and " clear winner" in text
    assert "--prices mine.yaml" in text and "--configfile mine.yaml" in text


def test_an_observed_training_is_counted_in_what_it_is(tmp_path):
    for ranks in (1, 2):
        record = make_observed(ranks)
        write_record(tmp_path / "records" / record.info.spec.run, record)
    folder = str(tmp_path / "records")
    code, text = command("advise", "--network", "mylm", "--records", folder, "--gpus", "1,2,4")
    assert code == 0 and "ranks  batch" in text and "choose 2 ranks" in text and "one rank" in text
    assert "4 nodes" not in text
    code, text = command("evaluate", "--records", folder)
    assert (
        code == 0 and "split leave-one-node-count-out, time predicted" in text and " ranks " in text
    )
    page = said(rendered(page_context(write_answered(tmp_path))))
    assert "on 2 ranks" in page and "on 2 nodes" not in page
