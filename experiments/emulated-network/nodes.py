"""Nodes that exist only in the kernel: network namespaces behind rate-limited links.

Every node is a namespace with one ``eth0`` whose other end hangs on a common bridge. A token bucket
(``tbf``) at either end limits what the node sends and what it receives, each to the full rate, as a
full-duplex network card would. Ranks of one node reach each other over its loopback, unlimited.
"""

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from joulecast.errors import JoulecastError
from joulecast.simulate.judged.results import Frozen

_BRIDGE = "jc-bridge"
_PREFIX = "joulecast-node-"
_PATIENCE_S = 5.0


class Link(Frozen):
    """Limits of a node's link, in either direction.

    The burst is what an idle link lets through at once: small, so that no message is free, but not
    below what one late timer of the kernel loses (24 KiB are 0.98 ms). Segments must fit into it.
    The queue is longer than all that TCP can have in flight, so nothing is ever dropped. But of one
    connection only ``waiting_bytes`` may stand in it: with more, MPI's notes of completion wait behind
    other messages' data, and a stand-alone ring of 8 ranks on 4 nodes takes a quarter longer.
    """

    rate_bits_per_s: int = 200_000_000
    burst_bytes: int = 24_576
    queue_bytes: int = 4_194_304
    segment_bytes: int = 16_000
    send_buffer_bytes: int = 524_288
    waiting_bytes: int = 16_384
    congestion_control: str = "reno"

    @property
    def sysctls(self) -> dict[str, str]:
        """Settings of TCP in a node.

        bbr (a usual default) shares a link unfairly; restarting slowly after idleness would make a
        transfer depend on what was before it.
        """
        return {
            "net.ipv4.tcp_congestion_control": self.congestion_control,
            "net.ipv4.tcp_slow_start_after_idle": "0",
            "net.ipv4.tcp_no_metrics_save": "1",
            "net.ipv4.tcp_wmem": f"4096 262144 {self.send_buffer_bytes}",
            "net.ipv4.tcp_limit_output_bytes": str(self.waiting_bytes),
        }


def node_name(node: int) -> str:
    """The namespace of a node."""
    return f"{_PREFIX}{node}"


def _outside(node: int) -> str:
    return f"jc-node-{node}"


def _tool(*command: str) -> str:
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode != 0:
        complaint = answer.stderr.strip() or f"exit code {answer.returncode}"
        raise JoulecastError(
            f"the emulated network could not be set up: `{' '.join(command)}` complaint: {complaint}; it "
            "needs a Linux kernel with network namespaces, veth, bridge and tbf"
        )
    return answer.stdout


def require_means() -> None:
    """Check that nodes can be made here.

    Raises:
        JoulecastError: not root, or iproute2 is missing.
    """
    if os.geteuid() != 0:
        raise JoulecastError(
            "an emulated network needs root (network namespaces); measure with sudo, or read the "
            "measurement that is kept in recorded/emulated-network"
        )
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise JoulecastError(
                f"an emulated network needs `{tool}`; on Debian: apt-get install iproute2"
            )


def _links() -> list[str]:
    shown = _tool("ip", "-brief", "link").splitlines()
    return [line.split()[0].split("@")[0] for line in shown if line.strip()]


def _namespaces() -> list[str]:
    shown = _tool("ip", "netns", "list").splitlines()
    return [line.split()[0] for line in shown if line.startswith(_PREFIX)]


def remove() -> None:
    """Remove all nodes, what still runs in them, and the bridge; also those of a dead run."""
    for namespace in _namespaces():
        for pid in _tool("ip", "netns", "pids", namespace).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
    # Deleted by name first: a namespace gives its devices back only some time after its own end.
    for link in _links():
        if link == _BRIDGE or link.startswith(_outside(0)[:-1]):
            subprocess.run(["ip", "link", "delete", link], capture_output=True)
    for namespace in _namespaces():
        _tool("ip", "netns", "delete", namespace)
    end = time.monotonic() + _PATIENCE_S
    while any(link.startswith(_outside(0)[:-1]) for link in _links()):
        if time.monotonic() > end:
            raise JoulecastError(
                "links of an earlier emulated network do not go away; see `ip link`"
            )
        time.sleep(0.05)


def commands(node: int, link: Link) -> list[str]:
    """The commands that make one node, as a shell would be given them."""
    inside, outside = f"-n {node_name(node)}", _outside(node)
    segments = f"gso_max_size {link.segment_bytes} gro_max_size {link.segment_bytes}"
    limit = (
        f"root tbf rate {link.rate_bits_per_s}bit burst {link.burst_bytes} limit {link.queue_bytes}"
    )
    settings = [f"{key}={value}" for key, value in link.sysctls.items()]
    return [
        f"ip netns add {node_name(node)}",
        f"ip link add {outside} type veth peer name eth0 netns {node_name(node)}",
        f"ip link set {outside} {segments} master {_BRIDGE} up",
        f"ip {inside} link set eth0 {segments}",
        f"ip {inside} addr add 10.77.0.{node + 1}/24 dev eth0",
        f"ip {inside} link set eth0 up",
        f"ip {inside} link set lo up",
        f"tc {inside} qdisc add dev eth0 {limit}",
        f"tc qdisc add dev {outside} {limit}",
        *(f"ip netns exec {node_name(node)} sysctl -qw '{setting}'" for setting in settings),
    ]


@contextmanager
def nodes(count: int, link: Link) -> Iterator[None]:
    """Have ``count`` nodes while the block runs; whatever happens, they are gone afterwards.

    Raises:
        JoulecastError: they cannot be made here; the message says why.
    """
    require_means()
    remove()
    try:
        _tool("ip", "link", "add", _BRIDGE, "type", "bridge")
        _tool("ip", "link", "set", _BRIDGE, "up")
        for node in range(count):
            for command in commands(node, link):
                _tool(*shlex.split(command))
        yield
    finally:
        remove()
