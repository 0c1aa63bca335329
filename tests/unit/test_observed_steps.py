"""Stages of steps from marks, the place of a process in its launch, clocks of hosts, prices of forecasts."""

import json
import time
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from fuzz_examples import killed_measurement
from hypothesis import given
from hypothesis import strategies as st

from joulecast.energy.prices import Prices
from joulecast.errors import JoulecastError
from joulecast.measure.observer.inside import marks
from joulecast.measure.observer.inside.exchange import (
    Collectives,
    ProfiledSteps,
    hidden_and_exposed,
)
from joulecast.measure.observer.inside.marks import DeviceClock, Marks
from joulecast.measure.observer.inside.network import samples_of
from joulecast.measure.observer.job_folder import JobFiles, place
from joulecast.measure.observer.job_record import assemble_killed
from joulecast.measure.observer.observed_record import batch_of_all, longest_step, steps_made
from joulecast.measure.observer.steps import MARK, Facts, Steps, read_processes
from joulecast.measure.power.host_clocks import ClockServer, offset_from
from joulecast.runs.record import read_info
from joulecast.runs.request import Priced
from joulecast.runs.spans import subtract

PARTS = st.floats(1e-3, 1.0)


def marked(*rows: tuple[int, float, float, float]) -> np.ndarray:
    return np.array(list(rows), MARK)


def plain_steps(count: int, micro_batches: int = 1, exchange: float = 0.0) -> Steps:
    """Steps of: other 1 s, then for each micro-batch fetch 1 s, forward 2 s, backward 3 s; update 1 s."""
    rows, at = [], 0.0
    for _ in range(count):
        at += 1
        for _ in range(micro_batches):
            rows += [(marks.FETCH, at, 1.0, 8.0), (marks.BACKWARD, at + 3, 3.0, 0.0)]
            at += 6
        if exchange:
            rows.append((marks.EXCHANGE, at - exchange, exchange, 0.0))
        rows.append((marks.UPDATE, at, 1.0, 0.0))
        at += 1
    return Steps.of(marked(*rows))


def lengths(steps: Steps, first: int, last: int) -> dict[str, float]:
    total: dict[str, float] = {}
    for _, stage, start, stop in steps.of_window(first, last):
        total[stage] = total.get(stage, 0.0) + stop - start
    return total


def test_a_plain_step_has_its_stages():
    steps = plain_steps(4)
    assert lengths(steps, 1, 3) == pytest.approx(
        {"materials": 3.0, "computing": 15.0, "update": 3.0}
    )
    assert set(steps.samples(0, 9)) == {8}


def test_micro_batches_add_up_and_their_samples_too():
    steps = plain_steps(3, micro_batches=4)
    assert (steps.micro_batches, steps.fetches, set(steps.samples(0, 9))) == (4, 4, {32})
    assert lengths(steps, 1, 2) == pytest.approx(
        {"materials": 8.0, "computing": 40.0, "update": 2.0}
    )


@pytest.mark.parametrize(("of_epoch", "ahead"), [((3, 3, 3, 1), 0), ((3, 3, 3, 1), 1), ((4, 2), 0)])
def test_the_last_step_of_an_epoch_may_have_fewer_micro_batches(of_epoch, ahead):
    """accelerate fetches one batch ahead."""
    rows, at = [], 0.0
    for _ in range(5):
        left = sum(of_epoch)
        for micro_batches in of_epoch:
            for _ in range(micro_batches):
                fetches = min(left, 1 + ahead * (left == sum(of_epoch)))
                rows += [(marks.FETCH, at + n, 1.0, 8.0) for n in range(fetches)]
                rows.append((marks.BACKWARD, at + 3, 3.0, 0.0))
                at, left = at + 6, left - fetches
            rows.append((marks.UPDATE, at, 1.0, 0.0))
            at += 1
    assert Steps.of(marked(*rows)).samples(0, 99).tolist() == [8 * count for count in 5 * of_epoch]


def test_exchange_that_nothing_hides_is_not_computing():
    assert lengths(plain_steps(3, exchange=0.5), 1, 1) == pytest.approx(
        {"materials": 1.0, "computing": 4.5, "communicating_copy": 0.5, "update": 1.0}
    )


def test_an_evaluation_between_steps_is_other():
    # Three batches of an evaluation, 2 s each, before the third step's own.
    steps = plain_steps(4)
    late = steps.marks.copy()
    late["start"][late["start"] > 16.5] += 6
    evaluated = [(marks.FETCH, 17.0 + 2 * k, 1.0, 64.0) for k in range(3)]
    moved = Steps.of(np.concatenate([late, marked(*evaluated)]))
    assert set(moved.samples(0, 9)) == {8}
    assert lengths(moved, 2, 2) == pytest.approx(lengths(steps, 2, 2))


def test_a_closure_computes_inside_its_update():
    rows = []
    for step in range(3):
        rows += [(marks.BACKWARD, 10 * step + 2.0, 6.0, 0.0), (marks.UPDATE, 10 * step, 9.0, 0.0)]
    found = lengths(Steps.of(marked(*rows)), 1, 2)
    assert found["update"] == pytest.approx(2.0)


def test_two_optimizers_after_one_backward_pass_end_one_step():
    rows = []
    for step in range(4):
        at = 12.0 * step
        rows += [(marks.FETCH, at + 1, 1.0, 8.0), (marks.BACKWARD, at + 5, 3.0, 0.0)]
        rows += [(marks.UPDATE, at + 8, 1.0, 0.0), (marks.UPDATE, at + 10, 2.0, 1.0)]
    found = lengths(Steps.of(marked(*rows)), 1, 3)
    # What lies between the two updates belongs to the computing.
    assert found == pytest.approx({"materials": 3.0, "computing": 21.0, "update": 9.0})


@pytest.mark.parametrize("second", [4, 3])
def test_two_optimizers_may_have_a_backward_pass_each(second):
    # Fetch 1 s; forward 1 s, backward 2 s, update 1 s of a discriminator; the same of a generator.
    rows = []
    for step in range(4):
        at = 10.0 * step
        rows += [(marks.FETCH, at + 1, 1.0, 8.0)]
        rows += [(marks.BACKWARD, at + 3, 2.0, 0.0), (marks.UPDATE, at + 5, 1.0, 0.0)]
        if step < second:
            rows += [(marks.BACKWARD, at + 7, 2.0, 0.0), (marks.UPDATE, at + 9, 1.0, 1.0)]
    steps = Steps.of(marked(*rows))
    assert len(steps.ends) == 4
    found = lengths(steps, 1, 3)
    assert found == pytest.approx({"materials": 3.0, "computing": 18.0, "update": 6.0})


def test_a_training_that_changes_its_optimizer_has_the_steps_of_both():
    rows = [
        row
        for step in range(5)
        for row in (
            (marks.FETCH, 10.0 * step + 1, 1.0, 8.0),
            (marks.BACKWARD, 10.0 * step + 3, 4.0, 0.0),
            (marks.UPDATE, 10.0 * step + 8, 1.0, float(step > 1)),
        )
    ]
    steps = Steps.of(marked(*rows))
    assert len(steps.ends) == 5
    assert lengths(steps, 1, 4)["update"] == pytest.approx(4.0)


def test_optimizers_that_run_inside_the_backward_pass_are_no_computing():
    rows = []
    for step in range(4):
        at = 10.0 * step
        rows += [(marks.FETCH, at, 1.0, 8.0), (marks.BACKWARD, at + 3, 7.0, 0.0)]
        rows += [(marks.UPDATE, at + 5 + 2 * k, 1.0, k) for k in range(3)]
    found = lengths(Steps.of(marked(*rows)), 1, 3)
    assert found == pytest.approx({"materials": 3.0, "computing": 18.0, "update": 9.0})


def test_steps_that_ddp_did_not_measure_get_the_mean_of_those_it_did():
    rows = []
    for step in range(6):
        at = 10.0 * step
        rows += [(marks.BACKWARD, at + 1, 6.0, 0.0), (marks.UPDATE, at + 8, 1.0, 0.0)]
        if step in (1, 3):
            rows += [(marks.EXCHANGE, at + 5, 2.0, 0.0), (marks.HIDDEN, at + 3, 2.0, 2.0)]
    found = list(Steps.of(marked(*rows)).of_window(1, 5))
    exchanged = {step: b - a for step, stage, a, b in found if stage == "communicating_copy"}
    assert exchanged == pytest.approx(dict.fromkeys(range(5), 2.0))


@given(st.lists(st.tuples(PARTS, PARTS, PARTS, PARTS, PARTS), min_size=3, max_size=8))
def test_stages_of_a_rank_overlap_nowhere_and_fill_no_more_than_its_steps(parts):
    rows, at = [], 0.0
    for other, fetch, forward, backward, update in parts:
        at += other
        rows.append((marks.FETCH, at, fetch, 4.0))
        at += fetch + forward
        rows.append((marks.BACKWARD, at, backward, 0.0))
        at += backward
        rows.append((marks.UPDATE, at, update, 0.0))
        at += update
    steps = Steps.of(marked(*rows))
    found = sorted((a, b) for _, _, a, b in steps.of_window(1, len(parts) - 1))
    assert all(b <= c + 1e-9 for (_, b), (c, _) in pairwise(found))
    whole = steps.ends[-1] - steps.ends[0]
    named = sum(b - a for a, b in found)
    assert named == pytest.approx(whole - sum(p[0] for p in parts[1:]))


def test_on_a_gpu_ddp_gives_lengths_alone_and_every_step_gets_their_mean():
    rows = [(marks.HIDDEN, 0.0, 1.0, 2.0)]
    for step in range(4):
        at = 100.0 + 10 * step
        rows += [(marks.BACKWARD, at + 1, 6.0, 0.0), (marks.UPDATE, at + 8, 1.0, 0.0)]
    steps = Steps.of(marked(*rows))
    assert steps.shows_exchange and steps.begin == 101.0
    found = [b - a for _, stage, a, b in steps.of_window(0, 3) if stage == "communicating_copy"]
    assert found == pytest.approx([2.0] * 4)


def test_collectives_of_a_gpu_are_launches_and_no_exchange(tmp_path):
    # A program has imported torch before its collectives.
    import_module("torch")
    notes = Marks()
    notes.open(str(tmp_path))
    on_host = [False]

    def all_reduce():
        time.sleep(0.002)

    module = SimpleNamespace(
        all_reduce=all_reduce,
        init_process_group=lambda: None,
        Work=type("Work", (), {"wait": lambda self: None}),
    )
    Collectives(notes, lambda: on_host[0]).watch(module)
    for on_host[0] in (False, True):
        module.all_reduce()
    notes.close()
    (process,) = read_processes(tmp_path)
    assert process.marks["kind"].tolist() == [marks.EXCHANGE]


SPANS = st.lists(st.tuples(PARTS, PARTS), max_size=6)


@given(SPANS, SPANS)
def test_what_is_left_and_what_is_cut_make_the_whole(whole, cut):
    def spans(lengths):
        edges = np.cumsum([x for pair in lengths for x in pair])
        return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))

    one, other = spans(whole), spans(cut)
    left = subtract(one, other)
    both = subtract(one, left)
    total = sum(b - a for a, b in one)
    assert sum(b - a for a, b in left) + sum(b - a for a, b in both) == pytest.approx(total)
    assert subtract(left, other) == left


class _Device:
    """A device with a clock of its own, which passes events as it gets to them."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.queue_ms = 0.0
        """When all that was launched will have run."""
        self.waits = 0

    def event(self) -> "_Event":
        return _Event(self, max(self.queue_ms, self.now_ms))


class _Event:
    def __init__(self, device: _Device, at_ms: float) -> None:
        self.device, self.at_ms = device, at_ms

    def query(self) -> bool:
        return self.device.now_ms >= self.at_ms

    def synchronize(self) -> None:
        self.device.waits += 1
        self.device.now_ms = max(self.device.now_ms, self.at_ms)

    def elapsed_time(self, later: "_Event") -> float:
        return later.at_ms - self.at_ms


def test_times_on_a_device_are_its_own_and_nobody_waits_for_them():
    device = _Device()
    clock = DeviceClock(device.event)
    found: list[float] = []
    for _ in range(50):
        start = clock.now()
        device.queue_ms += 20.0  # launched at once, runs for 20 ms
        clock.add(start, clock.now(), lambda a, b: found.append(b - a))
        clock.read()
    assert found == []
    device.now_ms = 500.0
    clock.read()
    assert found == pytest.approx([0.02] * 25)
    assert device.waits == 1


def test_a_mark_that_is_cut_short_is_left_out(tmp_path):
    row = marks.ROW.pack(marks.UPDATE, 1.0, 0.5, 0.0)
    (tmp_path / "7.marks").write_bytes(3 * row + row[:9])
    (process,) = read_processes(tmp_path)
    assert (process.updates, process.rank) == (3, 0)


def test_an_update_that_ends_after_the_next_one_is_none_of_a_training(tmp_path):
    each = [marks.ROW.pack(marks.UPDATE, float(k), 0.5, 0.0) for k in range(4)]
    (tmp_path / "7.marks").write_bytes(b"".join(each))
    assert read_processes(tmp_path)[0].updates == 4
    each[1] = marks.ROW.pack(marks.UPDATE, 1.0, 2.5, 0.0)
    (tmp_path / "7.marks").write_bytes(b"".join(each))
    with pytest.raises(JoulecastError, match=r"7\.marks: mark 2 is none"):
        read_processes(tmp_path)


ONE_TASK = {
    **{"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    **{"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "77"},
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, "alone-")),
        (
            {
                **{"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"},
                **{"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "77"},
            },
            (1, 2, "slurm-77.0"),
        ),
        # In a batch script, where nothing was launched yet.
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "77", "SLURM_NTASKS": "4"}, (0, 1, "alone-")),
        (
            {
                **{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
                **{"PMIX_NAMESPACE": "p-1"},
            },
            (3, 4, "openmpi-p-1"),
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2, "hydra-")),
        # In a batch script, mpiexec starts its ranks by one task of srun.
        ({"PMI_RANK": "1", "PMI_SIZE": "2"} | ONE_TASK, (1, 2, "hydra-")),
        (ONE_TASK, (0, 1, "alone-")),
    ],
)
def test_the_place_in_a_launch(environment, expected):
    found = place(environment)
    assert (found.rank, found.size) == expected[:2]
    assert found.job.startswith(expected[2])


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        # mpiexec in a job of SLURM.
        (ONE_TASK | {"PMI_RANK": "1", "PMI_SIZE": "2"}, 1),
        # A batch script: only torch knows which of four processes this is.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 3),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}, 2),
    ],
)
def test_the_rank_of_a_process_is_that_of_its_own_launcher(
    tmp_path, monkeypatch, environment, rank
):
    for name in (name for names in marks.LAUNCHERS for name in names):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    own = Marks()
    own.open(str(tmp_path))
    own.note(**({"group_rank": 3, "group_ranks": 4} if rank == 3 else {}))
    own.add(marks.UPDATE, 1.0, 2.0)
    own.close()
    assert [process.rank for process in read_processes(tmp_path)] == [rank]


def test_a_killed_measurement_becomes_one_record_although_two_processes_start(tmp_path):
    killed_measurement(tmp_path)
    (job,) = map(JobFiles, tmp_path.glob("out/.job-*"))
    assert job.lock()  # as the other process does while it makes the record
    assert assemble_killed(tmp_path / "out") == []
    job.unlock()
    assert len(assemble_killed(tmp_path / "out")) == 1
    assert [path.name for path in tmp_path.glob("out/*")] == ["mine-n1-run1"]


def test_a_training_on_a_host_without_a_measurement_is_left_out(tmp_path):
    """As after `joulecast measure -- srun -N2 ...`, where `srun -N2 joulecast measure` is needed."""
    killed_measurement(tmp_path)
    (noted,) = tmp_path.glob("out/.job-*/marks-0/12.json")
    noted.write_text(json.dumps(json.loads(noted.read_text()) | {"node": "n2", "boot": "another"}))
    assemble_killed(tmp_path / "out")
    info = read_info(tmp_path / "out/mine-n1-run1")
    (why,) = [why for why in info.left_out if why.startswith("other hosts: ")]
    assert "n2" in why and "srun" in why


def test_hosts_that_train_with_different_numbers_of_ranks_are_left_out(tmp_path):
    """As when the command of one host fails before its first step."""
    killed_measurement(tmp_path)
    (job,) = tmp_path.glob("out/.job-*")
    for path in job.glob("*-0*"):
        if path.is_file():
            other = path.with_name(path.name.replace("-0", "-1"))
            other.write_bytes(path.read_bytes().replace(b'"host":"', b'"host":"other'))
    (said,) = assemble_killed(tmp_path / "out")
    assert "mine-n2-run1: made of" in said
    info = read_info(tmp_path / "out/mine-n2-run1")
    assert any("2, other" in why and "uneven" in why for why in info.left_out)
    assert info.spec.nodes == 2 and info.outcome.steps == 0


def test_the_clock_of_another_host_is_asked_over_tcp():
    server = ClockServer()
    try:
        offset = offset_from(["nowhere.invalid", *server.addresses], server.port)
    finally:
        server.close()
    assert offset is not None
    assert abs(offset.offset_s) <= offset.uncertainty_s + 1e-6
    assert offset.at_s <= time.monotonic()


class _Batch:
    def __init__(self, **parts: object) -> None:
        self.__dict__.update(parts)


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (np.zeros((8, 3)), 8),
        ({"ids": np.zeros((4, 7)), "labels": np.zeros(4)}, 4),
        (["text", {"x": (np.zeros((2, 1)), 5), "y": np.zeros(2)}], 2),
        (_Batch(x=np.zeros((6, 2))), 6),
        (["text", 5], None),
        (_Batch(shape=3), None),
        (_Batch(items=["text"], x=np.zeros((6, 2))), None),
        (np.zeros(()), None),
        # Values and lengths of sparse features, and dense features.
        ((_Batch(_values=np.zeros(9), _lengths=np.zeros(4)), np.zeros(2)), 2),
        (_Batch(_values=np.zeros(9), _lengths=np.zeros(4)), None),
        # Images, and the boxes in each of them.
        ((np.zeros((2, 3, 8, 8)), [{"boxes": np.zeros((5, 4)), "labels": np.zeros(5)}] * 2), 2),
        # Images of several sizes.
        (([np.zeros((3, 8, 9)), np.zeros((3, 8, 8))], [{"boxes": np.zeros((5, 4))}] * 2), None),
        # A graph: its nodes and its edges.
        (
            _Batch(
                x=np.zeros((9, 3)), edge_index=np.zeros((2, 20)), batch=np.zeros(9), y=np.zeros(4)
            ),
            None,
        ),
    ],
)
def test_samples_of_a_batch(batch, samples):
    assert samples_of(batch) == samples


def test_prices_of_a_forecast():
    prices = Prices(price=0.3, price_node_hour=2.0, price_gpu_hour=1.0, co2=400.0, pue=1.5)
    # One kWh at the node is 1.5 at the building's meter.
    assert prices.kwh(3.6e6) == pytest.approx(1.5)
    assert prices.money(3600.0, 3.6e6, 2, 8) == pytest.approx(0.45 + 4 + 8)
    assert prices.co2_kg(3.6e6) == pytest.approx(0.6)
    assert prices.money(3600.0, None, 2, 8) is None
    assert Prices(price_node_hour=2.0).money(3600.0, None, 2, 8) == pytest.approx(4.0)
    assert Prices().money(3600.0, 1.0, 2, 8) is None
    with pytest.raises(JoulecastError, match="pue"):
        Priced(pue=0.9)


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda s: (s[0], sum(s))))


@given(SPANS, SPANS)
def test_exchange_is_hidden_where_something_computes(exchange, computing):
    def moments(spans):
        return {moment for start, stop in spans for moment in range(start, stop)}

    hidden, exposed = hidden_and_exposed(exchange, computing)
    assert hidden == len(moments(exchange) & moments(computing))
    assert exposed == len(moments(exchange) - moments(computing))


class _Recorded:
    """A profiler of a GPU whose events are known; names and times in ms."""

    EVENTS = (("sgemm_128", 0, 6), ("ncclDevKernel_AllGather", 4, 5), ("Memcpy DtoD", 10, 1))

    def __init__(self, **_):
        events = [
            SimpleNamespace(
                name=lambda name=name: name,
                device_type=lambda: "DeviceType.CUDA",
                start_ns=lambda start=start: start * 1e6,
                duration_ns=lambda length=length: length * 1e6,
            )
            for name, start, length in self.EVENTS
        ]
        self.profiler = SimpleNamespace(
            kineto_results=SimpleNamespace(events=lambda: [*events, self._of_the_host()])
        )
        self.start = self.stop = lambda: None

    @staticmethod
    def _of_the_host():
        return SimpleNamespace(device_type=lambda: "DeviceType.CPU")


def test_some_steps_of_a_gpu_are_profiled_the_same_on_all_ranks(tmp_path, monkeypatch):
    from torch import distributed

    monkeypatch.setattr("torch.profiler.profile", _Recorded)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    kept = Marks()
    kept.open(str(tmp_path))
    profiled = ProfiledSteps(kept)
    profiled.warm_up("cuda")
    for ended in range(1, 50):
        kept.add(marks.UPDATE, ended, ended + 0.1)
        profiled.after_step(ended, is_seen=False)
    kept.close()
    (process,) = read_processes(tmp_path)
    found = process.marks[process.marks["kind"] == marks.HIDDEN]
    assert len(found) == 3, "steps 3, 12 and 48"
    assert found["length"] == pytest.approx([2e-3] * 3)
    assert found["amount"] == pytest.approx([3e-3] * 3)
    steps = Steps.of(process.marks)
    assert steps.shows_exchange


def _items(rows, streams):
    """Five items of some rows each. A stream does not know how many items follow."""
    import torch

    item = torch.arange(2.0 * rows).reshape(rows, 2)
    if not streams:
        return [item] * 5

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([item] * 5)

    return Stream()


@pytest.mark.parametrize(
    ("rows", "streams", "options", "expected"),
    [
        # Rows of all items in one tensor, as graphs or sequences without padding.
        (3, False, {"batch_size": 2, "collate_fn": "cat"}, [2, 2, 1]),
        (3, True, {"batch_size": 2, "collate_fn": "cat"}, [2, 2, 2]),
        (3, False, {"batch_size": 8}, [5]),
        (3, True, {"batch_size": 2}, [2, 2, 1]),
        # The data set makes the batches.
        (16, False, {"batch_size": None}, [16] * 5),
        (16, True, {"batch_size": None}, [16] * 5),
    ],
)
def test_items_of_a_loader_are_its_samples(tmp_path, monkeypatch, rows, streams, options, expected):
    import torch
    from torch.utils.data import dataloader

    from joulecast.measure.observer.inside.hooks import Watch

    kind = dataloader._BaseDataLoaderIter
    for name in ("__next__", "_next_index"):
        # The hooks stay in this test.
        monkeypatch.setattr(kind, name, getattr(kind, name))
    kept = Marks()
    kept.open(str(tmp_path))
    Watch(kept).by_module()[dataloader.__name__](dataloader)
    if "collate_fn" in options:
        options = options | {"collate_fn": torch.cat}
    loader = dataloader.DataLoader(_items(rows, streams), **options)
    assert len(list(loader)) == len(expected)
    with torch.no_grad():
        # An evaluation.
        assert len(list(loader)) == len(expected)
    kept.close()
    (process,) = read_processes(tmp_path)
    assert list(process.marks["amount"]) == expected
    assert process.facts.first_batch is not None


def test_the_same_labels_are_not_the_same_batch(tmp_path, monkeypatch):
    """Of constants, such as made-up data, nothing is known."""
    import torch
    from torch.utils.data import dataloader

    from joulecast.measure.observer.inside.hooks import Watch

    kind = dataloader._BaseDataLoaderIter
    found = []
    for n, ids in enumerate(([1, 2], [3, 4], [1, 2], None)):
        for name in ("__next__", "_next_index"):
            monkeypatch.setattr(kind, name, getattr(kind, name))
        kept = Marks()
        (tmp_path / str(n)).mkdir()
        kept.open(str(tmp_path / str(n)))
        Watch(kept).by_module()[dataloader.__name__](dataloader)
        more = {"ids": torch.tensor(ids)} if ids else {}
        items = [{"label": torch.ones(3), **more}] * 2
        next(iter(dataloader.DataLoader(items, batch_size=2)))
        kept.close()
        monkeypatch.undo()
        found.append(read_processes(tmp_path / str(n))[0].facts.first_batch)
    assert found[0] == found[2] not in (None, found[1]) and found[3] is None


@pytest.mark.parametrize("passes", [20, 40])
def test_backward_passes_beyond_the_batches_are_no_fault(passes):
    """As those that warm up kernels, or a penalty on gradients."""
    rows = plain_steps(8).marks
    (one,) = rows[rows["kind"] == marks.BACKWARD][:1]
    many = np.sort(np.append(rows, np.repeat(one, passes)), order="start")
    assert set(Steps.of(many).samples(0, 7)) == {8.0}


def test_updates_of_an_optimizer_of_fastai_are_steps(tmp_path):
    import torch

    from joulecast.measure.observer.inside.hooks import Watch

    class Optimizer:
        """It gives each tensor with its settings, as that of fastai."""

        def all_params(self):
            return [(torch.zeros(3, 2), {}), (torch.zeros(4), {})]

        def step(self, closure=None):
            return "updated"

    kept = Marks()
    kept.open(str(tmp_path))
    Watch(kept).by_module()["fastai.optimizer"](SimpleNamespace(Optimizer=Optimizer))
    assert [Optimizer().step(closure=None) for _ in range(3)] == ["updated"] * 3
    kept.close()
    (process,) = read_processes(tmp_path)
    assert process.updates == 3
    assert (process.facts.optimizer, process.facts.parameters_0) == ("Optimizer", 10)


@pytest.fixture
def updates(tmp_path):
    """The hooks before and after an update of an optimizer of torch, and a function that ends the process."""
    from joulecast.measure.observer.inside.hooks import Watch

    kept, hooks = Marks(), []
    kept.open(str(tmp_path))
    module = SimpleNamespace(
        register_optimizer_step_pre_hook=hooks.append,
        register_optimizer_step_post_hook=hooks.append,
    )
    Watch(kept).by_module()["torch.optim.optimizer"](module)

    def ended():
        kept.close()
        (process,) = read_processes(tmp_path)
        return process

    return *hooks, ended


def optimizer_of(numbers, kind="SGD"):
    import torch

    return getattr(torch.optim, kind)([torch.nn.Parameter(torch.zeros(numbers))])


def test_an_optimizer_inside_of_another_one_is_a_part_of_it(updates):
    """As torch's `ZeroRedundancyOptimizer`. One of its updates raises an error."""
    before, after, ended = updates
    outer, inner = optimizer_of(3), optimizer_of(3, "Adam")
    for has_ended in (True, False, True):
        before(outer)
        before(inner)
        after(inner)
        if has_ended:
            after(outer)
    process = ended()
    assert process.updates == len(process.marks) == 2
    assert process.facts.optimizer == "SGD"
    assert process.facts.__pydantic_extra__ == {"parameters_0": 3}


def test_nothing_is_timed_while_a_cuda_graph_is_recorded(updates, tmp_path, monkeypatch):
    """The first updates, before it, count. Those of the replays are not seen, so the run has no steps."""
    import torch

    before, after, ended = updates
    optimizer = optimizer_of(3)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for is_recorded in (False, True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda now=is_recorded: now)
        before(optimizer)
        after(optimizer)
    process = ended()
    assert (process.updates, process.facts.replayed) == (2, True)
    killed_measurement(tmp_path / "run")
    for noted in tmp_path.glob("run/out/.job-*/marks-0/*.json"):
        noted.write_text(json.dumps(json.loads(noted.read_text()) | {"replayed": True}))
    assemble_killed(tmp_path / "run/out")
    info = read_info(tmp_path / "run/out/mine-n1-run1")
    assert info.outcome.steps == 0 and any("CUDA graph" in why for why in info.left_out)


def test_an_update_of_one_group_of_tensors_after_the_other_is_one_step(updates):
    """As in ZeRO of DeepSpeed, which gives its optimizer one group at a time."""
    before, after, ended = updates
    optimizer = optimizer_of(3)
    groups = [optimizer.param_groups, optimizer_of(5).param_groups, optimizer_of(2).param_groups]
    for optimizer.param_groups in groups * 4:
        before(optimizer)
        after(optimizer)
    process = ended()
    assert process.updates == len(Steps.of(process.marks).ends) == 4
    assert len(process.marks) == 12


def test_a_new_optimizer_takes_the_place_of_one_that_no_longer_exists(updates):
    """As in federated learning, where each client makes one in each round. Two others stay for all. The
    one with the most parameters says how the network is trained."""
    before, after, ended = updates
    for numbers in (3, 5, 4):
        optimizer = optimizer_of(numbers)
        for _ in range(2):
            before(optimizer)
            after(optimizer)
    others = optimizer_of(7), optimizer_of(2, "Adam")
    for stays in others:
        before(stays)
        after(stays)
    process = ended()
    assert (process.updates, process.facts.optimizer) == (6, "SGD")
    sizes = {"parameters_0": 5, "parameters_1": 7, "parameters_2": 2}
    assert process.facts.__pydantic_extra__ == sizes


@pytest.mark.parametrize("by", ["fsdp", "fully_shard", "deepspeed"])
def test_a_network_computes_with_weights_that_are_not_the_updated_ones(tmp_path, by):
    """A policy counts if it is used. A second, smaller network does not count."""
    import torch

    from joulecast.measure.observer.inside.hooks import Watch

    used = SimpleNamespace(param_dtype=torch.bfloat16)
    kept = Marks()
    kept.open(str(tmp_path))
    watched = Watch(kept).by_module()

    class Replica:
        def __init__(self, policy):
            self.mixed_precision, self.process_group = policy, SimpleNamespace(size=lambda: 2)
            self.sharding_strategy = "FULL_SHARD"

    class Engine:
        def __init__(self, module):
            self.module = module

    if by == "fsdp":
        sharding = SimpleNamespace(NO_SHARD="NO_SHARD")
        api = SimpleNamespace(FullyShardedDataParallel=Replica, ShardingStrategy=sharding)
        watched["torch.distributed.fsdp.fully_sharded_data_parallel"](api)
        Replica(used)
        Replica(SimpleNamespace(param_dtype=None))
    elif by == "fully_shard":
        api = SimpleNamespace(fully_shard=lambda network, **_: network)
        watched["torch.distributed.fsdp._fully_shard._fully_shard"](api)
        api.fully_shard(torch.nn.Linear(2, 2), mp_policy=used)
        api.fully_shard(torch.nn.Linear(2, 2))
    else:
        watched["deepspeed.runtime.engine"](SimpleNamespace(DeepSpeedEngine=Engine))
        Engine(torch.nn.Linear(6, 5, dtype=torch.bfloat16))
        Engine(torch.nn.Linear(2, 2))
        Engine(torch.nn.Linear(9, 9).requires_grad_(False))  # a reference model
    kept.note(parameters_0=7_000_000_000, captured_parameters=7_000_000_000, precision="float32")
    kept.add(marks.UPDATE, 1.0, 2.0)
    kept.close()
    (process,) = read_processes(tmp_path)
    assert process.facts.copies_of == "bfloat16"
    assert process.facts.whole == (35 if by == "deepspeed" else None)
    assert process.facts.parts == (2 if by == "fsdp" else 1)


@pytest.mark.parametrize(
    ("strategy", "group", "sizes", "whole"),
    [
        ("FULL_SHARD", 2, (50, 49), 99),
        ("HYBRID_SHARD", 1, (50, 50), 50),
        ("NO_SHARD", 2, (50, 50), 50),
        # The stages of a pipeline.
        ("NO_SHARD", 2, (50, 60), None),
    ],
)
def test_parameters_of_all_ranks(tmp_path, strategy, group, sizes, whole):
    from joulecast.measure.observer.inside.hooks import Watch

    class Replica:
        def __init__(self):
            self.sharding_strategy = strategy
            self.process_group = SimpleNamespace(size=lambda: group)
            self.mixed_precision = SimpleNamespace(param_dtype=None)

    api = SimpleNamespace(
        FullyShardedDataParallel=Replica, ShardingStrategy=SimpleNamespace(NO_SHARD="NO_SHARD")
    )
    killed_measurement(tmp_path)
    (folder,) = tmp_path.glob("out/.job-*/marks-0")
    kept = Marks()
    kept.open(str(tmp_path))
    Watch(kept).by_module()["torch.distributed.fsdp.fully_sharded_data_parallel"](api)
    Replica()
    kept.add(marks.UPDATE, 1.0, 2.0)
    kept.close()
    (process,) = read_processes(tmp_path)
    for noted, size in zip(folder.glob("*.json"), sizes, strict=True):
        facts = json.loads(noted.read_text())
        noted.write_text(json.dumps(facts | {"parts": process.facts.parts, "parameters_0": size}))
    assemble_killed(tmp_path / "out")
    assert read_info(tmp_path / "out/mine-n1-run1").parameters == whole


def rank(ends):
    host = SimpleNamespace(clock=lambda host_s: host_s - 10)
    return SimpleNamespace(steps=SimpleNamespace(ends=np.array(ends)), host=host)


@pytest.mark.parametrize(("until_s", "made"), [(3.5, 3), (99.0, 4), (0.5, 4)])
def test_steps_after_a_killed_measurement_do_not_count(until_s, made):
    assert steps_made([rank(np.arange(11.0, 16.0)), rank(np.arange(11.2, 15.2))], until_s) == made


def test_the_users_batch_counts_and_another_one_of_the_loaders_is_named():
    ranks, remarks = [SimpleNamespace(steps=plain_steps(3), facts=Facts())] * 2, []
    assert batch_of_all(ranks, (0, 2), 16, remarks) == (16, "samples")
    assert batch_of_all(ranks, (0, 2), None, remarks) == (16, "samples")
    assert not remarks
    assert batch_of_all(ranks, (0, 2), 8, remarks) == (8, "samples")
    assert "as 8 samples" in remarks[0] and "gave 16" in remarks[0]


def test_one_rank_may_load_for_all():
    """As accelerate does with streams."""
    rows = plain_steps(4).marks
    twice = np.append(rows, rows[rows["kind"] == marks.FETCH])
    loads, gets = (
        SimpleNamespace(steps=Steps.of(own), facts=Facts())
        for own in (twice, rows[rows["kind"] != marks.FETCH])
    )
    remarks = []
    assert batch_of_all([loads, gets], (1, 3), None, remarks) == (16, "samples")
    assert batch_of_all([gets, gets], (1, 3), None, remarks) == (1, "steps")
    assert not remarks


@pytest.mark.parametrize("others", [7, 8, None])
def test_ranks_that_load_the_same_samples_are_named(others):
    """As with tensor parallelism. A batch on a device has no number."""
    numbers, remarks = (7, others, None), []
    facts = [Facts(first_batch=number) for number in numbers]
    ranks = [SimpleNamespace(steps=plain_steps(3), facts=each) for each in facts]
    assert batch_of_all(ranks, (0, 2), None, remarks) == (24, "samples")
    assert any("--samples-per-step" in remark for remark in remarks) == (others == 7)


def test_only_batches_of_the_steps_that_count_are_samples():
    steps = plain_steps(6)
    fetched = np.flatnonzero(steps.marks["kind"] == marks.FETCH)
    steps.marks["amount"][fetched[3:]] = 32.0
    ranks = [SimpleNamespace(steps=steps, facts=Facts())]
    assert batch_of_all(ranks, (3, 5), None, []) == (32, "samples")
    assert batch_of_all(ranks, (1, 5), None, []) == (pytest.approx((2 * 8 + 3 * 32) / 5), "samples")
    remarks = []
    assert batch_of_all(ranks, (0, 4), 8, remarks) == (8, "samples")
    assert "gave 17.6" in remarks[0]


def test_batches_without_a_backward_pass_are_named():
    rows = plain_steps(4).marks
    evaluated = rows[rows["kind"] == marks.FETCH].copy()
    evaluated["start"] -= 0.5
    remarks = []
    steps = Steps.of(np.append(rows, evaluated))
    batch_of_all([SimpleNamespace(steps=steps, facts=Facts())], (1, 3), None, remarks)
    assert "--samples-per-step" in remarks[0]


def test_a_step_is_named_if_it_is_unlike_the_others():
    assert not longest_step([rank([11, 12, 13, 14, 15])], 0, 4)
    (remark,) = longest_step([rank([11, 12, 13, 17, 18])], 0, 4)
    assert remark.startswith("step 3 took 4")
