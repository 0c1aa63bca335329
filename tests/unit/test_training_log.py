"""What Megatron-LM and torchtitan printed becomes a table of runs, and with a power log a record."""

import pandas as pd
import pytest
from log_fixtures import BUSY_W, ZERO_S, imported, iso, load, row, run

SECONDS = range(300)


def megatron(at_s, step, batch=64):
    time = iso(at_s, form="%Y-%m-%d %H:%M:%S")
    return (
        f" [{time}] iteration {step:8d}/     500 | consumed samples: {step * batch:12d} | elapsed time per "
        f"iteration (ms): 500.0 | learning rate: 1.0E-04 | global batch size: {batch:5d} | lm loss: 3.2E+00 |"
    )


def titan(at_s, step):
    time = iso(at_s, form="%Y-%m-%d %H:%M:%S,%f")[:-3]
    return (
        f"[rank0]:[titan] {time} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  7.1  "
        "\x1b[38;2;180;60;0mgrad_norm:  1.2  \x1b[34mmemory: 30.1GiB(38%)  tps: 5,000\x1b[0m"
    )


def table_of(tmp_path, lines, *options):
    (tmp_path / "train.log").write_text("\n".join(["building model", *lines, "done"]) + "\n")
    return run("import", "training-log", tmp_path / "train.log", tmp_path / "runs.csv", *options)


@pytest.mark.parametrize(
    ("printed", "more"), [(megatron, ()), (titan, ("--batch-size", 64))], ids=["megatron", "titan"]
)
def test_a_training_log_and_a_power_log_make_a_record(tmp_path, printed, more):
    lines = [printed(80 + step / 2, step) for step in range(10, 301, 10)]
    done = table_of(tmp_path, lines, "--timezone", "UTC", "--nodes", 1, "--name", "mine")
    assert done.exit_code == 0, done.output
    power = pd.DataFrame({"t": ZERO_S + pd.Series(SECONDS), "w": load(SECONDS)})
    power.to_csv(tmp_path / "power.csv", index=False)
    mapped = ("--map", "time=t,watts=w", "--runs", tmp_path / "runs.csv", *more)
    imported("csv", tmp_path / "power.csv", tmp_path / "out", *mapped)
    found = row(tmp_path / "out" / "mine")
    # The first ten steps, which end with the first line, are warm-up.
    assert found["total_s"] == pytest.approx(145, abs=0.01)
    assert found["energy_j"] == pytest.approx(145 * BUSY_W, rel=0.01)
    assert found["samples"] == 290 * 64 and found["batch"] == 64


def test_a_batch_that_grows_is_not_written(tmp_path):
    assert (
        table_of(tmp_path, [megatron(0, 10), megatron(9, 20, 64), megatron(20, 30, 96)]).exit_code
        == 0
    )
    (made,) = pd.read_csv(tmp_path / "runs.csv").to_dict("records")
    assert "batch" not in made and made["samples"] == 30 * 96 - 10 * 64


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ([megatron(0, 10), megatron(9, 5)], "train.log, line 3: "),
        ([megatron(9, 10), megatron(0, 20)], "train.log, line 3: "),
        ([megatron(0, 10).split("]")[1]], "train.log, line 2: "),
        ([titan(0, 1)], "train.log: "),
    ],
)
def test_what_says_no_run_is_refused(tmp_path, lines, where):
    done = table_of(tmp_path, lines)
    assert done.exit_code == 2 and where in done.output.splitlines()[0]
    assert not (tmp_path / "runs.csv").exists()
