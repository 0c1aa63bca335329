"""Starts two ranks in less time than torchrun, for tests that show nothing of torchrun."""

import shlex
import socket


def two_ranks(*rank: str) -> list[str]:
    """The command that starts the command of a rank twice, and ends as rank 0 does."""
    with socket.socket() as asking:
        asking.bind(("127.0.0.1", 0))
        port = asking.getsockname()[1]
    return [
        *("sh", "-c"),
        f"export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}\n"
        f"LOCAL_RANK=1 RANK=1 {shlex.join(rank)} & LOCAL_RANK=0 RANK=0 {shlex.join(rank)} && wait $!",
    ]
