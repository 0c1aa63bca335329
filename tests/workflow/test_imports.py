"""Submissions from outside in the workflow: imported, judged beside the campaign, never mixed with it."""

import shutil

import pandas as pd
import pytest
import yaml
from conftest import ROOT, copy_workflow, snakemake
from mlperf_fixtures import write_run

TABLES = ("energy_error", "energy_summary", "energy_improvement", "energy_ablation")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone that replays the shipped campaign and imports a submission of two workloads."""
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
    config = yaml.safe_load((folder / "config/replay-two-core-vm.yaml").read_text())
    config |= {"results": "results/acme", "external_data": "data"}
    config |= {"partition": {"networks": ["alexnet"]}}
    config["evaluation"] |= {"imports": ["acme"]}
    (folder / "config/acme.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_imported_runs_stand_beside_the_campaign(clone):
    acme = ("--configfile", "config/acme.yaml", "--")
    done = snakemake(clone, *acme, "tables", "figures", "check")
    assert done.returncode == 0, done.stdout + done.stderr
    tables = clone / "results/acme/tables"
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
        assert (clone / f"results/acme/figures/{figure}.svg").stat().st_size > 5000
    again = snakemake(clone, *acme, "energy_tables")
    assert "Nothing to be done" in again.stdout + again.stderr


def test_imports_without_a_place_to_take_them_from_are_refused(clone):
    config = yaml.safe_load((clone / "config/acme.yaml").read_text())
    config.pop("external_data")
    (clone / "config/nowhere.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(clone, "-n", "--configfile", "config/nowhere.yaml", "--", "energy_tables")
    text = done.stdout + done.stderr
    assert done.returncode != 0 and "external_data is null" in text and "Traceback" not in text


def test_a_missing_folder_is_named(clone):
    config = yaml.safe_load((clone / "config/acme.yaml").read_text())
    config["evaluation"]["imports"] = ["elsewhere"]
    (clone / "config/missing.yaml").write_text(yaml.safe_dump(config))
    done = snakemake(clone, "--configfile", "config/missing.yaml", "--", "energy_tables")
    log = (clone / "results/acme/logs/import-elsewhere.log").read_text()
    assert done.returncode != 0 and "data/elsewhere is not there" in log
