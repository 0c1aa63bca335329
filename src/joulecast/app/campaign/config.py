"""The configuration. It is one typed model. The schema and the documented defaults are made from this model.

``joulecast config default`` prints ``config/config.yaml``, ``joulecast config schema`` prints
``config/schema.json``; a test checks that both files agree with the model.
"""

import json
import os
import re
import textwrap
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from joulecast.app.campaign.workload_section import WorkloadSection
from joulecast.energy.request import PricesSection
from joulecast.errors import JoulecastError
from joulecast.measure.power.meter_registry import ALL_METERS, METERS
from joulecast.partition.request import PartitionSection
from joulecast.runs.files.names import NAME, plain_path, simple_name, without_secrets
from joulecast.runs.files.reading import key_and_message, read_yaml, require_few_values
from joulecast.runs.files.shipped import is_path
from joulecast.runs.request import Section
from joulecast.runs.spec import THIS_MACHINE, Algorithm, Emulation, Precision
from joulecast.simulate.request import SimulatorSection
from joulecast.tune.request import TuningSection


class ScaleSection(Section):
    """Node counts, ranks, batches and repeats."""

    nodes: list[int] = Field([1, 2, 4], min_length=1, description="Node counts to measure.")
    ranks_per_node: int = Field(
        1, ge=1, description="MPI ranks on each node. On GPUs: number of GPUs of a node."
    )
    threads_per_rank: int = Field(1, ge=1, description="Compute threads of each rank.")
    repeats: int = Field(3, ge=1, description="How often every setting is run.")
    batch_size: int = Field(
        4,
        ge=1,
        description="Samples in one step: of one node (weak), or of all nodes together (strong).",
    )
    scaling: Literal["weak", "strong"] = Field(
        "weak",
        description="weak: each node has batch_size. strong: batch_size is divided over the nodes.",
    )
    seed: int = Field(1, ge=0, description="Seed of the order of runs, weights and batches.")
    without: list[str] = Field(
        [],
        max_length=1000,
        description="Names of runs to leave out, because they cannot run here: for example out of "
        "memory. * stands for any text, as in vit_s-n1-b256-*.",
    )

    @field_validator("nodes")
    @classmethod
    def _positive(cls, nodes: list[int]) -> list[int]:
        for count in nodes:
            if count < 1:
                raise ValueError(f"node count {count} is below 1")
        if len(set(nodes)) != len(nodes):
            raise ValueError(f"a node count is given twice: {nodes}")
        return sorted(nodes)


class TrainingSection(Section):
    """How the networks are trained: steps, optimizer, all-reduce of the gradients, and data loader."""

    steps: int | dict[str, int] = Field(
        {"vgg16": 2, "resnet50": 3, "vit_s": 5},
        description="Steps that are measured in a run: one number, or one for each network.",
    )
    samples: int | dict[str, int] | None = Field(
        None,
        description="Samples that are measured in a run, in place of steps: one number, or one "
        "for each network.",
    )
    warmup_steps: int = Field(1, ge=0, description="Steps before the measured ones.")
    target_accuracy: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Accuracy on the test split at which a run stops. It stops after `steps` in any case.",
    )
    evaluate_every: int = Field(50, ge=1, description="Steps between two tests of the accuracy.")
    learning_rate: float = Field(0.01, gt=0, description="Learning rate of SGD.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of SGD.")
    precision: Precision = Field(
        "fp32",
        description="Precision of the training. bf16 is autocast: the weights stay at fp32.",
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="Device that trains.")
    algorithm: Algorithm = Field(
        "two_level",
        description="All-reduce of the gradients on CPUs. mpi: by the MPI library. shared: "
        "through shared memory, on one host only. two_level: shared in each host, then MPI between "
        "hosts. On GPUs, it is NCCL.",
    )
    bucket_mb: float = Field(64, gt=0, description="Least size of a gradient bucket, in MB.")
    overlap: bool = Field(
        False, description="Sum each bucket of gradients while the backward pass still runs."
    )
    loader_workers: int = Field(
        0, ge=0, description="Processes that load data. 0: a thread of the rank loads it."
    )
    prefetch_batches: int = Field(2, ge=0, description="Batches that are prepared ahead.")

    @field_validator("steps", "samples")
    @classmethod
    def _some(cls, counts: int | dict[str, int] | None) -> int | dict[str, int] | None:
        for count in counts.values() if isinstance(counts, dict) else [counts]:
            if count is not None and count < 1:
                raise ValueError("at least one is needed")
        return counts


class PowerSection(Section):
    """Power meters and their sampling."""

    meters: list[str] = Field(
        list(ALL_METERS),
        description="Meters to try, the best first. Kinds that this machine does not have are "
        "skipped. estimated is no meter, but a formula of utilisation and the platform's watts.",
    )
    sample_period_s: float = Field(
        0.1, ge=0.005, le=10, description="Time between two readings, in seconds."
    )

    sysfs_root: str = Field(
        "/sys",
        min_length=1,
        description="Folder of the kernel's files.",
    )
    command: list[str] = Field(
        [],
        max_length=100,
        description="Command of your site that prints what the node draws, as a list of words. It "
        "prints `231.5 W`, or a counter as `12345 J` (also mW, kW, MW, kJ, MJ, Wh, kWh).",
    )

    @field_validator("meters")
    @classmethod
    def _known(cls, meters: list[str]) -> list[str]:
        for name in meters:
            if name not in METERS:
                raise ValueError(f"unknown meter `{name}` (known: {', '.join(METERS)})")
        if len(set(meters)) != len(meters):
            raise ValueError("a meter is given twice")
        return meters


class CalibrationSection(Section):
    """Calibration runs of MC2."""

    batch_sizes: list[int] = Field(
        [2, 4, 8],
        min_length=1,
        description="Batch sizes of the calibration runs on one node.",
    )
    idle_s: float = Field(
        20, gt=0, description="Seconds in which the nodes idle, with the process loaded."
    )
    sleeping_rank_s: float = Field(
        2, gt=0, description="Seconds in which all ranks wait for one that sleeps."
    )
    allreduce_bytes: list[int] = Field(
        [4194304, 16777216, 33554432, 67108864, 134217728, 268435456],
        min_length=1,
        description="Sizes that the all-reduce calibration sums. They should cover the sizes of "
        "the training's buckets.",
    )
    allreduce_repeats: int = Field(15, ge=1, description="How often each size is summed.")


class EvaluationSection(Section):
    """Evaluation of the models."""

    imports: list[str] = Field(
        [],
        description="Folders of your own MLPerf power submissions.",
    )
    series_splits: int = Field(
        5,
        ge=1,
        description="Points at which a trace is split for the time-series rivals.",
    )

    @field_validator("imports")
    @classmethod
    def _folders(cls, folders: list[str]) -> list[str]:
        names = [simple_name(PurePath(plain_path(folder)).name) for folder in folders]
        if len(set(names)) < len(names):
            raise ValueError("has two folders of one name, which their records would share")
        return folders


class QuietSection(Section):
    """Handling of other programs that keep the machine busy."""

    wait_s: float = Field(
        60,
        ge=0,
        description="Longest wait for other programs before a measurement, in seconds. If they still run "
        "then, the run is marked as disturbed.",
    )
    repeats: int = Field(1, ge=0, description="How often a disturbed run is measured again.")


class Config(Section):
    """The configuration of a campaign."""

    campaign: str = Field("default", pattern=NAME, description="Name of the campaign.")
    results: str = Field("results", min_length=1, description="Folder of the results.")
    platform: str = Field(
        THIS_MACHINE,
        description="Platform: a name, or a FILE.yaml.",
    )
    workload: WorkloadSection = WorkloadSection()
    scale: ScaleSection = ScaleSection()
    training: TrainingSection = TrainingSection()
    power: PowerSection = PowerSection()
    emulation: Emulation | None = Field(
        Emulation(nodes_per_core=4),
        description="Emulate nodes that are this many times slower than a core, so that there can "
        "be more nodes than cores. null: no emulation.",
    )
    calibration: CalibrationSection = CalibrationSection()
    evaluation: EvaluationSection = EvaluationSection()
    simulator: SimulatorSection = SimulatorSection()
    partition: PartitionSection = PartitionSection()
    tuning: TuningSection = TuningSection()
    prices: PricesSection = PricesSection()
    quiet: QuietSection = QuietSection()
    paper_tables: bool = Field(False, description="Also make the papers' tables.")
    run_timeout_s: float = Field(
        1800,
        gt=0,
        description="Longest time of a run, in seconds.",
    )

    @field_validator("platform")
    @classmethod
    def _name_or_file(cls, platform: str) -> str:
        is_file = is_path(platform, (".yaml", ".yml"))
        return plain_path(platform) if is_file else simple_name(platform)

    @field_validator("results")
    @classmethod
    def _plain(cls, path: str) -> str:
        # Snakemake writes paths in this form.
        return os.path.normpath(plain_path(path))

    @model_validator(mode="after")
    def _batches_fit(self) -> "Config":
        ranks = max(self.scale.nodes) * self.scale.ranks_per_node
        smallest = self.scale.batch_size
        if self.scale.scaling == "weak":
            ranks = self.scale.ranks_per_node
        if smallest < ranks:
            raise ValueError(
                f"scale.batch_size {smallest} is smaller than the {ranks} ranks that share it; give at least "
                f"{ranks}"
            )
        for size in self.calibration.batch_sizes:
            if size < self.scale.ranks_per_node:
                raise ValueError(
                    f"calibration.batch_sizes: {size} is smaller than the "
                    f"{self.scale.ranks_per_node} ranks of a node"
                )
        key = "steps" if self.training.samples is None else "samples"
        counts = getattr(self.training, key)
        section = self.workload
        trained = section.networks if section.command is None else [section.name]
        missing = [name for name in trained if isinstance(counts, dict) and name not in counts]
        if missing:
            raise ValueError(
                f"training.{key}: no number for {', '.join(missing)}; give one number for all networks "
                f"(`{key}: 5`), or one for each (`{key}: {{{missing[0]}: 5}}`)"
            )
        return self


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    model: Any = Config
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        field = getattr(model, "model_fields", {}).get(part)
        if field is None:
            return []
        model = field.annotation
        if not hasattr(model, "model_fields"):  # Emulation | None, list[Pipeline]
            members = getattr(model, "__args__", ())
            model = next((m for m in members if hasattr(m, "model_fields")), None)
    return list(getattr(model, "model_fields", {}))


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        location = problem["loc"]
        key, message = key_and_message(problem)
        if problem["type"] == "extra_forbidden":
            known = _known_keys(location)
            near = get_close_matches(str(location[-1]), known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
            lines.append(f"{key}: unknown key; {hint}")
        elif not key:
            lines.append(message)
        else:
            if problem["type"] == "list_type":
                parts = ", ".join(re.findall(r"[^\s,]+", str(problem["input"])))
                message = f"give a list, as [{without_secrets(parts)}]"
            elif problem["type"] == "model_type":
                message = "give its keys, each with a value"
            given = without_secrets(repr(problem["input"]))
            lines.append(f"{key}: {message} (given: {given:.80})")
    return "; ".join(lines)


def parse_config(content: Any, origin: str = "configuration") -> Config:
    """The checked configuration.

    Raises:
        JoulecastError: a key is wrong. The error names every wrong key, its value, and the nearest valid key.
    """
    # Snakemake may have read the file before this code could check it. So the content is checked here, too.
    require_few_values(content, origin)
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        raise JoulecastError(f"{origin}: {_explain(error)}") from None


def read_config(path: Path) -> Config:
    """The configuration in a file, with defaults for keys that it omits.

    Raises:
        JoulecastError: the file is missing, is no YAML, or has wrong keys.
    """
    content = read_yaml(path, "configuration")
    if not isinstance(content, dict):
        raise JoulecastError(
            f"{path}: is {'empty' if content is None else 'no configuration'}; give keys and values, as "
            "`campaign: mine` (`joulecast config default` prints all keys)"
        )
    return parse_config(content, str(path))


def json_schema() -> str:
    """The JSON schema of the configuration."""
    return json.dumps(Config.model_json_schema(), indent=1) + "\n"


def _inline(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).strip()
    return text.removesuffix("...").strip()


def _section_lines(section: BaseModel, indent: str) -> list[str]:
    lines = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            lines += ["", f"{indent}# {(type(value).__doc__ or '').strip()}", f"{indent}{name}:"]
            lines += _section_lines(value, indent + "  ")
            continue
        if isinstance(value, BaseModel):
            value = value.model_dump()
        described = textwrap.wrap(field.description or "", 96 - len(indent))
        lines += [f"{indent}# {line}" for line in described]
        if isinstance(value, list) and value and isinstance(value[0], BaseModel):
            lines.append(f"{indent}{name}:")
            lines += [f"{indent}  - {_inline(each.model_dump())}" for each in value]
            continue
        lines.append(f"{indent}{name}: {_inline(value)}")
    return lines


def documented_defaults() -> str:
    """Text of ``config/config.yaml``: every key with its default and meaning."""
    head = [
        "# The embedded default, generated from joulecast.app.campaign.config by `joulecast config default`.",
        "# Override single keys in a file of your own: snakemake --configfile mine.yaml",
    ]
    return "\n".join(head + _section_lines(Config(), "")) + "\n"
