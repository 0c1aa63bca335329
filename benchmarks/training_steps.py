"""Writes ``recorded/training-steps/steps.csv``: the measured steps of all sources, in the simulator's words.

    ./run python benchmarks/training_steps.py

Each source has tables of its own form in that folder. Steps that the simulator cannot express are left out.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from joulecast.runs.files.writing import written_aside
from joulecast.simulate.judged.gpu_steps import GpuStep
from joulecast.simulate.measured_step import MeasuredStep

FOLDER = Path(__file__).resolve().parents[1] / "recorded/training-steps"
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


_READERS: dict[str, Callable[[Row], MeasuredStep | None]] = {
    "neusight": _neusight,
    "vtrain": _vtrain,
    "llm_foundry": _llm_foundry,
    "megatron_bridge": _megatron_bridge,
    "plain_pytorch": _plain_pytorch,
}
"""For each file, the function that reads a row. A step that the simulator cannot express is ``None``."""


def _read(
    name: str, reader: Callable[[Row], MeasuredStep | None]
) -> Iterator[tuple[Row, MeasuredStep]]:
    """The rows of a file, each with its step."""
    with (FOLDER / f"{name}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if (step := reader(row)) is not None:
                yield row, step


def steps_of_sources() -> list[GpuStep]:
    """The steps of all sources that judge the time of a step."""
    found = []
    for name, reader in _READERS.items():
        for row, step in _read(name, reader):
            gpu = str(row.get("System") or row["gpu"])
            platform = _CLUSTERS.get((row.get("source"), gpu), gpu)
            later = "_later" if row.get("round") in _LATER else ""
            found.append(GpuStep(name + later, platform, step))
    return found


def steps_with_memory() -> list[GpuStep]:
    """The steps of Megatron on 4 to 128 GH200 (Sailor), which judge the memory."""
    return [GpuStep("sailor", "gh200", step) for _, step in _read("sailor", _sailor)]


def write_steps(path: Path) -> None:
    """Write the steps of all sources."""
    rows = [
        {
            "data": each.source,
            "platform": each.platform,
            **each.step.model_dump(exclude_none=True, exclude={"source"}),
        }
        for each in steps_of_sources()
    ]
    names = [
        "data",
        "platform",
        *(n for n in MeasuredStep.model_fields if any(n in r for r in rows)),
    ]
    with written_aside(path) as partial, partial.open("w", newline="") as file:
        table = csv.DictWriter(file, names, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    write_steps(FOLDER / "steps.csv")
