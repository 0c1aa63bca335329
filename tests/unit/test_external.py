"""External data: local folder or address with checksum."""

import hashlib

import pytest

from joulecast.campaign.config import parse_config
from joulecast.campaign.external import locate, locate_folder
from joulecast.errors import JoulecastError


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
