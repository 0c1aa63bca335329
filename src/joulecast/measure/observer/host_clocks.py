"""Offsets between the clocks of hosts, from round trips over TCP: the first host answers, the others ask."""

import json
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from joulecast.measure.power.run_clock import ClockOffset

_PINGS = 50
_PATIENCE_S = 5.0


class ClockServer:
    """Answers with this host's clock until it is closed."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("", 0))
        self.addresses, self.port = _addresses(), int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                asking, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(asking,), daemon=True).start()

    @staticmethod
    def _answer(asking: socket.socket) -> None:
        with suppress(OSError), asking:
            asking.settimeout(_PATIENCE_S)
            asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while asking.recv(1):
                asking.sendall(json.dumps(time.monotonic()).encode() + b"\n")

    def close(self) -> None:
        """Stop answering."""
        self._socket.close()


def _addresses() -> list[str]:
    """Addresses that other hosts may reach this one by: its name, and that of the way out."""
    found = [socket.getfqdn()]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        # Nothing is sent: the kernel says which of its addresses it would use.
        asking.connect(("192.0.2.1", 9))
        found.append(asking.getsockname()[0])
    return [*found, "127.0.0.1"]


def offset_from(addresses: Sequence[str], port: int) -> ClockOffset | None:
    """Offset of another host's clock from this one's; ``None`` where no address can be reached."""
    answers = (_asked(address, port) for address in addresses)
    return next((offset for offset in answers if offset is not None), None)


def _asked(address: str, port: int) -> ClockOffset | None:
    """The offset by the fastest of some round trips."""
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
