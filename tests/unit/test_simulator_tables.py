"""Tables, forecasts and commands of the simulator, from the user's side."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from joulecast.app.cli.main import app
from joulecast.report.tables.simulator import (
    PublishedSimulators,
    ablation_table,
    error_table,
    order_table,
)
from joulecast.runs.judging import join_references
from joulecast.simulate.collectives import sent_share, steps_of
from joulecast.simulate.network_calibration import calibrate_network

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = PublishedSimulators.read(ROOT / "config/published/proteus.yaml")
EMPTY = pd.DataFrame()


def _judged(*simulated: float) -> pd.DataFrame:
    simulated = simulated or (1.02, 1.98, 3.0, 8.0)
    rows = [
        # configuration, ranks, split, measured, again, simulated, sum, no sharing
        ("a", 2, "held out", 1.0, 1.01, simulated[0], 1.5, 1.02),
        ("b", 2, "held out", 2.0, None, simulated[1], 3.0, 1.90),
        ("c", 4, "held out", 3.0, None, simulated[2], 4.0, 2.00),
        ("d", 4, "in-sample", 4.0, None, simulated[3], 5.0, 8.00),
    ]
    models = {"measured again": "repeat", "simulator": "model", "sum": "rival"}
    models["no sharing"] = "ablation"
    frame = pd.DataFrame(rows, columns=["configuration", "ranks", "split", "time_s", *models])
    facts = {"experiment": "network", "source": "recorded", "family": "f", "network": None}
    references = frame[["configuration", "ranks", "time_s"]].assign(**facts)
    predictions = frame.drop(columns=["ranks", "time_s"]).melt(
        ["configuration", "split"], var_name="model", value_name="time_s"
    )
    predictions = predictions.assign(role=predictions["model"].map(models))
    return join_references(predictions, references, "configuration", "time_s")


def test_error_table_averages_what_was_not_fitted() -> None:
    table = error_table(_judged(), PUBLISHED).set_index("configuration")
    mean = table.loc["(mean of 3: all)"]
    assert mean["predicted_error_percent"] == pytest.approx((2 + 1 + 0) / 3)
    assert mean["published_percent"] == 3.0 and mean["flexflow_percent"] == 12.4
    assert mean["noise_percent"] == pytest.approx(1.0)
    assert table.loc["(maximum of 3: all)", "published_percent"] == 14.68
    assert table.loc["(mean of 2: 2 ranks)", "predicted_error_percent"] == pytest.approx(1.5)
    assert table.loc["d", "predicted_error_percent"] == pytest.approx(100.0)


def test_order_and_ablation() -> None:
    order = order_table(_judged()).iloc[0]
    assert order["kendall_tau"] == pytest.approx(1.0) and order["top1_regret_percent"] == 0.0
    worst = order_table(_judged(4.0, 3.0, 2.0, 1.0)).iloc[0]
    assert worst["kendall_tau"] == pytest.approx(-1.0)
    assert worst["top1_regret_percent"] == pytest.approx(200.0), "d was fitted, and is not judged"
    assert worst["count"] == 3
    ablation = ablation_table(_judged(), PUBLISHED).set_index("model")
    assert ablation.loc["full", "mape_percent"] == pytest.approx(1.0)
    assert ablation.loc["no sharing", "mape_percent"] == pytest.approx((2 + 5 + 100 / 3) / 3)


@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "rabenseifner"])
def test_calibration_finds_the_algorithm_and_its_rates(algorithm: str) -> None:
    rows = []
    for ranks in (2, 4, 8):
        for size in (1e5, 1e6, 1e7):
            steps = steps_of("all_reduce", algorithm, ranks)  # type: ignore[arg-type]
            share = sent_share("all_reduce", algorithm, ranks)  # type: ignore[arg-type]
            seconds = 1e-4 + steps * 3e-4 + share * size / 5e7
            rows.append(("all_reduce", ranks, size, seconds))
    points = pd.DataFrame(rows, columns=["kind", "ranks", "bytes", "seconds"])
    found = calibrate_network(points)
    assert found.algorithm == algorithm
    assert found.bytes_per_s == pytest.approx(5e7, rel=1e-6)
    assert found.latency_s == pytest.approx(3e-4, rel=1e-6)
    assert found.launch_s == pytest.approx(1e-4, rel=1e-6)


def _run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_simulate_prints_and_traces(tmp_path: Path) -> None:
    trace = tmp_path / "step.json"
    asked = ["simulate", "--network", "resnet50", "--platform", "hc2", "--strategy", "dp=4,pp=2"]
    code, text = _run(*asked, "--batch", "8", "--json", "--trace", str(trace))
    assert code == 0
    told = json.loads(text)
    assert told["devices"] == 8 and told["source"] == "simulated" and told["out_of_memory"] is False
    assert told["gpus_power_w"] < told["power_w"]
    events = json.loads(trace.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(1e6 * told["step_s"])
    assert any(event["name"] == "layer1.0.conv1 backward" for event in spans)


def test_search_ranks_what_fits() -> None:
    asked = ["--network", "vgg16", "--platform", "hc2", "--devices", "4", "--top", "50"]
    code, text = _run("search", *asked, "--json")
    told = json.loads(text)
    steps = [row["step_s"] for row in told["feasible"]]
    assert code == 0 and steps == sorted(steps) and len(steps) > 5
    assert {"dp=4", "tp=4"} <= {row["strategy"] for row in told["feasible"]}


def test_the_work_that_is_simulated_is_said() -> None:
    asked = ["--network", "gpt3-6.7b", "--platform", "a100-80gb-sxm", "--precision", "bf16"]
    code, text = _run("simulate", *asked, "--strategy", "dp=2,tp=4,micro=512", "--batch", "1024")
    work = "gpt3-6.7b on 8 devices of a100-80gb-sxm, bf16, optimizer adam, sequences of 2,048"
    assert code == 0 and f"{work}, batch 1,024 of a replica, 2,048 of all; dp=2,tp=4" in text
    assert re.search(r"^[\d.]+ s \([\d.]+ to [\d.]+ s\) a step, ", text, re.M)
    code, text = _run("search", *asked, "--devices", "8", "--global-batch", "2048", "--top", "1")
    assert code == 0 and f"{work}, batch 2,048 of all replicas" in text and " ms" not in text


def test_what_does_not_fit_in_memory_is_said_and_fails() -> None:
    asked = ["--network", "llama-70b", "--platform", "h100-sxm", "--precision", "bf16"]
    code, text = _run("simulate", *asked, "--strategy", "dp=2")
    assert (
        code == 2
        and "out of memory: stage 0 needs" in text
        and "2 devices of h100-sxm, bf16" in text
    )
    code, text = _run("search", *asked, "--devices", "2")
    assert code == 2 and "no strategy fits in memory at bf16" in text
    code, text = _run("search", *asked, "--devices", "2", "--json")
    assert code == 2 and json.loads(text.split("error:")[0])["precision"] == "bf16"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"--network": "resnet5"}, "did you mean `resnet50`"),
        ({"--platform": "hc9"}, "no such platform file"),
        ({"--platform": "h100sxm"}, "`h100sxm` is not known; did you mean `h100-sxm`"),
        ({"--platform": "tianhe3-ft"}, "cluster.device.peak_flops has no fp32"),
        ({"--strategy": "dp=16", "--platform": "hc1"}, "key cluster.nodes"),
        ({"--strategy": "dp=3,tp=2", "--devices": "8"}, "takes 6 devices, not the 8 requested"),
        ({"--strategy": "dp=2,micro=3"}, "does not divide into 3 micro-batches"),
        ({"--strategy": "nowhere.yaml"}, "no such strategy file"),
        ({"--straggler": "9=2"}, "straggler 9"),
        ({"--straggler": "fast"}, "--straggler 'fast': give it as"),
        ({"--straggler": "abc=2"}, "--straggler 'abc'"),
        ({"--link": "tape=1"}, "no link `tape`"),
        ({"--mode": "guess"}, "mode 'guess'"),
        ({"--precision": "fp64"}, "no rate at fp64 (known: fp32, fp16); take one of these"),
    ],
)
def test_mistakes_are_said_in_a_line(changed: dict[str, str], said: str) -> None:
    asked = {"--network": "alexnet", "--platform": "hc2", "--strategy": "dp=2", "--batch": "4"}
    words = [word for pair in (asked | changed).items() for word in pair]
    code, text = _run("simulate", *words)
    assert code == 2 and text.startswith("error: ") and said in text
    assert len(text.strip().splitlines()) == 1
