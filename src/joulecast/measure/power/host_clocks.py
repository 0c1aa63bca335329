"""The clock of a run. It is the clock of one host. Times on the clocks of other hosts are converted to it.

Ranks of MPI compare their clocks by messages (:mod:`joulecast.measure.training.mpi`). If a command is
observed, the hosts compare their clocks by round trips over TCP: the first host answers, the others ask.
"""

import json
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

Times = TypeVar("Times", float, NDArray[np.float64])
Moment = Annotated[float, Field(ge=-1e10, le=1e10)]
_PINGS = 50
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class ClockOffset:
    """Rank 0's clock minus the host's own clock, in seconds, and the largest error of this difference.

    ``at_s`` is the time of the measurement on the host's clock.
    """

    offset_s: Moment
    uncertainty_s: Annotated[float, Field(ge=0, le=1e10)]
    at_s: Moment


@dataclass(frozen=True)
class RunClock:
    """Converts times of one host's monotonic clock to the run clock.

    The clocks of two hosts drift apart by some 10 ppm, which is tens of milliseconds in an hour. The
    offset is assumed to change linearly between the measurements before and after the run. ``origin_s``
    is the run clock's zero on rank 0's monotonic clock.
    """

    origin_s: float
    before: ClockOffset
    after: ClockOffset

    @property
    def _lasted_s(self) -> float:
        return self.after.at_s - self.before.at_s

    @property
    def drift(self) -> float:
        """How fast the offset grows during the run, in seconds per second."""
        grown = self.after.offset_s - self.before.offset_s
        return grown / self._lasted_s if self._lasted_s > 0 else 0.0

    def __call__(self, host_s: Times) -> Times:
        offset = self.before.offset_s + self.drift * (host_s - self.before.at_s)
        return host_s + offset - self.origin_s

    def facts(self) -> dict[str, float]:
        """Facts about the clock, for the record. The offset is the one that was measured before the run."""
        doubt_s = self.before.uncertainty_s + self.after.uncertainty_s
        return {
            "offset_s": self.before.offset_s,
            "uncertainty_s": max(self.before.uncertainty_s, self.after.uncertainty_s),
            "drift_ppm": 1e6 * self.drift,
            "drift_uncertainty_ppm": 1e6 * doubt_s / self._lasted_s if self._lasted_s > 0 else 0.0,
        }


class _Answering(StreamRequestHandler):
    timeout, disable_nagle_algorithm = _PATIENCE_S, True

    def handle(self) -> None:
        with suppress(OSError):
            while self.rfile.read(1):
                self.wfile.write(json.dumps(time.monotonic()).encode() + b"\n")


class ClockServer(ThreadingTCPServer):
    """Answers other hosts that ask for the time of this host's clock, until it is closed."""

    daemon_threads = True
    # All hosts ask at the same moment.
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("", 0), _Answering)
        self.addresses, self.port = _addresses(), int(self.server_address[1])
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self.shutdown()
        self.server_close()


def _addresses() -> list[str]:
    """Addresses at which other hosts may reach this host: its name, the address that it uses towards other
    networks, and the loopback address for processes on the host itself."""
    found = [socket.getfqdn()]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        # Nothing is sent: the kernel says which of its addresses it would use.
        asking.connect(("192.0.2.1", 9))
        found.append(asking.getsockname()[0])
    return [*found, "127.0.0.1"]


def offset_from(addresses: Sequence[str], port: int) -> ClockOffset | None:
    """Another host's clock minus this host's clock; ``None`` if no address can be reached."""
    answers = (_asked(address, port) for address in addresses)
    return next((offset for offset in answers if offset is not None), None)


def _asked(address: str, port: int) -> ClockOffset | None:
    """Offset of the clock at ``address``, from the fastest of some round trips; ``None`` if there is no
    answer."""
    best = None
    try:
        with socket.create_connection((address, port), _PATIENCE_S) as asking:
            asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answers = asking.makefile("rb")
            for _ in range(_PINGS):
                sent_s = time.monotonic()
                asking.sendall(b"?")
                there_s = float(answers.readline())
                back_s = time.monotonic()
                trip_s = back_s - sent_s
                if best is None or trip_s / 2 < best.uncertainty_s:
                    best = ClockOffset(there_s - (sent_s + back_s) / 2, trip_s / 2, back_s)
    except (OSError, ValueError):
        return None
    return best
