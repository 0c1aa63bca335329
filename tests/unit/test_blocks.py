"""Files of blocks: what was written is read, also from a file that was cut short."""

import errno
import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import JoulecastError
from joulecast.files.blocks import BlockReader, BlockWriter, encoded

NUMBERS = st.one_of(
    st.none(),
    st.integers(-(2**60), 2**60),
    st.floats(-1e12, 1e12),
    st.floats(1e12, 1e18),
)


def written(path, *blocks):
    writer = BlockWriter(path)
    for facts, columns in blocks:
        writer.append(facts, columns)
    writer.close()
    return path


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.lists(NUMBERS, max_size=20)), max_size=4)
)
def test_numbers_come_back_to_a_millionth(tmp_path_factory, tables):
    path = tmp_path_factory.mktemp("blocks") / "file"
    written(path, *[({"number": k}, columns) for k, columns in enumerate(tables)])
    found = list(BlockReader(path).new())
    assert [facts for facts, _ in found] == [{"number": k} for k in range(len(tables))]
    for (_, columns), asked in zip(found, tables, strict=True):
        assert set(columns) == set(asked)
        for name, values in asked.items():
            wanted = [math.nan if value is None else value for value in values]
            # Numbers above 2e12 have no room for millionths, nor have those in the same column.
            atol = 0.51 if any(abs(v) > 2e12 for v in values if v is not None) else 6e-7
            np.testing.assert_allclose(columns[name], wanted, rtol=1e-12, atol=atol)


@given(cut=st.integers(0, 10_000), flipped=st.integers(0, 10_000))
def test_a_file_that_was_cut_or_garbled_gives_the_blocks_before(tmp_path_factory, cut, flipped):
    path = tmp_path_factory.mktemp("blocks") / "file"
    blocks = [({"k": k}, {"t": [k + i / 7 for i in range(50)]}) for k in range(5)]
    content = bytearray(written(path, *blocks).read_bytes())
    head = len(b"joulecast blocks 1\n")
    content = content[: len(content) - cut % (len(content) - head)]
    if flipped % 2 and len(content) > head:
        content[head + flipped % (len(content) - head)] ^= 1
    path.write_bytes(content)
    found = [facts["k"] for facts, _ in BlockReader(path).new()]
    assert found == list(range(len(found)))


def test_a_file_is_read_while_it_grows(tmp_path):
    writer = BlockWriter(tmp_path / "file")
    reader = BlockReader(tmp_path / "file")
    seen = []
    for k in range(3):
        seen.append([facts for facts, _ in reader.new()])
        writer.append({"k": k}, {"t": [1.0]})
    writer.close()
    seen.append([facts for facts, _ in reader.new()])
    assert seen == [[], [{"k": 0}], [{"k": 1}], [{"k": 2}]]


def test_a_block_that_finds_the_disk_full_is_written_when_there_is_room(tmp_path, monkeypatch):
    writer = BlockWriter(tmp_path / "file")
    with monkeypatch.context() as full:
        # Half of the block fits.
        real = os.pwrite
        room = iter([10])

        def pwrite(file, content, at):
            left = next(room, None)
            if left is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(file, content[:left], at)

        full.setattr(os, "pwrite", pwrite)
        writer.append({"k": 0}, {"t": [1.0, 2.0]})
        assert writer.waiting.errno == errno.ENOSPC
    writer.append({"k": 1}, {"t": [3.0]})
    writer.close()
    found = list(BlockReader(tmp_path / "file").new())
    assert [facts["k"] for facts, _ in found] == [0, 1]
    assert writer.waiting is None


def test_another_file_is_refused_by_its_name(tmp_path):
    (tmp_path / "log.csv").write_text("time,watts\n1,2\n")
    with pytest.raises(JoulecastError, match=r"log\.csv: is no file of samples"):
        list(BlockReader(tmp_path / "log.csv").new())
    with pytest.raises(JoulecastError, match="cannot be read"):
        list(BlockReader(tmp_path / "none").new())


def test_a_reading_takes_a_few_bytes():
    chance = np.random.default_rng(1)
    t_s = 1e6 + np.arange(50) / 10 + chance.normal(0, 1e-4, 50)
    joules = np.round(np.cumsum(chance.normal(40, 5, 50)), 3)
    columns = {}
    for gpu in range(8):
        columns |= {
            f"{gpu}.t_s": t_s.tolist(),
            f"{gpu}.joules": joules.tolist(),
            f"{gpu}.watts": [None] * 50,
        }
    assert len(encoded({}, columns)) < 8 * 50 * 8
