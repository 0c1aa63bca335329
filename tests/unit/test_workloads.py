"""Networks and data sets."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from joulecast.errors import JoulecastError
from joulecast.measure.training.loader import Loader, batch_indices, rank_share
from joulecast.measure.workloads.datasets import open_dataset
from joulecast.measure.workloads.networks import (
    NETWORKS,
    build_empty,
    build_network,
    forward_flops,
)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vgg16", 138_357_544), ("resnet50", 25_557_032), ("vit_b", 86_567_656)],
)
def test_parameters_are_those_of_the_papers(name, parameters):
    network = build_empty(name, 224, 16, 1000)
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_flops_of_vgg16_are_the_known_ones():
    # 15.47 GMAC (Simonyan and Zisserman's network at 224), counted as two each.
    assert forward_flops("vgg16", 224, 16, 1000) == pytest.approx(2 * 15.47e9, rel=0.005)


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_network_is_built_and_takes_its_smallest_image(name):
    size = {"vit": 16, "inc": 80}.get(name[:3], NETWORKS[name].smallest_image)
    network = build_empty(name, size, 16, 10).eval()
    with torch.no_grad():
        assert network(torch.empty(2, 3, size, size, device="meta")).shape == (2, 10)


@pytest.mark.long
def test_leaving_dynamo_out_leaves_torch_whole():
    code = (
        "import sys; from joulecast.measure.workloads.networks import build_network;"
        "build_network('squeezenet1_0', 32, 16, 10); assert 'torch._dynamo' not in sys.modules;"
        "import torch, torch._dynamo; f = torch.compile(lambda x: x + 1, backend='eager');"
        "assert f(torch.ones(1)).item() == 2"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize(
    ("name", "size", "said"),
    [
        ("vgg", 32, "did you mean `vgg"),
        ("vit_ti", 40, "multiple of patch_size"),
        ("alexnet", 32, "63"),
    ],
)
def test_wrong_networks_are_refused(name, size, said):
    with pytest.raises(JoulecastError, match=said):
        build_network(name, size, 16, 10)


def test_digits_are_real_and_split():
    train, test = (open_dataset("digits", None, 24, 10, train) for train in (True, False))
    assert len(train) + len(test) == 1797
    images, labels = train.batch([0, 5])
    assert images.shape == (2, 3, 24, 24) and images.dtype == torch.float32
    assert labels.tolist() == [0, 5], "the first digits of the set are 0, 1, 2, ..."
    assert images.std() > 0.1


def test_synthetic_depends_on_the_index_alone():
    data = open_dataset("synthetic", None, 8, 10)
    first, second = data.batch([3, 4]), data.batch([4])
    assert torch.equal(first[0][1], second[0][0]) and second[1].tolist() == [4]


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "imagenet"])
def test_a_missing_or_empty_root_says_what_to_put_where(name, tmp_path):
    with pytest.raises(JoulecastError, match=r"workload\.data_root"):
        open_dataset(name, None, 32, 1000)
    with pytest.raises(JoulecastError, match=r"holds no images.*(unpack|CLASS)"):
        open_dataset(name, str(tmp_path), 32, 1000)


def test_an_image_folder_is_read_and_preprocessed(tmp_path):
    for split, kind in itertools.product(("train", "val"), ("cat", "dog")):
        (tmp_path / split / kind).mkdir(parents=True)
        pixels = np.full((40, 60, 3), 255 if kind == "dog" else 0, np.uint8)
        Image.fromarray(pixels).save(tmp_path / split / kind / "a.jpeg")
    data = open_dataset("imagenet", str(tmp_path), 32, 10)
    images, labels = data.batch([0, 1])
    assert images.shape == (2, 3, 32, 32) and labels.tolist() == [0, 1]
    assert images[0].mean() < 0 < images[1].mean()
    with pytest.raises(JoulecastError, match="has 2 classes, the network 1"):
        open_dataset("imagenet", str(tmp_path), 32, 1)


@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 60), st.integers(0, 5))
def test_ranks_together_see_what_one_rank_sees(batch, ranks, length, seed):
    alone = list(itertools.islice(batch_indices(length, batch, 1, 0, seed), 4))
    parts = [
        list(itertools.islice(batch_indices(length, batch, ranks, r, seed), 4))
        for r in range(ranks)
    ]
    assert alone == [[i for rank in parts for i in rank[step]] for step in range(4)]
    sizes = [b - a for a, b in (rank_share(batch, ranks, r) for r in range(ranks))]
    assert sum(sizes) == batch and max(sizes) - min(sizes) <= 1


@settings(max_examples=30)
@given(st.integers(1, 30), st.integers(1, 30))
def test_an_epoch_shows_every_image_once(length, batch):
    flat = itertools.chain.from_iterable(batch_indices(length, batch, 1, 0, 0))
    epoch = list(itertools.islice(flat, length))
    assert sorted(epoch) == list(range(length))


@pytest.mark.parametrize(("workers", "prefetch"), [(0, 0), (0, 2), (1, 2)])
def test_loaders_give_the_same_batches(workers, prefetch):
    data = open_dataset("digits", None, 8, 10)
    loader = Loader(data, batch_indices(len(data), 4, 1, 0, 7), workers=workers, prefetch=prefetch)
    expected = batch_indices(len(data), 4, 1, 0, 7)
    for _ in range(3):
        images, labels = next(loader)
        wanted = data.batch(next(expected))
        assert torch.equal(images, wanted[0]) and torch.equal(labels, wanted[1])
    loader.close()


def test_an_error_while_prefetching_reaches_the_training():
    class Broken:
        classes = 10

        def __len__(self):
            return 4

        def batch(self, indices):
            raise OSError("bad sector")

    loader = Loader(Broken(), batch_indices(4, 2, 1, 0, 0), prefetch=2)
    with pytest.raises(OSError, match="bad sector"):
        next(loader)
    loader.close()
