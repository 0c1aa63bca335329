"""Pipelines under a real mpiexec, and how they are cut."""

import pytest
from torch import nn

from joulecast.errors import JoulecastError
from joulecast.simulator.strategy import Strategy, phases
from joulecast.training.pipeline import split_network, stage_order
from joulecast.workloads.networks import build_network


@pytest.mark.parametrize(
    ("network", "schedule", "micro_batches", "cuts"),
    [
        ("vit_ti", "1f1b", "4", ["encoder.layers.encoder_layer_5"]),
        ("resnet18", "gpipe", "3", ["layer2", "layer3.1"]),
    ],
)
def test_a_pipeline_has_the_gradients_of_one_process(mpi, network, schedule, micro_batches, cuts):
    mpi("pipeline_program.py", len(cuts) + 1, network, schedule, micro_batches, *cuts)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 2), (2, 5), (3, 2), (4, 8)])
def test_real_stages_work_in_the_simulators_order(schedule, stages, micro_batches):
    strategy = Strategy(mesh={"pipeline": stages}, micro_batches=micro_batches, schedule=schedule)
    for stage in range(stages):
        expected = list(phases(strategy, stage))
        assert stage_order(schedule, stages, stage, micro_batches) == expected


def test_pieces_have_every_parameter_once():
    network = build_network("resnet18", 32, 16, 10)
    pieces = split_network(network, ["layer2", "layer4"])
    shared = [id(p) for piece in pieces for p in piece.parameters()]
    assert sorted(shared) == sorted(id(p) for p in network.parameters())
    assert [len(list(piece.parameters())) for piece in pieces] == [15, 30, 17]


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        (["layer9"], "no such module"),
        (["layer3", "layer2"], "not after the cuts before it"),
        (["layer2.1.conv2"], "more than one tensor crosses the cut"),
    ],
)
def test_what_cannot_be_cut(cuts, message):
    with pytest.raises(JoulecastError, match=message):
        split_network(build_network("resnet18", 32, 16, 10), cuts)


def test_a_network_without_cuts_is_one_piece():
    network = nn.Linear(2, 2)
    assert split_network(network, []) == [network]
