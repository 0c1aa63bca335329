"""The pictures of the documentation: the code draws them, as they stand in docs/images."""

import re
import struct
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import reference
from debian import why_not_installed


def _texts(svg):
    return sorted(re.findall(r">([^<>]+)<", svg.read_text()))


def _size(png):
    head = png.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    return struct.unpack(">II", head[16:])


@pytest.mark.long
@pytest.mark.parametrize("picture", reference.PICTURES, ids=lambda picture: picture.name)
def test_a_picture_is_the_one_that_the_code_draws(picture, tmp_path):
    if picture.suffix == ".png" and (why := why_not_installed(["chromium"], ["chromium"])):
        pytest.skip(why)
    drawn = tmp_path / picture.name
    if picture.suffix == ".svg":
        reference.PICTURES[picture](drawn)
        assert _texts(drawn) == _texts(picture), "./run python tests/reference.py draws it anew"
    else:
        # Fonts differ between machines; an empty page is a tenth as large.
        reference.draw_overview(drawn, quick=True)
        assert _size(drawn) == _size(picture)
        assert 0.3 < drawn.stat().st_size / picture.stat().st_size < 3
    assert set(picture.parent.iterdir()) == set(reference.PICTURES), "each picture has its code"
