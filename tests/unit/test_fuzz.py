"""Mutated files of every format end in a sound figure or in one line; ``benchmarks/fuzz.py`` tries more."""

import random
from pathlib import Path

import pytest
from fuzzing import FORMATS, tried, used
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

MUTATIONS = 10


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with the example of each format, by the format's name."""
    folders = {}
    for name, each in FORMATS.items():
        folders[name] = tmp_path_factory.mktemp("pristine")
        each.make(folders[name])
    return folders


@pytest.mark.parametrize("name", FORMATS)
def test_every_command_reads_the_example(name, pristine):
    for use in FORMATS[name].uses:
        ended = used(use, pristine[name], pristine[name])
        assert ended.read and ended.wrong is None, f"{use}: {ended}"


@pytest.mark.parametrize("name", FORMATS)
def test_mutations_end_in_sound_figures_or_in_a_line_that_names_the_file(name, pristine, tmp_path):
    # Without shrinking: a mutation is small already, and each try takes a command.
    @settings(max_examples=MUTATIONS, derandomize=True, database=None, phases=(Phase.generate,))
    @given(st.integers(0, 2**64))
    def one(seed: int) -> None:
        what, wrong = tried(
            FORMATS[name], pristine[name], tmp_path / "mutated", random.Random(seed)
        )
        assert wrong is None, what

    one()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("op graph", 4436),
        ("configuration", 555),
        ("Zeus traces", 3220),
        ("MLPerf tables", 838),
    ],
)
def test_mutations_that_ended_in_a_traceback(tmp_path, pristine, name, number):
    """Numbers of ``benchmarks/fuzz.py --seed 31``."""
    rng = random.Random(f"31 {name} {number}")
    what, wrong = tried(FORMATS[name], pristine[name], tmp_path / "mutated", rng)
    assert wrong is None, what
