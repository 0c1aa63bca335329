"""What trainings logged becomes a table of runs, and with a power log a record."""

import gzip
import struct

import pandas as pd
import pytest
from log_fixtures import BUSY_W, MADE, ZERO_S, imported, info, iso, load, refused, row, run

SECONDS = range(300)
MEGATRON_STARTS = "[before the start of training step] datetime: 2026-05-02 10:00:00 "
EVENTS = MADE / "tfevents-2.21.0"
WANDB = MADE / "wandb-0.31.0.wandb"


def megatron(at_s, step, batch=64, energy_j=None):
    time = iso(at_s, form="%Y-%m-%d %H:%M:%S.%f")
    energy = (
        ""
        if energy_j is None
        else f" energy per GPU (J/iter/GPU): {energy_j:.1f} | power per GPU (W/GPU): {2 * energy_j:.1f} |"
    )
    return (
        f" [{time}] iteration {step:8d}/     500 | consumed samples: {step * batch:12d} | elapsed time per "
        f"iteration (ms): 500.0 | throughput per GPU (TFLOP/s/GPU): 478.0 |{energy} learning rate: 1.0E-04 | "
        f"global batch size: {batch:5d} | "
        "lm loss: 3.2E+00 |"
    )


def titan(at_s, step):
    time = iso(at_s, form="%Y-%m-%d %H:%M:%S,%f")[:-3]
    return (
        f"[rank0]:[titan] {time} - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss:  7.1  "
        "\x1b[38;2;180;60;0mgrad_norm:  1.2  \x1b[34mmemory: 30.1GiB(38%)  tps: 5,000\x1b[0m"
    )


def titan_starts(at_s, step):
    return titan(at_s, step).split("INFO")[0] + f"INFO - Training starts at step {step}"


def titan_2024(at_s, step):
    return titan(at_s, step).replace("[titan] ", "")


def printed(folder, form):
    lines = [form(80 + step / 2, step) for step in range(10, 301, 10)]
    # Another rank says late where it started.
    starts = titan_starts(75, 1)
    return written(folder, [starts, lines[0], starts, *lines[1:]])


def written(folder, lines):
    (folder / "train.log").write_text("\n".join(["building model", *lines, "done"]) + "\n")
    return folder / "train.log"


def table_of(log, out, *options):
    return run("import", "training-log", log, out, *options)


@pytest.mark.parametrize(
    ("log_in", "more"),
    [
        (lambda folder: printed(folder, megatron), ()),
        (lambda folder: printed(folder, titan), ("--batch-size", 64)),
        (lambda folder: printed(folder, titan_2024), ("--batch-size", 64)),
        (lambda _: EVENTS, ("--batch-size", 64)),
        (lambda _: WANDB, ("--batch-size", 64)),
    ],
    ids=["megatron", "titan", "titan of 2024", "tensorboard", "wandb"],
)
def test_a_training_log_and_a_power_log_make_a_record(tmp_path, log_in, more):
    options = ("--timezone", "UTC", "--nodes", 1, "--name", "mine")
    done = table_of(log_in(tmp_path), tmp_path / "runs.csv", *options)
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


def test_the_steps_of_torchtune_are_not_its_calls_of_log(tmp_path):
    # The name is shorter by six bytes, which an unknown field fills.
    name, shorter = b"\x12\x11train/global_step", b"\x12\x0bglobal_step\x7a\x04none"
    (tmp_path / "run-1.wandb").write_bytes(WANDB.read_bytes().replace(name, shorter))
    assert "steps 290" in table_of(tmp_path / "run-1.wandb", tmp_path / "runs.csv").output


def events(folder, scalars):
    """An event file: names, steps (below 128) and times of scalars."""
    records = []
    for name, step, at_s in scalars:
        value = b"\x0a" + bytes([len(name)]) + name.encode() + b"\x15" + struct.pack("<f", 7.1)
        summary = b"\x0a" + bytes([len(value)]) + value
        event = b"\x09" + struct.pack("<d", ZERO_S + at_s) + bytes([0x10, step, 0x2A, len(summary)])
        records.append(struct.pack("<QI", len(event + summary), 0) + event + summary + bytes(4))
    (folder / "events.out.tfevents.1").write_bytes(b"".join(records))
    return folder / "events.out.tfevents.1"


def test_the_steps_of_a_training_are_not_those_of_its_evaluation(tmp_path):
    training = [("train/loss", step, step) for step in (1, 50, 101)]
    evaluation = [("eval/batch_loss", step, 60 + step / 10) for step in range(20)]
    log = events(tmp_path, [*training, *evaluation])
    assert "steps 100" in table_of(log, tmp_path / "runs.csv").output


def test_deepspeed_logs_samples_in_place_of_steps(tmp_path):
    log = events(tmp_path, [("Train/Samples/lr", 8 * step, step) for step in range(1, 12)])
    said = table_of(log, tmp_path / "runs.csv").output
    assert "samples 80" in said and "steps" not in said


def test_a_batch_that_grows_is_not_written(tmp_path):
    lines = [megatron(0, 10), megatron(9, 20, 64), megatron(20, 30, 96)]
    assert table_of(written(tmp_path, lines), tmp_path / "runs.csv").exit_code == 0
    (made,) = pd.read_csv(tmp_path / "runs.csv").to_dict("records")
    assert "batch" not in made and made["samples"] == 30 * 96 - 10 * 64


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ([megatron(0, 10), megatron(9, 5)], "train.log, line 3: "),
        ([megatron(9, 10), megatron(0, 20)], "train.log, line 3: "),
        ([megatron(0, 10), MEGATRON_STARTS, megatron(900, 20)], "train.log, line 4: "),
        ([titan(0, 1), titan_starts(800, 2), titan(900, 2)], "train.log, line 4: "),
        ([titan(0, 1), titan_starts(800, 1), titan(900, 1)], "train.log, line 4: "),
        ([megatron(0, 10).split("]")[1]], "train.log, line 2: "),
        ([titan(0, 1)], "train.log: "),
    ],
)
def test_what_says_no_run_is_refused(tmp_path, lines, where):
    done = table_of(written(tmp_path, lines), tmp_path / "runs.csv")
    assert done.exit_code == 2 and where in done.output.splitlines()[0]
    assert not (tmp_path / "runs.csv").exists()


def test_an_event_file_of_a_training_that_still_runs_is_read_up_to_its_last_whole_record(tmp_path):
    cut = tmp_path / "events.out.tfevents.1"
    cut.write_bytes(EVENTS.read_bytes()[:1000])
    assert table_of(cut, tmp_path / "runs.csv").exit_code == 0
    (made,) = pd.read_csv(tmp_path / "runs.csv").to_dict("records")
    assert 0 < made["steps"] < 290 and made["steps"] % 10 == 0
    cut.write_bytes(EVENTS.read_bytes().replace(b"train/loss", b"train/\xff\xff\xff\xff"))
    done = table_of(cut, tmp_path / "other.csv")
    assert done.exit_code == 2 and "damaged" in done.output
    cut.write_text("no events\n")
    done = table_of(cut, tmp_path / "other.csv")
    assert done.exit_code == 2 and "no scalars" in done.output
    (tmp_path / "train.log.gz").write_bytes(gzip.compress(b"steps"))
    done = table_of(tmp_path / "train.log.gz", tmp_path / "other.csv")
    assert done.exit_code == 2 and "train.log.gz: is packed by gzip; unpack it" in done.output


ENERGY = [megatron(80 + step / 2, step, energy_j=200 + step % 20) for step in range(10, 301, 10)]
ON_GPUS = ("--timezone", "UTC", "--nodes", 2, "--accelerators", 8)


def test_the_energy_that_megatron_prints_is_that_of_its_gpus(tmp_path):
    imported("megatron", written(tmp_path, ENERGY), tmp_path / "out", *ON_GPUS)
    found, about = row(tmp_path / "out" / "train"), info(tmp_path / "out" / "train")
    # Of a line, the mean of its ten steps; the steps of the first line are warm-up.
    each_j = sum(10 * (200 + step % 20) for step in range(20, 301, 10))
    assert found["energy_j"] == pytest.approx(2 * 8 * each_j)
    assert found["samples"] == 290 * 64 and found["batch"] == 64 and found["nodes"] == 2
    assert about.metering.covers == "gpu" and about.metering.source == "imported"
    assert not about.left_out
    # Another log of this name needs a name of its own.
    (tmp_path / "later").mkdir()
    later = ("megatron", written(tmp_path / "later", ENERGY), tmp_path / "out", *ON_GPUS)
    assert "--run" in refused(*later)
    imported(*later, "--run", "later")
    assert row(tmp_path / "out" / "later")["energy_j"] == found["energy_j"]


def test_megatron_meters_neither_evaluations_nor_checkpoints(tmp_path):
    late = [
        megatron(80 + step / 2 + 4 * (step > 150), step, energy_j=200)
        for step in range(10, 301, 10)
    ]
    imported("megatron", written(tmp_path, late), tmp_path / "out", *ON_GPUS)
    assert any("not metered" in remark for remark in info(tmp_path / "out" / "train").remarks)
    later = [
        megatron(80 + step / 2 + 40 * (step > 150), step, energy_j=200)
        for step in range(10, 301, 10)
    ]
    assert "40 of 185 s" in refused(
        "megatron", written(tmp_path, later), tmp_path / "more", *ON_GPUS
    )


def test_a_log_without_energy_or_without_its_number_of_gpus_is_refused(tmp_path):
    plain = printed(tmp_path, megatron)
    assert "--log-energy" in refused("megatron", plain, tmp_path / "out", *ON_GPUS)
    log = written(tmp_path, ENERGY)
    assert "--accelerators" in refused("megatron", log, tmp_path / "out", "--nodes", 2)
    assert not (tmp_path / "out").exists()
