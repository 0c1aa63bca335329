"""Every format that the project reads, the commands that read it, and what they may do with it.

A command that gets a mutated file ends in one of two ways: with exit code 0 and figures that are finite and,
where they are amounts, not negative; or with one line that names the file. It takes at most 10 s of CPU time
and 1 GiB more than before.
"""

import hashlib
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fuzz_examples as examples
from conftest import ROOT
from mutations import mutated
from typer.testing import CliRunner

from joulecast.app.campaign.check import require_campaign
from joulecast.app.campaign.config import read_config
from joulecast.app.cli.errors import shown
from joulecast.app.cli.main import app
from joulecast.errors import JoulecastError
from joulecast.logs.csv_map import map_of
from joulecast.logs.import_log import RunFacts, import_log, read_runs
from joulecast.logs.log import LogOptions
from joulecast.logs.log_times import Clock, zone_named
from joulecast.measure.observer.job_record import assemble_killed
from joulecast.report.tables.published import PublishedErrors, PublishedTuning
from joulecast.runs.observations import observe
from joulecast.runs.record import read_record
from joulecast.tune.history import read_history_file

CPU_S = 10
MORE_BYTES = 1 << 30
PLATFORM = "hc1"
# Amounts have their unit at the end of their names.
_AMOUNT = re.compile(r"(_|^)(j|w|s|us|bytes|samples|epochs|bottleneck|work|devices|joules)$")
_SIGNED = re.compile(r"differ|saving|above|better|change|off|bias|gain|start|stop")
_NEGATIVE_TEXT = re.compile(
    r"(?<![\w.,-])-\d[\d,.]*(e[+-]?\d+)? ?(J|kJ|MJ|GJ|Wh|kWh|W|kW|s|min|h|days)\b"
)
_NO_NUMBER = re.compile(r"(?<![\w/.-])(nan|NaN|inf|Infinity|-inf)(?![\w/.-])")

Use = Sequence[str] | Callable[[Path], object]


@dataclass(frozen=True)
class Format:
    """A format, by one example.

    Attributes:
        make: writes the files of the example into a folder.
        mutated: patterns of the files that are mutated.
        uses: command lines (``{}`` is the folder), or functions of the library that get the folder.
    """

    name: str
    make: Callable[[Path], object]
    mutated: tuple[str, ...]
    uses: tuple[Use, ...]


class TooLong(BaseException):
    """A command took more than its CPU time; nothing may catch it."""


def _checked(folder: Path) -> object:
    file = folder / "mine.yaml"
    try:
        return len(require_campaign(read_config(file), project=ROOT))
    except JoulecastError as error:
        # As `config check` says it.
        raise JoulecastError(
            str(error) if str(file) in str(error) else f"{file}: {error}"
        ) from None


def _history(folder: Path) -> object:
    return len(read_history_file(folder / "h.jsonl")[1].trials)


def _simulated(*words: str, network: str = "vgg16") -> tuple[str, ...]:
    given = {"--network": network, "--platform": PLATFORM, "--strategy": "dp=2"}
    named = dict(zip(words[::2], words[1::2], strict=True))
    return ("simulate", *(word for pair in (given | named).items() for word in pair), "--json")


_OF_RECORDS: tuple[tuple[str, ...], ...] = (
    ("forecast", "--records", "{}", "--nodes", "4", "--json"),
    (
        *("forecast", "--records", "{}", "--platform", "l40s", "--ran-on", "a40", "--gpus", "1"),
        *("--graph", "resnet18=resnet50", "--json"),
    ),
    ("evaluate", "--records", "{}", "--split", "in-sample", "--json"),
    ("advise", "--records", "{}", "--network", "resnet18", "--deadline", "1h", "--json"),
)


_PERUN = "import perun {}/log.hdf5 {}/out --timezone UTC --epochs 1 --network net --platform box"
_MEGATRON = (
    "import megatron {}/train.log {}/out --timezone UTC --nodes 2 --accelerators 8 --network net "
    "--platform box"
)
_PLAN = "plan --network vgg16 --platform {}/mine.yaml --devices 1 --samples 1000 --precision fp32 --json"


def _with(commands: Sequence[Sequence[str]], below: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(word.replace("{}", f"{{}}/{below}") for word in words) for words in commands)


def _partitioned(name: str, *words: str) -> tuple[str, ...]:
    return ("partition", f"{{}}/{name}", *words)


def _logs(folder: Path) -> object:
    """Each log of another tool as a record; a run that cannot be believed is one, too."""
    clock, net = Clock(zone_named("UTC")), RunFacts(network="net", platform="box")
    runs = []
    for kind, name in examples.LOGS.items():
        mapped = map_of("time=t,watts=w,node=node") if kind == "csv" else {}
        rows = read_runs(folder / "runs.csv", clock) if kind == "csv" else []
        out = folder / "out" / kind
        try:
            import_log(kind, folder / name, out, LogOptions(clock, mapped=mapped), net, rows)
        except JoulecastError as error:
            if "no run is left for fits" not in str(error):
                raise
        runs += [observe(read_record(each)).get("energy_j", 0.0) for each in out.iterdir()]
    return [joules for joules in runs if joules == joules]


def _assembled(folder: Path) -> object:
    """What a killed measurement left as a record; all of it stays in its folder."""
    with TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        shutil.copytree(folder / "out", out)
        # Of another host's, it is known after two minutes of silence.
        for line in assemble_killed(out):
            if "no record" in line:
                raise JoulecastError(line.replace(scratch, str(folder)))
        assert [each.name for each in Path(scratch).iterdir()] == ["out"], "it leads out"
        rows = [observe(read_record(each)) for each in out.glob("mine-*")]
    # A record without stages or meters has no figures of them.
    return [{name: value for name, value in row.items() if value == value} for row in rows]


FORMATS = {
    each.name: each
    for each in (
        Format(
            "run record",
            examples.records,
            ("records/*/run.json", "records/*/*.parquet"),
            (*_with(_OF_RECORDS, "records"),),
        ),
        Format(
            "recorded campaign",
            examples.recorded,
            ("mine/campaign.json", "mine/records.zip"),
            (*_with(_OF_RECORDS, "mine"),),
        ),
        Format(
            "tuning history",
            examples.history,
            ("h.jsonl",),
            (_history,),
        ),
        Format(
            "task graph",
            examples.task_graph,
            ("graph.json",),
            (
                _partitioned("graph.json", "--devices", "3", "--json"),
                (
                    "partition",
                    "{}/graph.json",
                    "--devices",
                    "2",
                    "--cost",
                    "sum",
                    "--bandwidth",
                    "1e9",
                ),
                (
                    "partition",
                    "{}/graph.json",
                    "--devices",
                    "3",
                    "--replicate",
                    "--bandwidth",
                    "1e9",
                    "--json",
                ),
                _partitioned("graph.json", "--devices", "2", "--memory", "1e12", "--explain"),
            ),
        ),
        Format(
            "PipeDream profile",
            examples.pipedream,
            ("graph.txt",),
            (
                _partitioned("graph.txt", "--devices", "2", "--json"),
                (
                    "partition",
                    "{}/graph.txt",
                    "--devices",
                    "2",
                    "--cost",
                    "max",
                    "--bandwidth",
                    "1e9",
                    "--mode",
                    "compat",
                ),
            ),
        ),
        Format(
            "op graph",
            examples.copied(examples.TRAINING / "graph-vgg16.json", "graph.json"),
            ("graph.json",),
            (
                _simulated(network="{}/graph.json"),
                _simulated("--strategy", "tp=2,pp=2,micro=4", network="{}/graph.json"),
                _simulated("--mode", "proteus", network="{}/graph.json"),
            ),
        ),
        Format(
            "op database",
            examples.copied(examples.TRAINING / "database-vit_s-1-0.json", "database.json"),
            ("database.json",),
            (
                _simulated(
                    "--database",
                    "{}/database.json",
                    network=str(examples.TRAINING / "graph-vit_s.json"),
                ),
            ),
        ),
        Format(
            "network calibration",
            examples.calibration,
            ("calibration.json",),
            (_simulated("--calibration", "{}/calibration.json"),),
        ),
        Format(
            "platform",
            examples.copied(ROOT / "config/platforms/hc1.yaml", "mine.yaml"),
            ("mine.yaml",),
            (
                _simulated("--platform", "{}/mine.yaml"),
                _simulated("--platform", "{}/mine.yaml", "--mode", "proteus"),
                ("meters", "--platform", "{}/mine.yaml"),
                tuple(_PLAN.split()),
            ),
        ),
        Format(
            "strategy",
            examples.strategy,
            ("strategy.yaml",),
            (_simulated("--strategy", "{}/strategy.yaml"),),
        ),
        Format("configuration", examples.configuration, ("mine.yaml",), (_checked,)),
        Format(
            "MLPerf submission",
            examples.submission,
            ("in/**/*.txt", "in/**/*.json"),
            (("import", "mlperf", "{}/in", "{}/out"),),
        ),
        Format(
            "MLPerf tables",
            examples.tables,
            ("in/*.csv",),
            (("import", "mlperf", "{}/in", "{}/out"),),
        ),
        Format(
            "packed MLPerf tables",
            examples.packed_tables,
            ("in/*.csv.gz",),
            (("import", "mlperf", "{}/in", "{}/out"),),
        ),
        Format(
            "logs of other tools",
            examples.logs,
            (*examples.LOGS.values(), "runs.csv"),
            (_logs,),
        ),
        Format(
            "logs of nccl-tests",
            examples.nccl_tests,
            ("log/*.log",),
            (("import", "nccl-tests", "{}/log", "{}/ours.yaml"),),
        ),
        Format(
            "training log",
            examples.training_log,
            ("train.log",),
            (
                ("import", "training-log", "{}/train.log", "{}/runs.csv"),
                tuple(_MEGATRON.split()),
            ),
        ),
        Format(
            "event file",
            examples.copied(examples.MADE / "tfevents-2.21.0", "tfevents"),
            ("tfevents",),
            (("import", "training-log", "{}/tfevents", "{}/runs.csv"),),
        ),
        Format(
            "offline run of W&B",
            examples.copied(examples.MADE / "wandb-0.31.0.wandb", "run.wandb"),
            ("run.wandb",),
            (("import", "training-log", "{}/run.wandb", "{}/runs.csv"),),
        ),
        Format(
            "HDF5 of perun",
            examples.copied(examples.MADE / "perun-1.0.0.hdf5", "log.hdf5"),
            ("log.hdf5",),
            (tuple(_PERUN.split()),),
        ),
        Format(
            "forecast",
            examples.forecast,
            ("forecast.json",),
            (("export", "openmetrics", "{}/forecast.json"),),
        ),
        Format(
            "killed measurement",
            examples.killed_measurement,
            (
                "out/.job-*/*.json",
                "out/.job-*/*.facts",
                "out/.job-*/*.samples",
                "out/.job-*/marks-0/*",
            ),
            (_assembled,),
        ),
        Format(
            "Zeus traces",
            examples.traces,
            ("*.csv",),
            tuple(
                tuple(
                    f"tune --traces {{}} --workload cifar100 --gpu v100 --policy {policy} --recurrences 5 "
                    "--seeds 2 --json".split()
                )
                for policy in ("curve", "zeus", "default")
            ),
        ),
        Format(
            "published numbers",
            examples.copied(ROOT / "config/published/mc2.yaml", "mc2.yaml"),
            ("mc2.yaml",),
            (lambda folder: PublishedErrors.read(folder / "mc2.yaml").model_dump(),),
        ),
        Format(
            "published tuning",
            examples.copied(ROOT / "config/published/zeus.yaml", "zeus.yaml"),
            ("zeus.yaml",),
            (lambda folder: PublishedTuning.read(folder / "zeus.yaml").model_dump(),),
        ),
    )
}


@contextmanager
def limited_cpu() -> Iterator[None]:
    """Raise :class:`TooLong` in a block that takes more than :data:`CPU_S` of CPU time."""

    def stop(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _is_amount(key: str) -> bool:
    return bool(_AMOUNT.search(key)) and not _SIGNED.search(key)


def _wrong_numbers(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _wrong_numbers(inner, str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _wrong_numbers(inner, key)
    elif (isinstance(value, float) and not math.isfinite(value)) or (
        isinstance(value, int | float)
        and value < 0
        and _AMOUNT.search(key)
        and not _SIGNED.search(key)
    ):
        yield f"{key} is {value}"


def _wrong_output(said: str, given: bytes) -> str | None:
    """What is wrong with an output; a name or reason of ``given`` that looks like a number is not."""
    try:
        wrong = next(_wrong_numbers(json.loads(said)), None)
    except ValueError:
        # What an import says of each run is indented, and may show what it did not believe.
        said = "\n".join(line for line in said.splitlines() if not line.startswith("  left out:"))
        texts = [each for each in _NO_NUMBER.finditer(said) if f'"{each[0]}"'.encode() not in given]
        found = _NEGATIVE_TEXT.search(said) or next(iter(texts), None)
        wrong = (
            found
            and f"says {found[0]!r} in {said[max(0, found.start() - 60) : found.end() + 20]!r}"
        )
    return wrong


def _wrong_error(said: str, names: Sequence[str]) -> str | None:
    """What is wrong with an error: more than a line, or the file is not named."""
    lines = said.strip().splitlines() or [""]
    if any(not line.startswith("  ") for line in lines[1:]):
        return f"{len(lines)} lines: {said.strip()[:400]!r}"
    if not any(name in lines[0] for name in names):
        return f"does not name the file: {lines[0][:400]!r}"
    return None


def _where(error: BaseException) -> str:
    """The place of ours that an exception comes from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "joulecast" in f.filename]
    last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}: {type(error).__name__}: {str(error)[:150]}"


@dataclass(frozen=True)
class Ended:
    """How a command ended: whether it read the files, and what it did wrong, if anything."""

    read: bool
    wrong: str | None


def used(use: Use, folder: Path, target: Path) -> Ended:
    """Give an example's files, of which one may be mutated, to a command."""
    names = (str(folder), target.name)
    given = target.read_bytes() if target.is_file() else b""
    read = False
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wrong: str | None
    try:
        with limited_cpu(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if callable(use):
                wrong = next(_wrong_numbers(use(folder)), None)
                read = True
            else:
                words = [word.replace("{}", str(folder)) for word in use]
                done = CliRunner().invoke(app, words)
                read = done.exit_code == 0
                if read:
                    wrong = _wrong_output(done.stdout, given)
                elif done.exit_code == 2:
                    wrong = _wrong_error(done.stderr, names)
                else:
                    wrong = (
                        f"traceback: {_where(done.exception)}" if done.exception else "exit code 1"
                    )
    except JoulecastError as error:
        wrong = _wrong_error(shown(error), names)
    except TooLong as error:
        wrong = f"more than {CPU_S} s: {_where(error)}"
    except Exception as error:
        wrong = f"traceback: {_where(error)}"
    more = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    too_much = f"{more / 1e9:.1f} GB of memory" if more > MORE_BYTES else None
    return Ended(read, wrong or too_much)


def _signed_again(folder: Path, old: bytes, new: bytes) -> None:
    """Bring checksums up to date, so that it is not always they that notice."""
    sums = [hashlib.sha256(content).hexdigest() for content in (old, new)]
    for file in folder.glob("*.json"):
        text = file.read_text(errors="surrogateescape")
        if sums[0] in text:
            text = text.replace(*sums).replace(f'"bytes": {len(old)}', f'"bytes": {len(new)}')
            file.write_text(text, errors="surrogateescape")


def tried(
    which: Format, pristine: Path, folder: Path, rng: random.Random
) -> tuple[str, str | None]:
    """One mutation of one file of a format, given to one command.

    Args:
        pristine: folder in which the format's example was made.
        folder: for the mutated copy; replaced.

    Returns:
        What was mutated and which command got it; what it did wrong.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(pristine, folder)
    patterns = [sorted(folder.glob(pattern)) for pattern in which.mutated]
    target = rng.choice(rng.choice([files for files in patterns if files]))
    old = target.read_bytes()
    new = mutated(old, target.suffix, rng)
    target.write_bytes(new)
    if rng.random() < 0.7:
        _signed_again(target.parent, old, new)
    use = rng.choice(tuple(which.uses))
    shown = use.__name__ if callable(use) else " ".join(use)
    here = Path.cwd()
    try:
        os.chdir(folder)
        wrong = used(use, folder, target).wrong
    finally:
        os.chdir(here)
    return f"{target.relative_to(folder)}; {shown}", wrong
