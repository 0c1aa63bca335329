"""The emulated network: what a step is, and what was measured and is kept."""

import shutil

import numpy as np
import pytest
from conftest import ROOT
from pydantic import ValidationError

from joulecast.errors import JoulecastError
from joulecast.simulate.judged.emulated_network import EmulatedStep, Layer, read_results

RECORDED = ROOT / "recorded/emulated-network"
RATE = 25e6 * 1448 / 1514
"""Bytes per second that TCP segments leave of the links' Ethernet frames."""


def layer(gradient_bytes=0):
    return Layer(
        name="layer",
        forward_s=0.01,
        backward_s=0.02,
        gradient_bytes=gradient_bytes,
        activation_bytes=4096,
    )


def configuration(**facts):
    facts = {"ranks": 4, "data_parallel": 2, "pipeline": 2, "layers": (layer(),) * 4} | facts
    return EmulatedStep(name="of-a-test", family="test", **facts)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"ranks": 8}, "is 4, not the 8 ranks"),
        ({"ranks_per_node": 3}, "do not fill nodes of 3"),
        ({"layers": (layer(),) * 3}, "3 layers cannot be cut into 2"),
        ({"straggler": {"rank": 4, "factor": 2.0}}, "straggler.rank 4 is not one of the ranks"),
        ({"micro_batches": 0}, "micro_batches"),
        ({"schedule": "zigzag"}, "schedule"),
    ],
)
def test_a_configuration_that_does_not_fit_together_says_why(facts, said):
    with pytest.raises(ValidationError, match=said):
        configuration(**facts)


def test_buckets_fill_in_the_order_of_backward():
    sizes = [400, 0, 100, 300, 800]
    of = configuration(
        ranks=2, pipeline=1, bucket_bytes=500, layers=[layer(size) for size in sizes]
    )
    # Layer 4 fills one at once; 3, 2 and 0 share one that only layer 0 fills.
    assert of.buckets(0) == [(4, 800), (0, 800)]
    large = of.model_copy(update={"bucket_bytes": 10_000})
    assert large.buckets(0) == [(0, 1600)]
    remainder = of.model_copy(update={"layers": tuple(layer(size) for size in (0, 4, 600))})
    assert remainder.buckets(0) == [(2, 600), (1, 4)]
    alone = configuration(ranks=2, data_parallel=1, layers=[layer(800)] * 2)
    assert alone.buckets(0) == []


@pytest.fixture(scope="module")
def results():
    return read_results(RECORDED)


def test_what_is_kept_is_enough(results):
    names = [each.name for each in results.configurations]
    assert len(names) == len(set(names)) >= 60
    assert {each.ranks for each in results.configurations} == {2, 4, 8}
    assert (results.steps.clean >= 4).all()
    assert results.steps.seconds.between(0.05, 2).all()
    assert results.steps.again_s.notna().sum() == 10
    assert results.provenance["source_of_seconds"] == "measured"
    assert sum(file.stat().st_size for file in RECORDED.iterdir()) < 2_000_000


def test_the_last_rank_ends_the_step(results):
    keys = ["configuration", "repeat", "iteration"]
    last = results.rows["ranks"].groupby(keys).ended_s.max()
    assert np.allclose(last, results.rows["steps"].set_index(keys).seconds.loc[last.index])
    assert results.rows["ranks"].began_s.max() < 0.01


def test_links_limit_what_is_measured(results):
    all_reduces = results.collectives.query("kind == 'all_reduce' and ranks_per_node == 1")
    ring = all_reduces.query("algorithm == 'ring' and bytes >= 1024 * 1024")
    expected_s = 2 * (ring.ranks - 1) / ring.ranks * ring.bytes / RATE
    assert (ring.seconds / expected_s).between(0.99, 1.08).all()


def test_without_overlap_a_step_is_the_sum_of_its_parts(results):
    ring = results.collectives.query("algorithm == 'ring' and ranks_per_node == 1")
    for each in results.configurations:
        if each.family != "data parallel" or each.overlap:
            continue
        of_size = ring[(ring.ranks == each.ranks) & (ring.kind == "all_reduce")]
        computing_s = each.micro_batches * sum(
            part.forward_s + part.backward_s for part in each.layers
        )
        reducing_s = sum(
            np.interp(size, of_size.bytes, of_size.seconds) for _, size in each.buckets(0)
        )
        measured_s = results.steps.seconds[each.name]
        assert computing_s + reducing_s == pytest.approx(measured_s, rel=0.03), each.name


def test_a_folder_that_is_something_else_is_refused(tmp_path):
    with pytest.raises(JoulecastError, match=r"provenance\.json"):
        read_results(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(RECORDED, copy)
    (copy / "ranks.csv").unlink()
    with pytest.raises(JoulecastError, match=r"ranks\.csv"):
        read_results(copy)
