"""Recording, replay and data from outside as a user meets them: every table regenerated, submissions
judged in the same tables as the campaign, the papers' tables."""

import json
import os
import re
import shutil

import pandas as pd
import pytest
import yaml
from conftest import ROOT, copy_workflow, judge_less, snakemake
from mlperf_fixtures import write_run
from test_dry import TARGETS

from joulecast.runs.recorded import pack, unpack_all

SHIPPED = ROOT / "recorded/two-core-vm"
LAB = ("--configfile", "config/lab.yaml")
SETTINGS = 24
TABLES = ("energy_error", "energy_summary", "energy_improvement")


def _write_submissions(results):
    """Of two workloads on two node counts; and one run of which nothing but its own node count is known."""
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
    write_run(results, "result_1", system="1xACME-Fast9000", benchmark="bert", nodes=1)
    write_run(results, "result_3", system="4xACME-Fast9000", nodes=4, result=["nothing"])


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A fresh clone with the shipped campaign, with the same one as if a sensor had been there (`lab`), and
    with submissions from outside; its papers' tables are cheaper than those of config/paper.yaml."""
    folder = tmp_path_factory.mktemp("clone")
    copy_workflow(folder)
    shutil.copytree(SHIPPED, folder / "recorded/two-core-vm")
    records = unpack_all(SHIPPED, tmp_path_factory.mktemp("lab"))
    for record in records:
        text = (record / "run.json").read_text()
        (record / "run.json").write_text(
            text.replace('"source": "estimated"', '"source": "measured"')
        )
    pack(records, folder / "recorded/lab", name="lab", configurations=[])
    (folder / "config/platforms/lab.yaml").write_text("name: lab\nrecorded: recorded/lab\n")
    _write_submissions(folder / "data/acme/results")
    judge_less(folder)
    config = yaml.safe_load((folder / "config/paper.yaml").read_text())
    config |= {"campaign": "lab", "platform": "lab", "results": "results/lab"}
    config |= {"partition": {"networks": ["alexnet"]}, "tuning": {"seeds": 2, "recurrences": 10}}
    config |= {"workload": {"networks": ["resnet18"], "image_size": 32}, "training": {"steps": 3}}
    config["evaluation"] = {"series_splits": 1, "imports": ["data/acme"]}
    (folder / "config/lab.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_dry_run_of_all_targets_from_the_shipped_campaign(clone):
    done = snakemake(clone, "-n", "--configfile", "config/replay-two-core-vm.yaml", "--", *TARGETS)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    jobs = set(re.findall(r"^(\w+) +\d+$", text, re.M))
    assert "replay" in jobs
    assert not jobs & {"train", "profile_ops", "run_pipeline"}


def make(clone, *targets):
    """The papers' table, and what Snakemake said when it made it."""
    done = snakemake(clone, *LAB, *targets)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    return pd.read_parquet(clone / "results/lab/tables/papers/papers.parquet"), text


@pytest.fixture(scope="module")
def made(clone):
    """Everything, with a submission from outside."""
    return make(clone)


def test_every_table_comes_from_the_recorded_campaign(clone, made):
    results = clone / "results/lab"
    infos = [json.loads(path.read_text()) for path in results.glob("records/*/run.json")]
    assert len(infos) == json.loads((SHIPPED / "campaign.json").read_text())["runs"]
    for info in infos:
        assert {m["source"] for m in info["meters"] if m["available"]} == {"recorded"}
        assert info["source"]["recorded_campaign"] == info["spec"]["campaign"] == "lab"
    assert "campaign lab" in (results / "index.html").read_text()
    tables = {path.stem: path.read_text() for path in results.glob("tables/energy/*.csv")}
    for name in ("scaling", "time_error", "energy_error"):
        assert "resnet18" in tables[name] and "vit_ti" in tables[name], name
    assert "recorded" in tables["energy_error"]


def test_the_simulator_is_judged(clone, made):
    tables = clone / "results/lab/tables"
    error = pd.read_parquet(tables / "simulator/simulator_error.parquet")
    assert set(error["experiment"]) == {"emulated network", "real training"}
    assert set(error["source"]) == {"recorded"}
    mean = error[error["configuration"].str.match(r"\(mean of \d+: all\)")]
    assert (mean["predicted_error_percent"] < 5).all() and (mean["published_percent"] == 3.0).all()
    for name in ("simulator_order", "simulator_ablation", "simulator_speed"):
        assert len(pd.read_parquet(tables / f"simulator/{name}.parquet")) > 0


def test_what_takes_longest_says_how_long_it_took(clone, made):
    took = {
        path.stem: pd.read_csv(path, sep="\t")
        for path in (clone / "results/lab/benchmarks").glob("*.tsv")
    }
    assert {"fit", "metered", "judge-simulator", "replay-policies"} <= set(took)
    assert all((table["s"] > 0).all() for table in took.values())


def test_only_another_content_is_replayed_again(clone, made):
    for kept in ("recorded", "config"):
        for path in (clone / kept).rglob("*"):
            os.utime(path)  # as a checkout leaves them
    again = snakemake(clone, *LAB)
    assert "Nothing to be done" in again.stdout + again.stderr, "newer, but the same"
    whole = clone / "recorded/lab/campaign.json"
    said = whole.read_text()
    whole.write_text(said.replace('"note": ""', '"note": "recorded again"'))
    again = snakemake(clone, "-n", *LAB, "--", "tables")
    whole.write_text(said)
    text = again.stdout + again.stderr
    assert "replay " in text and "fit " in text, "another campaign, and it was not replayed"


@pytest.mark.parametrize(
    ("kept", "repeated", "not_repeated"),
    [
        pytest.param(
            "config/published/mc2.yaml",
            {"tables", "metered", "papers"},
            {"replay", "fit"},
            marks=pytest.mark.long,
        ),
        (
            "config/platforms/hc2.yaml recorded/mlperf-power/provenance.json",
            {"simulator_report", "metered", "papers"},
            {"fit"},
        ),
        pytest.param(
            "recorded/task-graphs/alexnet.json",
            {"partition_networks"},
            {"replay", "fit"},
            marks=pytest.mark.long,
        ),
        pytest.param(
            "recorded/two-core-training/provenance.json",
            {"judge_simulator"},
            {"replay"},
            marks=pytest.mark.long,
        ),
        pytest.param(
            "recorded/training-steps/provenance.json",
            {"judge_on_gpus"},
            {"replay", "fit"},
            marks=pytest.mark.long,
        ),
        pytest.param(
            "recorded/zeus-trace/provenance.json",
            {"replay_policies", "papers"},
            {"replay", "fit"},
            marks=pytest.mark.long,
        ),
        pytest.param(
            "recorded/pipedream-profiles/vgg16.txt",
            {"partition_profiles"},
            {"replay", "fit"},
            marks=pytest.mark.long,
        ),
    ],
)
def test_another_content_of_a_kept_file_repeats_what_depends_on_it(
    clone, made, kept, repeated, not_repeated
):
    """Also where the file is older than the results, as a copy that keeps dates leaves it."""
    contents = {clone / name: (clone / name).read_bytes() for name in kept.split()}
    for path, content in contents.items():
        path.write_bytes(content + b"\n")
        os.utime(path, (1_000_000_000, 1_000_000_000))
    again = snakemake(clone, "-n", *LAB)
    for path, content in contents.items():
        path.write_bytes(content)
    jobs = set(re.findall(r"^(\w+) +\d+$", again.stdout + again.stderr, re.M))
    assert repeated <= jobs and not jobs & not_repeated, jobs


def test_other_prices_make_tables_and_page_alone(clone, made):
    prices = "prices={price: 0.4, co2: 380, source: a tariff}"
    again = snakemake(clone, "-n", *LAB, "--config", prices)
    text = again.stdout + again.stderr
    assert again.returncode == 0, text
    jobs = set(re.findall(r"^(\w+) +\d+$", text, re.M))
    assert "overview" in jobs and jobs <= {"overview", "papers", "all", "total"}, jobs


def test_imported_runs_stand_beside_the_campaign(clone, made):
    tables = clone / "results/lab/tables/energy"
    for name in TABLES:
        table = pd.read_parquet(tables / f"{name}.parquet")
        assert set(table["source"]) == {"recorded", "imported"}, name
        assert set(table["judges"]) == {"models"}
    errors = pd.read_parquet(tables / "energy_error.parquet")
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
    assert ours["error_percent"].notna().all()
    said = (tables / "energy_summary.md").read_text()
    assert "1 run is left out (resnet-4xacme-fast9000-result_3" in said
    assert "In all rows: " in said and "| recorded" in said


def test_every_number_stands_next_to_ours_and_nothing_is_measured(clone, made):
    table, text = made
    assert not re.search(r"^train ", text, re.M)
    assert "missing" not in set(table["verdict"])
    assert (table["why_not_comparable"] != "").equals(table["comparable"] == "no")
    of_proteus = table[table["paper"] == "Proteus"]
    assert {"better than the code", "not comparable"} >= set(of_proteus["verdict"])
    own = table[table["setting"].str.startswith("our graphs (recorded)")]
    assert own["ours"].notna().all() and set(own["source"]) == {"simulated"}
    figure = table[table["table"] == "figure 1"]
    assert len(figure) == 30 and set(figure["verdict"]) == {"reproduced"}
    limits = table[table["setting"].str.contains("power-limit-only")]
    assert len(limits) == 8 and set(limits["verdict"]) == {"same as the code"}
    ours = table[table["quantity"] == "MC2: mean error of energy"]
    assert len(ours) == 6 and set(ours["source"]) == {"imported"}
    assert set(ours["verdict"]) == {"not comparable"}, "another platform"
    times = table[table["table"] == "Table 1"].dropna(subset="ours")
    assert times["setting"].nunique() == 20 and set(times["source"]) == {"measured"}
    refused = table[(table["table"] == "Table 1") & table["ours"].isna()]
    assert set(refused["quantity"].str.split(": ").str[1].str.split(" ").str[0]) <= {
        "by",
        "antichain",
    }
    assert (clone / "results/lab/tables/papers/papers.md").stat().st_size > 10_000
    page = (clone / "results/lab/index.html").read_text()
    assert "Verdicts by paper" in page
    check_tuning_tables(clone / "results/lab")


def test_energy_errors_of_metered_clusters_stand_next_to_the_published_one(clone, made):
    summary = pd.read_parquet(clone / "results/lab/metered/tables/energy_summary.parquet")
    assert set(summary["source"]) == {"imported"} and set(summary["judges"]) == {"models"}
    ours = summary[(summary["model"] == "MC2") & (summary["split"] != "in-sample")]
    assert (ours["published_percent"] == 2.84).all() and ours["mape_percent"].notna().all()
    assert {"Fan", "LP4"} <= set(summary["model"])
    page = (
        (clone / "results/lab/index.html").read_text().replace("&nbsp;", " ").replace("\u00a0", " ")
    )
    assert "on real clusters" in page and "2.84 % for MC2" in page


def test_the_report_has_every_table_with_its_caption(clone, made):
    done = snakemake(clone, *LAB, "--report", "results/lab/report.html")
    assert done.returncode == 0, done.stdout + done.stderr
    report = (clone / "results/lab/report.html").read_text()
    results = clone / "results/lab"
    shown = [
        path
        for pattern in ("tables/*/*.html", "index.html")
        for path in results.glob(pattern)
        if not path.name.startswith("failed_runs")
    ]
    assert len(shown) > 15
    for path in shown:
        assert f'"{path.relative_to(clone)}"' in report, path
    for word in ("Energy and time", "Simulator", "Partitioning", "Papers", "Overview", "Records"):
        assert f'"{word}"' in report, word
    (opens_on,) = re.findall(r'workflow_desc = "(.*)"', report)
    assert (
        re.search(r"Zeus: \d+ of 35 printed numbers reproduced", opens_on)
        and "var metadata = {}" not in report
    )
    assert "Wei et al." in report and "Proteus, IEEE TPDS" in report, "captions name sources"


def test_a_report_of_some_targets_has_what_there_is(clone, made):
    results = clone / "results/lab"
    gone = [results / "tables/partition", results / "index.html"]
    aside = clone / "aside"
    aside.mkdir()
    for path in gone:
        path.rename(aside / path.name)
    try:
        done = snakemake(clone, *LAB, "--report", "results/lab/partial.html")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "results/lab/tables/energy/time_error.html" in (results / "partial.html").read_text()
    finally:
        for path in gone:
            (aside / path.name).rename(path)


def check_tuning_tables(results):
    tables = {
        path.stem.removeprefix("tuning_"): pd.read_parquet(path)
        for path in results.glob("tables/tuning/tuning_*.parquet")
    }
    assert tables["potential"]["difference"].dropna().abs().max() < 0.001
    assert tables["potential"]["difference"].notna().sum() == 18
    for name in ("savings", "reproduction", "comparison"):
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


def test_a_campaign_that_was_tampered_with_is_not_replayed(clone, tmp_path):
    shutil.copytree(clone, tmp_path / "c", ignore=shutil.ignore_patterns("results", ".snakemake"))
    (tmp_path / "c/recorded/lab/records.zip").write_bytes(b"PK")
    done = snakemake(tmp_path / "c", *LAB, "--", "measure")
    text = done.stdout + done.stderr
    assert done.returncode != 0 and "records.zip: is not what was recorded" in text
    (tmp_path / "c/recorded/lab/records.zip").unlink()
    done = snakemake(tmp_path / "c", "-n", *LAB)
    text = done.stdout + done.stderr
    assert done.returncode != 0 and "records.zip: missing" in text and "Traceback" not in text
