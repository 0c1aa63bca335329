"""A load that is switched on and off: matrix products on every core, and on every GPU that CUDA shows.

Processes of their own do the work, ready before they are needed. Each reads ``on`` or ``off`` from its
standard input and ends when that closes, so that none outlives the program that started it. No clock, limit
or other setting of a device is touched.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from joulecast.errors import JoulecastError
from joulecast.records.provenance import usable_cores

_READY, _NONE = "ready", "none"
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1"
)
_GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Devices of the drivers that torch's CUDA works with."""
_SIZE = 320
_NICE = 5
"""The sampler comes first where all cores are at work."""
_END_S = 5.0


def work_on_demand(works: list[Callable[[], None]], devices: list[str]) -> None:
    """Do each of ``works`` again and again while standard input says ``on``; ends the process when it closes.

    Args:
        works: each is done in a thread of its own, and lasts milliseconds.
        devices: that are worked on, for the program that asks.
    """
    # A terminal sends this to all that run in it; the program that asks ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    busy = threading.Event()

    def keep_working(work: Callable[[], None]) -> None:
        while True:
            busy.wait()
            work()

    def obey() -> None:
        for line in sys.stdin:
            (busy.set if line.strip() == "on" else busy.clear)()
        os._exit(0)

    for work in works[1:]:
        threading.Thread(target=keep_working, args=(work,), daemon=True).start()
    threading.Thread(target=obey, daemon=True).start()
    print(_READY, *devices, flush=True)
    keep_working(works[0])


def refuse_work(why: str) -> None:
    """Say why there is nothing to work on."""
    print(_NONE, why, flush=True)


def main() -> None:
    """Multiply matrices on one core on demand."""
    import numpy as np

    os.nice(_NICE)
    one, other = np.random.default_rng(1).random((2, _SIZE, _SIZE))
    product = np.empty_like(one)

    def multiply() -> None:
        np.matmul(one, other, out=product)

    work_on_demand([multiply], ["cpu"])


class SwitchedLoad:
    """The load of this host, idle until it is switched on.

    Attributes:
        loaded: what it works on: ``cpu``, and ``gpu`` where there is one.
        remarks: what a reader should know of it.

    Raises:
        JoulecastError: a process of it cannot be started.
    """

    def __init__(self) -> None:
        self.loaded = ["cpu"]
        self.remarks: list[str] = []
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        try:
            for _ in range(usable_cores()):
                self._start("joulecast.power.switched_load", _ONE_THREAD)
            has_gpu = any(Path(file).exists() for file in _GPU_FILES)
            if has_gpu:
                # By name: power knows no torch.
                self._start("joulecast.training.gpu_load", {})
            for place, process in enumerate(list(self._processes)):
                self._wait_for(process, is_gpu=has_gpu and place == len(self._processes) - 1)
        except BaseException:
            self.close()
            raise
        return self

    def _start(self, module: str, environment: dict[str, str]) -> None:
        self._processes.append(
            subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **environment},
            )
        )

    def _wait_for(self, process: "subprocess.Popen[str]", *, is_gpu: bool) -> None:
        assert process.stdout is not None
        word, _, rest = process.stdout.readline().strip().partition(" ")
        if word == _READY:
            if is_gpu:
                self.loaded.append("gpu")
                self.remarks.append(f"load on GPUs: {rest}")
            return
        why = rest if word == _NONE else self._why_ended(process)
        if not is_gpu:
            raise JoulecastError(f"the load cannot run: {why}")
        self.remarks.append(f"no load on GPUs: {why}")
        self._end([process])
        self._processes.remove(process)

    @staticmethod
    def _why_ended(process: "subprocess.Popen[str]") -> str:
        _, printed = process.communicate()
        lines = printed.strip().splitlines()
        return lines[-1] if lines else f"its process ended with code {process.returncode}"

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes."""
        return tuple(process.pid for process in self._processes)

    def switch(self, *, on: bool) -> None:
        """Begin or end the work.

        Raises:
            JoulecastError: a process of the load has ended.
        """
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write("on\n" if on else "off\n")
                process.stdin.flush()
        self.check()

    def check(self) -> None:
        """Prove that all of the load is there.

        Raises:
            JoulecastError: a process of it has ended.
        """
        for process in self._processes:
            if process.poll() is not None:
                raise JoulecastError(
                    f"the load ended before its time ({self._why_ended(process)}); nothing was written; "
                    "compare again, with memory to spare"
                )

    def close(self) -> None:
        """End the load's processes."""
        self._end(self._processes)

    @staticmethod
    def _end(processes: "list[subprocess.Popen[str]]") -> None:
        for process in processes:
            with suppress(BrokenPipeError, OSError):
                if process.stdin is not None:
                    process.stdin.close()
        for process in processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def __exit__(self, *_: object) -> None:
        self.close()


if __name__ == "__main__":
    main()
