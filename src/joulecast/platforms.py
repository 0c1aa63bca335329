"""What a node is: the facts of a platform that no program can read off by itself.

A platform is one YAML file in ``config/platforms``. A fact that nobody established stays ``null``;
watts carry the source they come from, because an estimate is only as good as they are.
"""

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from joulecast.errors import JoulecastError


class Platform(BaseModel):
    """Facts of one node type. Powers in watts of a whole node, rates in FLOP/s and byte/s."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="The name that records and tables show.")
    hosts: int | None = Field(
        None,
        ge=1,
        description="Physical hosts that all nodes of a run live on; null: one host for each node.",
    )
    idle_w: float | None = Field(None, ge=0, description="Watts of an idle node.")
    full_w: float | None = Field(None, gt=0, description="Watts of a node under full load.")
    tdp_w: float | None = Field(None, gt=0, description="Nameplate watts (default: full_w).")
    watts_source: str | None = Field(None, description="Where the watts come from.")
    peak_flops: float | None = Field(None, gt=0, description="Peak FLOP/s of a node.")
    notes: str = ""
    # Not a fact of the node: left out of specifications, so that it changes no run's hash.
    recorded: str | None = Field(
        None,
        min_length=1,
        exclude=True,
        description="A recorded campaign whose runs stand for measurements on this platform: its "
        "folder, absolute or from the project's folder (the one that holds config/).",
    )

    @model_validator(mode="after")
    def _full_above_idle(self) -> "Platform":
        if self.idle_w is not None and self.full_w is not None and self.full_w < self.idle_w:
            raise ValueError(f"full_w ({self.full_w}) is below idle_w ({self.idle_w})")
        return self

    def require_watts(self) -> tuple[float, float]:
        """Idle and full watts; an error that says what to add where the file has none."""
        if self.idle_w is None or self.full_w is None:
            raise JoulecastError(
                f"platform {self.name}: the meter `estimated` needs idle_w and full_w in its file "
                "(config/platforms/), with watts_source saying where they come from; or take "
                "`estimated` out of the configuration key `power.meters`"
            )
        return self.idle_w, self.full_w


def read_platform(path: Path) -> Platform:
    """Read one platform file.

    Raises:
        JoulecastError: the file is missing, is no YAML mapping, or has wrong keys.
    """
    try:
        content: Any = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.yaml"))) or "none"
        raise JoulecastError(
            f"{path}: no such platform file (configuration key `platform`; known: {known})"
        ) from None
    except yaml.YAMLError as error:
        raise JoulecastError(f"{path}: is not YAML: {error}") from error
    try:
        return Platform.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        raise JoulecastError(f"{path}: {key}: {first['msg']}") from None
