"""Writes a plan as a Python file that trains a module in the plan's stages, under torchrun."""

import shlex
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.runs.files.writing import written_aside

_TEMPLATE = '''\
"""{name} in {count} pipeline stages, by `joulecast partition`.

    torchrun --nproc-per-node {count} {file}

The stage with the most work has {share:.0%} of it. Put in your own data, loss and optimizer.
"""

import os

import torch
from torch import distributed, nn

from joulecast.partition.torch_stages import cut_into_stages, pipeline_of, stages_of_rank
{imports}

SCHEDULE = "1f1b"  # or "gpipe"; or "interleaved", with a half (a third ...) as many ranks as stages
MICRO_BATCHES = {micro_batches}  # of the size that the example inputs have
STEPS = 3

# The tasks of each stage, by their names in the module's trace.
STAGES = [
{stages}]


def loss(outputs, target):
    """The mean over a micro-batch; outputs are the module's tensors, in a tuple if there are several."""
    logits = outputs[0] if isinstance(outputs, tuple) else outputs
    return nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten())


def main():
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    torch.manual_seed(0)  # all ranks build the same weights
    module, inputs = {build}
    inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    mine = cut_into_stages(module, inputs, STAGES, stages_of_rank(len(STAGES)), device)
    pipeline = pipeline_of(mine, len(STAGES), SCHEDULE, MICRO_BATCHES, loss, device)
    optimizer = torch.optim.SGD([{{"params": stage.parameters()}} for stage in mine], lr=0.01)
    batch = [torch.cat([each] * MICRO_BATCHES).to(device) for each in inputs]  # your data
    target = torch.randint({classes}, (MICRO_BATCHES * {samples}, {rest})).to(device)  # your labels
    for step in range(STEPS):
        losses = []
        optimizer.zero_grad()
        pipeline.step(*batch, target=target, losses=losses)
        optimizer.step()
        if losses:  # on the rank of the last stage
            print(f"step {{step}}: loss {{torch.stack(losses).mean().item():.4f}}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
'''


def _build(graph: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The imports and the call that build the module and its inputs, and the shape of the module's output."""
    if "function" in facts:
        module, _, name = facts["function"].partition(":")
        imports = f"from {module} import {name} as build"
        return {"imports": imports, "build": "build()", "output": facts["output"]}
    if "network" not in facts:
        raise JoulecastError(
            f"--export: {graph} does not say how its module is built; give MODULE:FUNCTION, or a graph that "
            "`joulecast profile` measured"
        )
    name, size, classes = facts["network"], facts["image_size"], facts["classes"]
    call = f'build_network("{name}", {size}, 16, {classes})'
    return {
        "imports": "from joulecast.measure.workloads.networks import build_network",
        "build": f"{call}, torch.randn({facts['batch']}, 3, {size}, {size})",
        "output": (facts["batch"], classes),
    }


def write_stages(out: Path, report: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write the file.

    Args:
        out: file to write.
        report: report of the plan. Each stage is on one device.
        facts: facts about the module. They are the provenance of its measured graph; or ``function`` (as
            MODULE:FUNCTION) and ``output`` (the shape of its logits).

    Raises:
        JoulecastError: a stage is on several devices, the module is not known, or it returns no logits.
    """
    how = _build(report["graph"], facts)
    stages = report["stages"]
    if any(stage["devices"] > 1 for stage in stages):
        raise JoulecastError("--export: torch runs each stage on one device; leave --replicate out")
    written = ""
    for stage in stages:
        names = textwrap.fill(", ".join(f'"{name}"' for name in stage["nodes"]), 90)
        written += f"    # {stage['work'] / report['work']:.0%} of the work, "
        written += f"{stage['parameter_bytes'] / 1e6:.1f} MB of parameters\n"
        written += f"    [\n{textwrap.indent(names, ' ' * 8)},\n    ],\n"
    if len(how["output"]) < 2:
        raise JoulecastError(
            f"--export: {report['graph']} returns a tensor of shape {how['output']}, to which the file's "
            "loss does not fit; let it return the logits, with the samples first and the classes last"
        )
    samples, *rest, classes = how["output"]
    text = _TEMPLATE.format(
        name=report["graph"],
        count=len(stages),
        file=shlex.quote(out.name),
        share=max(stage["work"] for stage in stages) / report["work"],
        imports=how["imports"],
        micro_batches=2 * len(stages),
        stages=written,
        build=how["build"],
        samples=samples,
        rest="".join(f"{size}, " for size in rest).rstrip(),
        classes=classes,
    )
    with written_aside(out) as partial:
        partial.write_text(text)
