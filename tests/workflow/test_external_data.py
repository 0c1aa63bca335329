"""Data from outside in the workflow: submissions judged beside a campaign, and the papers' tables with as
much of it as there is; nothing is measured."""

import json
import re
import shutil

import pandas as pd
import pytest
import yaml
from conftest import ROOT, copy_workflow, snakemake
from mlperf_fixtures import write_run

DATA = ROOT.parent / "shared/data"
LESS = ("--configfile", "config/less.yaml")
SETTINGS = 24
NAMES = ("mlperf_power", "pipedream_profiles", "zeus_trace")
TABLES = ("energy_error", "energy_summary", "energy_improvement", "energy_ablation")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone that replays the shipped campaign and imports a submission of two workloads; its papers'
    tables are cheaper: fewer seeds, and one of our own networks."""
    folder = tmp_path_factory.mktemp("clone")
    copy_workflow(folder)
    shutil.copytree(ROOT / "recorded/two-core-vm", folder / "recorded/two-core-vm")
    results = folder / "data/acme/results"
    for benchmark, scale in (("resnet", 1.0), ("ssd", 1.1)):
        for nodes in (1, 4):
            for run in (1, 2):
                write_run(
                    results,
                    f"result_{run}",
                    system=f"{nodes}xACME-Fast9000",
                    benchmark=benchmark,
                    nodes=nodes,
                    seed=run,
                    scale=scale * (1 - 0.02 * nodes),
                )
    # Nothing but its own node count is known of this one.
    write_run(results, "result_1", system="1xACME-Fast9000", benchmark="bert", nodes=1)
    write_run(results, "result_3", system="4xACME-Fast9000", nodes=4, result=["nothing"])
    config = yaml.safe_load((folder / "config/paper.yaml").read_text())
    config |= {"results": "results/less", "external_data": "data"}
    config |= {"partition": {"networks": ["alexnet"]}, "tuning": {"seeds": 2, "recurrences": 10}}
    config["evaluation"] = {"bootstrap": 20, "series_splits": 5, "imports": ["acme"]}
    config |= {"workload": {"networks": ["resnet18"], "image_size": 32}, "training": {"steps": 3}}
    config["simulator"] |= {"platforms": ["hc2"], "nodes": [1, 2]}
    (folder / "config/less.yaml").write_text(yaml.safe_dump(config))
    return folder


def make(clone, *targets):
    """The papers' table, and what Snakemake said when it made it."""
    done = snakemake(clone, *LESS, *targets)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    return pd.read_csv(clone / "results/less/tables/papers.csv"), text


@pytest.fixture(scope="module")
def made(clone):
    """Everything, where nothing is but the submission."""
    return make(clone, "--", "tables", "figures", "check", "paper_tables")


def test_imported_runs_stand_beside_the_campaign(clone, made):
    tables = clone / "results/less/tables"
    for name in TABLES:
        table = pd.read_csv(tables / f"{name}.csv")
        assert set(table["source"]) == {"estimated", "imported"}, name
        judges = table.groupby("source")["judges"].unique()
        assert judges["imported"] == ["models"] and judges["estimated"] == ["the pipeline only"]
    errors = pd.read_csv(tables / "energy_error.csv")
    imported = errors[errors["source"] == "imported"]
    assert set(imported["platform"]) == {"ACME-Fast9000"}
    assert set(imported["workload"]) == {"resnet", "ssd", "bert"} and set(imported["nodes"]) == {
        1,
        4,
    }
    assert imported["error_percent"].notna().all()
    assert {"in-sample", "leave-one-node-count-out", "leave-one-workload-out"} <= set(
        imported["split"]
    )
    ours = imported[imported["model"] == "MC2"]
    assert (ours["published_percent"] == 2.84).all()
    said = (tables / "energy_summary.md").read_text()
    assert "1 run is left out (resnet-4xacme-fast9000-result_3" in said
    assert "In all rows: " in said and said.index("| imported") < said.index("| estimated")
    for figure in ("stage_energies", "predicted_against_measured", "power_trace_acme"):
        assert (clone / f"results/less/figures/{figure}.svg").stat().st_size > 5000
    again = snakemake(clone, *LESS, "--", "energy_tables")
    assert "Nothing to be done" in again.stdout + again.stderr


def test_imports_without_a_place_to_take_them_from_are_refused(clone):
    config = yaml.safe_load((clone / "config/less.yaml").read_text())
    config.pop("external_data")
    (clone / "config/nowhere.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(clone, "-n", "--configfile", "config/nowhere.yaml", "--", "energy_tables")
    text = done.stdout + done.stderr
    assert done.returncode != 0 and "external_data is null" in text and "Traceback" not in text


def test_a_missing_folder_is_named(clone):
    config = yaml.safe_load((clone / "config/less.yaml").read_text())
    config["evaluation"]["imports"] = ["elsewhere"]
    (clone / "config/missing.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(clone, "--configfile", "config/missing.yaml", "--", "energy_tables")
    log = (clone / "results/less/logs/import-elsewhere.log").read_text()
    assert done.returncode != 0 and "data/elsewhere is not there" in log


def test_what_is_missing_is_named_and_the_rest_is_made(clone, made):
    table, text = made
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
    assert json.loads((clone / "results/less/external/found.json").read_text()).keys() == {*NAMES}


@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA}: public measurements are not here")
def test_with_the_data_every_number_stands_beside_ours(clone, made):
    for name in NAMES:
        (clone / "data" / name).symlink_to(DATA / name)
    table, text = make(clone, "--forcerun", "find_external_data", "--", "paper_tables")
    jobs = set(re.findall(r"^(\w+) +\d+$", text, re.M))
    assert not jobs & {"replay", "fit", "judge_simulator", "figures"}, "was there already"
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
        assert (clone / f"results/less/tables/papers.{suffix}").stat().st_size > 10_000
    check_tuning_tables(clone / "results/less")


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
