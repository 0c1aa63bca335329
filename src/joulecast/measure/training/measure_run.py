"""One run, from its specification to its record.

:func:`measure_run` takes all steps in their order. :class:`RunLaunch` makes the command that starts the
ranks. A host measures one run at a time (:mod:`joulecast.measure.training.machine`). If a record already
answers the specification, the run is not measured again.
"""

import json
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from joulecast.errors import JoulecastError
from joulecast.measure.power.other_load import Load
from joulecast.measure.training.machine import LONGEST_WAIT_S, machine_lock, wait_for_quiet
from joulecast.measure.training.ranks import (
    NotFinished,
    ended_by_signals,
    opened_log,
    rank_environment,
    run_ranks,
)
from joulecast.runs.files.writing import directory_written_aside
from joulecast.runs.folders import answers
from joulecast.runs.record import RunInfo, read_info
from joulecast.runs.spec import RunSpec

_SRUN = ("--cpu-bind=none", "--kill-on-bad-exit=1")


@dataclass(frozen=True)
class RunLaunch:
    """A launch of a run's ranks, with its launcher and time limit.

    Attributes:
        launcher: ``mpiexec``, ``srun --mpi=pmi2``, ...; ``None`` starts a single rank without a launcher.
        nodes: number of the scheduler's nodes for the ranks. ``None``: one for each host.
        python: command that starts the ranks' Python, such as ``apptainer exec joulecast.sif python``.
            ``None``: this interpreter.
        timeout_s: longest time of the run. After it, the run is ended.
    """

    spec: RunSpec
    launcher: str | None = "mpiexec"
    nodes: int | None = None
    python: str | None = None
    timeout_s: float = 3600.0

    def command(self, spec_file: Path, out: Path, load: Load) -> list[str]:
        """The list of arguments that starts the run. It does not go through a shell.

        Raises:
            JoulecastError: the launcher is not installed, or there are several ranks and no launcher.
        """
        spec = self.spec
        python = self._words(self.python, "rank_python") if self.python else [sys.executable]
        files = ["--spec", str(spec_file), "--out", str(out)]
        program = [*python, "-m", "joulecast.measure.training", *files]
        if spec.observed is not None:
            return [*self._one_a_host(), *program]
        program += ["--load", json.dumps(asdict(load))]
        if self.launcher is None:
            if spec.ranks > 1:
                raise JoulecastError(f"run {spec.run}: {spec.ranks} ranks need an MPI launcher")
            return program
        words = self._words(self.launcher, "launcher")
        if Path(words[0]).name == "srun":
            # By default srun fills the first node before it gives the others more than one rank, binds a
            # rank and its sampler to one core, and lets ranks wait for one that was killed.
            words += [f"--ntasks-per-node={-(-spec.ranks // (self.nodes or spec.hosts))}", *_SRUN]
        return [*words, "-n", str(spec.ranks), *program]

    def _one_a_host(self) -> list[str]:
        """The command that starts an observer of the user's command on each host of the run; empty on
        one host."""
        if self.spec.hosts == 1:
            return []
        words = self._words(self.launcher or "srun", "launcher")
        if Path(words[0]).name != "srun":
            raise JoulecastError(
                f"run {self.spec.run}: a command on {self.spec.hosts} hosts is started by srun, not by "
                f"`{words[0]}`; use the SLURM profile"
            )
        return [*words, "--ntasks-per-node=1", *_SRUN, "-n", str(self.spec.hosts)]

    def _words(self, command: str, resource: str) -> list[str]:
        words = shlex.split(command)
        if not words or shutil.which(words[0]) is None:
            raise JoulecastError(
                f"run {self.spec.run}: no `{words[0] if words else command}` on the PATH; load the site's "
                "module, install it (an MPI is in the lock: `./run` puts it there), or name another with "
                f"--set-resources train:{resource}=..."
            )
        return words

    def record(self, spec_file: Path, folder: Path, load: Load, log: TextIO, lock: int) -> RunInfo:
        """Start the ranks, and wait until they have written the record to ``folder``. Returns the content of
        its ``run.json``.

        Args:
            lock: descriptor of the machine's lock, which the ranks inherit.

        Raises:
            JoulecastError: the ranks failed. The error says why.
        """
        command = self.command(spec_file, folder, load)
        name = f"run {self.spec.run}"
        # Without a launcher, a rank in a SLURM job step must not take its parent's place in MPI.
        own_mpi = self.launcher is None
        environment = rank_environment(self.spec.threads_per_rank, own_mpi=own_mpi)
        try:
            code, reason = run_ranks(command, environment, spec_file, log, lock, self.timeout_s)
        except NotFinished as error:
            raise JoulecastError(
                f"{name}: {error}; give it longer with the configuration key `run_timeout_s`"
            ) from None
        if code != 0:
            killed = f" (killed by signal {-code})" if code < 0 else ""
            raise JoulecastError(reason or f"{name}: ended with exit code {code}{killed}")
        # Only run.json is read: rank 0 has validated the record before it gave the folder its name.
        info = read_info(folder)
        if info.spec_sha256 != self.spec.digest():
            raise JoulecastError(f"{name}: its record answers another one")
        return info


def measure_run(
    spec: RunSpec,
    out: Path,
    log_file: Path,
    *,
    launcher: str | None = "mpiexec",
    nodes: int | None = None,
    python: str | None = None,
    timeout_s: float = 3600.0,
    quiet_wait_s: float = 0.0,
    repeats: int = 0,
) -> None:
    """Run ``spec``, and write a validated record to ``out``. If this record exists already, do nothing.

    Args:
        out: folder of the record, which all hosts of the run must see.
        log_file: gets everything that the ranks print, and why the run failed.
        launcher, nodes, python, timeout_s: see :class:`RunLaunch`.
        quiet_wait_s: longest wait (s) until other programs are quiet.
        repeats: how often a disturbed run is repeated.

    Raises:
        JoulecastError: the run failed; the message says how, the log says why.
    """
    # A measurement of the same campaign takes no longer than this one may.
    longest_s = max(LONGEST_WAIT_S, (1 + repeats) * (timeout_s + quiet_wait_s))
    with (
        opened_log(log_file) as log,
        ended_by_signals(),
        _reason_logged(log, spec.run),
        machine_lock(log, longest_s) as lock,
    ):
        if answers(out, spec):
            print(f"{out} already answers this specification", file=log)
            return
        launch = RunLaunch(spec, launcher, nodes, python, timeout_s)
        with _scratch(out) as scratch:
            begin = time.monotonic()
            record = _least_disturbed(launch, scratch, log, lock, quiet_wait_s, repeats)
            with directory_written_aside(out) as partial:
                for file in record.iterdir():
                    if not file.name.startswith("."):
                        shutil.move(file, partial)
        print(f"{spec.run}: {time.monotonic() - begin:.1f} s in all", file=log)


@contextmanager
def _reason_logged(log: TextIO, run: str) -> Iterator[None]:
    """Write the name of the run to the log. At the end, write ``done`` or the error. `joulecast status` reads
    the last line."""
    print(f"run {run}", file=log, flush=True)
    try:
        yield
        print("done", file=log, flush=True)
    except KeyboardInterrupt:
        print("error: interrupted", file=log, flush=True)
        raise
    except Exception as error:
        print(f"error: {' '.join(str(error).split()) or repr(error)}", file=log, flush=True)
        raise


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder for the ranks next to the records, because ranks on other hosts use it. It is deleted at
    the end.

    Folders of killed attempts on this host are deleted first. No other process can use them, because this
    process has locked the machine. On another host, an attempt may still go on.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    prefix, suffix = f".{out.name}-scratch-", f"@{socket.gethostname()}"
    for left in out.parent.glob(f"{prefix}*{suffix}"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        suffix, prefix, dir=out.parent, ignore_cleanup_errors=True
    ) as scratch:
        yield Path(scratch)


def _least_disturbed(
    launch: RunLaunch, scratch: Path, log: TextIO, lock: int, quiet_wait_s: float, repeats: int
) -> Path:
    """Measure a run, and repeat it at most ``repeats`` times while it is disturbed. Returns the folder of a
    record that is not disturbed, or of the one with the least load by other programs."""
    spec_file = scratch / "spec.json"
    spec_file.write_text(launch.spec.model_dump_json())
    best: tuple[bool, float, Path] | None = None
    for again in range(repeats + 1):
        load = wait_for_quiet(log, quiet_wait_s)
        if best is not None and not load.is_quiet:
            break
        folder = scratch / ("record" if not again else f"record-{again}")
        try:
            info = launch.record(spec_file, folder, load, log, lock)
        except JoulecastError as error:
            if best is None:
                raise
            print(f"{error}; the first record is kept", file=log)
            break
        busy = max(load.busy_cores, info.load_during.get("busy_cores", 0.0))
        this = (bool(info.disturbed), busy, folder)
        best = min(best or this, this)
        if not info.disturbed or not load.is_quiet:
            break
        print(f"{launch.spec.run} was disturbed: {'; '.join(info.disturbed)}", file=log)
    assert best is not None
    return best[-1]
