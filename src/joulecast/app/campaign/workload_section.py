"""The configuration's section on what is trained: networks and their data set, or the user's own command."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from joulecast.errors import JoulecastError
from joulecast.measure.workloads.networks import check_size, known_networks
from joulecast.runs.request import Section

_BLANKS = ("nodes", "gpus", "ranks", "batch_per_rank", "batch", "steps")
"""Blanks that a command may have. Each run fills them in."""


class WorkloadSection(Section):
    """What is trained: networks on a data set, or a command of your own."""

    networks: list[str] = Field(
        ["vgg16", "resnet50", "vit_s"],
        description="Networks by name. With a command, leave them out.",
    )
    command: str | None = Field(
        None,
        min_length=1,
        description="A training of your own with PyTorch, in place of networks: one line for the shell. Each "
        "run fills in {gpus} (ranks of a host), {nodes} (hosts), {ranks} (all ranks), {batch_per_rank}, "
        "{batch} (of all ranks) and {steps}.",
    )
    name: str = Field(
        "own", pattern=r"^[a-z0-9_]+$", description="Name of the training in records."
    )
    dataset: Literal["digits", "cifar10", "cifar100", "imagenet", "synthetic"] = Field(
        "digits", description="Data set of the networks."
    )
    data_root: str | None = Field(
        None, description="Folder of the images (cifar10, cifar100, imagenet)."
    )
    image_size: int = Field(
        32,
        ge=8,
        description="Side of the images in pixels.",
    )
    patch_size: int = Field(
        16, ge=1, description="Side of a patch in pixels, for vision transformers."
    )
    classes: int = Field(10, ge=2, description="Classes of the last layer.")

    @model_validator(mode="before")
    @classmethod
    def _a_command_takes_the_place_of_networks(cls, content: Any) -> Any:
        if not isinstance(content, dict) or content.get("command") is None:
            return content
        # Snakemake merges a user's file with the defaults. The defaults name networks.
        if content.get("networks") not in (None, [], cls.model_fields["networks"].default):
            raise ValueError("networks: a command takes their place; leave them out, or give []")
        return content | {"networks": []}

    @field_validator("command")
    @classmethod
    def _blanks_are_known(cls, command: str | None) -> str | None:
        if command is not None:
            filled_in(command, dict.fromkeys(_BLANKS, 1))
        return command

    @field_validator("networks")
    @classmethod
    def _known(cls, networks: list[str]) -> list[str]:
        return known_networks(networks)

    @model_validator(mode="after")
    def _is_something(self) -> "WorkloadSection":
        if not self.networks and self.command is None:
            raise ValueError("give networks, or a command")
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> "WorkloadSection":
        for name in self.networks:
            try:
                check_size(name, self.image_size, self.patch_size)
            except JoulecastError as error:
                raise ValueError(str(error)) from None
        return self


def filled_in(command: str, values: dict[str, int]) -> str:
    """The command with its blanks filled in; ``{{`` and ``}}`` stand for braces.

    Raises:
        ValueError: the command has a blank that no run fills in.
    """
    try:
        return command.format(**values)
    except (LookupError, ValueError, AttributeError, TypeError) as error:
        listed = ", ".join(f"{{{name}}}" for name in _BLANKS)
        raise ValueError(
            f"a blank cannot be filled in ({error}); known are {listed}. Write {{{{ and }}}} for other braces"
        ) from None
