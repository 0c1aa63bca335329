"""The networks of the campaign by name. They come from torchvision, with one exception.

The MC2 paper uses VGG16, ResNet50 and ViT-B/16. ViT-S and ViT-Ti (Touvron et al. 2021, DeiT) are smaller
networks with the architecture of ViT-B, for small machines. The exception is LeNet-5: it is written in this
module, for trainings that reach their target within a second. Most other networks are in Table 1 of the
partitioning paper. This module can be imported without torch, so that a campaign can be checked quickly.
"""

import sys
import types
from collections import OrderedDict
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from joulecast.errors import JoulecastError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class NetworkInfo:
    """Name in torchvision (``None``: it is not from torchvision), and the smallest image that the network
    takes."""

    torchvision_name: str | None
    smallest_image: int
    vit: tuple[int, int, int] | None = None
    """Number of layers, number of attention heads, and hidden size, if the network is a vision
    transformer."""


NETWORKS: dict[str, NetworkInfo] = {
    "vgg16": NetworkInfo("vgg16", 32),
    "vgg19": NetworkInfo("vgg19", 32),
    "resnet18": NetworkInfo("resnet18", 8),
    "resnet50": NetworkInfo("resnet50", 8),
    "resnet101": NetworkInfo("resnet101", 8),
    "resnext50": NetworkInfo("resnext50_32x4d", 8),
    "resnext101": NetworkInfo("resnext101_32x4d", 8),
    "alexnet": NetworkInfo("alexnet", 63),
    "inception_v3": NetworkInfo("inception_v3", 75),
    "densenet121": NetworkInfo("densenet121", 32),
    "squeezenet1_0": NetworkInfo("squeezenet1_0", 21),
    "lenet5": NetworkInfo(None, 8),
    "vit_b": NetworkInfo("vit", 8, (12, 12, 768)),
    "vit_s": NetworkInfo("vit", 8, (12, 6, 384)),
    "vit_ti": NetworkInfo("vit", 8, (12, 3, 192)),
}


def network_info(name: str) -> NetworkInfo:
    """Look a network up.

    Raises:
        JoulecastError: there is no such network. The error names similar ones.
    """
    if name in NETWORKS:
        return NETWORKS[name]
    near = get_close_matches(name, NETWORKS, n=1)
    hint = f"; did you mean `{near[0]}`?" if near else ""
    raise JoulecastError(f"unknown network `{name}`{hint} (known: {', '.join(NETWORKS)})")


def check_size(name: str, image_size: int, patch_size: int) -> None:
    """Check that a network takes images of this size.

    Raises:
        JoulecastError: the size is too small, or not a multiple of the patch.
    """
    info = network_info(name)
    if image_size < info.smallest_image:
        raise JoulecastError(
            f"network {name}: image_size {image_size} is too small; it needs at least "
            f"{info.smallest_image}"
        )
    if info.vit and image_size % patch_size:
        raise JoulecastError(
            f"network {name}: image_size {image_size} is no multiple of patch_size {patch_size}"
        )


def _import_torchvision_models() -> Any:
    """torchvision.models, without ``torch._dynamo``, which takes four seconds of CPU to import.

    torchvision imports it for one function of its compiled RoI ops, which no network here uses. Every rank of
    every run would spend this time. So an empty module stands in for it while torchvision is imported.
    """
    if "torchvision.models" in sys.modules or "torch._dynamo" in sys.modules:
        import torchvision.models

        return torchvision.models
    import torch

    package, utils = types.ModuleType("torch._dynamo"), types.ModuleType("torch._dynamo.utils")
    utils.is_compile_supported = lambda device_type: False  # type: ignore[attr-defined]
    sys.modules |= {"torch._dynamo": package, "torch._dynamo.utils": utils}
    try:
        import torchvision.models
    finally:
        del sys.modules["torch._dynamo"], sys.modules["torch._dynamo.utils"]
        torch.__dict__.pop("_dynamo", None)
    return torchvision.models


def _lenet5(image_size: int, classes: int) -> "nn.Module":
    """LeNet-5 (LeCun et al. 1998, figure 2). ReLU replaces the sigmoids, and max pooling replaces average
    pooling.

    Each pooling halves the side of the image. Both convolutions are padded, so that images of 8 pixels are
    large enough. Initial weights are those of He et al. 2015 for ReLU. Those of torch are smaller: with them,
    many trainings with a large batch learn nothing in the first tens of epochs.
    """
    from torch import nn

    side = image_size // 2 // 2
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(3, 6, 5, padding=2)),
        ("relu1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(2)),
        ("conv2", nn.Conv2d(6, 16, 5, padding=2)),
        ("relu2", nn.ReLU()),
        ("pool2", nn.MaxPool2d(2)),
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(16 * side * side, 120)),
        ("relu3", nn.ReLU()),
        ("fc2", nn.Linear(120, 84)),
        ("relu4", nn.ReLU()),
        ("fc3", nn.Linear(84, classes)),
    ]
    for _, layer in layers:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return nn.Sequential(OrderedDict(layers))


def build_network(name: str, image_size: int, patch_size: int, classes: int) -> "nn.Module":
    """Build a network with random weights (torch's current seed), for ``classes`` classes.

    It takes ``(batch, 3, image_size, image_size)`` and gives ``(batch, classes)``. While Inception trains, it
    gives a named tuple, with its auxiliary output.

    Raises:
        JoulecastError: the network is not known, or does not take this size.
    """
    check_size(name, image_size, patch_size)
    info = network_info(name)
    if name == "lenet5":
        return _lenet5(image_size, classes)
    models = _import_torchvision_models()
    if name == "resnext101":
        # torchvision registers the 32x8d only; the partitioning paper uses the 32x4d.
        return models.resnet.ResNet(  # type: ignore[no-any-return]
            models.resnet.Bottleneck, [3, 4, 23, 3], classes, groups=32, width_per_group=4
        )
    if info.vit is None:
        extra = {"init_weights": True} if name == "inception_v3" else {}
        return models.get_model(info.torchvision_name, num_classes=classes, **extra)  # type: ignore[no-any-return]
    layers, heads, hidden = info.vit
    return models.VisionTransformer(  # type: ignore[no-any-return]
        image_size=image_size,
        patch_size=patch_size,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=hidden,
        mlp_dim=4 * hidden,
        num_classes=classes,
    )


def build_empty(name: str, image_size: int, patch_size: int, classes: int) -> "nn.Module":
    """A network on the ``meta`` device. It has shapes, but no memory and no initial values."""
    import torch

    with torch.device("meta"):
        return build_network(name, image_size, patch_size, classes)


def forward_flops(name: str, image_size: int, patch_size: int, classes: int) -> int:
    """FLOPs of one sample's forward pass (a multiply-add counts two), by torch's own counter."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    network = build_empty(name, image_size, patch_size, classes).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.empty(1, 3, image_size, image_size, device="meta"))
    return int(counter.get_total_flops())


def known_networks(networks: list[str]) -> list[str]:
    """Returns the given names of networks, if all are known. Otherwise raises a ``ValueError`` that names an
    unknown network."""
    for name in networks:
        try:
            network_info(name)
        except JoulecastError as error:
            raise ValueError(str(error)) from None
    return networks
