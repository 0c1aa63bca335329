"""A campaign on the emulated cluster: a private copy of the workflow, started as its user does."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from conftest import copy_workflow

from joulecast.runs.progress import RunState, run_state

PROFILE = "slurm"
# A node of the cluster for each of a run's, although the platform says that one host has them all.
ONE_NODE_EACH = 'int(wildcards.run.split("-n")[1].split("-")[0])'


class Campaign:
    """A private copy of the workflow, whose profile was adapted to the emulated cluster."""

    def __init__(self, folder: Path, *changes: str) -> None:
        self.folder = folder
        self.results = folder / "results/minimal"
        copy_workflow(folder)
        file = folder / "profiles" / PROFILE / "config.yaml"
        profile = yaml.safe_load(file.read_text())
        for asked in profile["set-resources"].values():
            if "cpus_per_task" in asked:
                asked["cpus_per_task"] = os.cpu_count()
        profile["set-resources"]["train"]["nodes"] = ONE_NODE_EACH
        profile["set-threads"]["train"] = os.cpu_count()
        profile |= {
            "slurm-init-seconds-before-status-checks": 1,
            "seconds-between-status-checks": 1,
        }
        # Submitted together; the machine lock has them measured one after the other all the same.
        profile |= {
            "latency-wait": 10,
            "max-status-checks-per-second": 1,
            "resources": ["machine=100"],
        }
        file.write_text(yaml.safe_dump(profile))
        # Other tests keep the machine busy; waiting for them would prove nothing here.
        with open(folder / "config/minimal.yaml", "a") as configuration:
            configuration.write("quiet: {wait_s: 0, repeats: 0}\n")
        self.arguments = ["--configfile", "config/minimal.yaml", *changes]
        self.environment = dict(os.environ)
        # Over UCX, MPICH hands PMI-2 addresses of several kB, padded with what lay in memory; what that was
        # sometimes makes a message too long for SLURM's PMI-2, and the ranks abort.
        self.environment["MPIR_CVAR_CH4_NETMOD"] = "ofi"

    def command(self, *targets: str) -> list[str]:
        """The command that its user types."""
        profile = ["--workflow-profile", PROFILE]
        if targets == ("--unlock",):
            return ["snakemake", *profile, *self.arguments, "--unlock"]
        return ["snakemake", *profile, *self.arguments, "--", *(targets or ("measure",))]

    def run(self, *targets: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            self.command(*targets),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=500,
        )

    def start(self, *targets: str) -> subprocess.Popen[bytes]:
        """Start it, with what it says in the file `said`."""
        with open(self.folder / "said", "ab") as said:
            return subprocess.Popen(
                self.command(*targets),
                cwd=self.folder,
                env=self.environment,
                stdout=said,
                stderr=said,
            )

    def measuring(self, run: str) -> bool:
        """Whether a run is being measured right now (and not waiting for its turn)."""
        return any(self.results.glob(f"records/.{run}-scratch-*/spec.json"))

    def state(self, run: str) -> RunState:
        """What `joulecast status` says of a run."""
        return run_state(self.results, run)

    def ranks(self) -> list[psutil.Process]:
        """The ranks that run for this campaign, on all nodes."""
        return [
            process
            for process in psutil.process_iter(["cmdline", "cwd"])
            if process.info["cwd"] == str(self.folder)
            and "joulecast.measure.training" in (words := process.info["cmdline"] or [])
            and Path(words[0]).name.startswith("python")
        ]

    def at_work(self, ranks: int) -> bool:
        """Whether so many ranks run, for long enough to have found each other."""
        now = time.time()
        return [now - rank.create_time() > 4 for rank in self.ranks()] == [True] * ranks

    def records(self) -> dict[str, int]:
        """The runs that are measured, with the time of their records."""
        return {
            path.parent.name: path.stat().st_mtime_ns
            for path in self.results.glob("records/[!.]*/run.json")
        }

    def info(self, run: str) -> dict:
        """``run.json`` of a run."""
        return json.loads((self.results / "records" / run / "run.json").read_text())
