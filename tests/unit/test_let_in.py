"""Pipes, devices and files that unfold to gigabytes are refused in a line, wherever a file is read."""

import json
import os
import resource
import shutil
import struct
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, make_record, make_spec
from fuzz_examples import MADE, forecast
from fuzzing import limited_cpu
from typer.testing import CliRunner

from joulecast.app.campaign.config import parse_config, read_config
from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.measure.workloads.datasets import open_dataset
from joulecast.report.tables.published import PublishedErrors
from joulecast.runs.files.columns import Column, checked_table, read_csv
from joulecast.runs.files.reading import MAX_YAML_NODES
from joulecast.runs.files.writing import sha256_of
from joulecast.runs.record import read_record, write_record

SIMULATE = {"--network": "vgg16", "--platform": "hc1", "--strategy": "dp=2"}


def simulated(option: str, ending: str) -> list[str]:
    given = SIMULATE | {option: f"{{}}{ending}"}
    return ["simulate", *(word for pair in given.items() for word in pair)]


COMMANDS = [
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
        lambda: PublishedErrors.read(file),
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


def perun_file(folder):
    shutil.copy(MADE / "perun-1.0.0.hdf5", folder / "log.hdf5")
    return folder / "log.hdf5"


def read_by_perun(folder):
    words = ("import", "perun", str(folder / "log.hdf5"), str(folder / "out"), "--timezone", "UTC")
    given = ("--epochs", "1", "--network", "net", "--platform", "box")
    return CliRunner().invoke(app, [*words, *given])


@pytest.mark.parametrize("how", ["external", "link", "soft", "virtual", "again", "huge"])
def test_hdf5_holds_its_own_numbers_and_not_too_many(tmp_path, how):
    h5py = pytest.importorskip("h5py")
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(80)))
    with h5py.File(perun_file(tmp_path), "r+") as root:
        names = []
        root.visit(names.append)
        name = next(name for name in names if name.endswith("raw_data/values"))
        attributes, size = dict(root[name].attrs), len(root[name])
        del root[name]
        if how == "external":
            root.create_dataset(name, (10,), "f8", external=[(str(secret), 0, 80)])
        elif how == "link":
            root[name] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "/x")
        elif how == "soft":
            root[name] = h5py.SoftLink(name.replace("values", "timesteps"))
        elif how == "virtual":
            layout = h5py.VirtualLayout((10,), "f8")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "x", (10,))
            root.create_virtual_dataset(name, layout)
        elif how == "again":
            root[name] = root[name.replace("values", "timesteps")]
        else:
            root.create_dataset(name, (1_200_000_000,), "f8", chunks=(1_000_000,))
        if how in ("external", "virtual", "huge"):
            root[name].attrs.update(attributes)
    assert size and (tmp_path / "log.hdf5").stat().st_size < 1_000_000
    done = read_by_perun(tmp_path)
    assert done.exit_code == 2 and "log.hdf5: cannot be read as file of perun" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_job_has_no_more_nodes_than_a_cluster(tmp_path):
    log = tmp_path / "jobs.txt"
    log.write_text(
        "JobID|Start|End|NNodes|ConsumedEnergyRaw\n"
        f"7|2026-05-02T10:00:00|2026-05-02T10:30:00|{2**63 - 1}|900000\n"
    )
    words = ("--timezone", "UTC", "--epochs", "1", "--network", "net", "--platform", "box")
    done = CliRunner().invoke(app, ["import", "slurm", str(log), str(tmp_path / "out"), *words])
    assert done.exit_code == 2 and f"{log}: job 7 has 9,223" in done.stderr


def written_frame(folder, change):
    """A run record whose power is changed, and signed again."""
    record = make_record(make_spec())
    write_record(folder / "r", record)
    power, info = folder / "r/power.parquet", folder / "r/run.json"
    old = sha256_of(power)
    pq.write_table(change(pq.read_table(power)), power, compression="zstd")
    info.write_text(info.read_text().replace(old, sha256_of(power)))
    return folder / "r"


@pytest.mark.long
def test_a_text_that_fills_a_frame_is_not_unfolded(tmp_path):
    name, rows = "x" * 60_000, 50_000
    numbers = {column: pa.array([1.0] * rows) for column in ("t_s", "watts", "joules")}
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [name])
    folder = written_frame(tmp_path, lambda _: pa.table({"node": texts, "meter": texts, **numbers}))
    assert (folder / "power.parquet").stat().st_size < 10_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(JoulecastError, match=r"power.parquet: node .* at most 255 characters"):
        read_record(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


@pytest.mark.parametrize(
    "value",
    [["x"], [1.0], {"a": 1.0}, [("a", "b")], [["x"]]],
    ids=["texts", "list", "struct", "map", "deep"],
)
def test_nested_values_in_a_frame_are_refused_by_their_column(tmp_path, value):
    kind = pa.map_(pa.string(), pa.string()) if value == [("a", "b")] else None

    def change(table):
        values = pa.array([value] * len(table), type=kind)
        return table.set_column(table.column_names.index("meter"), "meter", values)

    with pytest.raises(JoulecastError, match=r"power.parquet: .*meter"):
        read_record(written_frame(tmp_path, change))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"energy_j": -1.0}, "forecasts: 0.energy_j"),
        ({"workload": ["x"]}, "forecasts: 0.workload"),
        ({"nodes": "many"}, "forecasts: 0.nodes"),
        (None, "forecasts: 0"),
    ],
)
def test_a_forecast_that_is_exported_is_a_forecast(tmp_path, change, named):
    forecast(tmp_path)
    file = tmp_path / "forecast.json"
    content = json.loads(file.read_text())
    row = content["forecasts"][0]
    content["forecasts"][0] = None if change is None else row | change
    file.write_text(json.dumps(content))
    done = CliRunner().invoke(app, ["export", "openmetrics", str(file)])
    assert done.exit_code == 2 and f"{file}: {named}" in done.stderr
