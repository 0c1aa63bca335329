"""The partitioning experiment's files and tables, on a small graph."""

import json

import pandas as pd
import pytest
from conftest import ROOT
from test_partition import a_graph

from joulecast.errors import JoulecastError
from joulecast.partition.planner_experiment import partition_experiment, stages_for_runtime
from joulecast.report.papers.antichain import antichain
from joulecast.report.tables.partition import (
    PublishedPartitioning,
    quality,
    write_partition_tables,
)

PUBLISHED = ROOT / "config/published/antichain.yaml"


@pytest.fixture
def experiment(tmp_path):
    graph = a_graph({i: [i - 1] for i in range(1, 10)}, [9, 1, 1, 1, 8, 1, 1, 1, 7, 6])
    (tmp_path / "graphs").mkdir()
    file = tmp_path / "graphs/resnet18.json"
    graph.write(file)
    out = tmp_path / "resnet18.json"
    partition_experiment(file, [4, 8, 64], 16, "measured", out)
    return out


def test_every_planner_is_beside_the_optimum(experiment):
    found = json.loads(experiment.read_text())
    assert set(found["on_devices"]) == {"4", "8"}  # 64 stages are more than its nodes
    published = PublishedPartitioning.read(PUBLISHED)
    table = quality([found | {"network": "resnet18"}]).set_index("devices")
    # By hand: 9 1 | 1 1 8 | 1 1 1 7 | 6.
    assert table.at[4, "bottleneck_us"] == 10 and table.at[4, "certified"]
    assert table.at[8, "bottleneck_us"] == 9 and table.at[8, "speedup_bound"] == 4.0
    assert table.at[4, "pipedream_ratio"] == pytest.approx(1)
    assert table.at[4, "uniform_ratio"] >= 1
    experiment.write_text(json.dumps(found | {"network": "resnet18"}))
    rows = antichain(published, [experiment], [], experiment.parent).rows
    of_eight = {row.quantity: row for row in rows if row.setting == "resnet18, 8 devices"}
    by_antichains, exact = (
        next(row for what, row in of_eight.items() if f"time to partition: {kind}" in what)
        for kind in ("antichain", "exact")
    )
    assert by_antichains.published == exact.reference == 0.21 and exact.ours >= 0
    assert "35" in {row.published for row in rows if row.setting == "resnet18, 4 devices"}


def test_what_is_not_certified_is_not_called_proven(experiment):
    published = PublishedPartitioning.read(PUBLISHED)
    found = json.loads(experiment.read_text()) | {"network": "resnet18"}
    experiment.write_text(json.dumps(found))
    for of_count in found["on_devices"].values():
        of_count["plan"]["certified"] = False
    for certified in (True, False):
        if not certified:
            experiment.write_text(json.dumps(found))
        rows = antichain(published, [experiment], [], experiment.parent).rows
        exact = [r for r in rows if "exact, with a proof" in r.quantity and r.ours is not None]
        assert len(exact) == 2
        told = ["the proof did not come to an end" in row.why_not_comparable for row in exact]
        assert told == [not certified] * 2


def test_tables_are_written(experiment, tmp_path):
    published = PublishedPartitioning.read(PUBLISHED)
    write_partition_tables(tmp_path / "tables", [experiment], [], published)
    for name in ("partition_quality", "partition_pipeline"):
        assert (tmp_path / f"tables/{name}.md").read_text().startswith("# ")
    assert len(pd.read_parquet(tmp_path / "tables/partition_quality.parquet")) == 2
    assert pd.read_parquet(tmp_path / "tables/partition_pipeline.parquet").empty


def test_all_of_table_1_is_quoted():
    published = PublishedPartitioning.read(PUBLISHED)
    assert len(published.partition_s) == 10
    assert published.pipeline_speedup == {4: 3.4, 8: 3.76}
    assert all(
        set(row) == {"handsplit_minutes", "cudasize", "hashrate", "paper"}
        for of_network in published.partition_s.values()
        for row in of_network.values()
    )


def test_stages_for_a_run_are_by_any_planner():
    graph = a_graph({1: [0], 2: [1], 3: [2]}, [1, 1, 1, 9])
    assert stages_for_runtime(graph, 2, "exact") == [["n0", "n1", "n2"], ["n3"]]
    assert stages_for_runtime(graph, 2, "uniform") == [["n0", "n1"], ["n2", "n3"]]
    with pytest.raises(JoulecastError, match="planner `best`: unknown"):
        stages_for_runtime(graph, 2, "best")
