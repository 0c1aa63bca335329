"""Judges the simulator on steps of large networks and all-reduces that others measured on GPUs.

The rows are in ``recorded/training-steps``: single GPUs (NeuSight), clusters of A100 with tensor and pipeline
parallelism (vTrain), FSDP on A100 and H100 (llm-foundry), and a vendor's tuned recipes on H100 and GB200, for
dense networks and mixtures of experts (Megatron-Bridge). The rows of plain PyTorch on one H100 and one H200
are ours. A prediction rests on one of these:

* ``description``: the GPU's description and kernels of other GPUs;
* ``one step``: also one other row with the same data, GPU and kind. Each of these rows gives a prediction;
* ``three steps``: also three of these rows. They are drawn at random ten times. Each draw is a prediction.
"""

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.graphs.kernel_costs import KernelCosts
from joulecast.graphs.precision import PRECISIONS
from joulecast.runs.files.columns import Column, read_csv
from joulecast.runs.files.reading import read_text
from joulecast.runs.judging import by_setting, join_references
from joulecast.runs.platforms import Platform, find_platform
from joulecast.simulate.cluster_links import collective_seconds
from joulecast.simulate.correction import MeasuredSteps
from joulecast.simulate.measured_step import (
    MeasuredStep,
    error_of,
    first_factor,
    simulated_step,
)
from joulecast.simulate.simulate import Simulation

LEVEL = 0.9
"""Level of the prediction intervals."""
_GROUPS_HELD = 0.8
"""Share of the groups of steps in which an interval has that level."""
_SEVERAL, _DRAWS = 3, 10
"""Number of measured steps in a draw, and number of draws."""
_LEAST_FACTOR = 0.1
_GROUP = ["data", "gpu", "kind"]
_REFERENCE = [*_GROUP, "step_kind", "network", "strategy", "batch", "devices", "global_batch"]
_FAMILY = {
    "bert_large": "bert",
    "gpt2_large": "gpt",
    "gpt3_xl": "gpt",
    "gpt3_27": "gpt",
    "opt_13": "opt",
}
_CLUSTERS = {
    # Nodes as the papers describe them. vTrain's node has four cards of 200 Gbit/s.
    ("vtrain", "a100_80gb_sxm"): "a100-80gb-sxm:nics=4x200",
    ("llm-foundry", "a100_40gb"): "a100-40gb-sxm",
    ("llm-foundry", "h100_80gb"): "h100-sxm",
    # A rack has 72 GPUs, but a power of two is used.
    (None, "DGX-GB200"): "gb200:gpus=64",
    (None, "DGX-H100"): "h100-sxm",
}


@dataclass(frozen=True)
class GpuStep:
    """A measured step, and its platform."""

    source: str
    platform: str
    step: MeasuredStep

    @property
    def kind(self) -> str:
        """``inference`` or ``training``. If the training is at tf32, in plain PyTorch at 16 bits, or with
        narrow operands, the precision is part of the kind. A step corrects no step of another kind."""
        precision = PRECISIONS[self.step.precision]
        has_own_kind = (
            precision.operand_bytes is not None or precision.plain or precision.name == "tf32"
        )
        training = f"training, {self.step.precision}" if has_own_kind else "training"
        return "inference" if self.step.inference else training


Row = Mapping[str, Any]


def _numbers(row: Row) -> str:
    names = ("layers", "hidden", "heads", "sequence", "vocabulary")
    return ",".join(f"{name}={row[name]}" for name in names)


def _neusight(row: Row) -> MeasuredStep | None:
    family = _FAMILY.get(str(row["model"]))
    if family is None or row["note"]:
        # The row is a mixture of experts whose sizes are not known, or a step of a compiled network.
        return None
    # NeuSight's code takes a classifier of sequences for BERT's inference, and the language model for
    # training (neusight/Tracing/trace.py).
    head = ",head=pooler" if family == "bert" and row["kind"] == "inference" else ""
    return MeasuredStep(
        network=f"{family}:{_numbers(row)},loss=no{head}",
        strategy=f"dp={row['dp']}" if int(row["dp"]) > 1 else "dp=1",
        batch=int(row["global_batch"]) // int(row["dp"]),
        precision="fp32",
        attention="eager",
        optimizer="none",
        inference=row["kind"] == "inference",
        step_s=float(row["step_s"]),
    )


def _batches(row: Row) -> tuple[int, int, int]:
    """Replicas, and the samples and micro-batches of each of them."""
    dp = int(row["dp"])
    batch = int(row["global_batch"]) // dp
    return dp, batch, batch // int(row["micro_batch"])


def _vtrain(row: Row) -> MeasuredStep:
    dp, batch, micro = _batches(row)
    return MeasuredStep(
        network=f"gpt:{_numbers(row)}",
        strategy=f"dp={dp},tp={row['tp']},pp={row['pp']},micro={micro},recompute,no-overlap",
        batch=batch,
        precision="fp16",
        attention="eager",
        optimizer="adam",
        step_s=float(row["step_s"]),
    )


def _llm_foundry(row: Row) -> MeasuredStep | None:
    if "fp8" in row["precision"]:
        return None
    dp, batch, micro = _batches(row)
    zero = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}[row["sharding"]]
    recompute = ",recompute" if row["recompute"] == "True" else ""
    return MeasuredStep(
        network=f"mpt-{row['model']}:sequence={row['sequence']}",
        strategy=f"dp={dp},micro={micro},zero={zero}{recompute}",
        batch=batch,
        precision="bf16",
        attention="fused",
        optimizer="adam",
        step_s=float(row["step_s"]),
    )


_PLAIN_NETWORKS = {
    "gpt2": "gpt:layers=12,hidden=768,heads=12",
    "gpt2-large": "gpt:layers=36,hidden=1280,heads=20",
    "llama-1b": "llama:layers=22,hidden=2048,heads=32,kv_heads=4,ffn=5632,vocabulary=32000",
    "llama-4l": "llama:layers=4,hidden=8192,heads=64,kv_heads=8,ffn=28672,vocabulary=32000",
    "llama3-3b": "llama:layers=28,hidden=3072,heads=24,kv_heads=8,ffn=8192,vocabulary=128256,tied=yes",
    "qwen-0.5b": "llama:layers=24,hidden=896,heads=14,kv_heads=2,ffn=4864,qkv_bias=yes,"
    "vocabulary=151936,tied=yes",
    "bert-large": "bert:layers=24,hidden=1024,heads=16",
    "gpt2-medium": "gpt:layers=24,hidden=1024,heads=16",
    "bert-base": "bert:layers=12,hidden=768,heads=12",
    "llama3-1b": "llama:layers=16,hidden=2048,heads=32,kv_heads=8,ffn=8192,vocabulary=128256,tied=yes",
    "qwen-1.5b": "llama:layers=28,hidden=1536,heads=12,kv_heads=2,ffn=8960,qkv_bias=yes,"
    "vocabulary=151936,tied=yes",
    "qwen3-0.6b": "llama:layers=28,hidden=1024,heads=16,kv_heads=8,head_dim=128,qk_norm=yes,ffn=3072,"
    "vocabulary=151936,tied=yes",
    "opt-1.3b": "opt:layers=24,hidden=2048,heads=32,positions=2050",
    "mixtral-8x": "llama:layers=8,hidden=1024,heads=16,kv_heads=4,ffn=3584,experts=8,vocabulary=32000",
    "vit_b_16": "vit_b",
    "tinyllama-1.1b": "llama:layers=22,hidden=2048,heads=32,kv_heads=4,ffn=5632,vocabulary=32000",
    "smollm-135m": "llama:layers=30,hidden=576,heads=9,kv_heads=3,ffn=1536,vocabulary=49152",
    "llama2-7b": "llama:layers=32,hidden=4096,heads=32,kv_heads=32,ffn=11008,vocabulary=32000",
    "mistral-4l": "llama:layers=4,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocabulary=32000",
    "qwen3-1.7b": "llama:layers=28,hidden=2048,heads=16,kv_heads=8,head_dim=128,qk_norm=yes,ffn=6144,"
    "vocabulary=151936",
}
"""Networks of ``plain_pytorch_networks.json`` by numbers."""
_SHIPPED = {"resnet50", "vgg16"}
"""Networks of ``plain_pytorch.csv`` whose graphs are shipped. `joulecast capture` can make the others."""
_LATER = ("2", "3")
"""The rounds that were measured after the constants of plain PyTorch were first chosen."""


def _plain_pytorch(row: Row) -> MeasuredStep | None:
    network = _PLAIN_NETWORKS.get(name := str(row["network"]), name if name in _SHIPPED else None)
    if network is None or row["precision"] == "compile":
        return None
    sequence = f",sequence={row['sequence']}" if row["sequence"] else ""
    recompute = ",recompute" if row["recompute"] == "True" else ""
    return MeasuredStep(
        network=f"{network}{sequence}",
        strategy=f"dp=1{recompute}",
        batch=int(row["batch"]),
        precision=str(row["precision"]),
        optimizer=str(row["optimizer"]),
        # The host waits for the GPU in one of these times, and not in the other one.
        step_s=min(float(row["step_s"]), float(row["event_step_s"])),
        memory_bytes=float(row["memory_bytes"]),
    )


_PRECISIONS = {
    "BF16": "bf16",
    "FP8": "fp8",
    "FP8-CS": "fp8",
    "": "fp8",
    "MXFP8": "mxfp8",
    "FP8-MX": "mxfp8",
    "NVFP4": "nvfp4",
}
_BRIDGE_NETWORKS = {
    "LLAMA3_8B": "llama3-8b",
    "LLAMA3_70B": "llama3-70b",
    "LLAMA3.1_405B": "llama3-405b",
    "GPT OSS 120B": "gpt-oss-120b",
    # This network also predicts a further token, which takes one more block.
    "DeepSeekV3": "deepseek-v3:layers=62",
    "DeepSeekV3 (w/o MTP)": "deepseek-v3",
    "DeepSeekV3 (dropless)": "deepseek-v3:layers=62",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
}


def _megatron_bridge(row: Row) -> MeasuredStep | None:
    network = _BRIDGE_NETWORKS.get(str(row["Model"]).removesuffix(" (tokendrop)"))
    if network is None or not row["section"].startswith("Pre-Training"):
        return None
    # If a row has two recipes, the numbers of the second one are in brackets. Some rows have n/a for none.
    first = {key: value.split(" (")[0].replace("n/a", "") for key, value in row.items()}
    gpus, sequence = int(first["#-GPUs"]), int(first["Sequence Length"])
    tp, pp, cp = (int(first[key]) for key in ("TP", "PP", "CP"))
    dp, batch = gpus // (tp * pp * cp), int(first["GBS"])
    micro = batch // dp // int(first["MBS"])
    words = [f"dp={dp},tp={tp},pp={pp},micro={micro}"]
    words += [f"cp={cp}"] if cp > 1 else []
    experts = first["EP"]
    words += [f"ep={experts}"] if experts not in ("", "1") else []
    words += ["sp,tp-overlap"] if tp > 1 else []
    words += [f"interleaved={first['VP']}"] if first["VP"] not in ("", "1") else []
    words += ["zero=3" if first["FSDP"] not in ("", "0") else "zero=1"]
    return MeasuredStep(
        network=f"{network}{',' if ':' in network else ':'}sequence={sequence}",
        strategy=",".join(words),
        batch=batch // dp,
        precision=_PRECISIONS[first["Precision"]],
        attention="cudnn",
        optimizer="adam",
        step_s=batch * sequence / gpus / float(first["Tokens / sec / GPU"]),
    )


_READERS: dict[str, Callable[[Row], MeasuredStep | None]] = {
    "neusight": _neusight,
    "vtrain": _vtrain,
    "llm_foundry": _llm_foundry,
    "megatron_bridge": _megatron_bridge,
    "plain_pytorch": _plain_pytorch,
}
"""For each file, the function that reads a row. A step that the simulator cannot express is ``None``."""


def _read(
    path: Path, reader: Callable[[Row], MeasuredStep | None]
) -> Iterator[tuple[Row, MeasuredStep]]:
    """The rows of a file, each with its step."""
    for row in csv.DictReader(read_text(path, "measured steps").splitlines()):
        try:
            step = reader(row)
        except (KeyError, ValueError) as error:
            raise JoulecastError(f"{path}: a row that is no measured step: {error}") from None
        if step is not None:
            yield row, step


def read_gpu_steps(folder: Path) -> list[GpuStep]:
    """Read the measured steps of a folder, without steps that the simulator cannot express.

    Raises:
        JoulecastError: a file is missing, lacks a column, or has a row that is no measured step.
    """
    found = []
    for name, reader in _READERS.items():
        for row, step in _read(folder / f"{name}.csv", reader):
            gpu = str(row.get("System") or row["gpu"])
            platform = _CLUSTERS.get((row.get("source"), gpu), gpu)
            later = "_later" if row.get("round") in _LATER else ""
            found.append(GpuStep(name + later, platform, step))
    return found


def _costs(step: GpuStep) -> tuple[Platform, KernelCosts]:
    platform = find_platform(step.platform)
    return platform, KernelCosts(platform.require_cluster().device, step.step.precision)


def simulate_steps(steps: Iterable[GpuStep]) -> pd.DataFrame:
    """Simulate measured steps by the GPU's description.

    Returns:
        A row for each step: its setting, ``measured_s``, ``predicted_s`` and the ends of its 90 % interval,
            the seconds of exposed communication (``exposed_s``), whether it is predicted to be
            ``out_of_memory``, and the ``error`` that corrects other steps.
    """
    rows = []
    known: dict[GpuStep, Simulation] = {}
    for number, each in enumerate(steps):
        platform, costs = _costs(each)
        # A vendor measures the same recipe with every release of its software.
        setting = replace(each, step=each.step.model_copy(update={"step_s": 1.0}))
        if setting not in known:
            known[setting] = simulated_step(each.step, platform, costs).without_activities()
        found = known[setting]
        low_s, high_s = found.interval_s or (math.nan, math.nan)
        ops_factor = max(first_factor(found, each.step.step_s), _LEAST_FACTOR)
        rows.append(
            {
                "step": number,
                "data": each.source,
                "gpu": platform.name,
                # A mixture of experts says little about the own error of a dense network.
                "kind": each.kind + ", experts" * (found.kind == "experts"),
                "step_kind": found.kind,
                "network": each.step.network,
                "strategy": each.step.strategy,
                "batch": each.step.batch,
                "devices": found.strategy.devices,
                "global_batch": found.batch,
                "measured_s": each.step.step_s,
                "predicted_s": found.step_s,
                "time_low_s": low_s,
                "time_high_s": high_s,
                "exposed_s": found.breakdown.exposed_communication_s,
                "error": error_of(each.step, found, ops_factor),
                "out_of_memory": bool(found.out_of_memory),
            }
        )
    return pd.DataFrame(rows)


def corrected_s(row: Row, evidence: MeasuredSteps) -> float:
    """Seconds of a row of :func:`simulate_steps`, after measured steps have corrected its ops."""
    exposed = row["exposed_s"]
    factor = evidence.factor(row["error"].setting)
    return float(exposed + factor * (row["predicted_s"] - exposed))


def _after_others(group: pd.DataFrame) -> pd.DataFrame:
    """Predictions of each step of a group, after other steps of the group were measured."""
    alone = [MeasuredSteps((error,)) for error in group["error"]]
    chance = np.random.default_rng(0)
    rows = []
    for place, row in enumerate(group.to_dict("records")):
        others = np.delete(np.arange(len(group)), place)
        taken = min(_SEVERAL, len(others))
        draws = [chance.choice(others, taken, replace=False) for _ in range(_DRAWS)]
        after = {
            "one step": [alone[other] for other in others],
            "three steps": [MeasuredSteps(tuple(group["error"].iloc[drawn])) for drawn in draws],
        }
        rows += [
            (row["step"], basis, corrected_s(row, evidence), row["out_of_memory"])
            for basis, evidences in after.items()
            for evidence in evidences
        ]
    return pd.DataFrame(rows, columns=["step", "basis", "time_s", "out_of_memory"])


def judge(steps: Iterable[GpuStep]) -> pd.DataFrame:
    """Predict measured steps, from the GPU's description and after other steps were measured.

    Returns:
        A row of :func:`joulecast.runs.judging.join_references` for each prediction: ``step`` (its number),
        ``data``, ``gpu``, ``kind``, ``network``, ``strategy``, ``batch``, ``devices``, ``global_batch``,
        ``basis``, and whether the step is predicted to be ``out_of_memory``.
    """
    found = simulate_steps(steps)
    described = found.assign(basis="description", time_s=found["predicted_s"])
    after = [_after_others(group) for _, group in found.groupby(_GROUP) if len(group) > 1]
    predictions = pd.concat([described, *after], ignore_index=True).assign(
        split="held out", time="predicted", model="simulator", role="model"
    )
    said = ["step", "split", "time", "model", "role", "basis", "time_s", "out_of_memory"]
    said += ["time_low_s", "time_high_s"]
    references = found[["step", *_REFERENCE]].assign(time_s=found["measured_s"], source="recorded")
    return join_references(predictions[said], references, "step", "time_s")


def judged_widths(judged: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Half widths of 90 % intervals, as ratios, by the basis of a prediction and the kind of step.

    A group is a GPU's steps of one kind in one data set. The width holds 90 % of the steps in four of five
    groups. The group of the next GPU is not among them, so with few groups the width is that of the worst one
    (split conformal prediction: Papadopoulos et al. 2002). Steps of plain PyTorch do not count. Some of them
    were used to choose constants. Others have the time of their host, which the interval knows.

    Args:
        judged: result of :func:`judge`.
    """
    judged = judged[~judged["data"].str.startswith("plain_pytorch")]
    cells = by_setting(judged, ["step", "basis", "step_kind", *_GROUP])
    found: dict[str, dict[str, float]] = {}
    for name, basis in (("description", "description"), ("calibrated", "one step")):
        of_basis = cells[cells["basis"] == basis]
        groups = of_basis.groupby(["step_kind", *_GROUP])["mean_absolute_percent"].quantile(LEVEL)
        found[name] = {}
        for kind, errors in groups.groupby("step_kind"):
            place = min(math.ceil(_GROUPS_HELD * (len(errors) + 1)), len(errors))
            found[name][str(kind)] = round(float(errors.sort_values().iloc[place - 1]) / 100, 3)
    return found


def _sailor(row: Row) -> MeasuredStep:
    dp, batch, micro = _batches(row)
    return MeasuredStep(
        network="opt-350m",
        strategy=f"dp={dp},tp={row['tp']},pp={row['pp']},micro={micro}",
        batch=batch,
        precision="fp16",
        attention="eager",
        optimizer="adam",
        step_s=float(row["step_s"]),
        memory_bytes=float(row["memory_bytes"]),
    )


def judge_memory(folder: Path) -> pd.DataFrame:
    """Predict the peak memory of measured steps.

    Args:
        folder: folder with ``sailor.csv`` (Megatron on 4 to 128 GH200) and ``plain_pytorch.csv``, of which
            only the later settings count.

    Returns:
        A row for each step: ``data``, ``devices``, ``measured_bytes``, ``predicted_bytes``, and ``off``, the
            share by which the measured bytes differ from the predicted ones.

    Raises:
        JoulecastError: a file is missing or lacks a column.
    """
    sailor = _read(folder / "sailor.csv", _sailor)
    steps = [GpuStep("sailor", "gh200", step) for _, step in sailor]
    steps += [step for step in read_gpu_steps(folder) if step.source == "plain_pytorch_later"]
    rows = []
    for each in steps:
        found = simulated_step(each.step, *_costs(each))
        # Torch counts the memory that it allocated, without the memory that a process needs.
        extra = found.platform.require_cluster().device.reserved_bytes
        predicted = found.peak_memory_bytes - (extra if each.source != "sailor" else 0.0)
        measured = each.step.memory_bytes or math.nan
        rows.append((each.source, found.strategy.devices, measured, predicted))
    frame = pd.DataFrame(rows, columns=["data", "devices", "measured_bytes", "predicted_bytes"])
    return frame.assign(off=frame["measured_bytes"] / frame["predicted_bytes"] - 1)


_ALL_REDUCE_PLATFORMS = {"a100": "a100-80gb-sxm", "v100": "v100"}
_ALL_REDUCE_COLUMNS = {
    "gpu": Column("text"),
    "gpus": Column("whole"),
    "bytes": Column("number"),
    "seconds": Column("number"),
}


def judge_all_reduces(folder: Path) -> pd.DataFrame:
    """Predict measured all-reduces from the GPU's name, and join the predictions with the measurements.

    Args:
        folder: folder with ``allreduce_in_node.csv``.

    Returns:
        A row of :func:`joulecast.runs.judging.join_references` for each all-reduce, with ``gpu``, ``gpus``
        and ``bytes``.

    Raises:
        JoulecastError: the file is missing or lacks a column.
    """
    frame = read_csv(folder / "allreduce_in_node.csv", "measured all-reduces", _ALL_REDUCE_COLUMNS)
    platforms = {gpu: find_platform(name) for gpu, name in _ALL_REDUCE_PLATFORMS.items()}
    predicted = [
        collective_seconds(platforms[gpu], "all_reduce", int(count), [size])[0]
        for gpu, count, size in zip(frame["gpu"], frame["gpus"], frame["bytes"], strict=True)
    ]
    references = frame.rename_axis("all_reduce").reset_index()
    predictions = references[["all_reduce"]].assign(
        split="held out",
        time="predicted",
        model="simulator",
        role="model",
        basis="description",
        time_s=predicted,
    )
    references = references.rename(columns={"seconds": "time_s"}).assign(source="recorded")
    return join_references(predictions, references, "all_reduce", "time_s")
