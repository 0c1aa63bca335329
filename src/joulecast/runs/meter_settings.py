"""What meters need to know of their surroundings, from the configuration."""

from dataclasses import field
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MeterSettings:
    """Where meters look, and what they call."""

    sysfs_root: str = "/sys"
    """Folder of the kernel's files."""
    command: tuple[Annotated[str, Field(max_length=4000)], ...] = field(default=())
    """Words of the site's command, which prints watts or joules of a node."""


AS_USUAL = MeterSettings()
"""The settings of a machine whose meters need none."""
