"""A campaign of ten thousand runs: what its job graph, its fits and its tables cost as runs are added.

Every row is one step of the workflow on a synthetic campaign (``_campaign.py``) in a process of its own, so
that the memory shown is its own: ``graph, measured`` (a job a run) and ``graph, replayed`` (one job with all
records) are Snakemake's dry run, ``graph, resumed`` that of the measured campaign when all records are there;
then the recorded campaign is unpacked, its records are fitted, and tables, figures and checks are made.
``ratio_to_peer`` compares with the least that anybody would do, in the same run:

* graphs: the dry run of a Snakefile with as many jobs that have a name and nothing else;
* unpack, fit, check: reading all frames of the same records with pandas, and no more;
* tables, figures: reading the fits with pandas and writing them as CSV.

``growth`` is the exponent of the seconds in the number of runs, from the size before: 1 is linear, less where
a fixed cost (imports, the models' fits) still shows, 2 would be quadratic. The time-series models see one
trace of a setting, however often it was repeated; these runs are too short for them, and have no such part.
"""

import json
import math
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from _campaign import ROOT, configuration, specifications, write_records
from _output import parser, show

_STEPS = (
    "graph, measured",
    "graph, resumed",
    "graph, replayed",
    "unpack",
    "fit",
    "tables",
    "figures",
    "check",
)
_PEERS = {"graph": "a trivial Snakefile", "records": "pandas, reading", "fits": "pandas, CSV"}
_TRIVIAL = """
rule all:
    input: [f"out/{{k}}" for k in range({runs})]
rule one:
    output: "out/{{k}}"
    shell: "touch {{output}}"
"""


def _peer_of(step: str) -> str:
    if step.startswith("graph"):
        return _PEERS["graph"]
    return _PEERS["fits" if step in ("tables", "figures") else "records"]


def _results(folder: Path) -> Path:
    return folder / "results" / "scale"


def _records(folder: Path) -> list[Path]:
    return sorted((_results(folder) / "records").iterdir())


def prepare(folder: Path, runs: int) -> None:
    """Make a private copy of the workflow with a campaign of ``runs`` runs, measured and recorded."""
    from joulecast.runs.recorded import pack

    for name in ("workflow", "config", "profiles"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Snakefile", folder / "Snakefile")
    (folder / "recorded").symlink_to(ROOT / "recorded")
    content = configuration(runs)
    (folder / "scale.yaml").write_text(yaml.safe_dump(content))
    records = write_records(runs, folder / "measured")
    pack(
        records,
        folder / "campaign",
        name="scale",
        configurations=[content],
        max_bytes=2_000_000_000,
    )
    platform = {"name": "scale", "recorded": str(folder / "campaign")}
    (folder / "config/platforms/scale.yaml").write_text(yaml.safe_dump(platform))
    replay = {key: content[key] for key in ("campaign", "results", "evaluation")}
    replay |= {key: content[key] for key in ("simulator", "partition")}
    (folder / "replay.yaml").write_text(yaml.safe_dump(replay | {"platform": "scale"}))
    trivial = folder / "trivial"
    trivial.mkdir()
    (trivial / "Snakefile").write_text(_TRIVIAL.format(runs=len(records)))


def _dry_run(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "--cores", "all"]
    done = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])


def _graph_resumed(folder: Path) -> None:
    records = _results(folder) / "records"
    records.parent.mkdir(parents=True, exist_ok=True)
    (folder / "measured").rename(records)
    try:
        _dry_run(folder, "--configfile", "scale.yaml")
    finally:
        records.rename(folder / "measured")


def _unpack(folder: Path) -> None:
    from joulecast.runs.recorded import unpack_all

    unpack_all(folder / "campaign", _results(folder) / "records")


def _fit(folder: Path) -> None:
    from joulecast.energy.campaign_fit import fit_campaign

    options = configuration(1)["evaluation"] | {"series_period_s": 0.1}
    fit_campaign(_records(folder), **options).save(_results(folder) / "fits")


def _script(name: str) -> Callable[..., None]:
    """The function of a script of the workflow."""
    sys.path.insert(0, str(ROOT / "workflow/scripts"))
    found: Callable[..., None] = __import__(name).main
    return found


def _tables(folder: Path) -> None:
    fits, published = _results(folder) / "fits", ROOT / "config/published/mc2.yaml"
    tables = _results(folder) / "tables/energy"
    tables.mkdir(parents=True, exist_ok=True)
    _script("tables")(fits, published, tables)


def _figures(folder: Path) -> None:
    results, published = _results(folder), ROOT / "config/published/mc2.yaml"
    (results / "figures").mkdir(exist_ok=True)
    record = next(r for r in _records(folder) if "-n8-" in r.name and r.name.endswith("-r1"))
    _script("figures")(
        fits=results / "fits",
        record=[record],
        traced_run=record.name,
        imported=[],
        published=published,
        folder=results / "figures",
    )


def _check(folder: Path) -> None:
    from joulecast.energy.campaign_fit import CampaignFit
    from joulecast.report.tables.checks import check_results, write_checks

    fit = CampaignFit.load(_results(folder) / "fits")
    checks = _results(folder) / "tables/checks"
    checks.mkdir(parents=True, exist_ok=True)
    write_checks(checks, check_results(_records(folder), fit))


def _read_records(folder: Path) -> None:
    for record in _records(folder):
        json.loads((record / "run.json").read_text())
        for frame in sorted(record.glob("*.parquet")):
            pd.read_parquet(frame)


def _fits_as_csv(folder: Path) -> None:
    for frame in sorted((_results(folder) / "fits").glob("*.parquet")):
        pd.read_parquet(frame).to_csv(folder / "peer.csv")


_PARTS: dict[str, Callable[[Path], None]] = {
    "graph, measured": lambda folder: _dry_run(folder, "--configfile", "scale.yaml"),
    "graph, resumed": _graph_resumed,
    "graph, replayed": lambda folder: _dry_run(folder, "--configfile", "replay.yaml"),
    "unpack": _unpack,
    "fit": _fit,
    "tables": _tables,
    "figures": _figures,
    "check": _check,
    _PEERS["graph"]: lambda folder: _dry_run(folder / "trivial"),
    _PEERS["records"]: _read_records,
    _PEERS["fits"]: _fits_as_csv,
}


def _part(what: str, folder: Path) -> None:
    started = time.perf_counter()
    _PARTS[what](folder)
    seconds = time.perf_counter() - started
    # A dry run is a process of its own.
    whose = resource.RUSAGE_CHILDREN if "graph" in what or "Snake" in what else resource.RUSAGE_SELF
    print(json.dumps({"seconds": seconds, "peak_mib": resource.getrusage(whose).ru_maxrss / 1024}))


def _in_own_process(what: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--part", what, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{what}: {done.stderr}")
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def _of_size(runs: int) -> list[dict[str, Any]]:
    """The rows of one size, without their growth."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        prepare(folder, runs)
        peers: dict[str, dict[str, float]] = {}
        rows = []
        for step in _STEPS:
            told, peer = _in_own_process(step, folder), _peer_of(step)
            if peer not in peers:
                peers[peer] = _in_own_process(peer, folder)
            rows.append(
                {"step": step, "runs": len(specifications(runs))}
                | told
                | {"peer": peer, "peer_seconds": peers[peer]["seconds"]}
                | {"ratio_to_peer": told["seconds"] / peers[peer]["seconds"]}
            )
    return rows


def main() -> None:
    """Measure every size and print what each step took, step by step."""
    arguments = parser(__doc__)
    arguments.add_argument("sizes", type=int, nargs="*", default=[100, 1_000, 10_000])
    arguments.add_argument("--part", help="internal: what this process is to do")
    arguments.add_argument("--folder", type=Path, help="internal: where the campaign is")
    given = arguments.parse_args()
    if given.part:
        _part(given.part, given.folder)
        return
    rows: list[dict[str, Any]] = []
    for runs in sorted(given.sizes):
        rows += _of_size(runs)
    rows.sort(key=lambda row: _STEPS.index(row["step"]))
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before["step"] == row["step"]:
            longer = math.log(row["seconds"] / before["seconds"])
            row["growth"] = longer / math.log(row["runs"] / before["runs"])
    show(rows, given)


if __name__ == "__main__":
    main()
