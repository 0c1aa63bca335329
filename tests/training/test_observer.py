"""Any training under `joulecast measure`: its record, its output and its end are what they should be."""

import json
import math
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from click.testing import Result
from fuzz_examples import killed_measurement
from launching import two_ranks
from typer.testing import CliRunner

from joulecast.app.cli.main import app
from joulecast.measure.observer.command import Command
from joulecast.measure.observer.job_record import assemble_killed
from joulecast.measure.power.samples import read_samples
from joulecast.runs.observations import observe
from joulecast.runs.record import RunRecord, read_record

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
EXAMPLE = PROGRAMS.parents[1] / "examples/own-training/train.py"
DDP = str(PROGRAMS / "ddp_training.py")
JOULECAST = [sys.executable, "-m", "joulecast.app.cli.main"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
SMALL = """
import os, sys, time, torch
network = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for step in range(30):
    optimizer.zero_grad()
    network(torch.randn(32, 64)).pow(2).mean().backward()
    optimizer.step()
    if step == 20:
        {at_20}
"""
LONG = SMALL.replace("range(30)", "range(10**9)").replace("step == 20", "step == 100")

VARYING_FUNCTIONAL = """
import torch
from torch.optim.sgd import sgd
network = torch.nn.Linear(64, 64)
weights = list(network.parameters())
how = {{"weight_decay": 0, "momentum": 0, "lr": 0.1, "dampening": 0, "nesterov": False, "maximize": False}}
data = torch.utils.data.TensorDataset(torch.randn(600, 64))
batches = [list(range(k)) for k in (8, 96, 8, 64, 8, 72, 8, 48, 8, 84)]
for (rows,) in torch.utils.data.DataLoader(data, batch_sampler=batches):
    loss = network(rows).sum()
    {way}
    with torch.no_grad():
        for weight in weights:
            sgd([weight], [torch.ones_like(weight)], [None], **how)
"""
FUNCTIONAL_COLLECTIVES = """
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
dist.init_process_group("gloo")
network = torch.nn.Linear(200, 200)
dist.broadcast(network.weight.detach(), 0)
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
for step in range(20):
    out = functional.all_reduce(network(torch.randn(64, 200)), "sum", dist.group.WORLD)
    optimizer.zero_grad()
    out.sum().backward()
    optimizer.step()
    if step == 15:
        profiler = torch.profiler.profile()
        profiler.start()
profiler.stop()
print(len(profiler.events()) > 0)
"""
SPAWNING = """
import sys, torch
from torch.utils.data import DataLoader
def rank(number, meeting):
    how = {"init_method": "file://" + meeting, "rank": number, "world_size": 2}
    torch.distributed.init_process_group("gloo", **how)
    network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for batch in DataLoader(torch.randn(40, 8), batch_size=4):
        network(batch).sum().backward()
        optimizer.step()
    torch.distributed.destroy_process_group()
if __name__ == "__main__":
    torch.multiprocessing.spawn(rank, (sys.argv[0] + ".meeting",), nprocs=2)
"""


@pytest.fixture
def measured(tmp_path, monkeypatch, capfd):
    """Measures a command in ``tmp_path``, from this process: a start of joulecast takes a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(command: list[str], *options: str) -> subprocess.CompletedProcess[str]:
        ended = joulecast("measure", "--name", "mine", *options, "--", *command)
        said = capfd.readouterr()
        words = [said.out + ended.stdout, said.err + ended.stderr]
        return subprocess.CompletedProcess(command, ended.exit_code, *words)

    return run


def record_of(folder: Path, run: str = "mine-n1-run1") -> RunRecord:
    return read_record(folder / "results/measured" / run)


def joulecast(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def own_clock(output: str) -> tuple[int, float]:
    found = re.search(r"(\d+) steps of (\S+) s", output)
    assert found is not None, output
    return int(found[1]), float(found[2])


def test_ddp_on_two_numbers_of_ranks_has_its_stages_and_is_forecast_by_name(
    measured, tmp_path, monkeypatch
):
    for ranks in (1, 2):
        # So many samples that what comes behind the last step counts little.
        launcher = [sys.executable] if ranks == 1 else [*TORCHRUN, str(ranks)]
        answer = measured([*launcher, DDP, "1", "6400"])
        assert answer.returncode == 0, answer.stderr
        steps, step_s = own_clock(answer.stdout)
        record = record_of(tmp_path, f"mine-n1-run{ranks}")
        row = observe(record)
        # The first step is the warm-up.
        assert record.info.outcome.steps == steps - 1
        assert row["total_s"] / row["steps"] == pytest.approx(step_s, rel=0.1)
        assert row["batch"] == 16 * ranks
        assert (row["nodes"], row["nodes_are"]) == (ranks, "ranks")
        assert record.info.parameters == 4 * (256 * 256 + 256)
        assert row["t_computing_s"] > 0 and row["t_update_s"] > 0 and row["t_materials_s"] > 0
        exchange_s = row["t_communicating_wait_s"] + row["t_communicating_copy_s"]
        # A single rank has nobody to exchange with: what DDP does meanwhile is its own work.
        assert (exchange_s > 0) == (ranks > 1)
        stages = [value for name, value in row.items() if re.fullmatch(r"t_\w+_s", name)]
        assert sum(stages) == pytest.approx(row["total_s"] / row["steps"], rel=0.02)
        assert not record.info.left_out
    monkeypatch.chdir(tmp_path)
    asked = ("--gpus", "1,2,4", "--samples", "1e6", "--price", "0.3")
    forecast = joulecast("forecast", "mine", *asked)
    assert forecast.exit_code == 0, forecast.output
    assert "the forecast assumes that 4 ranks are 2 hosts" in forecast.output
    assert "EUR" in forecast.output and "estimated" in forecast.output
    advised = joulecast("advise", "mine", "--samples", "1e6", "--objective", "energy")
    assert advised.exit_code == 0, advised.output
    assert "mine on this-machine (nodes are ranks)" in advised.output
    unknown = joulecast("forecast", "other", "--gpus", "2")
    assert unknown.exit_code == 2
    assert "mine" in unknown.output


@pytest.mark.long
def test_shards_of_the_example_are_observed(measured, tmp_path):
    words = [*TORCHRUN, "2", str(EXAMPLE), "--steps", "12", "--sharded"]
    answer = measured(words)
    assert answer.returncode == 0, answer.stderr
    record = record_of(tmp_path)
    row = observe(record)
    assert record.info.outcome.steps == 11
    assert record.info.unseen == {}
    assert row["batch"] == 16
    assert row["t_communicating_copy_s"] > 0


def test_exchange_that_no_hook_sees_is_profiled(measured, tmp_path):
    """Functional collectives, as tensor parallelism makes them, after a setup that hooks do see."""
    program = tmp_path / "functional.py"
    program.write_text(FUNCTIONAL_COLLECTIVES)
    answer = measured(two_ranks(sys.executable, str(program)))
    assert answer.returncode == 0, answer.stderr
    # The ranks may print into one line.
    said = "".join(answer.stdout.split())
    assert said == "TrueTrue", "the program's own profiler works"
    assert answer.stderr.startswith("joulecast: "), "standard error has our lines alone"
    record = record_of(tmp_path)
    assert "communicating_copy" not in record.info.unseen
    assert "profiler recorded" in record.info.remarks[0]
    assert observe(record)["t_communicating_copy_s"] > 0


def test_accumulated_gradients_are_one_step_and_steps_that_were_not_made_are_said(
    measured, tmp_path
):
    answer = measured([sys.executable, DDP, "4"], "--steps", "5:999")
    steps, _ = own_clock(answer.stdout)
    assert steps == 10
    record = record_of(tmp_path)
    assert record.info.outcome.steps == 9
    assert record.info.global_batch_size == 64
    assert "4 backward passes a step" in record.info.remarks[0]
    (why,) = record.info.left_out
    assert "5 to 999 were requested, the training made 10" in why
    assert len(record.power) > 2


@pytest.mark.parametrize(
    ("asked", "steps", "most_s"),
    [((), 28, 2.4), pytest.param(("--steps", "1:29"), 29, 60.0, marks=pytest.mark.long)],
)
def test_steps_that_still_compile_do_not_count_unless_they_are_asked_for(
    measured, tmp_path, asked, steps, most_s
):
    """As with torch.compile, the second step takes long. A long step in the middle counts, and is named. Two
    optimizers in turn, as of two folds, train the same parameters."""
    waits = "    time.sleep(1.5 if step == 1 else 0.7 if step == 20 else 0.01)\n"
    second = (
        "    if step == 15:\n        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)\n"
    )
    program = SMALL.format(at_20="pass").replace(
        "    optimizer.step()\n", f"{waits}{second}    optimizer.step()\n"
    )
    assert measured([sys.executable, "-c", program], *asked).returncode == 0
    record = record_of(tmp_path)
    assert record.info.outcome.steps == steps
    assert 0.7 + 1.5 * (steps == 29) < observe(record)["total_s"] < most_s
    assert record.info.parameters == 64 * 64 + 64
    assert any("first 2 steps" in remark for remark in record.info.remarks) == (not asked)
    longest = f"step {20 if not asked else 1} took"
    assert any(longest in remark for remark in record.info.remarks)


@pytest.mark.parametrize(
    "way",
    ["loss.backward()", pytest.param("torch.autograd.grad(loss, weights)", marks=pytest.mark.long)],
)
def test_of_batches_that_vary_the_mean_counts_and_a_function_for_each_tensor_is_one_step(
    measured, tmp_path, way
):
    (tmp_path / "varying.py").write_text(VARYING_FUNCTIONAL.format(way=way))
    before = datetime.now(UTC).isoformat(timespec="milliseconds")
    answer = measured([sys.executable, "varying.py"])
    assert answer.returncode == 0, answer.stderr
    info = record_of(tmp_path).info
    # All but the first batch, which is the warm-up.
    assert (info.outcome.steps, info.global_batch_size, info.outcome.samples) == (9, 44, 396)
    assert info.started_utc >= before
    assert any("batches vary from 8 to 96" in remark for remark in info.remarks)


COMPILED = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
network = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(network.parameters(), foreach=True)
update = torch.compile(optimizer.step, backend="aot_eager")
@torch.compile(backend="eager", fullgraph=True)
def shared_loss(batch):
    loss = network(batch).pow(2).mean()
    shared = loss.detach().clone()
    dist.all_reduce(shared)
    return loss + shared
for batch in torch.utils.data.DataLoader(torch.randn(40, 8), batch_size=4):
    shared_loss(batch).backward()
    update()
"""


def test_what_torch_compiles_is_compiled_as_without_the_observer(measured, tmp_path):
    """A collective inside of one graph, and an optimizer."""
    (tmp_path / "compiled.py").write_text(COMPILED)
    answer = measured([sys.executable, "compiled.py"])
    assert answer.returncode == 0, answer.stderr
    info = record_of(tmp_path).info
    assert info.outcome.samples == 4 * info.outcome.steps > 0
    assert info.observed_step.compiled


def test_what_it_prints_and_how_it_ends_are_the_commands_own_and_its_sitecustomize_runs(
    measured, tmp_path, monkeypatch
):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("import builtins\nbuiltins.of_site = 5\n")
    words = "import sys; print(of_site); print('err', file=sys.stderr); sys.exit(3)"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    answer = measured([sys.executable, "-c", words])
    assert (answer.returncode, answer.stdout) == (3, "5\n")
    assert answer.stderr.startswith("err\n")
    (reason,) = record_of(tmp_path).info.left_out
    assert "exit code 3" in reason


@pytest.mark.long
def test_an_abrupt_end_keeps_the_steps_before_it(measured, tmp_path):
    answer = measured([sys.executable, "-c", SMALL.format(at_20="os._exit(7)")])
    assert answer.returncode == 7
    info = record_of(tmp_path).info
    assert info.outcome.steps == 20
    assert "exit code 7" in info.left_out[0]


@pytest.mark.long
def test_a_signal_reaches_the_command_and_leaves_a_record(tmp_path):
    program = SMALL.format(at_20="print('there', flush=True); time.sleep(120)")
    words = [*JOULECAST, "measure", "--name", "mine", "--", sys.executable, "-c", program]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "there\n"
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == -signal.SIGTERM
    info = record_of(tmp_path).info
    assert "SIGTERM" in info.left_out[0] and info.unseen["materials"]
    assert info.outcome.steps == 20, "the steps before it are kept"


@pytest.mark.long
def test_a_forked_child_has_steps_of_its_own(measured, tmp_path):
    child = (
        "\n        if os.fork() == 0:\n            optimizer.step()\n            os._exit(0)\n"
        "        os.wait()"
    )
    answer = measured([sys.executable, "-c", SMALL.format(at_20=child)])
    assert answer.returncode == 0, answer.stderr
    info = record_of(tmp_path).info
    assert info.outcome.steps == 29
    assert any("other process" in remark for remark in info.remarks)


@pytest.mark.long
def test_trainings_at_once_have_a_record_each(tmp_path):
    program = tmp_path / "small.py"
    program.write_text(SMALL.format(at_20="pass"))
    words = [*JOULECAST, "measure", "--name", "mine", "--", sys.executable, str(program)]
    running = [subprocess.Popen(words, cwd=tmp_path) for _ in range(3)]
    assert [each.wait(240) for each in running] == [0, 0, 0]
    folders = sorted(path.name for path in (tmp_path / "results/measured").iterdir())
    assert folders == ["mine-n1-run1", "mine-n1-run2", "mine-n1-run3"]


COUNTS_SIGNALS = """
import os, signal, sys, time
from joulecast.measure.observer.command import Command

counts = (
    "import signal, time; seen = []; signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))\\n"
    "print('there', flush=True)\\n"
    "while not seen: time.sleep(0.01)\\n"
    "time.sleep(0.7); print(len(seen))"
)
sys.exit(Command([sys.executable, "-c", counts], os.environ).to_the_end())
"""


@pytest.mark.parametrize("send", [os.killpg, os.kill])
def test_the_command_gets_each_signal_once(send):
    """A terminal, `timeout` and SLURM signal all processes; another program may signal joulecast alone."""
    words = [sys.executable, "-c", COUNTS_SIGNALS]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "there\n"
        send(running.pid, signal.SIGUSR1)
        assert running.stdout.read() == "1\n"
    assert running.returncode == 0


def test_ctrl_c_in_a_terminal_keeps_the_power(tmp_path):
    # The terminal sends it to all of its foreground processes, the sampler too.
    program = tmp_path / "long.py"
    program.write_text(SMALL.format(at_20="print('now', flush=True); time.sleep(60)"))
    words = [*JOULECAST, "measure", "--name", "mine", "--", sys.executable, str(program)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        # Tests may run in the background, where Ctrl-C is ignored.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execvp(words[0], words)
    seen = b""
    with suppress(OSError):
        while text := os.read(terminal, 4096):
            if not seen:
                os.write(terminal, b"\x03")
            seen += text
    os.waitpid(pid, 0)
    os.close(terminal)
    info = record_of(tmp_path).info
    assert info.outcome.steps == 20, seen.decode()
    assert not record_of(tmp_path).power.empty
    assert b"power sampler" not in seen
    assert seen.count(b"Traceback") == 1


def test_what_a_launcher_has_opened_is_open_in_the_command():
    # Ranks of Hydra that are measured one by one talk to it by such a file.
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    code = Command(["sh", "-c", f"echo there >/dev/fd/{writing}"], os.environ).to_the_end()
    assert (code, os.read(reading, 9)) == (0, b"there\n")
    os.close(reading)
    os.close(writing)


def test_a_folder_that_cannot_be_written_is_said_before_the_start(capfd):
    answer = joulecast("measure", "--out", "/proc/mine", "--", "echo", "started")
    assert (answer.exit_code, answer.stdout, capfd.readouterr().out) == (2, "", "")
    assert answer.stderr.startswith("error: /proc/mine: no record can be written there")


COUNTER = """
import os, sys, time
jump = float(sys.argv[1])
drawn = 100 * (time.time() - os.stat("counter.py").st_mtime)
print(drawn + jump * os.path.exists("jumps"), "J")
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([sys.executable, "counter.py", "2e6"], "it restarted or is broken"),
        pytest.param(["cat", "board"], "it reads 0 W", marks=pytest.mark.long),
        pytest.param([sys.executable, "counter.py", "0"], None, marks=pytest.mark.long),
    ],
)
def test_no_impossible_power_is_measured(measured, tmp_path, words, said):
    (tmp_path / "counter.py").write_text(COUNTER)
    (tmp_path / "board").write_text("100 W")
    (tmp_path / "mine.json").write_text(json.dumps({"power": {"command": words}}))
    program = "sleep 3; touch jumps; echo 0 W >board; sleep 6"
    answer = measured(["sh", "-c", program], "--config", "mine.json")
    assert answer.returncode == 0, answer.stderr
    row = observe(record_of(tmp_path))
    assert row["energy_source"] == (None if said else "measured")
    if said is None:
        assert row["energy_j"] == pytest.approx(100 * row["total_s"], rel=0.1)
    else:
        assert math.isnan(row["energy_j"]) and said in row["why_no_energy"]
        assert said in answer.stderr


FILLING = """
import pathlib, sys, time
(samples,) = pathlib.Path("out").glob(".job-*/host-0.samples")
for _ in range(2):
    before = samples.stat().st_size
    while samples.stat().st_size == before:
        time.sleep(0.05)
with open("fill", "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(1000))
    except OSError:
        sys.exit(7)
"""


@pytest.mark.long
def test_a_disk_that_is_full_at_the_end_costs_neither_the_measurement_nor_the_exit_code(tmp_path):
    in_namespace = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*in_namespace, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small disk (unshare --map-root-user --mount)")
    (tmp_path / "filling.py").write_text(FILLING)
    measure = shlex.join([*JOULECAST, "measure", "--name", "mine", "--out", "out", "--"])
    script = f"""
        mkdir disk && mount -t tmpfs -o size=2m tmpfs disk && cd disk
        {measure} {shlex.quote(sys.executable)} ../filling.py; echo "ended as $?"
        rm fill
        {measure} true >/dev/null
        cp -r out ..
    """
    words = [*in_namespace, "sh", "-c", script]
    answer = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert answer.stdout == "ended as 7\n", answer.stderr
    assert "the disk is full" in answer.stderr and "Traceback" not in answer.stderr
    records = [read_record(folder) for folder in (tmp_path / "out").glob("mine-*")]
    (kept,) = [r for r in records if "filling.py" in r.info.spec.observed.command[-1]]
    assert len(kept.power) > 5 and "incomplete" in kept.info.left_out[0]


def test_a_program_that_is_not_there_is_all_that_is_said(tmp_path):
    answer = joulecast("measure", "--out", str(tmp_path), "--", "nosuchprogram")
    assert answer.exit_code == 2 and answer.stderr.startswith("error: nosuchprogram")
    assert len(answer.stderr.splitlines()) == 1 and not [*tmp_path.rglob(".job-*")]


@pytest.mark.long
def test_ranks_that_a_program_spawns_need_no_environment(measured, tmp_path):
    program = tmp_path / "spawning.py"
    program.write_text(SPAWNING)
    answer = measured([sys.executable, str(program)])
    assert answer.returncode == 0, answer.stderr
    info = record_of(tmp_path).info
    assert (info.spec.ranks, info.outcome.steps, info.outcome.samples) == (2, 9, 9 * 8)


def test_a_window_of_a_training_that_runs_on(measured, tmp_path):
    # It trains until the record of its window is there.
    program = SMALL.format(at_20="pass").replace(
        "range(30)", "iter(lambda: os.path.exists('results/measured/mine-n1-run1'), True)"
    )
    program = program.replace("optimizer.zero_grad()", "optimizer.zero_grad(); time.sleep(0.01)")
    answer = measured([sys.executable, "-c", program], "--for", "15s")
    assert answer.returncode == 0, answer.stderr
    record = record_of(tmp_path)
    assert record.info.outcome.steps > 3 and not record.info.left_out
    assert record.stages["stop_s"].max() <= record.power["t_s"].max(), "no step without its power"


def test_one_line_in_the_program_does_the_same_and_a_loss_that_is_no_number_costs_no_record(
    measured, tmp_path
):
    (tmp_path / "train.py").write_text(
        f"import runpy, joulecast\n"
        f"for name in ('one', 'two'):\n"
        f"    with joulecast.observe(name) as observing:\n"
        f"        runpy.run_path({DDP!r})\n"
        f"        observing.log_loss(float('nan'))\n"
    )
    words = [sys.executable, "train.py"]
    answer = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert answer.returncode == 0, answer.stderr
    for name in ("one", "two"):
        info = record_of(tmp_path, f"{name}-n1-run1").info
        assert (info.outcome.steps, info.global_batch_size) == (39, 16)
        assert info.outcome.final_loss is None
    # Under the command, the command makes the record.
    assert measured(words).returncode == 0
    assert record_of(tmp_path).info.outcome.steps == 79, "both trainings, but for the first step"
    assert not (tmp_path / "results/measured/one-n1-run2").exists()


def test_no_name_of_a_leftover_leads_out_of_its_folder(tmp_path):
    killed_measurement(tmp_path)
    (asked,) = tmp_path.glob("out/.job-*/began.json")
    asked.write_text(asked.read_text().replace('"mine"', '"../ESC"'))
    (said,) = assemble_killed(tmp_path / "out")
    assert "began.json: training.observed.name" in said and asked.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--name", "a/b"], "--name 'a/b'"),
        (["--steps", "4"], "--steps '4'"),
        (["--steps", "9:3"], "in this order"),
        (["--meters", "steam"], "steam is no meter"),
        (["--for", "soon"], "no duration"),
        (["--for", "0"], "--for 0: must be above 0"),
        (["--name", ""], "letters, digits"),
        (["--period", "0"], "--period '0'"),
    ],
)
def test_bad_options_end_before_the_command(tmp_path, monkeypatch, options, why):
    monkeypatch.chdir(tmp_path)
    answer = joulecast("measure", *options, "--", "touch", "begun")
    assert answer.exit_code == 2
    assert why in answer.output
    assert not (tmp_path / "begun").exists()


def live_status(out: Path) -> str:
    """What `joulecast status --live` says once it knows the energy, or after a minute."""
    until_s = time.monotonic() + 60
    while True:
        said = joulecast("status", str(out), "--live", "--steps", "1000000000").output
        if " so far " in said or time.monotonic() > until_s:
            return said
        time.sleep(0.2)


def test_a_running_measurement_shows_its_cost_and_a_killed_one_becomes_an_incomplete_record(
    measured, tmp_path
):
    program = tmp_path / "train.py"
    program.write_text(LONG.format(at_20="print('100 steps', flush=True)"))
    out = tmp_path / "results/measured"
    words = [*JOULECAST, "measure", "--name", "mine", "--", sys.executable, str(program)]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "100 steps\n"
        (job,) = out.glob(".job-*")
        while not read_samples(job / "host-0.samples").work.size:
            time.sleep(0.05)
        said = live_status(out)
        children = psutil.Process(running.pid).children()
        running.kill()
        for child in children:
            with suppress(psutil.Error):
                # The sampler ends by itself.
                if str(program) in child.cmdline():
                    child.kill()
    psutil.wait_procs(children, timeout=30)
    assert re.search(r"^mine: .* W now, .* so far \(estimated\) in .*; step [\d,]+ of 1,000", said)
    assert " for the whole, about " in said
    # A leftover that is broken stops no training.
    broken = out / ".job-alone-0"
    broken.mkdir()
    (broken / "lock").touch()
    (broken / "process-0.json").write_text("{")
    answer = measured(["sleep", "1"])
    said = answer.stderr
    assert answer.returncode == 0 and ".job-alone-0: no record of a killed measurement" in said
    (folder,) = re.findall(r"(\S*mine-n1-run\d): made of what a killed", said)
    assert not job.exists()
    record = read_record(tmp_path / folder)
    assert record.info.outcome.steps >= 90
    assert "incomplete" in record.info.left_out[0]
    assert len(record.power) and record.stages["stage"].isin(["computing"]).any()
    # A command without Python has its power alone.
    (other,) = set(out.glob("mine-*")) - {tmp_path / folder}
    assert observe(read_record(other))["total_s"] == pytest.approx(1.0, abs=0.3)
    assert len(read_record(other).power) > 5
