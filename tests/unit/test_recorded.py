"""Recorded campaigns: what is kept comes back, and nothing that was changed since does."""

import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from conftest import ROOT, make_record, make_spec
from pages_fixtures import write_answered

from joulecast.app.campaign.config import parse_config, read_config
from joulecast.app.campaign.runs import campaign_runs, run_table
from joulecast.errors import JoulecastError
from joulecast.report.pages.overview import page_context, rendered
from joulecast.runs.files.writing import sha256_of
from joulecast.runs.folders import answers
from joulecast.runs.record import read_record, write_record
from joulecast.runs.recorded import (
    pack,
    recorded_infos,
    unpack_all,
)

PLATFORMS = ROOT / "config/platforms"
FRAMES = ("stages", "power", "activity", "phases")


def with_sources(record, *sources):
    """The record with one meter for each source on each node, as if it had them."""
    meters = [
        meter.model_copy(update={"meter": s, "source": s})
        for meter in record.info.meters
        for s in sources
    ]
    changes = {"meters": meters, "source": {"git_commit": "abc"}, "hosts": [{"host": "lab"}]}
    return replace(record, info=record.info.model_copy(update=changes))


@pytest.fixture
def records(tmp_path):
    """Three records whose figures no short decimal gives, one of them without any meter."""
    folders = []
    for run, nodes, step in (("b-n2", 2, 1 / 3), ("a-n1", 1, 0.1 + 0.2), ("c-n1", 1, 1 / 7)):
        record = make_record(make_spec(run, nodes), {"computing": step, "update": step / 3})
        record.power["watts"] *= 1 / 3
        if run == "c-n1":
            record = replace(record, power=record.power.iloc[:0])
            record.info.left_out.append("other programs kept 2.0 cores busy before the run")
        sources = ("measured", "estimated", "imported", "simulated")
        folders.append(tmp_path / "records" / run)
        write_record(folders[-1], with_sources(record, *sources))
    return folders


@pytest.fixture
def campaign(records, tmp_path):
    target = tmp_path / "kept"
    pack(records, target, name="kept", configurations=[{"campaign": "x"}], note="for a test")
    return target


def test_what_was_packed_comes_back_and_measured_is_called_recorded(records, campaign, tmp_path):
    folders = unpack_all(campaign, tmp_path / "out")
    assert [folder.name for folder in folders] == ["a-n1", "b-n2", "c-n1"]
    for before in map(read_record, records):
        run = before.info.spec.run
        after = read_record(tmp_path / "out" / run)
        for frame in FRAMES:
            pd.testing.assert_frame_equal(
                getattr(before, frame), getattr(after, frame), check_exact=True
            )
        sources = [m.source for m in after.info.meters if m.node == "host/0"]
        assert sources == ["recorded", "estimated", "imported", "simulated"]
        assert after.info.energy_source == "recorded"
        assert after.info.source["git_commit"] == "abc"
        assert after.info.source["recorded_campaign"] == "kept"
        assert after.info.source["recorded_sha256"] == sha256_of(campaign / "campaign.json")
        assert after.info.spec == before.info.spec.model_copy(update={"campaign": "kept"})
        same = {"spec", "meters", "source", "frames_sha256"}
        assert after.info.model_dump(exclude=same) == before.info.model_dump(exclude=same)
        assert answers(tmp_path / "out" / run, before.info.spec)


def test_the_campaign_says_where_it_comes_from(campaign):
    content = json.loads((campaign / "campaign.json").read_text())
    assert content["runs"] == 3 and content["note"] == "for a test"
    assert content["configurations"] == [{"campaign": "x"}]
    assert list(content["left_out"]) == ["c-n1"]
    assert content["hosts"] == [{"host": "lab"}]
    assert [(m["meter"], m["source"], m["runs"]) for m in content["meters"]][2] == (
        "measured",
        "measured",
        3,
    )
    assert {path.name for path in campaign.iterdir()} == {"campaign.json", "records.zip"}
    assert [i.spec.run for i in recorded_infos(campaign)] == ["a-n1", "b-n2", "c-n1"]


@pytest.mark.parametrize("harm", ["changed", "missing"])
def test_an_archive_that_is_not_what_was_recorded_is_named(campaign, tmp_path, harm):
    path = campaign / "records.zip"
    if harm == "changed":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    with pytest.raises(JoulecastError, match=r"records\.zip"):
        unpack_all(campaign, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "missing; .* is no recorded campaign"),
        ("{", "is not JSON"),
        ("[]", "expected a JSON object"),
        ('{"format": 1}', "campaign format 1, this joulecast reads 2"),
        ('{"format": 2}', "name: Field required"),
    ],
)
def test_a_broken_campaign_file_is_explained(campaign, content, said):
    (campaign / "campaign.json").unlink()
    if content is not None:
        (campaign / "campaign.json").write_text(content)
    with pytest.raises(JoulecastError, match=said) as raised:
        recorded_infos(campaign)
    assert "campaign.json" in str(raised.value)


def test_too_large_is_refused_and_nothing_is_left(records, tmp_path):
    target = tmp_path / "large"
    with pytest.raises(
        JoulecastError, match=r"takes 0\.0 MB, 0\.0 are allowed; .*sample more slowly"
    ):
        pack(records, target, name="x", configurations=[], max_bytes=10_000)
    assert not target.exists()
    assert not list(tmp_path.glob(".*partial"))


def test_names_that_could_not_be_told_apart_or_leave_the_folder(records, tmp_path):
    shutil.copytree(records[0], tmp_path / "again")
    with pytest.raises(JoulecastError, match="both hold a run `b-n2`"):
        pack([*records, tmp_path / "again"], tmp_path / "t", name="x", configurations=[])
    write_record(tmp_path / "bad", make_record(make_spec("../A")))
    with pytest.raises(JoulecastError, match=r"the run is called `\.\./A`"):
        pack([tmp_path / "bad"], tmp_path / "t", name="x", configurations=[])
    with pytest.raises(JoulecastError, match="no run record"):
        pack([], tmp_path / "t", name="x", configurations=[])


def test_a_column_that_would_be_lost_is_refused(tmp_path):
    record = make_record(make_spec("r"))
    with_volts = record.power.assign(volts=230.0)
    with pytest.raises(JoulecastError, match=r"run r: power.parquet has the columns volts"):
        write_record(tmp_path / "r", replace(record, power=with_volts))
    assert not (tmp_path / "r").exists()
    write_record(tmp_path / "r", replace(record, info=record.info))
    with_volts.to_parquet(tmp_path / "r/power.parquet")
    info = json.loads((tmp_path / "r/run.json").read_text())
    (tmp_path / "r/run.json").write_text(json.dumps(info | {"frames_sha256": {}}))
    with pytest.raises(JoulecastError, match=r"power.parquet: has more columns .*: volts"):
        pack([tmp_path / "r"], tmp_path / "t", name="x", configurations=[])
    assert not (tmp_path / "t").exists()


def test_the_note_is_shown_where_people_look(records, tmp_path):
    note = "Fans at <b>full</b> speed.\nSecond\x1b[2J line"
    pack(records, tmp_path / "noted", name="noted", configurations=[], note=note)
    results = tmp_path / "results"
    unpack_all(tmp_path / "noted", results / "records")
    page = rendered(page_context(write_answered(results)))
    assert "noted: Fans at &lt;b&gt;full&lt;/b&gt; speed. Second [2J line" in page


SMALL = {
    "workload": {"networks": ["vit_ti"]},
    "scale": {"nodes": [1, 2], "repeats": 1},
    "calibration": {"batch_sizes": [2, 4]},
}


def small(campaign="small", **changes):
    return parse_config({"campaign": campaign, "training": {"steps": 1}, **SMALL, **changes})


def test_a_recorded_platform_is_replayed_and_not_measured(campaign, tmp_path):
    platforms = tmp_path / "config/platforms"
    platforms.mkdir(parents=True)
    (platforms / "lab.yaml").write_text("name: lab\nrecorded: kept\n")
    config = small(platform="lab")
    assert [s.run for s in campaign_runs(config, platforms)] == ["a-n1", "b-n2", "c-n1"]
    assert len(run_table(campaign_runs(config, platforms))) == 3
    (platforms / "lab.yaml").write_text("name: lab\nrecorded: elsewhere\n")
    with pytest.raises(JoulecastError, match=r"elsewhere/campaign\.json: missing"):
        campaign_runs(config, platforms)


def test_the_key_recorded_is_no_part_of_a_specification():
    spec = make_spec()
    named = spec.platform.model_copy(update={"recorded": "recorded/x"})
    assert spec.model_copy(update={"platform": named}).digest() == spec.digest()


def test_the_configuration_for_a_gpu_asks_for_what_is_wanted():
    runs = campaign_runs(read_config(ROOT / "config/gpu.yaml"), PLATFORMS)
    table = run_table(runs)
    training = table[table["kind"] == "training"]
    assert set(training["network"]) == {"vgg16", "resnet50", "vit_b"}
    assert (training.groupby("network")["repeat"].nunique() == 3).all()
    assert (training.groupby("network")["batch"].nunique() == 3).all()
    assert set(table["kind"]) == {"training", "idle"} and set(table["nodes"]) == {1}
    for spec in runs:
        assert spec.meters == ("gpu",) and spec.emulation is None and spec.hosts == 1
        if spec.training:
            assert spec.training.device == "cuda" and spec.training.precision == "bf16"
            assert spec.workload.image_size == 224 and spec.workload.dataset == "synthetic"


def test_samples_in_place_of_steps():
    runs = campaign_runs(small(training={"samples": 100}), PLATFORMS)
    steps = {s.training.global_batch_size: s.training.steps for s in runs if s.kind == "training"}
    assert steps == {2: 50, 4: 25, 8: 13}
    with pytest.raises(JoulecastError, match=r"training\.samples: no number for vit_ti"):
        small(training={"samples": {"vgg16": 5}})
