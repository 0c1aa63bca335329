"""Management controllers (BMCs) of a platform's nodes: where they are, and the file of their credentials."""

import socket
from dataclasses import field
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator
from pydantic.dataclasses import dataclass

_CHECKED = ConfigDict(extra="forbid", hide_input_in_errors=True)
_MOST_NODES = 100_000


def _bare(address: str) -> str:
    """An address without credentials in it; the error shows none."""
    if "@" in address or "?" in address or any(c.isspace() for c in address):
        raise ValueError(
            "give scheme, host and port only; credentials belong into the file `credentials`"
        )
    return address


@dataclass(frozen=True, config=_CHECKED)
class Controller:
    """How the controller of a node is reached."""

    address: Annotated[str | None, Field(max_length=500)] = None
    """Address of all nodes' controllers, with ``{node}`` for the host's name up to its first dot."""
    addresses: Annotated[dict[str, str], Field(max_length=_MOST_NODES)] = field(
        default_factory=dict
    )
    """Addresses of single nodes, by that name."""
    credentials: Annotated[str | None, Field(max_length=4000)] = None
    """File of the credentials, which only its owner may read."""
    interval_s: Annotated[float, Field(ge=0.2, le=600)] = 1.0
    """Time between two readings."""
    timeout_s: Annotated[float, Field(ge=0.5, le=60)] = 5.0
    """Longest time of an answer."""

    @field_validator("address")
    @classmethod
    def _bare_address(cls, address: str | None) -> str | None:
        return None if address is None else _bare(address)

    @field_validator("addresses")
    @classmethod
    def _bare_addresses(cls, addresses: dict[str, str]) -> dict[str, str]:
        return {node: _bare(address) for node, address in addresses.items()}

    def address_here(self) -> str | None:
        """The address of this host's controller; ``None`` if the platform's file names none."""
        node = socket.gethostname().partition(".")[0]
        if node in self.addresses:
            return self.addresses[node]
        return None if self.address is None else self.address.replace("{node}", node)


@dataclass(frozen=True, config=_CHECKED)
class Redfish(Controller):
    """A controller that speaks Redfish over HTTPS."""

    certificate: Annotated[str | None, Field(max_length=4000)] = None
    """File of the authority, or of the controller itself, by which its certificate is checked; by default
    the system's authorities."""
    chassis: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")] = None
    """Name below ``/redfish/v1/Chassis``; by default the only one that knows its watts."""

    @field_validator("address", "addresses")
    @classmethod
    def _https(cls, given: str | dict[str, str] | None) -> str | dict[str, str] | None:
        for address in given.values() if isinstance(given, dict) else [given]:
            if address is not None and (urlsplit(address).scheme != "https" or "/" in address[8:]):
                raise ValueError("give https://HOST or https://HOST:PORT")
        return given
