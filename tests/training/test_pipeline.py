"""Pipelines under a real mpiexec, and networks that are cut before modules."""

import pytest
import torch
from torch import nn

from joulecast.errors import JoulecastError
from joulecast.simulator.device_order import phases
from joulecast.simulator.strategy import Strategy
from joulecast.training.pipeline import Stage, split_network, stage_order
from joulecast.training.pipeline_local import local_ranks
from joulecast.workloads.networks import build_network

INSIDE_A_BLOCK = ["layer1.1.conv1", "layer1.1.conv2", "layer1.1.bn2"]


@pytest.mark.parametrize(
    ("network", "image_size", "micro_batches", "cuts"),
    [
        ("vit_ti", "32", "4", ["encoder.layers.encoder_layer_5"]),
        # The block's skip goes from the first stage to the last, over another.
        ("resnet18", "16", "3", INSIDE_A_BLOCK[::2]),
    ],
)
def test_a_pipeline_has_the_gradients_of_one_process(mpi, network, image_size, micro_batches, cuts):
    mpi("pipeline_program.py", len(cuts) + 1, network, image_size, micro_batches, *cuts)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 2), (2, 5), (3, 2), (4, 8)])
def test_real_stages_work_in_the_simulators_order(schedule, stages, micro_batches):
    strategy = Strategy(mesh={"pipeline": stages}, micro_batches=micro_batches, schedule=schedule)
    for stage in range(stages):
        expected = [(piece.phase, piece.micro_batch) for piece in phases(strategy, stage)]
        assert stage_order(schedule, stages, stage, micro_batches) == expected


def test_pieces_have_every_parameter_once():
    network = build_network("resnet18", 32, 16, 10)
    pieces = split_network(network, ["layer2", "layer4"])
    shared = [id(p) for piece in pieces for p in piece.parameters()]
    assert sorted(shared) == sorted(id(p) for p in network.parameters())
    assert [len(list(piece.parameters())) for piece in pieces] == [15, 30, 17]


def test_a_cut_inside_a_block_lets_the_skip_through():
    pieces = split_network(build_network("resnet18", 32, 16, 10), INSIDE_A_BLOCK)
    assert pieces[0].leaving == {"layer1_0_relu_1": (1, 3)}
    assert pieces[3].entering == {"layer1_0_relu_1": 0, "layer1_1_conv2": 2}


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        (["layer9"], "no such module"),
        (["layer3", "layer2"], "not after the cuts before it"),
        (["conv1"], "stage 0 is empty"),
    ],
)
def test_what_cannot_be_cut(cuts, message):
    with pytest.raises(JoulecastError, match=message):
        split_network(build_network("resnet18", 32, 16, 10), cuts)


def test_a_network_without_cuts_is_one_piece():
    network = nn.Linear(2, 2)
    (piece,) = split_network(network, [])
    images = torch.randn(3, 2)
    left, outputs = piece(images, {})
    assert left == {}
    torch.testing.assert_close(outputs, network(images))
    assert list(piece.parameters()) == list(network.parameters())


def test_messages_are_as_long_as_what_crosses():
    network = build_network("resnet18", 32, 16, 10)
    ranks = local_ranks(2)
    stages = [
        Stage(piece, rank, "1f1b", 2, 8, (3, 32, 32))
        for piece, rank in zip(split_network(network, ["layer2"]), ranks, strict=True)
    ]
    # Four samples of 64 channels of 8 x 8, of four bytes.
    assert [stage.message_bytes for stage in stages] == [4 * 64 * 8 * 8 * 4] * 2


def test_agreeing_on_shapes_leaves_the_network_as_it_was():
    network = build_network("resnet18", 32, 16, 10).train()
    network.bn1.eval()  # frozen statistics
    before = [
        (module.training, *map(torch.clone, module.buffers(False))) for module in network.modules()
    ]
    (piece,) = split_network(network, [])
    Stage(piece, local_ranks(1)[0], "gpipe", 1, 4, (3, 32, 32))
    for module, (training, *buffers) in zip(network.modules(), before, strict=True):
        assert module.training == training
        assert all(map(torch.equal, module.buffers(False), buffers))


def test_a_batch_that_does_not_divide():
    (piece,) = split_network(nn.Linear(2, 2), [])
    with pytest.raises(JoulecastError, match="a batch of 5 does not divide into 2 micro-batches"):
        Stage(piece, local_ranks(1)[0], "gpipe", 2, 5, (2,))
