"""Records held a second time, and brought back after Snakemake has removed them."""

import shutil

from joulecast.campaign.held_records import bring_back, hold_record


def test_a_record_that_was_removed_for_a_job_comes_back_if_it_is_new(tmp_path):
    record = tmp_path / "records/r"
    record.mkdir(parents=True)
    (record / "run.json").write_text("{}")
    done_s = (record / "run.json").stat().st_mtime
    hold_record(tmp_path, "r", record)
    shutil.rmtree(record)
    bring_back(tmp_path, "r", record, done_s + 300)
    assert not record.exists(), "it was removed to be measured again"
    for _ in range(2):  # also for a second job that was lost sight of
        bring_back(tmp_path, "r", record, done_s - 5)
        assert (record / "run.json").read_text() == "{}"
        shutil.rmtree(record)
    bring_back(tmp_path, "other", tmp_path / "records/other", 0)
    assert not list((tmp_path / "records").iterdir())
