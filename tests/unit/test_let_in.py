"""Pipes, devices and files that unfold to gigabytes are refused in a line, wherever a file is read."""

import os
import struct
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from conftest import ROOT
from fuzzing import limited_cpu
from typer.testing import CliRunner

from joulecast.app.campaign.config import parse_config, read_config
from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.measure.workloads.datasets import open_dataset
from joulecast.report.tables.published import read_published
from joulecast.runs.files.columns import Column, checked_table, read_csv
from joulecast.runs.files.reading import MAX_YAML_NODES
from joulecast.runs.files.writing import sha256_of

SIMULATE = {"--network": "vgg16", "--platform": "hc1", "--strategy": "dp=2"}


def simulated(option: str, ending: str) -> list[str]:
    given = SIMULATE | {option: f"{{}}{ending}"}
    return ["simulate", *(word for pair in given.items() for word in pair)]


COMMANDS = [
    ["advise", "--recurring", "{}.json"],
    ["partition", "{}.json", "--devices", "2"],
    ["config", "check", "{}.yaml"],
    ["meters", "--platform", "{}.yaml"],
    simulated("--network", ".json"),
    simulated("--platform", ".yaml"),
    simulated("--strategy", ".yaml"),
    simulated("--calibration", ".json"),
    simulated("--database", ".json"),
]


def endless(kind: str, file: Path) -> Path:
    """A pipe that nobody writes to, or a link to a device that never ends."""
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    return file


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_pipes_and_devices_are_refused_in_a_line(command, kind, tmp_path):
    for ending in (".json", ".yaml"):
        endless(kind, tmp_path / f"input{ending}")
    done = CliRunner().invoke(
        app, [word.replace("{}", str(tmp_path / "input")) for word in command]
    )
    said = done.output.strip().splitlines()[0]
    assert "is a pipe or a device" in done.output and str(tmp_path) in said, done.output
    # `meters` shows what there is without a platform.
    assert done.exit_code == (0 if command[0] == "meters" else 2)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_as_data_are_refused(kind, tmp_path):
    file = endless(kind, tmp_path / "input")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.csv").symlink_to(file)
    for read in (
        lambda: sha256_of(folder / "a.csv"),
        lambda: read_published(file),
    ):
        with pytest.raises(JoulecastError, match="is a pipe or a device"):
            read()


def test_an_image_that_is_a_pipe_is_refused(tmp_path):
    (tmp_path / "train/cat").mkdir(parents=True)
    os.mkfifo(tmp_path / "train/cat/a.png")
    images = open_dataset("imagenet", str(tmp_path), 8, 10)
    with pytest.raises(JoulecastError, match=r"a\.png: is a pipe or a device"):
        images.batch([0])


BOMB = "training:\n  k0: &k0 [x]\n" + "".join(
    f"  k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


def test_a_configuration_that_unfolds_to_a_billion_values_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / "bomb.yaml").write_text(BOMB)
    with limited_cpu():
        done = CliRunner().invoke(app, ["config", "check", str(tmp_path / "bomb.yaml")])
    said = f"bomb.yaml: its aliases unfold to more than {MAX_YAML_NODES} values"
    assert done.exit_code == 2 and said in done.output


def test_a_configuration_that_snakemake_read_may_not_unfold_either():
    value = ["x"]
    for _ in range(9):
        value = [value] * 10
    with limited_cpu(), pytest.raises(JoulecastError, match="its aliases unfold"):
        parse_config({"training": value})
    value.append(value)
    with limited_cpu(), pytest.raises(JoulecastError, match="nested more than"):
        parse_config({"training": value})


def test_whole_numbers_of_hundreds_of_digits_are_refused_by_row(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(f"epochs\n1\n{'9' * 400}\n\n")
    with pytest.raises(
        JoulecastError, match=r"t\.csv: epochs is .* in row 2, expected a whole number"
    ):
        read_csv(file, "trace", {"epochs": Column("whole", 1, 1e9, optional=True)})


@pytest.mark.parametrize(
    "line", [r'campaign: "\ud800"', r'"\ud800": 1', r'workload: {networks: ["\udfff"]}']
)
def test_half_a_character_in_yaml_is_refused_by_the_name_of_the_file(tmp_path, line):
    file = tmp_path / "mine.yaml"
    file.write_text(line)
    with pytest.raises(JoulecastError, match=r"mine\.yaml: has half a character"):
        read_config(file)


def test_text_of_a_table_that_is_not_utf_8_is_refused_by_the_name_of_its_column():
    offsets = pa.py_buffer(struct.pack("<2i", 0, 1))
    broken = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xf6")])
    table = pd.DataFrame({"node": pd.array(broken, dtype=pd.ArrowDtype(pa.string()))})
    with pytest.raises(JoulecastError, match=r"power\.parquet: node has text that is not UTF-8"):
        checked_table(table, {"node": Column("text")}, "power.parquet")
