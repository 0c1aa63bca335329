"""Live tuning: real trainings to a target; what goes on beside them, on made-up clocks and GPUs."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import ValidationError
from sampling import FakeGpu, show_gpus
from zeus.device.gpu.common import ZeusGPULostError

from joulecast.errors import JoulecastError
from joulecast.measure.power import zeus_devices
from joulecast.measure.power.energy_counter import (
    EnergyCounter,
    first_visible_gpu,
    open_energy_counter,
)
from joulecast.measure.power.meters import Limits, ReadFailed, Reading
from joulecast.measure.training import machine
from joulecast.runs.spec import Workload
from joulecast.tune import live
from joulecast.tune.history import History
from joulecast.tune.limit_measurement import LimitProfile, LimitWindow
from joulecast.tune.live import LiveJob, LiveTraining, live_record, tune_live
from joulecast.tune.policies import Default, PowerLimitOnly
from joulecast.tune.trial import CostModel, Proposal, SearchSpace
from joulecast.tune.zeus import Zeus

DIGITS = Workload(network="lenet5", image_size=8)
EASY = LiveJob(
    batch_sizes=(32, 64, 128),
    default_batch_size=64,
    target_accuracy=0.6,
    max_epochs=30,
)


def replace(job: LiveJob, **keys) -> LiveJob:
    return LiveJob(**job.model_dump() | keys)


NO_COUNTER = EnergyCounter([], "nothing counts here")


def quiet(note: str) -> None:
    pass


# Real trainings


@pytest.fixture(autouse=True)
def nothing_disturbs(monkeypatch):
    """These tests compare all notes: what other programs do meanwhile is no part of them."""
    monkeypatch.setattr(live, "disturbances", lambda *_: [])


@pytest.fixture(scope="module")
def digits():
    return LiveTraining(EASY, counter=NO_COUNTER)


def test_a_live_loop_reaches_its_target_and_costs_seconds(digits, tmp_path):
    notes = []
    policy = Zeus(digits.space)
    file = tmp_path / "history.jsonl"
    done = tune_live(digits, policy, 4, seed=1, history_file=file, say=notes.append)
    assert [r.number for r in done] == list(range(4)) and all(r.reached for r in done)
    assert all(r.cost == r.time_s > 0 and r.energy_j is None for r in done)
    assert notes == ["no energy is measured: nothing counts here"], "once, not once a trial"
    trials = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert all(trial["accuracy"] >= 0.6 for trial in trials if trial["reached"])
    # A try that its bound forbids is not started.
    began = [trial for trial in trials if trial["epochs"]]
    assert all(trial["why_no_energy"] == "nothing counts here" for trial in began)
    assert all(trial["energy_source"] is None for trial in trials)


def test_the_bound_stops_before_the_epoch_that_would_exceed_it(digits):
    one = digits.run(Proposal(64), 0)
    an_epoch_s = one.time_s / one.epochs
    unreachable = LiveTraining(replace(EASY, target_accuracy=1.0), counter=NO_COUNTER)
    stopped = unreachable.run(Proposal(64, cost_bound=3.5 * an_epoch_s), 0)
    assert stopped.stopped_by == "cost_bound" and not stopped.reached
    # How many epochs that are depends on what else the machine does: see the made-up clock below.
    assert 1 <= stopped.epochs < 30
    # Now its epochs are known, and a bound below one of them is told without training.
    refused = unreachable.run(Proposal(64, cost_bound=0.01 * an_epoch_s), 1)
    assert (refused.stopped_by, refused.epochs, refused.cost) == ("not_started", 0, 0.0)


def test_an_unreachable_target_ends_at_max_epochs():
    environment = LiveTraining(replace(EASY, target_accuracy=1.0, max_epochs=2), counter=NO_COUNTER)
    trial = environment.run(Proposal(128), 0)
    assert (trial.stopped_by, trial.reached, trial.epochs) == ("max_epochs", False, 2)
    assert 0 < trial.accuracy < 1


def test_accuracy_is_of_the_images_that_there_are():
    from joulecast.measure.training.loop import open_images
    from joulecast.measure.training.to_target import TrainingToTarget

    training = TrainingToTarget(DIGITS, target_accuracy=1.0, max_epochs=1)
    assert len(open_images(DIGITS, train=False)) == 360
    for batch_size in (7, 512, 2000):
        accuracy = training.train(batch_size, 1).accuracy
        assert accuracy * 360 == pytest.approx(round(accuracy * 360)), "a share of 360"
    assert training.steps_per_epoch(512) == 3 and training.steps_per_epoch(10_000) == 1
    assert training.learning_rate(128) == training.learning_rate(256) / 2


def test_torch_is_loaded_only_to_train():
    code = (
        "import sys; from joulecast.tune.live import LiveJob, LiveTraining\n"
        "LiveTraining(LiveJob(image_size=64))\n"
        "assert not {'torch', 'mpi4py'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


# The profile of power limits, on a clock and a counter that are made up


class Bench:
    """A GPU whose steps last 0.1 s and draw the limit; evaluations last 1 s and draw 1000 W."""

    def __init__(self):
        self.now_s, self.used_j, self.limit_w, self.set_to = 0.0, 0.0, None, []

    def set_limit(self, watts):
        self.limit_w = watts
        self.set_to.append(watts)

    def work(self, seconds, watts):
        self.now_s += seconds
        self.used_j += seconds * watts

    def step(self):
        # Half the watts take half as long again.
        self.work(0.1 * (1 + (400 - self.limit_w) / 400), self.limit_w)


def chooser(criterion):
    return SearchSpace((64,), 64, {}, CostModel(0.5, 400), criterion).best_limit


@pytest.mark.long
def test_a_job_of_the_scheduler_s_can_train():
    """Its step leaves addresses for ranks in the environment, and MPI would abort a process that is none."""
    train = (
        "from joulecast.tune.live import LiveJob, LiveTraining;"
        "from joulecast.tune.trial import Proposal;"
        "job = LiveJob(batch_sizes=(64,), default_batch_size=64, target_accuracy=0.01, max_epochs=1);"
        "print(LiveTraining(job).run(Proposal(64), 1).epochs)"
    )
    step = {**os.environ, "PMI_FD": "11", "PMI_RANK": "0", "PMI_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", train], env=step, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and done.stdout.strip() == "1", done.stderr


@pytest.mark.parametrize("steps_per_epoch", [1, 13, 49, 50, 51, 500])
def test_windows_go_on_over_the_ends_of_epochs(steps_per_epoch):
    bench = Bench()
    profile = LimitProfile(
        (200, 300, 400),
        bench.set_limit,
        lambda: bench.now_s,
        lambda: bench.used_j,
        chooser("energy"),
        steps_per_epoch,
        LimitWindow(10, 40, 5.0),
        {},
    )
    steps = 0
    while not profile.is_over:
        bench.step()
        steps += 1
        profile.stepped()
        if steps % steps_per_epoch == 0:
            profile.paused()
            bench.work(1.0, 1000)
            profile.resumed()
        assert steps < 200, "a window is begun anew at each epoch's end"
    # 5 s are 50 steps of 0.1 s, 40 of 0.125 s; at 0.15 s the 40 steps take longer than that.
    assert steps in (60 + 50 + 50, 61 + 50 + 50, 60 + 51 + 50, 61 + 51 + 50)
    assert bench.set_to == [400, 300, 200, 200] and profile.chosen_w == profile.in_force_w == 200
    for watts, step_s in ((400, 0.1), (300, 0.125), (200, 0.15)):
        epoch = profile.limits[watts]
        assert epoch.time_s == pytest.approx(step_s * steps_per_epoch)
        assert epoch.energy_j == pytest.approx(step_s * watts * steps_per_epoch)
    bench.step()
    profile.stepped()
    assert bench.set_to == [400, 300, 200, 200], "afterwards nothing is set"


def test_without_a_reading_a_window_has_no_energy():
    bench = Bench()
    args = (bench.set_limit, lambda: bench.now_s)
    for joules in (lambda: None, lambda: 17.0):
        profile = LimitProfile(
            (300, 400), *args, joules, chooser("cost"), 10, LimitWindow(1, 2, 0.0), {}
        )
        assert profile.chosen_w == 400, "before any is measured: the one in force"
        for _ in range(6):
            bench.step()
            profile.stepped()
        assert [epoch.energy_j for epoch in profile.limits.values()] == [None, None]
        assert profile.chosen_w == 400, "without energies nothing speaks for less"


# Trials around a training that is made up


@dataclass
class Ended:
    reached: bool
    stopped: bool
    epochs: int
    time_s: float
    accuracy: float
    failed: str | None = None


class MadeUp:
    """Trains on a bench, to its target in some epochs."""

    def __init__(self, bench, steps_per_epoch=5, epochs_to_target=4, each_step=lambda done: None):
        self.bench, self.steps, self.to_target = bench, steps_per_epoch, epochs_to_target
        self.each_step, self.seeds = each_step, []

    def steps_per_epoch(self, batch_size):
        return self.steps

    def device_uuid(self):
        return None

    def train(self, batch_size, seed, *, begun=None, stepped=None, ended=None, may_continue=None):
        self.seeds.append(seed)
        # Sums from 0 on, so that a training costs the same whenever it is done.
        self.bench.now_s = self.bench.used_j = 0.0
        begun()
        begin_s, done = self.bench.now_s, 0
        for epoch in range(1, self.to_target + 1):
            for _ in range(self.steps):
                self.bench.step()
                done += 1
                self.each_step(done)
                stepped(done)
            self.bench.work(0.1, 100)
            last = epoch == self.to_target
            if not last and not may_continue(done, 0.5):
                ended()
                return Ended(False, True, epoch, self.bench.now_s - begin_s, 0.5)
        ended()
        self.bench.used_j += 1000  # torn down: nothing of the training
        return Ended(True, False, self.to_target, self.bench.now_s - begin_s, 0.9)


class Gpu(FakeGpu):
    """The GPU that live tuning sees: 200 to 400 W, found at its 400 W; its counter is the bench's."""

    def __init__(self, bench):
        super().__init__("FakeGPU")
        self.bench, self.lost = bench, False
        bench.limit_w = 400

    @property
    def log(self):
        return [milliwatts // 1000 for milliwatts in self.set_to]

    def get_power_management_limit_constraints(self):
        return 200_000, 400_000

    def get_power_management_limit(self):
        return self.bench.limit_w * 1000

    def set_power_management_limit(self, milliwatts):
        super().set_power_management_limit(milliwatts)
        self.bench.limit_w = milliwatts // 1000

    def get_total_energy_consumption(self):
        if self.lost:
            raise ZeusGPULostError("lost")
        return int(self.bench.used_j * 1e3)


ON_GPU = replace(
    EASY,
    device="cuda",
    gpu=0,
    allow_power_limit=True,
    limit_step_w=100,
    window=LimitWindow(1, 3, 0.1),
)


@pytest.fixture
def bench(monkeypatch, tmp_path):
    # Nothing is measured with a made-up GPU: it holds another machine than the real one.
    monkeypatch.setattr(machine, "LOCK_FILE", tmp_path / "lock")
    bench = Bench()
    bench.gpu = Gpu(bench)
    show_gpus(monkeypatch, bench.gpu)
    # Its seconds are made up, and its counter goes by them.
    anything = Limits(least_w=0.0, most_w=math.inf, renewed_s=1.0, moves_within_s=math.inf)
    monkeypatch.setattr(zeus_devices, "gpu_limits", lambda *_: anything)
    # What a trial on a GPU sets in the environment goes away with the test.
    for name in ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "PCI_BUS_ID" if name.endswith("ORDER") else "0")
    return bench


def on_gpu(bench, job=ON_GPU, **changes):
    training = MadeUp(bench, **changes)
    made = LiveTraining(job, open_training=lambda job: training, seconds=lambda: bench.now_s)
    return made, training


def test_limits_are_measured_once_and_the_cheapest_stays(bench):
    environment, _ = on_gpu(bench)
    assert environment.space.limits(64) == (400, 300, 200) and not environment.notes
    assert environment.space.cost == CostModel(0.5, 400)
    trial = environment.run(Proposal(64, (400, 300, 200)), 0)
    assert bench.gpu.log == [400, 300, 200, trial.power_limit_w, 400], "and as found at last"
    assert set(trial.limits) == {400, 300, 200}
    assert trial.limits[300].time_s == pytest.approx(0.125 * 5)
    assert trial.limits[300].energy_j == pytest.approx(0.125 * 5 * 300, abs=0.01)
    assert trial.energy_source == "measured" and trial.why_no_energy is None
    assert trial.energy_j == pytest.approx(bench.used_j - 1000, abs=0.01)
    assert trial.cost == pytest.approx(0.5 * trial.energy_j + 0.5 * 400 * trial.time_s)
    again = environment.run(Proposal(64, (200,)), 1)
    assert again.power_limit_w == 200 and again.limits == {} and bench.gpu.log[-2:] == [200, 400]


def test_the_bound_is_kept_to_the_epoch(bench):
    environment, _ = on_gpu(bench, epochs_to_target=10, steps_per_epoch=100)
    whole = environment.run(Proposal(64, (400,)), 0)
    an_epoch = whole.cost / whole.epochs
    for number, epochs in enumerate((1.2, 3.5, 8.9), 1):
        stopped = environment.run(Proposal(64, (400,), cost_bound=epochs * an_epoch), number)
        assert (stopped.stopped_by, stopped.epochs) == ("cost_bound", int(epochs))
        assert stopped.cost <= epochs * an_epoch


def test_a_target_reached_early_leaves_what_was_measured(bench):
    environment, _ = on_gpu(bench, epochs_to_target=1, steps_per_epoch=10)
    trial = environment.run(Proposal(64, (400, 300, 200)), 0)
    assert set(trial.limits) == {400, 300} and trial.power_limit_w in trial.limits
    assert trial.energy_j is None and "renewed every 0.1 s" in trial.why_no_energy, "1.1 s"


def test_short_trainings_are_profiled_over_several_recurrences(bench, tmp_path):
    """Of two steps, one to settle and one measured: three trainings for a window of three steps."""
    environment, _ = on_gpu(bench, epochs_to_target=1, steps_per_epoch=2)
    policy, notes, trials = PowerLimitOnly(environment.space), [], []
    file = tmp_path / "history.jsonl"
    tune_live(
        environment, policy, 4, seed=1, history_file=file, ended=trials.append, say=notes.append
    )
    assert [set(trial.limits) for trial in trials] == [set(), set(), {400}, {400}]
    assert trials[0].power_limit_w == 400
    short = [note for note in notes if "before a single power limit was measured" in note]
    assert len(short) == 1
    assert trials[2].limits[400].time_s == pytest.approx(2 * 0.1)
    # Begun anew, only the window that was open is lost.
    environment, _ = on_gpu(bench, epochs_to_target=1, steps_per_epoch=2)
    tune_live(
        environment, policy, 12, seed=1, history_file=file, ended=trials.append, say=notes.append
    )
    measured = [set(trial.limits) for trial in trials]
    assert measured[5:10] == [{400}, {400, 300}, {400, 300}, {400, 300}, {400, 300, 200}]
    assert measured[10:] == [set(), set()] and trials[-1].proposal.power_limits_w != ()
    assert bench.limit_w == 400
    assert trials[9].limits[200].energy_j == pytest.approx(2 * 0.15 * 200, abs=0.01)


def test_a_profile_is_of_the_limits_that_are_proposed():
    bench = Bench()
    measures = (lambda: bench.now_s, lambda: bench.used_j, chooser("energy"))

    def train(profile, steps):
        for _ in range(steps):
            bench.step()
            profile.stepped()
        profile.paused()

    profile = LimitProfile((400, 300), bench.set_limit, *measures, 10, LimitWindow(1, 3, 0.0), {})
    train(profile, 6)
    assert set(profile.limits) == {400}, "of 300 W a step is measured"
    profile.again((400, 200), bench.set_limit)
    train(profile, 4)
    assert set(profile.limits) == {400, 200} and profile.is_over and bench.limit_w == 200
    profile.again((400, 300), bench.set_limit)
    assert bench.limit_w == 300
    train(profile, 3)
    assert set(profile.limits) == {400, 300, 200}, "two more are enough"
    assert profile.limits[300].time_s == pytest.approx(10 * 0.125)
    assert bench.limit_w == profile.chosen_w == 300, "200 W is cheaper and was not proposed"
    # All of them are known: they are asked for anew. A training that breaks leaves no piece.
    profile.again((400, 300), bench.set_limit)
    assert set(profile.limits) == {200} and bench.limit_w == 400
    for _ in range(3):
        bench.step()
        profile.stepped()
    bench.work(100, 1000)
    profile.again((400, 300), bench.set_limit)
    train(profile, 8)
    assert profile.limits[400].time_s == pytest.approx(1.0)


def test_the_limit_goes_back_when_a_training_breaks(bench):
    def breaks(done):
        if done == 7:
            raise RuntimeError("out of memory")

    environment, _ = on_gpu(bench, each_step=breaks)
    with pytest.raises(RuntimeError):
        environment.run(Proposal(64, (400, 300, 200)), 0)
    assert bench.limit_w == 400


def test_without_the_right_batch_sizes_alone_are_tuned(bench, monkeypatch):
    bench.gpu.supports_nonblocking_setters = False
    monkeypatch.setattr("zeus.device.common.has_sys_admin", lambda: False)
    environment, _ = on_gpu(bench)
    (note,) = environment.notes
    assert "CAP_SYS_ADMIN" in note and "batch sizes alone" in note
    assert environment.space.limits(64) == () and environment.space.cost == CostModel(0.5, 400)
    trial = environment.run(Proposal(64), 0)
    assert trial.power_limit_w is None and trial.energy_j > 0 and bench.gpu.log == []
    with pytest.raises(JoulecastError, match="300 W is proposed"):
        environment.run(Proposal(64, (300,)), 1)


def test_without_being_allowed_no_limit_is_set(bench):
    environment, _ = on_gpu(bench, replace(ON_GPU, allow_power_limit=False))
    assert bench.gpu.log == [] and "allow_power_limit" in environment.notes[0]
    assert environment.space.limits(64) == ()


def test_no_limit_goes_above_the_one_that_was_found(bench):
    bench.limit_w = 350  # an administrator's cap
    environment, _ = on_gpu(bench)
    assert environment.space.limits(64) == (350, 250, 200)
    assert environment.space.cost == CostModel(0.5, 350)


def test_a_training_that_breaks_is_a_failed_trial(bench):
    environment, training = on_gpu(bench)
    training.train = lambda *args, **watched: Ended(False, False, 0, 3.0, None, "out of memory")
    trial = environment.run(Proposal(128), 0)
    assert (trial.stopped_by, trial.reached, trial.energy_j) == ("interrupted", False, None)
    assert trial.cost == 0.5 * 400 * 3.0 and "broke before its first step" in trial.why_no_energy
    assert environment.notes == ["a training of batch size 128 broke: out of memory"]


def test_memory_that_does_not_suffice_is_told_from_other_errors(monkeypatch):
    from joulecast.measure.training import to_target

    training = to_target.TrainingToTarget(DIGITS, target_accuracy=1.0, max_epochs=2)
    training.train(512, 1)
    error = to_target.torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmore")

    def breaks(done):
        if done == 4:
            raise error

    broken = training.train(512, 1, stepped=breaks)
    assert broken.failed == "out of memory (CUDA out of memory. Tried to allocate)"
    assert (broken.reached, broken.stopped, broken.epochs) == (False, False, 1)
    assert broken.time_s > 0 and broken.accuracy is not None
    error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        training.train(512, 1, stepped=breaks)
    error = RuntimeError("shape mismatch")
    with pytest.raises(RuntimeError, match="shape"):
        training.train(512, 1, stepped=breaks)

    def no_room(*args, **named):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 B")

    monkeypatch.setattr(to_target, "Trainer", no_room)
    broken = training.train(64, 1)
    assert broken.failed is not None and (broken.epochs, broken.accuracy) == (0, None)


def test_a_sensor_that_disappears_takes_the_energy_of_that_trial(bench):
    def loses(done):
        bench.gpu.lost = bench.gpu.lost or done == 12

    environment, _ = on_gpu(bench, each_step=loses)
    history, told = History(), []
    lost = environment.run(Proposal(64, (300,), cost_bound=1e6), 0)
    assert lost.reached and lost.energy_j is None and lost.energy_source is None
    assert "gpu:0 could not be read (gpu:0: lost)" in lost.why_no_energy and lost.cost is None
    history.append(lost)
    bench.gpu.lost, environment._training.each_step = False, lambda done: None
    found = environment.run(Proposal(64, (300,)), 1)
    assert found.energy_j > 0 and found.cost is not None and found.why_no_energy is None
    environment._training.each_step = loses
    tune_live(environment, Default(environment.space), 3, seed=1, say=told.append)
    assert told == [f"no energy is measured: {lost.why_no_energy}"], "a reason is said once"


def test_without_energy_the_bound_counts_the_time(bench):
    bench.gpu.lost = True
    environment, _ = on_gpu(bench)
    assert environment.space.cost == CostModel(0.0, 400) and len(environment.notes) == 2
    bench.gpu.lost = False
    environment, _ = on_gpu(bench)
    bench.gpu.lost = True
    # 0.5 * 400 W * 0.6 s are 120 J an epoch at the least.
    trial = environment.run(Proposal(64, (400,), cost_bound=250.0), 0)
    assert (trial.stopped_by, trial.epochs, trial.cost) == ("cost_bound", 2, None)


def test_a_counter_that_stands_still_has_measured_nothing():
    class Still:
        node, name, source, counter = "here", "still", "measured", True
        failing = False

        def read(self):
            if self.failing:
                raise ReadFailed("gone")
            return Reading(None, 5.0)

    counter = EnergyCounter([Still()], None)
    joules, why = counter.between(counter.read(), counter.read())
    assert joules is None and "did not advance" in why
    Still.failing = True
    assert (
        counter.read() is None and "still could not be read (gone)" in counter.between(1, None)[1]
    )


def test_a_run_that_is_shorter_than_its_counter_can_tell_has_no_energy():
    counter = EnergyCounter([], None, least_s=2.0, renewed_s=0.1)
    assert counter.between(1.0, 5.0, over_s=2.0) == (4.0, None)
    joules, why = counter.between(1.0, 5.0, over_s=1.9)
    assert joules is None
    assert "too short to be measured by a counter that is renewed every 0.1 s" in why
    assert counter.between(1.0, 5.0) == (4.0, None)


def test_a_gpu_that_is_not_there_is_named(bench):
    assert "no GPU 3 on this host; it has gpu:0" in open_energy_counter("cuda", 3).why_not
    counter = open_energy_counter("cuda", 0)
    bench.used_j += 7
    assert counter.read() == 7


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            {"target_accuracy": 7},
            "target_accuracy\n  Input should be less than or equal to 1",
        ),
        ({"target_accuracy": math.nan}, "target_accuracy\n  Input should be a finite number"),
        ({"max_epochs": 0}, "max_epochs\n  Input should be greater than or equal to 1"),
        ({"batch_sizes": ()}, "batch_sizes"),
        ({"batch_sizes": (0, 64)}, "batch size 0 is below 1"),
        ({"default_batch_size": 65}, "default_batch_size 65 is none of"),
        ({"eta": 1.5}, "eta\n  Input should be less than or equal to 1"),
        ({"learning_rate": 0}, "learning_rate\n  Input should be greater than 0"),
        ({"gpu": -1}, "gpu\n  Input should be greater than or equal to 0"),
    ],
)
def test_values_that_make_no_sense_are_named(value, said):
    with pytest.raises(ValidationError, match=re.escape(said)):
        replace(EASY, **value)


def test_what_has_no_effect_on_a_cpu_is_said():
    assert LiveTraining(EASY, counter=NO_COUNTER).notes == [
        "no energy is measured: nothing counts here"
    ]
    job = replace(EASY, eta=0.7, allow_power_limit=True)
    metered, eta, limit = LiveTraining(job, counter=EnergyCounter([], None)).notes
    assert metered.startswith("energy is measured and reported, the cost is time alone")
    assert "eta 0.7 has no effect" in eta and "allow_power_limit has no effect" in limit


def test_the_visible_gpu_is_numbered_as_nvidia_smi_has_it(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert first_visible_gpu() == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-abc")
    with pytest.raises(JoulecastError, match="MIG"):
        first_visible_gpu()


# Going on


def test_an_interrupted_loop_goes_on_as_if_it_had_not_been(bench, tmp_path):
    def loop(file, *recurrences):
        trained = []
        for upto in recurrences:
            environment, training = on_gpu(bench)
            policy = Zeus(environment.space)
            done = tune_live(environment, policy, upto, seed=3, history_file=file, say=quiet)
            assert len(done) == upto
            trained += training.seeds
        proposals = [json.loads(line)["proposal"] for line in file.read_text().splitlines()[1:]]
        return trained, [(p["batch_size"], p["power_limits_w"]) for p in proposals]

    whole = loop(tmp_path / "whole.jsonl", 12)
    parts = loop(tmp_path / "parts.jsonl", 2, 5, 9, 12)
    assert whole == parts and len(set(whole[0])) == len(whole[0]) == 12
    other, _ = on_gpu(bench, replace(ON_GPU, target_accuracy=0.7))
    with pytest.raises(JoulecastError, match=r"`job\.target_accuracy`"):
        tune_live(
            other, Default(other.space), 1, seed=3, history_file=tmp_path / "whole.jsonl", say=quiet
        )


def test_the_machine_is_held_before_the_history_is_read(bench, tmp_path, monkeypatch):
    file, held = tmp_path / "history.jsonl", []

    @contextmanager
    def lock(log, *limits):
        held.append(file.exists())
        with open(tmp_path / "lock", "a+") as notes:
            yield notes.fileno()
        held.append("free")

    monkeypatch.setattr(live, "machine_lock", lock)
    environment, _ = on_gpu(bench)
    assert held == [False, "free"], "setting the limit in force once more is held, too"
    tune_live(environment, Default(environment.space), 1, seed=1, history_file=file, say=quiet)
    assert held == [False, "free", False, "free"] and file.exists()
    on_gpu(bench, replace(ON_GPU, allow_power_limit=False))
    assert len(held) == 4, "nothing is set"


def test_a_record_says_where_its_trials_come_from(bench, tmp_path):
    file = tmp_path / "history.jsonl"
    environment, _ = on_gpu(bench)
    policy = Default(environment.space)
    done = tune_live(environment, policy, 1, seed=1, history_file=file, say=quiet)
    first, *lines = file.read_text().splitlines()
    begun = json.loads(first)
    begun["begun"]["versions"]["torch"] = "0.1"
    file.write_text("\n".join([json.dumps(begun), *lines, ""]))
    done = tune_live(environment, policy, 2, seed=1, history_file=file, say=quiet)
    record = live_record(environment, "default", done, file)
    assert record["begun"]["versions"]["torch"] == "0.1" != record["now"]["versions"]["torch"]
    assert set(record["now"]) == set(record["begun"]) == {"host", "versions", "source"}
    assert len(record["recurrences"]) == 2
    tune_live(environment, policy, 3, seed=1, history_file=file, header={}, say=quiet)
    with pytest.raises(JoulecastError, match="`beta` is not given, now it is 2"):
        tune_live(environment, policy, 3, seed=1, history_file=file, header={"beta": 2}, say=quiet)


PROGRAM = """
import sys
from dataclasses import replace
from pathlib import Path
from joulecast.runs.spec import Workload
from joulecast.tune.limit_measurement import LimitWindow
from joulecast.tune.live import LiveJob, LiveTraining, training_of, tune_live
from joulecast.tune.policies import PowerLimitOnly

job = LiveJob(
    batch_sizes=(64,), default_batch_size=64, target_accuracy=0.7, device="cuda", gpu=0,
    allow_power_limit=True, limit_step_w=100, window=LimitWindow(2, 5, 0.0),
)
on_cpu = job.model_copy(update={"device": "cpu"})
environment = LiveTraining(job, open_training=lambda _: training_of(on_cpu))
tune_live(
    environment, PowerLimitOnly(environment.space), int(sys.argv[2]), seed=1, say=lambda note: None,
    history_file=Path(sys.argv[1]), ended=lambda trial: print("ended", trial.recurrence, flush=True),
)
"""

FAKE_GPU = """
import sys, time
from pathlib import Path
import zeus.device.gpu
from joulecast.measure.training import machine
sys.path.insert(0, {tests!r})
from sampling import FakeGpu, FakeGpus

machine.LOCK_FILE = Path({log!r}).with_name("lock")

class Gpu(FakeGpu):
    def get_power_management_limit_constraints(self):
        return 200_000, 400_000

    def get_power_management_limit(self):
        try:
            return int(open({log!r}).read().split()[-1])
        except FileNotFoundError:
            return 345_500

    def set_power_management_limit(self, milliwatts):
        with open({log!r}, "a") as log:
            log.write(f"{{milliwatts}}\\n")

    def get_total_energy_consumption(self):
        return int(time.monotonic() * 1e5)

zeus.device.gpu._gpus = FakeGpus(Gpu("FakeGPU"))
"""


def test_a_killed_loop_restores_the_limit_and_goes_on(tmp_path):
    log, file = tmp_path / "limits", tmp_path / "history.jsonl"
    program = FAKE_GPU.format(log=str(log), tests=str(Path(__file__).parents[1])) + PROGRAM

    def start(recurrences):
        return subprocess.Popen(
            [sys.executable, "-c", program, str(file), str(recurrences)],
            stdout=subprocess.PIPE,
            text=True,
        )

    def limits():
        return [int(line) for line in log.read_text().split()]

    first = start(10_000)
    assert [first.stdout.readline() for _ in range(2)] == ["ended 0\n", "ended 1\n"]
    deadline = time.monotonic() + 120
    while limits()[-1] == 345_500 and time.monotonic() < deadline:
        pass  # in the middle of a trial: its limit is set
    first.send_signal(signal.SIGTERM)
    assert first.wait(120) != 0
    assert limits()[-1] == 345_500, "as found, not the highest"
    assert {345_000, 245_000, 200_000} <= set(limits())
    kept = file.read_text()
    ended = len(kept.splitlines()) - 1
    assert ended >= 2
    second = start(ended + 2)
    said, _ = second.communicate(timeout=300)
    assert second.returncode == 0
    assert said.splitlines() == [f"ended {ended}", f"ended {ended + 1}"], (
        "none again, none left out"
    )
    assert file.read_text().startswith(kept) and limits()[-1] == 345_500


def test_what_disturbed_a_tuning_is_noted(bench, monkeypatch):
    why = "other programs kept 1.9 cores busy (stress-ng) during the run"
    monkeypatch.setattr(live, "disturbances", lambda *_: [why])
    environment, _ = on_gpu(bench)
    told = []
    tune_live(environment, Default(environment.space), 2, seed=1, say=told.append)
    assert f"Disturbed: {why}." in told and f"Disturbed: {why}." in environment.notes
