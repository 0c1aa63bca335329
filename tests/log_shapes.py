"""Logs in the shape of each MLPerf Training benchmark, with what the runs in them did, for tests.

The shapes are those of submissions of v3.1 to v4.0: which keys are logged, what their indices count, what a
stop states, and when evaluations run.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mlperf_fixtures import line, power_lines, write_lines

from joulecast.logs.imported_run import record_of
from joulecast.logs.mlperf import read_run, runs_of
from joulecast.runs.record import RunRecord

START_S = 40.0
"""When runs start, in s of the run clock."""


def imported(
    lines: list[str],
    nodes: int = 1,
    benchmark: str = "any",
    system: str = "ACME",
    stem: str = "result_0",
    power: Callable[[int], list[tuple[float, float]]] | None = None,
) -> RunRecord:
    """The record that the importer makes of a result file, and of what ``power`` reads on each node."""
    place = f"results/{nodes}x{system}/{benchmark}"
    files = {f"{place}/{stem}.txt": lines}
    for node in range(nodes if power else 0):
        files[f"{place}/power/{stem}/node_{node}.txt"] = power_lines(power(node))
    with tempfile.TemporaryDirectory() as folder:
        for path, texts in files.items():
            write_lines(Path(folder) / path, texts)
        (run,) = runs_of(Path(folder))
        return record_of(read_run(run))[0]


@dataclass
class Script:
    """A run as it is written down: its lines, the clock, and the seconds that it spends in each phase."""

    at_s: float = START_S
    lines: list[str] = field(default_factory=list)
    training_s: float = 0.0
    evaluating_s: float = 0.0
    both_s: float = 0.0
    stalled_s: float = 0.0

    def log(self, key: str, after_s: float = 0.0, **metadata: object) -> None:
        """Write an event down, now or somewhat later."""
        self.lines.append(line(key, self.at_s + after_s, **metadata))

    def spend(self, phase: str, seconds: float) -> None:
        """Let time pass in ``training``, ``evaluating`` or ``stalled``."""
        self.at_s += seconds
        setattr(self, f"{phase}_s", getattr(self, f"{phase}_s") + seconds)


@dataclass(frozen=True)
class Shape:
    """A log and the truth about it."""

    lines: list[str]
    script: Script
    unit: str
    work: int
    nodes: int = 1


def _file(
    script: Script,
    unit: str,
    work: int,
    batch: int,
    train_samples: int | None = None,
    nodes: int = 1,
    after: Callable[[Script], None] = lambda script: None,
    stop_last: bool = False,
) -> Shape:
    """The result file of a run; ``after`` writes what comes after its end, ``stop_last`` its end last."""
    ranks = [line("init_start", 0.001 * rank) for rank in range(nodes)]
    head = [*ranks, line("global_batch_size", 1.0, batch)]
    head += [line("train_samples", 2.0, train_samples)] if train_samples else []
    head += [line("init_stop", START_S), line("run_start", START_S)]
    stop = line("run_stop", script.at_s, status="success")
    done = Script(script.at_s)
    after(done)
    tail = [*done.lines, stop] if stop_last else [stop, *done.lines]
    return Shape([*head, *script.lines, *tail], script, unit, work, nodes)


def bert() -> Shape:
    """One epoch and one block, and evaluations that count samples under the name of epochs."""
    script = Script()
    script.log("epoch_start", epoch_num=0)
    script.log("block_start", first_epoch_num=1, epoch_count=1)
    done = 0
    for number, samples in enumerate((150_069, 149_700, 150_300, 150_531, 149_400)):
        script.spend("training", samples / 7500)
        script.spend("stalled", 4.0 if number == 2 else 0.0)
        done += samples
        script.log("eval_start", epoch_num=done)
        script.spend("evaluating", 1.3)
        script.log("eval_stop", epoch_num=done)
    script.log("block_stop", first_epoch_num=1)
    script.log("epoch_stop", epoch_num=done)
    return _file(script, "samples", done, 768)


def dlrm_dcnv2() -> Shape:
    """Evaluations that count shares of the only epoch, which stops right after the run."""
    script, samples, last = Script(), 4_195_197_692, 0.0
    script.log("epoch_start", epoch_num=0)
    for number in range(1, 8):
        script.spend("training", 13.5)
        last = number * 0.0499940687
        script.log("eval_start", epoch_num=last)
        script.spend("evaluating", 1.8)
        script.log("eval_stop", epoch_num=last)

    def after(script: Script) -> None:
        script.log("epoch_stop", epoch_num=last)

    return _file(script, "samples", round(last * samples), 55_296, samples, after=after)


def _gnn(evaluations: int, nodes: int) -> Shape:
    script, samples = Script(), 94_605_581
    script.spend("stalled", 1.1)
    script.log("epoch_start", epoch_num=1)
    for number in range(1, evaluations + 1):
        script.spend("training", 33.0 / nodes)
        epochs = round(0.05 * number, 2)
        script.log("eval_start", epoch_num=epochs)
        script.spend("evaluating", 5.0 / nodes)
        script.log("eval_stop", epoch_num=epochs)
        if epochs == int(epochs) and number < evaluations:
            script.log("epoch_stop", epoch_num=epochs)
            script.log("epoch_start", epoch_num=int(epochs) + 1)
    script.log("epoch_stop", epoch_num=round(0.05 * evaluations, 2))
    return _file(script, "samples", round(0.05 * evaluations * samples), 16_384, samples, nodes)


def gnn() -> Shape:
    """Less than an epoch, with evaluations that count its twentieths."""
    return _gnn(17, 1)


def gnn_of_several_epochs() -> Shape:
    """Large batches need more than two epochs, evaluated at each twentieth."""
    return _gnn(46, 4)


def gpt3() -> Shape:
    """Blocks and evaluations that count tokens under the name of epochs; the epoch stops after the run."""
    script, each = Script(), 51_904_512
    script.log("epoch_start", epoch_num=0)
    for number in range(6):
        block = {"first_epoch_num": number * each, "epoch_count": each}
        script.log("block_start", **block)
        script.spend("training", 120.0)
        script.spend("stalled", 9.0 if number == 3 else 0.0)
        script.log("block_stop", **block)
        script.log("eval_start", epoch_num=(number + 1) * each)
        script.spend("evaluating", 11.2)
        script.log("eval_stop", epoch_num=(number + 1) * each)

    def after(script: Script) -> None:
        script.log("epoch_stop", epoch_num=6 * each)

    return _file(script, "samples", 6 * each, 2304, 6 * each, 64, after)


def llama2_70b_lora() -> Shape:
    """Blocks of samples, the first one longer, whose stops state what was reached."""
    script, done = Script(), 0
    for samples in (1536, 384, 384, 384):
        script.log("block_start", samples_count=done)
        script.spend("training", samples / 2)
        done += samples
        script.log("block_stop", samples_count=done)
        script.log("eval_start", samples_count=done)
        script.spend("evaluating", 38.0)
        script.log("eval_stop", samples_count=done)
    return _file(script, "samples", done, 8, 3901)


def llama31_8b() -> Shape:
    """Blocks that state their own length at both ends, and evaluations with the samples so far."""
    script, each = Script(), 12_288
    for number in range(1, 6):
        script.log("block_start", samples_count=each)
        script.spend("training", 16.6)
        script.log("block_stop", samples_count=each)
        script.log("eval_start", samples_count=number * each)
        script.spend("evaluating", 0.4)
        script.log("eval_stop", samples_count=number * each)
    return _file(script, "samples", 5 * each, 64, 1_574_207_408, 32)


def maskrcnn() -> Shape:
    """Epochs in blocks; training waits for the first part of an evaluation only."""
    script = Script()
    for number in range(1, 7):
        script.log("block_start", first_epoch_num=number, epoch_count=1)
        script.log("epoch_start", epoch_num=number)
        if number > 1:
            script.spend("training", 4.0)
            script.both_s += 4.0
            script.log("eval_stop", epoch_num=number - 1)
        script.spend("training", 10.0 if number > 1 else 14.0)
        script.log("epoch_stop", epoch_num=number)
        script.log("block_stop", first_epoch_num=number)
        script.log("eval_start", epoch_num=number)
        script.spend("evaluating", 2.5)
    script.log("eval_stop", epoch_num=6)
    return _file(script, "epochs", 6, 96, 40_000)


def resnet() -> Shape:
    """Blocks of several epochs that hold the evaluation, too."""
    script, number = Script(), 1
    script.spend("stalled", 1.1)
    for epochs in (3, 4, 4):
        script.log("block_start", first_epoch_num=number, epoch_count=epochs)
        first = number
        for _ in range(epochs):
            script.log("epoch_start", epoch_num=number)
            script.spend("training", 22.7)
            script.spend("stalled", 2.8 if number == 1 else 0.0)
            script.log("epoch_stop", epoch_num=number)
            number += 1
        script.log("eval_start", epoch_num=number - 1)
        script.spend("evaluating", 0.8)
        script.log("eval_stop", epoch_num=number - 1)
        script.log("block_stop", first_epoch_num=first)
    return _file(script, "epochs", 11, 3200, 1_281_167)


def rnnt() -> Shape:
    """A block for each epoch and its evaluation."""
    script = Script()
    for number in range(1, 9):
        script.log("block_start", first_epoch_num=number, epoch_count=1)
        script.log("epoch_start", epoch_num=number)
        script.spend("training", 12.0)
        script.log("epoch_stop", epoch_num=number)
        script.log("eval_start", epoch_num=number)
        script.spend("evaluating", 1.0)
        script.log("eval_stop", epoch_num=number)
        script.log("block_stop", first_epoch_num=number)
    return _file(script, "epochs", 8, 1536, 278_016)


def ssd() -> Shape:
    """Epochs that several ranks log, each somewhat later than the other; ``train_samples`` counts steps."""
    script = Script()

    def all_ranks(key: str, number: int) -> None:
        for rank in range(8):
            script.log(key, after_s=0.002 * rank, epoch_num=number)

    for number in range(1, 5):
        all_ranks("epoch_start", number)
        script.spend("training", 500.0)
        all_ranks("epoch_stop", number)
        all_ranks("eval_start", number)
        script.spend("evaluating", 17.0)
        all_ranks("eval_stop", number)
    return _file(script, "epochs", 4, 256, 4572, 8)


def _stable_diffusion(count: str, each: int, evaluated: tuple[int, ...], work: int) -> Shape:
    """Blocks whose stops state what was reached, twice logged starts, evaluations after the run only."""
    script = Script()
    for number in range(20):
        script.log("block_start", **{count: number * each})
        script.log("block_start", after_s=0.004, **{count: number * each})
        script.spend("training", 5.4)
        script.log("block_stop", **{count: (number + 1) * each})
        script.spend("stalled", 1.4 if number % 5 == 4 and number < 19 else 0.0)

    def after(script: Script) -> None:
        script.log("block_start", **{count: 20 * each})
        script.spend("training", 5.4)
        script.log("block_stop", **{count: 21 * each})
        script.log("block_start", **{count: 21 * each})
        script.spend("stalled", 160.0)
        for reached in evaluated:
            script.log("eval_start", **{count: reached})
            script.spend("evaluating", 20.0)
            script.log("eval_stop", **{count: reached})

    return _file(script, "samples", work, 2048, 6_513_144, 64, after, stop_last=True)


def stable_diffusion() -> Shape:
    """Counts samples; checkpoints are evaluated between the edges of blocks, too."""
    return _stable_diffusion(
        "samples_count", 204_800, (3_072_000, 3_584_000, 4_096_000, 4_300_800), 4_096_000
    )


def stable_diffusion_in_steps() -> Shape:
    """Its first round counted steps."""
    evaluated = tuple(range(250, 2001, 250))
    return _stable_diffusion("step_num", 100, evaluated, 2000 * 2048)


_BLOCK = 3360


def _first_blocks(script: Script, number: int) -> dict[str, object]:
    first = number * _BLOCK or 168
    block: dict[str, object] = {"first_epoch_num": first, "epoch_count": _BLOCK}
    script.log("block_start", **block)
    return block


def unet3d() -> Shape:
    """Blocks that count samples under the name of epochs, the first 8 of them without an evaluation."""
    script = Script()
    script.spend("stalled", 3.4)
    for number in range(14):
        block = _first_blocks(script, number)
        script.spend("training", 9.4)
        script.spend("stalled", 0.6 if number == 0 else 0.0)
        script.log("block_stop", **block)
        if number >= 8:
            script.log("eval_start", epoch_num=(number + 1) * _BLOCK)
            script.spend("evaluating", 2.5)
            script.log("eval_stop", epoch_num=(number + 1) * _BLOCK)

    def after(script: Script) -> None:
        block = _first_blocks(script, 14)
        script.spend("training", 9.4)
        script.log("block_stop", **block)

    return _file(script, "samples", 14 * _BLOCK, 56, 168, after=after)


def unet3d_in_epochs() -> Shape:
    """Blocks and evaluations that count epochs of 168 samples, many times the batch."""
    script, done = Script(), 0
    for epochs in (1000, *[20] * 5):
        block = {"first_epoch_num": done + 1, "epoch_count": epochs}
        script.log("block_start", **block)
        script.spend("training", epochs * 0.3)
        done += epochs
        script.log("block_stop", **block)
        script.log("eval_start", epoch_num=done)
        script.spend("evaluating", 2.5)
        script.log("eval_stop", epoch_num=done)
    return _file(script, "samples", done * 168, 56, 168)


def unet3d_on_several_nodes() -> Shape:
    """The same with evaluations on nodes of their own, during the next block; one ends the run."""
    script = Script()
    for number in range(20):
        block = _first_blocks(script, number)
        late = number == 8
        if number >= 8:
            script.log("eval_start", after_s=0.02, epoch_num=number * _BLOCK)
            script.log("eval_stop", after_s=9.407 if late else 9.3, epoch_num=number * _BLOCK)
            script.both_s += 9.38 if late else 9.28
        if number == 19:
            script.spend("training", 9.3)
            break
        script.spend("training", 9.4)
        script.log("block_stop", **block)
        script.spend("stalled", 0.05)
    # What is left of the first evaluation, in the break between two blocks.
    script.evaluating_s, script.stalled_s = 0.007, script.stalled_s - 0.007

    def after(script: Script) -> None:
        script.log("block_stop", after_s=0.1, first_epoch_num=19 * _BLOCK, epoch_count=_BLOCK)

    return _file(script, "samples", 19 * _BLOCK, 56, 168, 9, after)


SHAPES = {
    shape.__name__: shape
    for shape in (
        *(
            bert,
            dlrm_dcnv2,
            gnn,
            gnn_of_several_epochs,
            gpt3,
            llama2_70b_lora,
            llama31_8b,
            maskrcnn,
            resnet,
            rnnt,
        ),
        *(ssd, stable_diffusion, stable_diffusion_in_steps, unet3d, unet3d_in_epochs),
        unet3d_on_several_nodes,
    )
}
"""The shapes by name."""
