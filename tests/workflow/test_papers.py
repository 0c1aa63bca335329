"""The papers' tables as their user makes them, with as much data from outside as there is."""

import json
import re
import shutil

import pandas as pd
import pytest
import yaml
from conftest import ROOT, copy_workflow, snakemake

DATA = ROOT.parent / "shared/data"
PAPER = ("--configfile", "config/less.yaml")
SETTINGS = 24
NAMES = ("mlperf_power", "pipedream_profiles", "zeus_trace")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone whose papers' tables are cheaper: fewer seeds, and one of our own networks."""
    folder = tmp_path_factory.mktemp("papers")
    copy_workflow(folder)
    shutil.copytree(ROOT / "recorded/two-core-vm", folder / "recorded/two-core-vm")
    config = yaml.safe_load((folder / "config/paper.yaml").read_text())
    config |= {"partition": {"networks": ["alexnet"]}, "tuning": {"seeds": 2, "recurrences": 10}}
    config["evaluation"] = {"bootstrap": 20, "series_splits": 5}
    config |= {"workload": {"networks": ["resnet18"], "image_size": 32}, "training": {"steps": 3}}
    config["simulator"] |= {"platforms": ["hc2"], "nodes": [1, 2]}
    (folder / "config/less.yaml").write_text(yaml.safe_dump(config))
    return folder


def make(clone, data):
    """Make the papers' tables with the external data of a folder; the table, and what Snakemake said."""
    external = ("--config", f"external_data={data}")
    done = snakemake(clone, *PAPER, *external, "--", "paper_tables")
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    return pd.read_csv(clone / "results/paper/tables/papers.csv"), text


@pytest.fixture(scope="module")
def without_data(clone, tmp_path_factory):
    """Made where no external data is."""
    return make(clone, tmp_path_factory.mktemp("nothing"))


def test_what_is_missing_is_named_and_the_rest_is_made(clone, without_data):
    table, text = without_data
    assert not re.search(r"^(train|train_single|calibrate) ", text, re.M), "nothing is measured"
    missing = table[table["verdict"] == "missing"]
    assert set(missing["paper"]) == {"MC2", "antichain", "Zeus"}
    assert missing["ours"].isna().all() and missing["source"].isna().all()
    for name in NAMES:
        reasons = missing["why_not_comparable"]
        assert reasons.str.contains(f"external data {name}", regex=False).any(), name
    of_proteus = table[table["paper"] == "Proteus"]
    assert {"better", "not comparable"} >= set(of_proteus["verdict"])
    own = table[table["setting"].str.startswith("graphs measured here")]
    assert own["ours"].notna().all() and set(own["source"]) == {"simulated"}
    assert json.loads((clone / "results/paper/external/found.json").read_text()).keys() == {*NAMES}


@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA}: public measurements are not here")
def test_with_the_data_every_number_stands_beside_ours(clone, without_data):
    table, text = make(clone, DATA)
    jobs = set(re.findall(r"^(\w+) +\d+$", text, re.M))
    assert not jobs & {"replay", "fit", "judge_simulator"}, "was there already"
    assert "missing" not in set(table["verdict"])
    assert table["why_not_comparable"].notna().equals(table["comparable"] == "no")
    figure = table[table["table"] == "figure 1"]
    assert len(figure) == 30 and set(figure["verdict"]) == {"reproduced"}
    limits = table[table["setting"].str.contains("power-limit-only")]
    assert len(limits) == 8 and set(limits["verdict"]) == {"reproduced"}
    ours = table[table["quantity"] == "MC2: MAPE of energy"]
    assert len(ours) == 6 and set(ours["source"]) == {"imported"}
    assert set(ours["verdict"]) == {"not comparable"}, "another platform"
    times = table[table["table"] == "Table 1"].dropna(subset="ours")
    assert times["setting"].nunique() == 20 and set(times["source"]) == {"measured"}
    refused = table[(table["table"] == "Table 1") & table["ours"].isna()]
    assert set(refused["quantity"].str.split(": ").str[1].str.split(" ").str[0]) <= {
        "by",
        "antichain",
    }
    for suffix in ("md", "tex"):
        assert (clone / f"results/paper/tables/papers.{suffix}").stat().st_size > 10_000
    check_tuning_tables(clone / "results/paper")


def check_tuning_tables(results):
    tables = {
        path.stem.removeprefix("tuning_"): pd.read_csv(path)
        for path in results.glob("tables/tuning_*.csv")
    }
    assert tables["potential"]["difference"].dropna().abs().max() < 0.001
    assert tables["potential"]["difference"].notna().sum() == 18
    for name in ("savings", "reproduction", "break_even", "comparison"):
        assert set(tables[name]["source"]) == {"recorded"}, name
    savings = tables["savings"]
    assert set(savings["stretch"]) == {"steady", "all"}
    assert set(savings.groupby("policy").size()) == {2 * SETTINGS}
    drawn = savings[savings["seeds"].notna()]
    assert (drawn["energy_low"] <= drawn["energy_saving_percent"]).all()
    assert (drawn["energy_saving_percent"] <= drawn["energy_high"]).all()
    exact = savings[savings["policy"].isin(["oracle", "power-limit-only"])]
    assert exact["seeds"].isna().all() and exact["energy_low"].isna().all()
    limits = tables["reproduction"].query("policy == 'power-limit-only'")
    assert limits["energy_difference"].dropna().abs().max() < 0.001
    paid = tables["break_even"]
    assert set(paid[paid["break_even_recurrence"].isna()]["pays_back"]) == {"does not within 10"}
    for figure in ("cumulative_cost", "maps"):
        assert (results / f"figures/tuning_{figure}.svg").stat().st_size > 5000
