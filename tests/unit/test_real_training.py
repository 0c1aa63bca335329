"""The simulator against real training: the recorded folder, and what is judged on it."""

from pathlib import Path

import pytest

from joulecast.errors import JoulecastError
from joulecast.graphs.opgraph import OpGraph
from joulecast.runs.judging import by_setting, summarise
from joulecast.simulate.judged.two_core_training import (
    TrainingConfiguration,
    TrainingResults,
    calibrations,
    fitted_gamma,
    judge,
    predict,
    read_results,
    stage_tree,
    strategy_of,
    with_named_ops,
)

FOLDER = Path(__file__).resolve().parents[2] / "recorded/two-core-training"


@pytest.fixture(scope="module")
def results() -> TrainingResults:
    return read_results(FOLDER)


def test_what_is_recorded_is_enough(results):
    assert (results.steps.clean >= 5).all()
    assert {"data parallel", "overlapped", "gpipe", "1f1b"} == {
        each.family for each in results.configurations
    }
    assert sum(each.fits_gamma for each in results.configurations) == 2
    repeated = results.steps.again_s.dropna()
    assert len(repeated) >= 6
    for (network, ranks), database in results.databases.items():
        assert database.provenance["ranks"] == ranks, network
        assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 2e6


def test_real_training_is_predicted_within_what_it_varies_by_itself(results):
    assert 0 <= fitted_gamma(results) <= 4
    cells = by_setting(judge(results), ["configuration", "family", "split", "model"])
    assert (cells[cells["model"] == "simulator"]["split"] == "in-sample").sum() == 2
    held_out = cells[cells["split"] == "held out"]
    error = summarise(held_out, ["model"]).set_index("model")["mape_percent"]
    assert error["simulator"] < 5 and error["simulator"] < 1.5 * error["measured again"]
    # Every family by itself, replicas and pipelines.
    families = summarise(held_out[held_out["model"] == "simulator"], ["family"])
    assert (families["mape_percent"] < 5).all() and len(families) == 4


def test_operators_explain_the_steps_that_they_were_timed_in(results):
    for network, database in results.databases.items():
        for step in database.steps:
            assert 0.9 <= step.covered_share <= 1.05, (network, step)
            assert step.waited_share < 0.03


def test_replicas_with_overlap_have_the_buckets_that_the_simulator_gives_them(results):
    found = calibrations(results)
    for configuration in results.configurations:
        if configuration.is_pipeline:
            continue
        tasks = predict(results, configuration, found, 1.0).activities
        buckets = sum(task.label.startswith("gradients") for task in tasks)
        assert buckets == results.steps.buckets[configuration.name], configuration.name


def test_a_stage_begins_at_its_module(results):
    for configuration in results.configurations:
        if configuration.cut is None:
            continue
        graph = with_named_ops(results.graphs[configuration.network])
        stages = stage_tree(graph, configuration.cut).children
        of_ops = [stages[op.module].stage for op in graph.ops]
        assert of_ops == sorted(of_ops)
        first = graph.ops[of_ops.index(1)]
        assert first.module.startswith(configuration.cut)
        assert strategy_of(configuration, graph).stages == 2


def test_no_such_module_is_said(results):
    graph: OpGraph = results.graphs["resnet50"]
    with pytest.raises(JoulecastError, match="no module `layer7`"):
        stage_tree(graph, "layer7")


def test_a_shape_that_was_not_measured_is_named(results):
    known = next(each for each in results.configurations if each.network == "resnet50")
    other = known.model_copy(update={"batch": 512})
    with pytest.raises(JoulecastError, match=r"op `conv1`.*was not measured"):
        predict(results, other, calibrations(results), 1.0)


def test_a_folder_without_measurements_is_named(tmp_path):
    with pytest.raises(JoulecastError, match=r"provenance\.json"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cut": "layer3"}, "a pipeline needs a cut"),
        ({"bucket_mb": None}, "replicas need bucket_mb"),
        ({"micro_batches": 3}, "does not divide"),
    ],
)
def test_configurations_that_are_neither(changes, message):
    fields = {"name": "x", "family": "overlapped", "network": "n", "batch": 4, "bucket_mb": 1.0}
    with pytest.raises(ValueError, match=message):
        TrainingConfiguration(**{**fields, **changes})
