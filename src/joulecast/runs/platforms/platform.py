"""Platforms: facts about a node type that no program can find out by itself.

A platform is one YAML file. It is in the user's ``config/platforms``, or shipped, or at any other path. A
fact that is not known stays ``null``. Watts have a source, because an estimate is only as good as its watts.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, model_validator

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import FrozenContent, read_yaml, validated
from joulecast.runs.files.shipped import PLATFORMS, find, is_path, known
from joulecast.runs.platforms.gpus import near_names, platform_content

# Limits that no machine exceeds. With them, computed values are finite.
_NAME, _MANY, _WATTS, _RATE, _LONG_S = 500, 1_000_000, 1e9, 1e18, 1e6


class Link(FrozenContent):
    """One level of a cluster's network. Its ports join groups of devices into larger groups."""

    name: str = Field(
        max_length=_NAME, description="Name of the level: nvlink, pcie, socket, nic, ..."
    )
    joins: int | None = Field(
        None,
        ge=2,
        le=_MANY,
        description="Number of consecutive devices that this level joins. null: all.",
    )
    bytes_per_s: float | None = Field(
        None,
        ge=1,
        le=_RATE,
        description="Rate of each port, in each direction. A port serves one unit of the level below (at the "
        "first level: one device). If links are parallel, give their sum.",
    )
    latency_s: float | None = Field(
        None,
        ge=0,
        le=_LONG_S,
        description="Latency of one step of a collective. null: not known, and taken as 0.",
    )
    pairs: tuple[tuple[Annotated[int, Field(ge=0, le=64)], ...], ...] = Field(
        (),
        max_length=16,
        description="For the innermost link without a switch: number of lines between each pair of devices "
        "in a node. `bytes_per_s` is then the rate of all lines of a device together.",
    )
    switch_sums: float | None = Field(
        None,
        gt=0,
        le=1,
        description="For the innermost link: share of its rate that an all-reduce reaches if the switches "
        "sum the buffers (NVLink SHARP). null: the switches cannot sum.",
    )


class Ring(FrozenContent):
    """A ring that NCCL builds over some devices, for the communication model of the Proteus paper."""

    bytes_per_s: float = Field(ge=1, le=_RATE, description="Bus bandwidth of the ring.")
    nvlink: bool = Field(False, description="Whether the hops within a node are NVLink.")


class Architecture(FrozenContent):
    """What the kernel model knows of a generation of GPUs (see ``gpus.yaml``)."""

    vendor: Literal["nvidia", "amd"] = Field("nvidia", description="Maker of the GPU.")
    nm: float = Field(gt=0, le=1000, description="Manufacturing process, in nm.")
    vector: float = Field(
        0.97, gt=0, le=1, description="Share of the fp32 peak that kernels reach."
    )
    matrix: float = Field(
        0.72, gt=0, le=1, description="Share of the peaks of the matrix units that kernels reach."
    )
    narrow: dict[str, float] = Field(
        {},
        description="The same as `matrix`, for products of fp8, mxfp8 and nvfp4. If a precision is missing "
        "here, `matrix` counts.",
    )
    memory: float = Field(
        0.8, gt=0, le=1, description="Share of the memory bandwidth that kernels reach."
    )
    cudnn: float = Field(
        0.85,
        gt=0,
        le=1,
        description="The same as `attention`, for the attention of cuDNN (an assumption).",
    )
    attention: float = Field(
        0.45,
        gt=0,
        le=1,
        description="Share of the speed of large matrix products that fused attention "
        "reaches in the forward pass.",
    )
    sdpa: float | None = Field(
        None,
        gt=0,
        le=1,
        description="The same as `attention`, for torch's scaled_dot_product_attention under autocast. By "
        "default the value of `attention`.",
    )
    winograd: float = Field(
        1.0,
        gt=0,
        le=9,
        description="Speed of convolutions of 3 x 3 pixels at fp32, over that of other products: Winograd's "
        "algorithm has fewer operations.",
    )
    lanes: int | None = Field(
        None,
        ge=1,
        le=_MANY,
        description="fp32 lanes of a multiprocessor. The boost clock is computed from them.",
    )
    vector_power: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of the power limit that the GPU draws for fp32 products, if it was measured.",
    )
    awake: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the power limit that the GPU draws without work, while its clocks are up.",
    )


class Device(FrozenContent):
    """What computes: a GPU, or the cores of a rank."""

    name: str = Field(max_length=_NAME, description="Name of the device.")
    peak_flops: dict[str, Annotated[float, Field(ge=1, le=1e24)]] = Field(
        {}, description="FLOP/s by precision: fp32, bf16, fp64."
    )
    memory_bytes: float | None = Field(
        None, ge=1, le=_RATE, description="Memory that a training may fill."
    )
    memory_bytes_per_s: float | None = Field(None, ge=1, le=_RATE, description="Memory bandwidth.")
    launch_s: float = Field(
        0.0, ge=0, le=_LONG_S, description="Time that every op takes in addition to its work."
    )
    units: int | None = Field(
        None,
        ge=1,
        le=_MANY,
        description="Number of multiprocessors. With it and `architecture`, the times of ops are those of "
        "kernels.",
    )
    power_limit_w: float | None = Field(
        None, gt=0, le=_WATTS, description="Power limit of the device."
    )
    architecture: Architecture | None = Field(
        None, description="Shares of the peaks that kernels reach on this generation of GPUs."
    )
    measured_flops: dict[str, Annotated[float, Field(ge=1, le=1e24)]] = Field(
        {}, description="Measured FLOP/s of large matrix products, by precision."
    )
    reserved_bytes: float = Field(
        0.0,
        ge=0,
        le=_RATE,
        description="Memory that the training cannot use: context, communication buffers, fragments.",
    )
    measured_bytes_per_s: float | None = Field(
        None, ge=1, le=_RATE, description="Measured bytes/s of large copies."
    )


class Cluster(FrozenContent):
    """Nodes, devices and links of a platform, for the simulator."""

    nodes: int | None = Field(
        None, ge=1, le=_MANY, description="Number of nodes. null: any number."
    )
    devices_per_node: int = Field(1, ge=1, le=_MANY, description="Number of devices in each node.")
    devices_per_host: int | None = Field(
        None,
        ge=1,
        le=_MANY,
        description="Number of devices of a host, if a node is a rack of hosts (GB200: 4). Energy and prices "
        "count hosts. null: the node is one host.",
    )
    device: Device = Field(description="The device.")
    links: tuple[Link, ...] = Field(
        (), description="Levels of the network, from the device outwards."
    )
    collective_algorithm: Literal["ring", "nccl", "recursive_doubling", "rabenseifner"] = Field(
        "ring",
        description="Algorithm of all-reduces. nccl is a ring, or a tree over the nodes if that takes less "
        "time. A network calibration replaces it by the algorithm that it finds.",
    )
    collective_launch_s: float = Field(
        0.0, ge=0, le=_LONG_S, description="Time before a collective or message starts to move."
    )
    communicator_bytes: float = Field(
        0.0,
        ge=0,
        le=_RATE,
        description="Memory of a device that the communication library takes for each group of devices.",
    )
    overlap_slowdown: float | None = Field(
        None,
        ge=0,
        le=1e6,
        description="Gamma: how much computing and the communication of gradients slow each other down.",
    )
    rings: dict[str, Ring] = Field(
        {},
        description="Rings, for `--mode proteus` only. A key names the devices of a ring by their places in "
        "a node, such as `0-1`. `0-1xN` is a ring over several nodes.",
    )
    sources: dict[str, str] = Field({}, description="Where each fact comes from.")

    @property
    def host_devices(self) -> int:
        """Number of devices of a host."""
        return self.devices_per_host or self.devices_per_node

    @model_validator(mode="after")
    def _levels_grow(self) -> "Cluster":
        if self.devices_per_node % self.host_devices:
            raise ValueError(
                f"devices_per_host: {self.devices_per_host} does not divide the {self.devices_per_node} "
                "devices of a node"
            )
        inner = 1
        for level, link in enumerate(self.links):
            if link.pairs and (level or link.pairs != tuple(zip(*link.pairs, strict=False))):
                raise ValueError(
                    f"links.{level}.pairs: only of the innermost link, as many rows as columns, the same "
                    "both ways"
                )
            if link.pairs and len(link.pairs) < self.devices_per_node:
                raise ValueError(
                    f"links.{level}.pairs: {len(link.pairs)} rows for {self.devices_per_node} devices"
                )
            joins = link.joins
            if joins is None and level != len(self.links) - 1:
                raise ValueError(f"links.{level}.joins: only the outermost link joins all devices")
            if joins is not None and (joins <= inner or joins % inner):
                raise ValueError(
                    f"links.{level}.joins: {joins} is no larger multiple of the {inner} devices "
                    "of the level below"
                )
            inner = joins or inner
        return self


class Platform(FrozenContent):
    """Facts of one node type. Powers are watts of a whole node. Rates are in FLOP/s and bytes/s."""

    name: str = Field(max_length=_NAME, description="Name in records and tables.")
    hosts: int | None = Field(
        None,
        ge=1,
        le=_MANY,
        description="Number of physical hosts on which all nodes of a run are. null: one host for each "
        "node.",
    )
    idle_w: float | None = Field(None, ge=0, le=_WATTS, description="Watts of an idle node.")
    full_w: float | None = Field(
        None, gt=0, le=_WATTS, description="Watts of a node under full load."
    )
    tdp_w: float | None = Field(
        None, gt=0, le=_WATTS, description="Watts on the nameplate. By default full_w."
    )
    watts_source: str | None = Field(None, description="Where the watts come from.")
    peak_flops: float | None = Field(None, ge=1, le=1e24, description="Peak FLOP/s of a node.")
    notes: str = Field("", description="What a reader of the figures should know.")
    # Facts that no measured run depends on: left out of specifications, so that they change no run's hash.
    cluster: Cluster | None = Field(
        None, exclude=True, description="Devices and links, for the simulator."
    )
    # Not a fact of the node: left out of specifications, so that it changes no run's hash.
    recorded: str | None = Field(
        None,
        min_length=1,
        exclude=True,
        description="Folder of a recorded campaign. Its runs replace measurements on this platform. A "
        "relative path begins at the project's folder if this file is in config/platforms/, otherwise at the "
        "folder of this file.",
    )

    @model_validator(mode="after")
    def _full_above_idle(self) -> "Platform":
        if self.idle_w is not None and self.full_w is not None and self.full_w < self.idle_w:
            raise ValueError(f"full_w ({self.full_w}) is below idle_w ({self.idle_w})")
        return self

    def require_cluster(self) -> Cluster:
        """Devices and links. If the file has none, the error says what to add."""
        if self.cluster is None:
            raise JoulecastError(
                f"platform {self.name}: the simulator needs the key `cluster` in its file "
                "(config/platforms/): devices_per_node, device and links (see docs/reference/platforms.md)"
            )
        return self.cluster

    def require_watts(self) -> tuple[float, float]:
        """Idle and full watts. If the file has none, the error says what to add."""
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
    what = f"platform file (`platform`; by name there are: {', '.join(known(PLATFORMS, '.yaml'))})"
    return validated(TypeAdapter(Platform), read_yaml(path, what), str(path))


_AS_GPUS = ("h100-sxm", "a100-40gb-pcie", "mi300x")


def _unknown(platform: str, own: Path) -> JoulecastError:
    files = known(PLATFORMS, ".yaml", own)
    near = near_names(platform.partition(":")[0], files)
    hint = f"; did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else ""
    return JoulecastError(
        f"platform `{platform}` is not known{hint} ({own / platform}.yaml: no such platform file) "
        f"(known: {', '.join(files)}); name one of them, or a platform file (FILE.yaml); the "
        f"simulator also knows GPUs by name, as {', '.join(_AS_GPUS)} (docs/reference/simulator.md)"
    )


def platform_file(platform: str, own: Path = PLATFORMS) -> Path:
    """The file of a platform.

    Args:
        platform: a name; or the path of its file, which ends in ``.yaml`` or ``.yml`` or has a ``/``.
        own: folder of the user's own platform files, which take precedence over the shipped ones.

    Raises:
        JoulecastError: there is no such name. The error lists the known names. A path is not checked.
    """
    if is_path(platform, (".yaml", ".yml")):
        return Path(platform)
    file = find(PLATFORMS, f"{platform}.yaml", own)
    if file is None:
        raise _unknown(platform, own)
    return file


def find_platform(platform: str, own: Path = PLATFORMS) -> Platform:
    """A platform by its name or the path of its file, as :func:`platform_file` finds it, or by its GPU.

    A platform file takes precedence over the GPU of the same name.

    Raises:
        JoulecastError: there is no such platform, or its file is not valid.
    """
    of_gpu = None
    if find(PLATFORMS, f"{platform}.yaml", own) is None:
        of_gpu = _platform_of_gpu(platform)
    return of_gpu or read_platform(platform_file(platform, own))


def _platform_of_gpu(platform: str) -> Platform | None:
    content = None if is_path(platform, (".yaml", ".yml")) else platform_content(platform)
    if content is None:
        return None
    return validated(TypeAdapter(Platform), content, f"platform {platform}")


def simulated_platform(platform: str, own: Path = PLATFORMS) -> Platform:
    """A platform to simulate on, as from :func:`find_platform`. If its file describes no node, its GPU
    is looked up."""
    found = find_platform(platform, own)
    return found if found.cluster is not None else _platform_of_gpu(platform) or found


def recorded_for(platform: str, own: Path = PLATFORMS) -> Path | None:
    """The folder of the recorded campaign that stands for a platform; ``None`` if runs are measured."""
    file = platform_file(platform, own)
    recorded = read_platform(file).recorded
    if recorded is None:
        return None
    folder = file.absolute().parent
    of_a_project = folder.parts[-2:] == PLATFORMS.parts
    # An absolute path is not changed.
    return (folder.parent.parent if of_a_project else folder) / recorded
