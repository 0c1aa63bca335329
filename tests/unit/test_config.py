"""Configuration: generated files, and answers to mistakes."""

import re
from pathlib import Path

import pytest
from conftest import ROOT

from joulecast.app.campaign.config import (
    Config,
    documented_defaults,
    json_schema,
    parse_config,
    read_config,
)
from joulecast.app.campaign.runs import campaign_runs, run_table
from joulecast.errors import JoulecastError
from joulecast.runs.spec import RunSpec

PLATFORMS = ROOT / "config/platforms"


def test_runs_that_cannot_work_are_left_out_by_their_names():
    everything = {spec.run for spec in campaign_runs(Config())}
    left = {
        spec.run
        for spec in campaign_runs(parse_config({"scale": {"without": ["vit_s-n4-*", "idle-n1"]}}))
    }
    out = everything - left
    assert left < everything and "idle-n1" in out and len(out) == 4
    assert all(run.startswith("vit_s-n4-") for run in out - {"idle-n1"})
    with pytest.raises(JoulecastError, match=r"scale.without: no run has the name `vit_s-n3-\*`"):
        campaign_runs(parse_config({"scale": {"without": ["vit_s-n3-*"]}}))
    with pytest.raises(JoulecastError, match="no training"):
        campaign_runs(parse_config({"scale": {"without": ["*"]}}))


def test_shipped_files_are_what_the_model_generates():
    assert (ROOT / "config/config.yaml").read_text() == documented_defaults()
    assert (ROOT / "config/schema.json").read_text() == json_schema()
    assert read_config(ROOT / "config/config.yaml") == Config()
    assert read_config(ROOT / "config/minimal.yaml").campaign == "minimal"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"scal": {}}, "scal: unknown key; did you mean `scale`?"),
        (
            {"power": {"command": "ipmitool dcmi power reading"}},
            "give a list, as [ipmitool, dcmi, power, reading]",
        ),
        ({"training": {"step": 3}}, "training.step: unknown key; did you mean `steps`?"),
        ({"partition": {"pipelines": [{"stage": 2}]}}, "pipelines.0.stage: unknown key; did you"),
        ({"workload": {"networks": ["vgg1"]}}, "unknown network `vgg1`; did you mean `vgg1"),
        ({"workload": {"networks": ["vgg16"], "command": "t"}}, "workload: networks: a command"),
        ({"workload": {"command": "t ${HOME}"}}, "command: a blank cannot be filled in ('HOME')"),
        ({"workload": {"command": "t {batch.x}"}}, "command: a blank cannot be filled in"),
        ({"workload": {"image_size": 31}}, "image_size 31 is too small; it needs at least 32"),
        ({"scale": {"nodes": [0, 1]}}, "node count 0 is below 1"),
        ({"scale": {"nodes": []}}, "scale.nodes"),
        ({"scale": {"scaling": "strong", "batch_size": 3}}, "3 is smaller than the 4 ranks"),
        ({"power": {"meters": ["wattmeter"]}}, "unknown meter `wattmeter`"),
        ({"power": {"meters": ["cpu", "cpu"]}}, "a meter is given twice"),
        ({"training": {"steps": {"vgg16": 1}}}, "no number for resnet50, vit_s"),
        ({"campaign": "a; rm -rf /"}, "campaign"),
        ({"evaluation": {"imports": ["a/power", "b/power"]}}, "two folders of one name"),
        ({"emulation": {"nodes_per_core": 1}}, "emulation.nodes_per_core"),
    ],
)
def test_mistakes_name_the_key_and_the_way_out(content, said):
    with pytest.raises(JoulecastError, match=re.escape(said)):
        parse_config(content)


def test_estimating_without_watts_is_refused(tmp_path):
    (tmp_path / "this-machine.yaml").write_text("name: bare\nhosts: 1\n")
    with pytest.raises(JoulecastError, match=r"platform bare: .*idle_w and full_w"):
        campaign_runs(Config(), tmp_path)
    without = parse_config({"power": {"meters": ["cpu"]}})
    assert campaign_runs(without, tmp_path)


def test_missing_platform_names_the_known_ones():
    with pytest.raises(JoulecastError, match=r"known: .*this-machine"):
        campaign_runs(parse_config({"platform": "elsewhere"}), PLATFORMS)


def test_a_data_set_without_its_root_is_refused_before_the_first_run(tmp_path):
    for root in (None, str(tmp_path / "absent")):
        lacking = parse_config({"workload": {"dataset": "cifar10", "data_root": root}})
        with pytest.raises(JoulecastError, match=r"workload.data_root: .*cifar-10-batches-py"):
            campaign_runs(lacking, PLATFORMS)


def test_default_campaign_is_the_one_that_was_asked_for():
    runs = campaign_runs(Config(), PLATFORMS)
    table = run_table(runs)
    training = table[table["kind"] == "training"]
    cells = training.groupby(["network", "nodes"])["repeat"].nunique().unstack()
    assert list(cells.columns) == [1, 2, 4] and (cells == 3).all().all()
    assert (training[training.nodes == 1].groupby("network")["batch"].nunique() >= 3).all()
    assert {"idle", "allreduce", "sleeping_rank"} <= set(table["kind"])
    in_order = [spec.run for spec in runs]
    assert in_order != sorted(in_order), "the order must be shuffled"
    assert in_order == [spec.run for spec in campaign_runs(Config(), PLATFORMS)], "and repeatable"


def test_strong_scaling_keeps_the_global_batch():
    strong = parse_config({"scale": {"scaling": "strong", "batch_size": 8}})
    batches = run_table(campaign_runs(strong, Path(PLATFORMS)))
    assert set(batches[batches["nodes"] == 4]["batch"].dropna()) == {8}


def test_digest_follows_the_science_and_not_the_name():
    first, second = campaign_runs(Config(), PLATFORMS)[:2]
    assert first.digest() != second.digest()
    assert first.model_copy(update={"run": "other", "campaign": "x"}).digest() == first.digest()


def test_meters_that_need_settings_get_them_and_others_change_no_digest():
    usual = campaign_runs(parse_config({}))[0]
    power = {"sysfs_root": "/host/sys", "command": ["node-power", "--once"]}
    run = next(r for r in campaign_runs(parse_config({"power": power})) if r.run == usual.run)
    assert (run.metering.sysfs_root, run.metering.command) == ("/host/sys", tuple(power["command"]))
    again = RunSpec.model_validate_json(run.model_dump_json())
    assert again.digest() == run.digest() != usual.digest()
    plain = usual.model_dump(mode="json")
    del plain["metering"]
    assert RunSpec.model_validate(plain).digest() == usual.digest()
