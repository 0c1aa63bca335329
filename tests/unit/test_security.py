"""Nothing that configurations, campaigns or submissions say is run, leaves its folder, or tells a secret."""

import ast
import hashlib
import json
import os
import stat
import zipfile
from pathlib import Path

import pandas as pd
import pytest
import typer
from conftest import ROOT, copy_workflow, make_record, make_spec, snakemake
from typer.testing import CliRunner

from joulecast.app.campaign.config import parse_config, read_config
from joulecast.app.cli.errors import Commands
from joulecast.errors import JoulecastError
from joulecast.logs.mlperf import import_mlperf
from joulecast.measure.training.measure_run import measure_run
from joulecast.report.tables.output import write_table
from joulecast.runs.files.names import without_secrets
from joulecast.runs.files.writing import write_csv
from joulecast.runs.record import write_record
from joulecast.runs.recorded import pack, unpack_all
from joulecast.runs.spec import Calibration

HOSTILE = [
    "; touch PWNED",
    "$(touch PWNED)",
    "`touch PWNED`",
    "a\ntouch PWNED",
    'it\'s "quoted"',
    "{wildcard}",
    "a && touch PWNED",
    "x\x00y",
    "--help",
    "~root",
]

# ---- what the code may not do

_RUNS_TEXT = {"eval", "exec", "os.system", "os.popen", "subprocess.getoutput"}
_UNSAFE_READERS = {
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "pd.read_pickle"),
    "shutil.unpack_archive",
}
# A zip has no links, and zipfile takes what leads out of the folder from the names.
_UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "tarfile"}


def hazards(source):
    """What a Python file does that could run or unpickle somebody's data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            found += [f"imports {name}" for name in names if name in _UNSAFE_MODULES]
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        words = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if called in _RUNS_TEXT | _UNSAFE_READERS:
            found.append(f"calls {called}")
        if words.get("shell", "False") != "False" or "subprocess_shell" in called:
            found.append(f"{called} with a shell")
        if called == "torch.load" and words.get("weights_only") != "True":
            found.append("torch.load of more than weights")
        if words.get("allow_pickle", "False") != "False":
            found.append(f"{called} of pickles")
    return found


@pytest.mark.parametrize(
    "line",
    [
        "eval('1')",
        "os.system('ls')",
        "subprocess.run('ls', shell=True)",
        "yaml.load(text)",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "import tarfile",
        "from pickle import loads",
        "import pickle",
    ],
)
def test_the_search_for_hazards_finds_one(line):
    assert len(hazards(line)) == 1


def test_nothing_runs_text_or_reads_pickles():
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("workflow/**/*.py")]
    assert len(files) > 100
    names = {file: file.relative_to(ROOT).as_posix() for file in files}
    found = {(names[file], what) for file in files for what in hazards(file.read_text())}
    assert not found
    rules = [ROOT / "Snakefile", *ROOT.glob("workflow/rules/*.smk")]
    assert not [file for file in rules if "shell" in file.read_text()], (
        "no rule has a shell command"
    )


# ---- hostile names


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_mean_something_elsewhere_are_refused_by_their_key(name):
    for key, content in {
        "results": {"results": name},
        "campaign": {"campaign": name},
        "platform": {"platform": name},
        "workload.networks": {"workload": {"networks": [name]}},
        "evaluation.imports": {"evaluation": {"imports": [name]}},
        "partition.graphs": {"partition": {"graphs": name}},
        "simulator.real_training": {"simulator": {"real_training": name}},
        "tuning.live.policy": {"tuning": {"live": {"policy": name}}},
    }.items():
        with pytest.raises(JoulecastError, match=key.replace(".", r"\.")):
            parse_config(content)


def test_results_are_called_as_snakemake_calls_them():
    names = {"a/./b/../c/": "a/c", "../x": "../x", "/data/my runs/é": "/data/my runs/é"}
    assert {n: parse_config({"results": n}).results for n in names} == names


def test_a_configuration_can_make_no_object(tmp_path):
    (tmp_path / "c.yaml").write_text("!!python/object/apply:os.system ['touch PWNED']")
    with pytest.raises(JoulecastError, match=r"c\.yaml: is not YAML"):
        read_config(tmp_path / "c.yaml")


def test_snakemake_works_in_a_folder_of_any_name_that_is_allowed(tmp_path):
    copy_workflow(tmp_path / "clone")
    write_record(tmp_path / "r", make_record(make_spec("r")))
    pack([tmp_path / "r"], tmp_path / "kept", name="kept", configurations=[])
    lab = tmp_path / "clone/config/platforms/lab.yaml"
    lab.write_text(f"name: lab\nrecorded: {tmp_path / 'kept'}\n")
    results = "../out put,=+@é~:x/y-1"
    done = snakemake(
        *(tmp_path / "clone", "--config", "platform=lab", f"results={results}"),
        *("--", f"{results}/records"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out put,=+@é~:x/y-1/records/r/run.json").is_file()


def test_a_run_in_hostile_folders_runs_nothing_and_tells_nothing_of_its_environment(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-4711")
    monkeypatch.chdir(tmp_path)
    idle = {"kind": "idle", "calibration": Calibration(seconds=0.2)}
    spec = make_spec("idle").model_copy(update={**idle, "workload": None, "training": None})
    folder = tmp_path / "; touch PWNED $(touch PWNED) `touch PWNED` 'it's\" {x}\nnew"
    measure_run(spec, folder / "record", folder / "log", timeout_s=100)
    with pytest.raises(JoulecastError, match="exit code"):
        measure_run(spec, folder / "other", folder / "log", launcher="false 'a; touch PWNED'")
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"run.json", "log"} < {path.name for path in left}, "and a note of the failure"
    assert not [path for path in left if path.name == "PWNED"]
    assert not [path for path in left if b"canary-4711" in path.read_bytes()]
    assert not [path for path in tmp_path.rglob("*") if path.lstat().st_mode & stat.S_IWOTH]


@pytest.fixture
def campaign(tmp_path):
    write_record(tmp_path / "records/r", make_record(make_spec("r")))
    pack([tmp_path / "records/r"], tmp_path / "kept", name="kept", configurations=[])
    return tmp_path / "kept"


def repacked(campaign, folder, run):
    """The campaign with a run of this name in this folder of its archive, and the checksum that belongs to
    it."""
    packed, whole = campaign / "records.zip", campaign / "campaign.json"
    with zipfile.ZipFile(packed) as archive:
        content = {Path(name).name: archive.read(name) for name in archive.namelist()}
    info = json.loads(content["run.json"])
    info["spec"]["run"] = run
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in (content | {"run.json": json.dumps(info)}).items():
            archive.writestr(f"{folder}/{name}", data)
    said = json.loads(whole.read_text())
    said["records_sha256"] = hashlib.sha256(packed.read_bytes()).hexdigest()
    whole.write_text(json.dumps(said))


@pytest.mark.parametrize("run", ["../../evil", "/tmp/evil", "..", "a/b", "a b", "r$(touch x)"])
def test_a_campaign_cannot_write_outside_its_folder(campaign, tmp_path, run):
    before = sorted(tmp_path.rglob("*"))
    for folder in (run, "r"):
        repacked(campaign, folder, run)
        with pytest.raises(JoulecastError, match=r"records\.zip: "):
            unpack_all(campaign, tmp_path / "out/below")
        left = {path for path in tmp_path.rglob("*") if path != tmp_path / "out"}
        assert sorted(left) == before and not Path("/tmp/evil").exists()


def test_a_campaign_with_one_bit_changed_is_not_unpacked(campaign, tmp_path):
    packed = campaign / "records.zip"
    content = bytearray(packed.read_bytes())
    content[len(content) // 3] ^= 1
    packed.write_bytes(content)
    with pytest.raises(JoulecastError, match=r"records\.zip: is not what was recorded"):
        unpack_all(campaign, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_unpacked_others_may_not_write(campaign, tmp_path):
    before = os.umask(0o022)
    try:
        unpack_all(campaign, tmp_path / "out")
    finally:
        os.umask(before)
    left = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    assert len(left) == 7 and not [p for p in left if p.lstat().st_mode & stat.S_IWOTH]


def test_a_submission_names_no_folder(tmp_path):
    """Systems and benchmarks become names of records, whatever they hold."""
    log = "\n".join(
        f':::MLLOG {{"namespace": "", "time_ms": {t}, "event_type": "{e}", "key": "{k}", '
        f'"value": {v}, "metadata": {{"status": "success"}}}}'
        for t, e, k, v in (
            *((1000, "INTERVAL_START", "run_start", 1), (1500, "POINT_IN_TIME", "seed", 1)),
            (61000, "INTERVAL_END", "run_stop", 1),
        )
    )
    folder = tmp_path / "in/results/a$(touch PWNED)\n/; touch PWNED"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text(log)
    out = tmp_path / "out/below"
    assert import_mlperf(tmp_path / "in", out).runs == 1
    (record,) = [path.parent for path in tmp_path.rglob("run.json")]
    assert record.parent == out and record.name == "touch-pwned-a-touch-pwned--result_0"
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}


# ---- secrets


def test_an_address_is_told_without_its_query():
    assert without_secrets("see 'http://a:b@c/d?e#f', or g@h") == "see 'http://c/d', or g@h"


# ---- the machine lock


# ---- what we write


def test_a_spreadsheet_runs_nothing_of_a_table(tmp_path):
    texts = ["=1+1", "+x", "-x", "@x", "\tx", "\rx", "x=1", "-3.2", "", None]
    table = pd.DataFrame({"=cmd": texts, "number": [-3.2] * len(texts), "mixed": [-1.5, "=2"] * 5})
    write_csv(table, tmp_path / "t.csv")
    read = pd.read_csv(tmp_path / "t.csv", keep_default_na=False, dtype=str)
    assert list(read.columns) == ["'=cmd", "number", "mixed"]
    quoted = ["'=1+1", "'+x", "'-x", "'@x", "'\tx", "' x", "x=1", "-3.2", "", ""]
    assert list(read["'=cmd"]) == quoted
    assert set(read["number"]) == {"-3.2"} and list(read["mixed"])[:2] == ["-1.5", "'=2"]
    # Every table goes this way.
    write_table(tmp_path / "whole", "Title", [], table.drop(columns="mixed"))
    assert "'=1+1" in (tmp_path / "whole.csv").read_text()


def test_every_table_that_is_kept_is_written_in_one_place():
    writers = {
        str(file.relative_to(ROOT))
        for folder in ("src", "workflow")
        for file in (ROOT / folder).rglob("*.py")
        if ".to_csv(" in file.read_text()
    }
    assert writers == {"src/joulecast/runs/files/writing.py"}


def test_an_error_moves_no_cursor_and_is_one_line():
    app = typer.Typer(cls=Commands)

    @app.command()
    def fails() -> None:
        raise JoulecastError("a\x1b[2Jb\rc\nd\n  e\x9b")

    app.callback()(lambda: None)
    ended = CliRunner().invoke(app, ["fails"])
    assert (ended.exit_code, ended.stderr) == (2, "error: a [2Jb c d\n  e \n")
