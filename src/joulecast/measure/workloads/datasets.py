"""Data sets by name. Without any configuration, the images are scikit-learn's digits.

``digits`` comes with scikit-learn (1,797 real 8 x 8 images). The images are enlarged to the image size.
torchvision reads CIFAR and ImageNet from a folder of the user. Nothing is downloaded. ``synthetic`` is seeded
noise, for measurements of speed. This module can be imported without torch, so that a campaign can be checked
quickly.
"""

import gzip
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import opened

if TYPE_CHECKING:
    from torch import Tensor

_MAX_IMAGE_BYTES = 200_000_000
ROOT_LAYOUT = {
    "cifar10": "the folder cifar-10-batches-py (unpack cifar-10-python.tar.gz there)",
    "cifar100": "the folder cifar-100-python (unpack cifar-100-python.tar.gz there)",
    "imagenet": "the folders train/CLASS/*.JPEG and val/CLASS/*.JPEG",
}
"""For each data set, by its name: what its root folder must contain."""
DATASETS = ("digits", *ROOT_LAYOUT, "synthetic")


class Images(Protocol):
    """A data set: images by index. These are the only methods that a loader needs."""

    classes: int

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> "tuple[Tensor, Tensor]":
        """The preprocessed images of ``indices``, (n, 3, size, size) float32, and their labels, (n,)
        int64."""
        ...


class Digits:
    """scikit-learn's digits, bilinearly enlarged. The last fifth is the test split."""

    classes = 10

    def __init__(self, image_size: int, train: bool) -> None:
        import torch

        # To import the package takes every rank two seconds.
        package = find_spec("sklearn")
        assert package is not None and package.origin is not None
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        text = gzip.decompress(file.read_bytes()).decode().replace("\n", ",")
        table = np.fromstring(text, sep=",").reshape(-1, 65)
        split = len(table) * 4 // 5
        part = table[:split] if train else table[split:]
        pixels = part[:, :-1].reshape(-1, 8, 8) / 16 - 0.5
        self._images = torch.from_numpy(pixels.astype(np.float32))
        self._labels = torch.from_numpy(part[:, -1].astype(np.int64))
        self._size = image_size

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: Sequence[int]) -> "tuple[Tensor, Tensor]":
        import torch

        chosen = torch.as_tensor(indices)
        small = self._images[chosen].unsqueeze(1)
        large = torch.nn.functional.interpolate(
            small, size=(self._size, self._size), mode="bilinear", align_corners=False
        )
        return large.expand(-1, 3, -1, -1).contiguous(), self._labels[chosen]


class Synthetic:
    """A data set of noise. An image depends only on its index."""

    def __init__(self, image_size: int, classes: int, length: int) -> None:
        self.classes, self._size, self._length = classes, image_size, length

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: Sequence[int]) -> "tuple[Tensor, Tensor]":
        import torch

        shape = (3, self._size, self._size)
        images = [
            torch.randn(shape, generator=torch.Generator().manual_seed(int(i))) for i in indices
        ]
        labels = torch.as_tensor([int(i) % self.classes for i in indices])
        return torch.stack(images), labels


class FromTorchvision:
    """A data set of torchvision. Its images are decoded, resized, cropped and normalised."""

    def __init__(self, dataset: Any, classes: int) -> None:
        self._dataset, self.classes = dataset, classes

    def __len__(self) -> int:
        return len(self._dataset)

    def batch(self, indices: Sequence[int]) -> "tuple[Tensor, Tensor]":
        import torch

        samples = [self._dataset[int(i)] for i in indices]
        return torch.stack([s[0] for s in samples]), torch.as_tensor([s[1] for s in samples])


def _transform(image_size: int) -> Any:
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.Resize(image_size),
            transforms.CenterCrop(image_size),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )


def _image(path: str) -> Any:
    """The image in a file. If the file is no image, or is a pipe, the error names the file."""
    from PIL import Image

    with opened(Path(path), "image", _MAX_IMAGE_BYTES) as file:
        try:
            return Image.open(file).convert("RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise JoulecastError(f"{path}: is no image: {error}") from None


def _from_root(name: str, root: str | None, image_size: int, train: bool) -> Images:
    if root is None:
        raise JoulecastError(
            f"data set {name}: no root; set the configuration key `workload.data_root` to a folder "
            f"that holds {ROOT_LAYOUT[name]}"
        )
    from torchvision import datasets

    where = Path(root)
    try:
        if name == "cifar10":
            found: Any = datasets.CIFAR10(where, train=train, transform=_transform(image_size))
            classes = 10
        elif name == "cifar100":
            found = datasets.CIFAR100(where, train=train, transform=_transform(image_size))
            classes = 100
        else:
            folder = where / ("train" if train else "val")
            found = datasets.ImageFolder(folder, _transform(image_size), loader=_image)
            classes = len(found.classes)
    except (OSError, RuntimeError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise JoulecastError(
            f"data set {name}: {root} holds no images of it ({first_line}); it needs {ROOT_LAYOUT[name]}"
        ) from None
    return FromTorchvision(found, classes)


@cache
def open_dataset(
    name: str, root: str | None, image_size: int, classes: int, train: bool = True
) -> Images:
    """The train or test split of a data set. Each split is opened only once.

    Raises:
        JoulecastError: the name is not known; the root is missing or has no images (the error says what to
            put where); or the data have more classes than the network.
    """
    if name == "digits":
        images: Images = Digits(image_size, train)
    elif name == "synthetic":
        images = Synthetic(image_size, classes, 50_000 if train else 1_000)
    elif name in ROOT_LAYOUT:
        images = _from_root(name, root, image_size, train)
    else:
        raise JoulecastError(f"unknown data set `{name}` (known: {', '.join(DATASETS)})")
    if images.classes > classes:
        raise JoulecastError(
            f"data set {name}: has {images.classes} classes, the network {classes}; set the "
            f"configuration key `workload.classes` to {images.classes}"
        )
    return images
