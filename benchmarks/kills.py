"""Kills at random moments of replays, imports, recordings and campaigns, and what they cost: nothing.

Each trial starts one of them, kills it by SIGKILL, starts it again until it ends well, and compares:

* ``replay``, ``import``: a process that unpacks a recorded campaign or imports submissions, into a new folder
  or over a finished one, is killed at a random moment. The folder is absent or whole right after the kill,
  and in the end as without a kill, byte for byte.
* ``record``: calibrations are measured and packed; the victim is the starter, the launcher, its proxy, a
  rank, or the sampler. Runs that were finished at the kill are the same files afterwards.
* ``campaign``: the same under Snakemake, which is a victim too, with its jobs.

``survived`` counts trials in which nothing was lost, changed, repeated or half-written and no process of a
run was left; ``whole at once`` those in which the result was there already when the kill came. Exits with 1
if one did not survive, and prints what was found.
"""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from _campaign import ROOT
from _output import parser, show

sys.path.insert(0, str(ROOT / "tests"))
from conftest import copy_workflow, make_record, make_spec
from mlperf_fixtures import write_run

from joulecast.errors import JoulecastError
from joulecast.records.folders import record_folders
from joulecast.records.record import read_record, write_record
from joulecast.records.recorded import pack

_MOST_STARTS = 6
_PATIENCE_S = 240.0
_RUNS = ("idle-n1", "allreduce-n2", "sleeping_rank-n2")
_CALIBRATION = "{idle_s: 0.5, sleeping_rank_s: 1, allreduce_bytes: [1024], allreduce_repeats: 2}"
_QUIET = "{wait_s: 0, repeats: 0}"
_SNAKEMAKE = ["snakemake", "--cores", "all", "--configfile", "config/minimal.yaml"]
_BEGIN = "begin"
_REPLAY = f"""
import sys
from pathlib import Path
from joulecast.records.recorded import unpack_all
print({_BEGIN!r}, flush=True)
unpack_all(Path(sys.argv[1]), Path(sys.argv[2]))
"""
_IMPORT = f"""
import sys
from pathlib import Path
from joulecast.importers.mlperf import import_mlperf
print({_BEGIN!r}, flush=True)
import_mlperf(Path(sys.argv[1]), Path(sys.argv[2]))
"""
# Runs that load no torch, and so take seconds.
_RECORD = f"""
import sys
from pathlib import Path
from joulecast.campaign.config import parse_config
from joulecast.errors import JoulecastError
from joulecast.training import recorder
every = recorder.planned_runs
recorder.planned_runs = lambda *asked: [r for r in every(*asked) if r.spec.kind != "training"]
config = parse_config({{
    "platform": "this-machine", "emulation": None, "scale": {{"nodes": [1, 2]}},
    "calibration": {{"idle_s": 0.5, "sleeping_rank_s": 1, "allreduce_bytes": [1024], "allreduce_repeats": 2}},
    "quiet": {{"wait_s": 0, "repeats": 0}},
}})
print({_BEGIN!r}, flush=True)
try:
    recorder.record_campaign(
        [config], Path(sys.argv[1]), Path(sys.argv[2]) / "kept", work=Path(sys.argv[2])
    )
except JoulecastError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


class Lost(Exception):
    """A finished result that was changed, repeated, lost, or half-written."""


@dataclass
class Tally:
    """What happened to the trials of one kind."""

    kills: int = 0
    survived: int = 0
    whole_at_once: int = 0
    victims: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    faults: list[str] = field(default_factory=list)


def contents(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in a folder by its path; hidden ones are no result."""
    files = (path for path in folder.rglob("*") if path.is_file())
    shown = {path.relative_to(folder): path for path in files}
    return {
        name.as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in shown.items()
        if not any(part.startswith(".") for part in name.parts)
    }


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise Lost(fault)


class OneProcess:
    """A replay or an import: one process that fills a folder."""

    def __init__(self, name: str, program: str, source: Path, work: Path) -> None:
        self.name, self._work = name, work
        self._command = [sys.executable, "-c", program, str(source)]
        process, begin = self._start(work / "reference"), time.monotonic()
        self._finished(process)
        self._lasts_s = time.monotonic() - begin
        self._whole = contents(work / "reference")

    def _start(self, out: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen([*self._command, str(out)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline().strip() == _BEGIN
        return process

    def _finished(self, process: subprocess.Popen[str]) -> None:
        _require(process.wait(_PATIENCE_S) == 0, "started again it does not end well")

    def trial(self, chance: random.Random, tally: Tally) -> None:
        """Kill it once and start it again."""
        out = self._work / "out"
        shutil.rmtree(out, ignore_errors=True)
        over = chance.random() < 0.5
        if over:
            shutil.copytree(self._work / "reference", out)
        process = self._start(out)
        time.sleep(chance.uniform(0, self._lasts_s))
        process.kill()
        code = process.wait()
        tally.victims["over a finished one" if over else "new folder"] += 1
        tally.whole_at_once += out.exists()
        _require(not over or out.exists(), "the finished folder is gone")
        _require(not out.exists() or contents(out) == self._whole, f"not whole after kill ({code})")
        tally.starts += 1
        self._finished(self._start(out))
        _require(contents(out) == self._whole, "another result than without a kill")


def _role(process: psutil.Process) -> str | None:
    """What a process is to a campaign; ``None`` for what is not worth a kill."""
    words = process.cmdline()
    if "-c" in words[:2] and _BEGIN in words[2]:
        return "starter"
    for role, word in (
        ("sampler", "joulecast.power.sampler"),
        ("proxy", "hydra_pmi_proxy"),
        ("launcher", "mpiexec"),
        ("rank", "joulecast.training"),
        ("job", "measure.py"),
        ("Snakemake", "snakemake"),
    ):
        if any(word in each for each in words[:4]) or (role == "job" and word in " ".join(words)):
            return role
    return None


def _family(pid: int) -> list[tuple[str, psutil.Process]]:
    """A process and all below it, with what each is."""
    found = []
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                if (role := _role(process)) is not None:
                    found.append((role, process))
    return found


class Measuring:
    """A recording, or a campaign under Snakemake: many processes that leave a record for each run."""

    def __init__(self, name: str, work: Path, command: list[str], results: str) -> None:
        self.name, self._work, self._command, self._results = name, work, command, results

    def _fresh(self, number: int) -> Path:
        folder = self._work / str(number)
        folder.mkdir()
        if self.name == "campaign":
            copy_workflow(folder)
        return folder

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        if self.name == "campaign":
            subprocess.run([*_SNAKEMAKE, "--unlock"], cwd=folder, capture_output=True, check=True)
        with open(folder / "said", "ab") as said:
            words = [word.replace("FOLDER", str(folder)) for word in self._command]
            return subprocess.Popen(
                words, cwd=folder, stdout=said, stderr=said, start_new_session=True
            )

    def _records(self, folder: Path) -> dict[str, tuple[int, dict[str, str]]]:
        """Finished records: when each was written, and what is in it."""
        place = folder / self._results
        return {
            path.parent.name: (path.stat().st_mtime_ns, contents(path.parent))
            for path in place.glob("[!.]*/run.json")
        }

    def trial(self, chance: random.Random, tally: Tally) -> None:
        """Kill one of its processes, or all, and start it again until it ends well."""
        folder = self._fresh(tally.kills)
        process = self._start(folder)
        lasts_s = 16.0 if self.name == "campaign" else 9.0
        time.sleep(chance.uniform(0.3, lasts_s))
        family = _family(process.pid)
        whole = process.poll() is not None
        tally.whole_at_once += whole
        if not whole and family:
            roles = sorted({role for role, _ in family})
            chosen = chance.choice([*roles, "all of them"])
            tally.victims[chosen] += 1
            victims = [p for role, p in family if chosen in (role, "all of them")]
            if chosen != "all of them":
                victims = [chance.choice(victims)]
            for victim in victims:
                with suppress(psutil.Error):
                    victim.send_signal(signal.SIGKILL)
        before = self._records(folder)
        for name in before:
            self._read(folder, name)
        # What was not killed ends by itself: a failed run leaves the others to be measured.
        code = process.wait(_PATIENCE_S)
        for _ in range(_MOST_STARTS):
            if code == 0:
                break
            tally.starts += 1
            code = self._start(folder).wait(_PATIENCE_S)
        _require(code == 0, f"does not end well, see {folder}/said")
        after = self._records(folder)
        _require(set(after) == set(_RUNS), f"records {sorted(after)} in {folder}")
        for name, record in before.items():
            _require(after[name] == record, f"{name} was finished, and is another one in {folder}")
            self._read(folder, name)
        if self.name == "record":
            _require((folder / "kept/campaign.json").is_file(), f"nothing was packed in {folder}")
        left = [p for p in psutil.process_iter() if self._is_of(p, folder)]
        _require(not left, f"processes are left: {left}")
        shutil.rmtree(folder)

    def _read(self, folder: Path, name: str) -> None:
        try:
            read_record(folder / self._results / name)
        except JoulecastError as error:
            raise Lost(f"half-written: {error}") from None

    @staticmethod
    def _is_of(process: psutil.Process, folder: Path) -> bool:
        with suppress(psutil.Error):
            return process.environ().get("JOULECAST_RUN", "").startswith(str(folder))
        return False


def _recorded(folder: Path) -> Path:
    for number in range(40):
        spec = make_spec(f"r{number}")
        write_record(folder / "measured" / spec.run, make_record(spec))
    pack(record_folders(folder / "measured"), folder / "packed", name="packed", configurations=[])
    return folder / "packed"


def _submissions(folder: Path) -> Path:
    for nodes in (1, 2):
        for run in range(6):
            write_run(
                folder / "in",
                f"result_{run}",
                system=f"{nodes}xACME",
                nodes=nodes,
                seed=10 * nodes + run,
            )
    return folder / "in"


def _kind(name: str, work: Path) -> OneProcess | Measuring:
    work.mkdir()
    if name == "replay":
        return OneProcess(name, _REPLAY, _recorded(work), work)
    if name == "import":
        return OneProcess(name, _IMPORT, _submissions(work), work)
    if name == "record":
        platforms = str(ROOT / "config/platforms")
        return Measuring(
            name, work, [sys.executable, "-c", _RECORD, platforms, "FOLDER"], "records"
        )
    snakemake = [*_SNAKEMAKE, "--config", f"calibration={_CALIBRATION}", f"quiet={_QUIET}"]
    snakemake += ["--", *(f"results/minimal/records/{run}" for run in _RUNS)]
    return Measuring(name, work, snakemake, "results/minimal/records")


def run_trials(name: str, kills: int, seed: int, work: Path, tell: Callable[[str], None]) -> Tally:
    """So many kills of one kind."""
    kind, tally, chance = _kind(name, work / name), Tally(), random.Random(f"{name} {seed}")
    for number in range(kills):
        try:
            kind.trial(chance, tally)
            tally.survived += 1
        except (Lost, subprocess.TimeoutExpired) as fault:
            tally.faults.append(f"{name}, kill {number} of seed {seed}: {fault}")
            tell(tally.faults[-1])
        tally.kills += 1
    return tally


def main() -> None:
    asked = parser(__doc__)
    for name, kills in (("replay", 40), ("import", 25), ("record", 20), ("campaign", 15)):
        asked.add_argument(f"--{name}", type=int, default=kills, help="kills of this kind")
    asked.add_argument("--seed", type=int, default=int(time.time()))
    options = asked.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows, faults = [], []
    work = Path(tempfile.mkdtemp(prefix="joulecast-kills-"))
    for name in ("replay", "import", "record", "campaign"):
        kills = getattr(options, name)
        if not kills:
            continue
        begin = time.monotonic()
        tally = run_trials(name, kills, options.seed, work, lambda line: print(line, flush=True))
        faults += tally.faults
        rows.append(
            {
                "kind": name,
                "kills": tally.kills,
                "survived": tally.survived,
                "whole at once": tally.whole_at_once,
                "started again": tally.starts,
                "killed": ", ".join(f"{v} {n}" for v, n in sorted(tally.victims.items())),
                "seconds": time.monotonic() - begin,
            }
        )
    show(rows, options)
    if faults:
        sys.exit(1)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
