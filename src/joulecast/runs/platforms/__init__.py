"""Platforms: the facts about a node type, from a file or by the name of its GPU."""

from joulecast.runs.platforms.gpus import (
    as_catalogued,
    gpu_in,
    gpu_named,
    gpu_names,
    platform_content,
    same_hardware,
)
from joulecast.runs.platforms.platform import (
    Architecture,
    Cluster,
    Device,
    Link,
    Platform,
    Ring,
    find_platform,
    platform_file,
    read_platform,
    recorded_for,
    simulated_platform,
)

__all__ = [
    "Architecture",
    "Cluster",
    "Device",
    "Link",
    "Platform",
    "Ring",
    "as_catalogued",
    "find_platform",
    "gpu_in",
    "gpu_named",
    "gpu_names",
    "platform_content",
    "platform_file",
    "read_platform",
    "recorded_for",
    "same_hardware",
    "simulated_platform",
]
