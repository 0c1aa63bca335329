"""Runs and forecasts as other tools get them."""

import json
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from log_fixtures import run
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from typer.testing import CliRunner

import joulecast
from joulecast.app.cli.main import app
from joulecast.app.exports.exported import exported, grouped
from joulecast.app.exports.openmetrics import openmetrics_text


@pytest.fixture(scope="module")
def forecast():
    return joulecast.forecast("two-core-vm", [4, 8], price=0.3, co2=380)


def samples(text: str) -> dict[tuple[str, str, str], float]:
    """Values by metric, node count and the end of their interval."""
    return {
        (sample.name, sample.labels.get("nodes", ""), sample.labels.get("end", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels["workload"] == "vit_ti"
    }


def test_a_forecast_keeps_its_figures_and_intervals(forecast, tmp_path):
    file = tmp_path / "forecast.json"
    file.write_text(json.dumps(forecast))
    answer = CliRunner().invoke(app, ["export", "openmetrics", str(file)])
    assert answer.exit_code == 0, answer.output
    found = samples(answer.output)
    rows = [row for row in forecast["forecasts"] if row["workload"] == "vit_ti"]
    assert [row["nodes"] for row in rows] == [4, 8]
    for row in rows:
        for end, ending in (("expected", ""), ("low", "_low"), ("high", "_high")):
            at = f"{row['nodes']}", end
            assert found["joulecast_forecast_time_seconds", *at] == row[f"time{ending}_s"]
            assert found["joulecast_forecast_energy_joules", *at] == row[f"energy{ending}_j"]
            grams = row[f"co2{ending}_kg"] * 1e3
            assert found["joulecast_forecast_co2_grams", *at] == pytest.approx(grams)
    assert found == samples(openmetrics_text(forecast))
    money = [
        line for line in answer.output.splitlines() if line.startswith("joulecast_forecast_cost{")
    ]
    assert money and all('currency="EUR"' in line for line in money)
    # The labels have all digits: these are two series.
    many = [row | {"work": 1281166.0 + k} for k, row in enumerate(forecast["forecasts"])]
    assert 'work="1281167"' in openmetrics_text(forecast | {"forecasts": many})


def test_two_platforms_do_not_share_a_run_of_mlflow(forecast):
    there = [row | {"platform": "elsewhere"} for row in forecast["forecasts"]]
    both = exported(forecast | {"forecasts": [*forecast["forecasts"], *there]})
    runs = [[(part.labels["platform"], part.scale) for part in run] for run in grouped(both)]
    expected = [[(name, 4), (name, 8)] for name in ("this-machine", "elsewhere") for _ in range(2)]
    assert sorted(runs) == sorted(expected)


class Mlflow:
    """What joulecast calls of MLflow, which is not installed here."""

    def __init__(self):
        self.runs, self.open = [], None

    def active_run(self):
        return None

    @contextmanager
    def start_run(self, run_name, nested):
        self.open = SimpleNamespace(info=SimpleNamespace(run_id=str(len(self.runs))), tags={})
        self.runs.append(self.open)
        yield self.open

    def search_runs(self, filter_string, output_format):
        return [
            r for r in self.runs if any(f"{n} = '{v}'" in filter_string for n, v in r.tags.items())
        ]

    def set_tag(self, name, value):
        self.open.tags[f"tags.{name}"] = value

    def set_tags(self, tags):
        self.open.tags |= tags

    def log_params(self, params):
        pass

    def log_metrics(self, metrics, step):
        pass


def test_the_second_export_to_mlflow_finds_the_runs_of_the_first(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", Mlflow())
    first, second = (CliRunner().invoke(app, ["export", "mlflow", "one-h100"]) for _ in range(2))
    del sys.modules["joulecast.app.exports.mlflow"]
    assert first.exit_code == 0 and first.output == second.output
    assert len(set(first.output.split())) == len(exported("one-h100"))


def test_any_currency_is_a_label_and_in_no_name(forecast):
    for each in exported(forecast | {"prices": {"currency": "\u20ac"}}):
        assert each.labels["currency"] == "\u20ac"
        assert all(value.flat_name.isascii() for value in each.values)


def test_runs_say_whether_their_energy_was_measured():
    families = text_string_to_metric_families(openmetrics_text("two-core-vm"))
    by_name = {family.name: family.samples for family in families}
    assert {
        sample.labels["energy_source"] for sample in by_name["joulecast_run_energy_joules"]
    } == {"estimated"}
    stages = {sample.labels["stage"] for sample in by_name["joulecast_run_stage_seconds"]}
    assert {"materials", "computing", "update"} <= stages


def test_two_imports_with_one_name_are_two_samples(tmp_path):
    for log in ("a", "b"):
        rows = "".join(f"{1770000000 + i},{300 + i % 7}\n" for i in range(60))
        (tmp_path / f"{log}.csv").write_text("t,w\n" + rows)
        words = ["--run", "train", "--network", "net", "--platform", "p", "--map", "time=t,watts=w"]
        done = run("import", "csv", tmp_path / f"{log}.csv", tmp_path / "out" / log, *words)
        assert done.exit_code == 0, done.output
    for family in text_string_to_metric_families(openmetrics_text(tmp_path / "out")):
        first, second = (sample.labels for sample in family.samples)
        assert first["source"] != second["source"] and "batch" not in first


def test_runs_say_which_part_of_a_node_had_the_meter():
    families = text_string_to_metric_families(openmetrics_text("one-h100"))
    (energies,) = (f.samples for f in families if f.name == "joulecast_run_energy_joules")
    assert {sample.labels["energy_covers"] for sample in energies} == {"gpu"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["openmetrics", "nowhere"], "nowhere"),
        (["openmetrics", "two-core-vm", "/proc/x.prom"], "/proc/x.prom: cannot be written"),
        (["openmetrics", "pyproject.json"], "pyproject.json"),
        (["mlflow", "two-core-vm"], "pip install mlflow"),
        (["wandb", "two-core-vm"], "pip install wandb"),
    ],
)
def test_what_cannot_be_exported_is_said_in_a_line(words, why, monkeypatch):
    for tool in ("mlflow", "wandb"):
        monkeypatch.setitem(__import__("sys").modules, tool, None)
    answer = CliRunner().invoke(app, ["export", *words])
    assert answer.exit_code == 2
    assert answer.output.startswith("error: ") and why in answer.output


def test_a_notebook_shows_a_forecast_as_a_table_and_a_chart(forecast):
    shown = forecast._repr_html_()
    assert shown.count("<tr") == 1 + len(forecast["forecasts"])
    assert "EUR" in shown and "estimated power" in shown and "90 % intervals" in shown
    assert list(forecast.table["nodes"]) == [row["nodes"] for row in forecast["forecasts"]]
    energy, time = forecast.plot().to_dict()["hconcat"]
    assert energy["title"]["text"] == "Forecast energy" and "estimated" in str(energy["title"])
    assert time["title"]["text"] == "Forecast time"
    assert json.loads(json.dumps(forecast)) == forecast, "it is plain data"
