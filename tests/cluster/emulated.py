"""A real SLURM of four nodes on this machine: started for the tests, and nothing else is stopped.

Debian's build runs several slurmd on one host, so that jobs have nodes, steps and limits as on a cluster.
The clients look for their configuration in one place only, which is why this needs root.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from debian import why_not_installed

from joulecast.measure.training.machine import LOCK_FILE

NODES = ("n1", "n2", "n3", "n4")
_ETC = Path("/etc/slurm")
_MARK = "# written by joulecast's tests/cluster; removed when they end\n"
_PACKAGES = ("slurm-wlm", "munge")
_PORT = 16817
_PROGRAMS = ("slurmctld", "slurmd", "munged", "mungekey")


def why_not() -> str | None:
    """Why there can be no SLURM here; ``None`` after everything that it needs is installed."""
    if os.geteuid() != 0:
        return (
            "an emulated SLURM needs root (it installs slurm-wlm and munge, and runs their daemons)"
        )
    ours = _ETC / "slurm.conf"
    if ours.exists() and not ours.read_text().startswith(_MARK):
        return f"{ours} is there already: this machine belongs to a cluster"
    if _answers_already():
        return f"something listens on port {_PORT} already"
    return why_not_installed(_PROGRAMS, _PACKAGES)


def _answers_already() -> bool:
    """Whether somebody runs a controller here that is not ours."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", _PORT)) == 0


def _config(folder: Path, cpus: int) -> str:
    host = socket.gethostname().split(".")[0]
    return f"""{_MARK}ClusterName=joulecast
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={_PORT}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
MpiDefault=pmi2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0
ReturnToService=2
MinJobAge=3600
KillWait=10
SlurmdTimeout=30
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=DEFAULT CPUs={cpus} RealMemory=4000 State=UNKNOWN
NodeName=n[1-4] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17001-17004]
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _asked(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout


class EmulatedSlurm:
    """Four nodes, of as many CPUs each as this machine has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started_munge = False

    def start(self) -> None:
        """Start the daemons and wait for idle nodes."""
        for name in ("state", "run", "log", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        _ETC.mkdir(exist_ok=True)
        (_ETC / "slurm.conf").write_text(_config(self.folder, os.cpu_count() or 1))
        (_ETC / "cgroup.conf").write_text(f"{_MARK}CgroupPlugin=cgroup/v1\n")
        self._start_munge()
        subprocess.run(["slurmctld", "-c"], check=True, capture_output=True)
        # Other tests measure on this machine meanwhile: the nodes have a machine's lock of their own.
        lock = self.folder / "lock"
        lock.touch(0o444)
        LOCK_FILE.touch(0o444)
        for node in NODES:
            start = f"mount --bind {lock} {LOCK_FILE} && exec slurmd -N {node}"
            in_namespace = ["unshare", "--mount", "sh", "-c", start]
            subprocess.run(in_namespace, check=True, capture_output=True)
        self.wait_until(lambda: self.states() == dict.fromkeys(NODES, "idle"))

    def _start_munge(self) -> None:
        if subprocess.run(["munge", "-n"], capture_output=True).returncode == 0:
            return
        if not Path("/etc/munge/munge.key").exists():
            subprocess.run(["mungekey"], check=True)
            shutil.chown("/etc/munge/munge.key", "munge")
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge")
        subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "/usr/sbin/munged"], check=True)
        self._started_munge = True

    def _pid_files(self) -> list[Path]:
        return sorted((self.folder / "run").glob("*.pid"))

    def _end(self, pid_file: Path, how: int = signal.SIGTERM) -> None:
        pid = int(pid_file.read_text())
        with suppress(ProcessLookupError):
            os.kill(pid, how)
        deadline = time.monotonic() + 15
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    def stop(self) -> None:
        """End what :meth:`start` started, jobs first, and take its configuration away."""
        _asked("scancel", "--state=RUNNING,PENDING,SUSPENDED", "-u", "root")
        time.sleep(0.5)
        for pid_file in self._pid_files():
            self._end(pid_file, signal.SIGKILL)  # nothing of it is kept
        if self._started_munge:
            subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "/usr/sbin/munged --stop"])
        for name in ("slurm.conf", "cgroup.conf"):
            (_ETC / name).unlink(missing_ok=True)

    def restart_controller(self) -> None:
        """Kill the controller, as a crash would, and start it from its saved state."""
        self._end(self.folder / "run/slurmctld.pid", signal.SIGKILL)
        time.sleep(2)
        subprocess.run(["slurmctld"], check=True, capture_output=True)
        self.wait_until(lambda: "UP" in _asked("scontrol", "ping"))

    def states(self) -> dict[str, str]:
        """State of every node, as sinfo gives it."""
        lines = _asked("sinfo", "-h", "-N", "-o", "%N %t").split("\n")
        return dict(line.split() for line in lines if line)

    def set_node(self, node: str, state: str) -> None:
        """Set a node down, or bring it back (``resume``)."""
        change = ["scontrol", "update", f"nodename={node}", f"state={state}", "reason=test"]
        # A node that is up cannot be resumed, and need not be.
        subprocess.run(change, check=state != "resume", capture_output=True)

    def nodes_of(self, job: str) -> list[str]:
        """The nodes of a job."""
        hosts = _asked("squeue", "-h", "-t", "all", "-j", job, "-o", "%N").strip()
        return _asked("scontrol", "show", "hostnames", hosts).split()

    def job_called(self, run: str) -> str:
        """The newest job of a run, by the comment that Snakemake gives it."""
        lines = _asked("squeue", "-h", "-t", "all", "-o", "%A %k").splitlines()
        jobs = [line.split()[0] for line in lines if line.endswith(f"_{run}")]
        return max(jobs, key=int)

    def end_at_once(self, job: str) -> None:
        """Let a job run into its time limit now."""
        change = ["scontrol", "update", f"jobid={job}", "EndTime=now"]
        subprocess.run(change, check=True, capture_output=True)

    @staticmethod
    def wait_until(condition, seconds: float = 60.0) -> None:
        """Wait for something that the cluster does by itself."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the cluster did not get there"
            time.sleep(0.2)
