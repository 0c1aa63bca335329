"""What meters need to know of their surroundings, from the configuration and the platform's file."""

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from joulecast.platforms import Platform
from joulecast.platforms.controller import Controller, Redfish


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MeterSettings:
    """Where meters look, and what they call."""

    sysfs_root: str = "/sys"
    """Folder of the kernel's files."""
    command: tuple[Annotated[str, Field(max_length=4000)], ...] = field(default=())
    """Words of the site's command, which prints watts or joules of a node."""
    redfish: Redfish | None = None
    """How management controllers are reached by Redfish: addresses and names of files, no credentials."""
    ipmi: Controller | None = None
    """The same by IPMI."""

    @classmethod
    def on(cls, platform: Platform, sysfs_root: str, command: Sequence[str]) -> "MeterSettings":
        """What a configuration and a platform's file say together."""
        return cls(sysfs_root, tuple(command), platform.redfish, platform.ipmi)

    @property
    def are_defaults(self) -> bool:
        """Whether they are as on most machines."""
        return self == AS_USUAL

    @property
    def if_any(self) -> "MeterSettings | None":
        """These settings, ``None`` where they are as on most machines."""
        return None if self.are_defaults else self


AS_USUAL = MeterSettings()
"""The settings of a machine whose meters need none."""
