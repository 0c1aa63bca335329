"""External data: local folder or address with checksum."""

import hashlib

import pytest

from joulecast.campaign.config import Config, parse_config
from joulecast.campaign.external import (
    bring_listed,
    listed_downloads,
    locate,
    locate_folder,
    why_unavailable,
)
from joulecast.campaign.sections import Download
from joulecast.errors import JoulecastError
from joulecast.files.writing import sha256_of


def test_a_folder(tmp_path):
    (tmp_path / "zeus").mkdir()
    (tmp_path / "zeus/a.csv").write_text("1")
    config = parse_config({"external_data": str(tmp_path)})
    assert locate(config, "zeus/a.csv").read_text() == "1"
    with pytest.raises(JoulecastError, match=r"zeus/b.csv is not there"):
        locate(config, "zeus/b.csv")


def test_nothing_configured_says_so():
    with pytest.raises(JoulecastError, match="`external_data` is null"):
        locate(parse_config({}), "zeus/a.csv")


def test_downloads_are_checked_and_kept(tmp_path):
    source = tmp_path / "source.csv"
    source.write_text("real")
    digest = hashlib.sha256(b"real").hexdigest()

    def config(sha256):
        download = {"url": source.as_uri(), "sha256": sha256}
        return parse_config({"results": str(tmp_path / "r"), "external_data": {"a.csv": download}})

    with pytest.raises(JoulecastError, match=f"{digest}.*{'0' * 64}"):
        locate(config("0" * 64), "a.csv")
    assert not any((tmp_path / "r").rglob("*.csv"))
    assert locate(config(digest), "a.csv").read_text() == "real"
    source.unlink()
    assert locate(config(digest), "a.csv").read_text() == "real", "a second time it is at hand"
    with pytest.raises(JoulecastError, match="names no download"):
        locate(config(digest), "b.csv")


def test_a_folder_is_all_that_is_addressed_below_it(tmp_path):
    downloads = {}
    for name in ("power/a.csv", "power/b.csv", "other/c.csv"):
        file = tmp_path / "source" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
        digest = hashlib.sha256(name.encode()).hexdigest()
        downloads[name] = {"url": file.as_uri(), "sha256": digest}
    config = parse_config({"results": str(tmp_path / "r"), "external_data": downloads})
    folder = locate_folder(config, "power")
    assert sorted(path.name for path in folder.iterdir()) == ["a.csv", "b.csv"]
    with pytest.raises(JoulecastError, match="no download below it"):
        locate_folder(config, "zeus")
    here = parse_config({"external_data": str(tmp_path / "source")})
    assert locate_folder(here, "power") == tmp_path / "source/power"


def test_listed_files_are_checked_wherever_they_come_from(tmp_path):
    here = tmp_path / "data/traces"
    here.mkdir(parents=True)
    (here / "a.csv").write_text("1,2\n")
    sha256 = sha256_of(here / "a.csv")
    listed = tmp_path / "traces.yaml"
    listed.write_text(f"a.csv: {{url: 'file://{here / 'a.csv'}', sha256: {sha256}}}\n")
    downloads = listed_downloads(listed)
    local = Config(results=str(tmp_path / "r"), external_data=str(here.parent))
    bring_listed(local, downloads, tmp_path / "local/traces")
    bring_listed(Config(), downloads, tmp_path / "fetched/traces")
    for folder in ("local", "fetched"):
        assert (tmp_path / folder / "traces/a.csv").read_text() == "1,2\n"
    (here / "a.csv").write_text("1,3\n")
    changed = sha256_of(here / "a.csv")
    for config in (local, Config()):
        with pytest.raises(JoulecastError, match=f"{changed}.*{sha256}"):
            bring_listed(config, downloads, tmp_path / "again/traces")
    assert not (tmp_path / "again/traces/a.csv").exists()
    listed.write_text("a.csv: {url: 'file:///x', sha256: short}\n")
    with pytest.raises(JoulecastError, match=r"a\.csv\.sha256"):
        listed_downloads(listed)


def test_why_data_cannot_be_had_is_known_before_it_is_needed(tmp_path):
    source = tmp_path / "zeus/a.csv"
    source.parent.mkdir()
    source.write_text("real")
    listed = {"a.csv": Download(url=source.as_uri(), sha256=hashlib.sha256(b"real").hexdigest())}
    folder = parse_config({"external_data": str(tmp_path)})
    assert why_unavailable(folder, "zeus", listed) == "", "in the folder"
    assert why_unavailable(parse_config({}), "zeus", listed) == "", "by its address"
    assert why_unavailable(folder, "zeus", {}) == "" and "is not there" in why_unavailable(
        folder, "power", {}
    )
    assert "is null" in why_unavailable(parse_config({}), "power", {})
    source.write_text("another")
    for config in (folder, parse_config({})):
        assert "sha256" in why_unavailable(config, "zeus", listed), "there, and another one"
    source.unlink()
    assert "cannot be fetched" in why_unavailable(parse_config({}), "zeus", listed)
    assert [path.name for path in tmp_path.iterdir()] == ["zeus"], "nothing is kept"
