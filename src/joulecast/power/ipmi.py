"""A node's watts by IPMI's data center extension (DCMI): ``ipmitool dcmi power reading``.

It asks the node's own device (``/dev/ipmi0``), or with ``ipmi`` in the platform's file the management
controller over the network. The password goes to ``ipmitool`` by its environment, which other users cannot
see, and never on its command line. Some controllers average over minutes: the reading is the one they call
instantaneous.
"""

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.power.background import BackgroundMeter
from joulecast.power.credentials import credentials_in
from joulecast.power.kernel_files import MOST_NODE_W, identity_of
from joulecast.power.meters import Meter, MeteredNodes, MeterUnavailable, ReadFailed, Reading
from joulecast.power.programs import output_of, require_program, shown

if TYPE_CHECKING:
    from joulecast.platforms.controller import Controller

DEVICES = (Path("/dev/ipmi0"), Path("/dev/ipmi/0"), Path("/dev/ipmidev/0"))
_PROGRAM = "ipmitool"
_EVERY_S, _TIMEOUT_S = 1.0, 5.0
_KEY = "key `ipmi` of the platform's file"
_WATTS = re.compile(r"Instantaneous power reading\s*:\s*(\d+)\s*Watts", re.IGNORECASE)
_STATE = re.compile(r"Power reading state is\s*:\s*(\w+)", re.IGNORECASE)


class Dcmi:
    """The question to one controller, with what it takes to ask it."""

    def __init__(self, words: list[str], environment: dict[str, str], timeout_s: float) -> None:
        self._words, self._environment, self._timeout_s = words, environment, timeout_s

    def ask(self) -> Reading:
        """The node's watts.

        Raises:
            ReadFailed: no answer in time, or one without watts.
        """
        printed = output_of(
            [*self._words, "dcmi", "power", "reading"], self._timeout_s, self._environment
        )
        state, watts = _STATE.search(printed), _WATTS.search(printed)
        if state is not None and state[1].lower() != "activated":
            raise ReadFailed(f"the controller says that its power reading is {state[1]}")
        if watts is None:
            raise ReadFailed(f"ipmitool printed {shown(printed)!r}, expected a power reading")
        if not 0 < int(watts[1]) <= MOST_NODE_W:
            raise ReadFailed(f"{watts[1]} W, which no node draws")
        return Reading(float(watts[1]), None)


def _is_open(device: Path) -> bool:
    return os.access(device, os.R_OK | os.W_OK)


def _own_device(program: str) -> Dcmi:
    """The question to this node's own controller.

    Raises:
        MeterUnavailable: there is no device, or it is closed to this user.
    """
    device = next((device for device in DEVICES if device.exists()), None)
    if device is None:
        raise MeterUnavailable(
            "ipmi: this machine has no IPMI device",
            "needs a server with a BMC and `modprobe ipmi_devintf ipmi_si` (in a container: --device)",
            elsewhere=True,
        )
    if not _is_open(device):
        raise MeterUnavailable(
            f"ipmi: {device} is closed to this user",
            "ask the site for the watts by `power.command`, or for Redfish with a user that may only read: "
            "who may open this device may also switch the machine off",
        )
    return Dcmi([program], {}, _TIMEOUT_S)


def _over_network(program: str, settings: "Controller") -> tuple[Dcmi, str]:
    """The question to the node's controller over the network, and its address.

    Raises:
        MeterUnavailable: no address or no credentials.
    """
    address = settings.address_here()
    if address is None or address.startswith("-"):
        host = socket.gethostname().partition(".")[0]
        raise MeterUnavailable(f"ipmi: no address for {host}", f"add it in the {_KEY}")
    if settings.credentials is None:
        raise MeterUnavailable("ipmi: no credentials", f"name their file in the {_KEY}")
    known = credentials_in(settings.credentials, "ipmi")
    if known.user is None or known.password is None:
        raise MeterUnavailable(
            f"ipmi: {settings.credentials} holds a token",
            "write `user: ...` and `password: ...` into it, one a line",
        )
    words = [program, "-I", "lanplus", "-L", "USER", "-H", address, "-U", known.user, "-E"]
    secrets = {"IPMI_PASSWORD": known.password, "IPMITOOL_PASSWORD": known.password}
    return Dcmi(words, secrets, settings.timeout_s), address


def open_meters(nodes: MeteredNodes) -> list[Meter]:
    """This node's watts as its controller gives them.

    Raises:
        MeterUnavailable: no ``ipmitool``, no controller, no right to ask it, or it gives no watts.
    """
    settings = nodes.ipmi
    remedy = "install ipmitool, on servers that have a management controller"
    program = require_program(_PROGRAM, "ipmi", remedy, elsewhere=settings is None)
    address: str | None = None
    if settings is None:
        dcmi = _own_device(program)
    else:
        dcmi, address = _over_network(program, settings)
    try:
        return [
            BackgroundMeter(
                "ipmi",
                nodes.host_node,
                dcmi.ask,
                every_s=_EVERY_S if settings is None else settings.interval_s,
                counter=False,
                identity=identity_of("ipmi") if address is None else f"ipmi:{address}",
            )
        ]
    except ReadFailed as error:
        raise MeterUnavailable(
            f"ipmi: {error}", "run `ipmitool dcmi power reading` by hand, on the node"
        ) from None
