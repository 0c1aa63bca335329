"""Platforms by the name of their GPU: ``h100-sxm``, ``a100-80gb-pcie:gpus=4,nics=2x200``.

The facts of a GPU are in ``gpus.yaml``, each with its source. A name means a type of node. A colon behind it
can say how many GPUs the node has, what links them, and which network cards it has:

    gpus=4          GPUs of a node, 1 to 72
    link=nvlink     nvlink, fabric (AMD) or pcie: what joins the GPUs of a node
    nics=4x200      network cards of a node, each of so many Gbit/s; by default as many for each GPU as the
                    maker's node has
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from joulecast.errors import JoulecastError

_PCIE_GB_PER_S = {3: 15.75, 4: 31.5, 5: 63.0}
"""Nominal GB/s of 16 lanes of PCIe in one direction, by generation."""
LINK_SHARE = {"nvlink": 0.73, "direct": 0.9, "fabric": 0.6, "pcie": 0.65}
"""Share of a link's nominal rate that collectives reach. ``direct`` is NVLink without a switch. Two shares
follow from ``allreduce_in_node.csv``: ``nvlink`` (vTrain, eight A100: 221 of 300 GB/s) and ``direct`` (two
V100: 22.4 of 25 GB/s). The others are assumptions."""
_NIC_SHARE = 0.9
"""Share of a network card's nominal rate that collectives reach (an assumption)."""
_LAUNCH_S, _STEP_S, _NIC_STEP_S = 37e-6, 2.4e-6, 9.6e-6
"""Seconds before a collective begins to send data; seconds of each of its steps inside a node; and seconds of
each of its steps between nodes. The first two were fitted to ``allreduce_in_node.csv``. The third is a
constant of NCCL (see ``simulate/proteus.py``), because that file has measurements on one node only."""
_EAGER_SHARE = 0.95
"""The rate of matrix products in plain PyTorch on one GPU, divided by the rate of the best shape. In plain
PyTorch, every other kernel is counted separately. This share was fitted to the products of steps on an H100
(``plain_pytorch.csv``: 0.89 to 1.03)."""
_HELD_SHARE = 0.85
"""The rate of matrix products in a training, divided by the rate of the best shape in short bursts. A
training has other shapes, and its clocks fall until the power limit is kept. This share is an assumption for
generations without a value in ``gpus.yaml``. It is also used for A100. There, llm-foundry's steps fit best
with 0.8, and vTrain's with 0.86, and each of these values makes the errors of the other steps larger."""
_PER_NODE = 8
_MOST_GPUS = 72
"""The most GPUs of a node. A rack whose GPUs are joined by NVLink counts as one node (NVL72)."""
_LINKS = ("nvlink", "fabric", "pcie")
_NICS = "1x100"
"""Network cards of a node if the maker does not sell it with cards (an assumption)."""
_OVERLAP_SLOWDOWN = {"nvlink": 0.6, "fabric": 0.6, "pcie": 0.2}
"""Gamma, by link: how much computing and the exchange of gradients slow each other down. For NVLink, it is
the value with which the errors of FSDP's steps (``llm_foundry.csv``) scatter least. (It would be 0.6 for H100
alone, and 0.8 for A100 alone.) The other values are assumptions: NCCL runs on 4 multiprocessors over PCIe,
and on 24 over NVLink."""
_CONTEXT_BYTES = 0.6e9
"""Memory that a process needs for the driver's context and the kernels of its libraries: 0.5 to 1 GB."""
_CHANNELS = {"nvlink": 24, "fabric": 24, "pcie": 4}
"""Number of NCCL's channels, from its logs, for nodes of A100 or H100, and for PCIe."""
_CHANNEL_BYTES = 3 * 9.6e6
"""Bytes of a channel: buffers of 0.5, 4.9 and 4.2 MB (LL, LL128, Simple) for one neighbour in the ring and
two in the tree. On four A100, 688 MB for each communicator were measured (github.com/NVIDIA/nccl issue
964)."""
_GIB = 1 << 30


class Gpu(BaseModel):
    """The facts of a GPU. Rates are as in ``gpus.yaml``: TFLOP/s, GB/s and GiB."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    aliases: tuple[str, ...] = ()
    generation: str
    units: int = Field(gt=0, description="Streaming multiprocessors, or compute units.")
    watts: float = Field(gt=0, description="The power limit that it is sold with.")
    memory: float = Field(gt=0)
    bandwidth: float = Field(gt=0)
    peak: dict[str, float]
    measured: dict[str, float] = {}
    source: str | None = None
    pcie: int | None = None
    nvlink: float | None = None
    fabric: float | None = None
    nics: str = _NICS
    """Network cards of a node with NVLink or fabric, as its maker sells it."""
    switch_sums: float | None = None
    """As ``switch_sums`` of :class:`~joulecast.runs.platforms.platform.Link`, for the GPU's NVLink."""
    mesh: str | None = None
    """Name of the mesh in which NVLink joins up to eight GPUs of a node without a switch."""
    per_node: int = _PER_NODE
    per_host: int | None = None
    """Number of GPUs of a host, if NVLink joins several hosts to a node."""

    @property
    def vendor(self) -> str:
        """``nvidia`` or ``amd``."""
        return self.title.partition(" ")[0].lower()

    @property
    def link(self) -> str:
        """The link that joins the GPUs of a node by default."""
        return "nvlink" if self.nvlink else "fabric" if self.fabric else "pcie"


@dataclass(frozen=True)
class Catalogue:
    """All GPUs by name, and what their architectures share."""

    gpus: dict[str, Gpu]
    generations: dict[str, dict[str, float]]
    sources: dict[str, str]
    meshes: dict[str, list[list[int]]]
    """For nodes without a switch, by the name of their mesh: number of NVLink links between each pair of
    GPUs."""
    by_alias: dict[str, str]
    """The catalogue's name of each GPU, by each of its names."""


@cache
def catalogue() -> Catalogue:
    """The shipped catalogue."""
    text = (resources.files("joulecast.runs.platforms") / "gpus.yaml").read_text()
    content = yaml.safe_load(text)
    gpus = {name: Gpu.model_validate(facts) for name, facts in content["gpus"].items()}
    aliases = {
        plain_name(alias): name
        for name, gpu in gpus.items()
        for alias in (name, gpu.title, *gpu.aliases)
    }
    return Catalogue(
        gpus,
        content["generations"],
        content["sources"],
        content["meshes"],
        aliases,
    )


def gpu_names() -> list[str]:
    """Names of the GPUs whose facts are shipped."""
    return sorted(catalogue().gpus)


def plain_name(text: str) -> str:
    """A name in the form in which it is looked up: ``NVIDIA_A100-PCIE-40GB`` -> ``a100-pcie-40gb``."""
    name = re.sub(r"[\s_]+", "-", text.strip().lower())
    return re.sub(r"^(nvidia-|tesla-|amd-instinct-|instinct-|geforce-)+", "", name)


def gpu_named(text: str) -> str | None:
    """The catalogue's name of a GPU, from any of its names; ``None`` if the GPU is not known."""
    return catalogue().by_alias.get(plain_name(text))


_VARIANTS = frozenset({"d", "laptop", "max", "mig", "mobile", "nvl", "super", "ti"})
"""Words in a name that mean another GPU, or a part of a GPU. For example, an RTX 4090 Laptop has another
number of units."""
_SLICE = re.compile(r"\d{1,2}[abcq]")
"""A word for the part of a GPU that a virtual machine has, as the last word of ``GRID A100-10C``."""


def _words(text: str) -> frozenset[str]:
    """The words of a name; a size is one word (``80 GB`` -> ``80gb``)."""
    joined = re.sub(r"(\d)[\s_-]*gb\b", r"\1gb", plain_name(text))
    return frozenset(re.findall(r"[a-z0-9+]+", joined))


def gpu_in(text: str) -> str | None:
    """The catalogue's name of the GPU in a longer name: ``8xSMC-H100-SXM-80GB`` -> ``h100-sxm``.

    If the longer name contains words of several GPUs, the GPU with the most words counts. ``None`` if there
    is no GPU, if two GPUs have equally many words, or if the longer name says another variant of the GPU.
    """
    known = gpu_named(text)
    if known is not None:
        return known
    found = catalogue()
    words = _words(re.sub(r"^\d+x(?=[A-Za-z])", "", text))
    said = {alias: _words(alias) for alias in found.by_alias}
    met = {alias: len(parts) for alias, parts in said.items() if parts and parts <= words}
    most = max(met.values(), default=0)
    names = {found.by_alias[alias] for alias, count in met.items() if count == most}
    if len(names) != 1:
        return None
    name = names.pop()
    own = frozenset[str]().union(*(said[a] for a, of in found.by_alias.items() if of == name))
    other = {word for word in words - own if word in _VARIANTS or _SLICE.fullmatch(word)}
    return None if other else name


def same_hardware(one: str, other: str) -> bool:
    """Whether two names of platforms or devices mean the same hardware. They do if they are equal, or mean
    the same GPU."""
    gpu = gpu_in(one)
    return plain_name(one) == plain_name(other) or (gpu is not None and gpu == gpu_in(other))


def near_names(text: str, also: Iterable[str] = ()) -> list[str]:
    """Names of GPUs, and other known names, that are similar to a text. The nearest comes first."""
    return get_close_matches(plain_name(text), {**catalogue().by_alias, **dict.fromkeys(also)}, n=3)


def _options(text: str, gpu: Gpu) -> tuple[int, str, int, float]:
    """GPUs of a node, their link, and number and Gbit/s of its network cards."""
    _, _, rest = text.partition(":")
    given: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in rest.split(","))):
        key, _, value = word.partition("=")
        if key not in ("gpus", "link", "nics") or not value:
            raise JoulecastError(
                f"platform `{text}`: `{word}` is not known (known: gpus=4, link=nvlink|fabric|pcie, "
                "nics=4x200)"
            )
        given[key] = value
    count = given.get("gpus", str(gpu.per_node))
    if not count.isdigit() or not 1 <= int(count) <= _MOST_GPUS:
        raise JoulecastError(f"platform `{text}`: gpus={count}: a node has 1 to {_MOST_GPUS}")
    link = given.get("link", gpu.link)
    if link not in _LINKS:
        raise JoulecastError(f"platform `{text}`: link={link}: nvlink, fabric or pcie")
    nics = re.fullmatch(
        r"(\d{1,2})x(\d{1,4})", given.get("nics", _NICS if link == "pcie" else gpu.nics)
    )
    if nics is None or not int(nics[1]) or not int(nics[2]):
        raise JoulecastError(
            f"platform `{text}`: nics={given.get('nics')}: give number and Gbit/s, such as 4x200"
        )
    cards = int(nics[1])
    if "nics" not in given:
        # A smaller node has its share of the cards of the maker's node.
        cards = max(1, cards * min(int(count), gpu.per_node) // gpu.per_node)
    return int(count), link, cards, float(nics[2])


def _link_gb_per_s(text: str, gpu: Gpu, link: str) -> float:
    rate = {"nvlink": gpu.nvlink, "fabric": gpu.fabric, "pcie": _PCIE_GB_PER_S[gpu.pcie or 4]}[link]
    if rate is None:
        raise JoulecastError(
            f"platform `{text}`: {gpu.title} has no {link} here (it has {gpu.link})"
        )
    return rate


def _device(gpu: Gpu) -> dict[str, Any]:
    facts = dict(catalogue().generations[gpu.generation])
    held = facts.pop("held", _HELD_SHARE)
    eager = {"amp": _EAGER_SHARE * gpu.measured["bf16"] * 1e12} if "bf16" in gpu.measured else {}
    return {
        "name": gpu.title,
        "peak_flops": {precision: rate * 1e12 for precision, rate in gpu.peak.items()},
        "memory_bytes": gpu.memory * _GIB,
        "memory_bytes_per_s": gpu.bandwidth * 1e9,
        "reserved_bytes": _CONTEXT_BYTES,
        "units": gpu.units,
        "power_limit_w": gpu.watts,
        "architecture": {"vendor": gpu.vendor, **facts},
        "measured_flops": {
            precision: held * rate * 1e12 for precision, rate in gpu.measured.items()
        }
        | eager,
    }


_SAME_PEAK = 0.05
"""Largest share by which the peak in a platform's file may differ from the peak of the named GPU."""


def as_catalogued(device: dict[str, Any]) -> dict[str, Any] | None:
    """A device of a platform's file. It names a GPU, and gets the missing facts from the catalogue's entry
    for this GPU.

    The facts of the file take precedence. The catalogue's measured rates are taken only if the file and the
    catalogue have the same peak.

    Returns:
        ``None`` if the catalogue has no GPU of this name.
    """
    name = gpu_in(str(device["name"]))
    if name is None:
        return None
    known = _device(catalogue().gpus[name])
    own = {key: value for key, value in device.items() if value not in (None, {})}
    peak = known["peak_flops"] | own.get("peak_flops", {})
    same = {p for p, rate in known["peak_flops"].items() if abs(peak[p] / rate - 1) <= _SAME_PEAK}
    measured = {
        precision: rate
        for precision, rate in known["measured_flops"].items()
        # Matrix products under autocast have the peak of bf16.
        if {"amp": "bf16"}.get(precision, precision) in same
    }
    kept = {key: known[key] for key in ("units", "power_limit_w", "architecture")}
    own_rates = own.get("measured_flops", {})
    if "bf16" in own_rates:
        # The file's own rate of bf16 products also holds under autocast, so the catalogue's rate does not.
        measured.pop("amp", None)
    measured |= own_rates
    return kept | own | {"peak_flops": peak, "measured_flops": measured}


def platform_content(text: str) -> dict[str, Any] | None:
    """The content of a platform file for the name of a GPU; ``None`` if no GPU has this name.

    Raises:
        JoulecastError: the text behind the colon is not known. The error names it.
    """
    name = gpu_named(text.partition(":")[0])
    if name is None:
        return None
    found = catalogue()
    gpu = found.gpus[name]
    count, link, nics, gbit = _options(text, gpu)
    pairs = found.meshes[gpu.mesh] if gpu.mesh and link == "nvlink" else []
    # A node of sixteen has a switch.
    pairs = pairs if count <= len(pairs) else []
    share = LINK_SHARE["direct" if pairs else link]
    inner = {
        "name": link,
        "joins": count,
        "bytes_per_s": _link_gb_per_s(text, gpu, link) * share * 1e9,
        "latency_s": _STEP_S,
        "pairs": pairs,
        "switch_sums": gpu.switch_sums if link == "nvlink" else None,
    }
    outer = {
        "name": "nic",
        "bytes_per_s": nics * gbit / 8 * _NIC_SHARE * 1e9,
        "latency_s": _NIC_STEP_S,
    }
    measured = f"; measured rates: {found.sources[gpu.source]}" if gpu.source else ""
    return {
        "name": name,
        "cluster": {
            "devices_per_node": count,
            "devices_per_host": gpu.per_host if count % (gpu.per_host or 1) == 0 else None,
            "device": _device(gpu),
            "links": [inner, outer] if count > 1 else [outer],
            "collective_launch_s": _LAUNCH_S,
            "collective_algorithm": "nccl",
            "communicator_bytes": _CHANNELS[link] * _CHANNEL_BYTES,
            "overlap_slowdown": _OVERLAP_SLOWDOWN[link],
            "sources": {
                "device": f"{found.sources['data_sheets']}{measured}",
                "links": f"{share:g} of {link}'s nominal rate; {nics} network cards of "
                f"{gbit:g} Gbit/s at {_NIC_SHARE:g} of theirs",
                "overlap_slowdown": "what FSDP's steps on A100 and H100 say; an assumption over other links",
            },
        },
    }
