"""What our training asks of torch on GPUs, as far as a machine without one can tell."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from joulecast.errors import JoulecastError
from joulecast.measure.training.gradients import GpuGradients
from joulecast.measure.training.loop import device_of


@pytest.fixture
def group_of_one(tmp_path) -> Iterator[None]:
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_ddp_takes_the_hook_that_sums_gradients(group_of_one) -> None:
    """It looks at the annotations of the hook, and refused ours on an H200."""
    replica = DistributedDataParallel(nn.Linear(2, 2))
    gradients = object.__new__(GpuGradients)
    replica.register_comm_hook(None, gradients._sum)


@pytest.mark.parametrize("gpus", [["a", "a"], ["a", "b"]], ids=["shared", "apart"])
def test_ranks_that_share_a_gpu_are_refused(gpus, monkeypatch) -> None:
    """NCCL needs a GPU for each rank; a launcher may show each rank its own one as number 0."""
    cuda: Any = torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 1)
    monkeypatch.setattr(cuda, "set_device", lambda device: None)
    monkeypatch.setattr(cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=gpus[1]))
    local = SimpleNamespace(rank=1, allgather=lambda own: [gpus[0], own])
    hosts: Any = SimpleNamespace(local=local, own="node7")
    spec: Any = SimpleNamespace(run="resnet50-n2-r1", training=SimpleNamespace(device="cuda"))
    if len(set(gpus)) == 2:
        assert device_of(spec, hosts) == torch.device("cuda", 0)
    else:
        with pytest.raises(JoulecastError, match=r"resnet50-n2-r1: 2 ranks of node7 share 1 GPU"):
            device_of(spec, hosts)
