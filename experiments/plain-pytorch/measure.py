"""Measures steps of usual trainings on one NVIDIA GPU. See README.md."""

import csv
import gc
import importlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median_high
from typing import Any, Literal, NamedTuple

import pynvml
import torch
import torchvision
import transformers

from joulecast.errors import JoulecastError

RECORDED = Path(__file__).resolve().parents[2] / "recorded/training-steps"
NETWORKS = RECORDED / "plain_pytorch_networks.json"
"""The language models, each as a config.json of Hugging Face."""
SETTLING_S, WINDOW_S = 1.2, 3.0
FIRST_STEPS, STEPS_OF_A_WAIT = 4, 2
FEWEST_IN_A_ROW, MOST_IN_A_ROW, IN_A_ROW_S = 3, 20, 1.0
IMAGE_SIZE, CLASSES = 224, 1000
COLUMNS = (
    *(
        "round",
        "source",
        "gpu",
        "network",
        "batch",
        "sequence",
        "precision",
        "recompute",
        "optimizer",
    ),
    *("parameters", "step_s", "event_step_s", "step_j", "gpu_w", "memory_bytes", "sm_mhz", "torch"),
)


class Setting(NamedTuple):
    """What is trained: images if ``sequence`` is 0, else so many tokens a sample."""

    network: str
    batch: int
    sequence: int = 0
    precision: Literal["amp", "tf32", "fp32", "bf16-true", "compile"] = "amp"
    """``bf16-true``: weights and all else at bf16. ``compile``: as ``amp``, and compiled by torch."""
    recompute: bool = False

    @property
    def optimizer(self) -> Literal["adam", "momentum"]:
        """AdamW for tokens, SGD with momentum for images."""
        return "adam" if self.sequence else "momentum"


SETTINGS = (
    Setting("resnet50", 128),
    Setting("vgg16", 128),
    Setting("vit_b_16", 128),
    Setting("gpt2", 16, 1024),
    Setting("gpt2-large", 8, 1024),
    Setting("llama-1b", 4, 2048),
    Setting("llama-1b", 8, 2048, recompute=True),
    Setting("bert-large", 32, 512),
    Setting("qwen-0.5b", 4, 2048),
    Setting("llama3-3b", 2, 2048, recompute=True),
    Setting("llama-4l", 2, 4096),
    Setting("gpt2", 8, 1024, "tf32"),
    Setting("gpt2", 8, 1024, "fp32"),
    Setting("resnet50", 128, precision="tf32"),
    Setting("vit_b_16", 64, precision="fp32"),
    Setting("gpt2", 2, 1024),
    Setting("resnet50", 32),
    Setting("gpt2-large", 8, 1024, "tf32"),
)
"""What constants of the simulator were chosen with."""
LATER = (
    Setting("resnet50", 256),
    Setting("resnet101", 64),
    Setting("densenet121", 64),
    Setting("convnext_tiny", 64),
    Setting("efficientnet_b0", 64),
    Setting("swin_t", 64),
    Setting("vit_b_16", 16),
    Setting("vit_l_16", 32),
    Setting("vgg16", 32),
    Setting("resnet50", 8),
    Setting("resnet18", 128),
    Setting("vgg16", 64, precision="tf32"),
    Setting("vit_b_16", 32, precision="tf32"),
    Setting("resnet50", 8, precision="tf32"),
    Setting("resnet50", 64, precision="fp32"),
    Setting("resnet50", 8, precision="fp32"),
    Setting("gpt2-medium", 4, 1024),
    Setting("gpt2-medium", 16, 256),
    Setting("gpt2", 1, 512),
    Setting("bert-base", 64, 128),
    Setting("bert-base", 8, 128),
    Setting("llama3-1b", 2, 4096),
    Setting("qwen-1.5b", 2, 2048),
    Setting("qwen3-0.6b", 4, 2048),
    Setting("opt-1.3b", 4, 1024),
    Setting("mixtral-8x", 4, 1024),
    Setting("gpt2-large", 16, 1024, recompute=True),
    Setting("llama-1b", 1, 512),
    Setting("llama-1b", 2, 2048, "tf32"),
    Setting("bert-large", 16, 512, "tf32"),
    Setting("gpt2", 1, 256, "tf32"),
    Setting("llama-1b", 1, 2048, "fp32"),
    Setting("bert-base", 16, 256, "fp32"),
    Setting("gpt2", 1, 256, "fp32"),
    Setting("resnet50", 128, precision="bf16-true"),
    Setting("vit_b_16", 128, precision="bf16-true"),
    Setting("gpt2", 16, 1024, "bf16-true"),
    Setting("llama-1b", 4, 2048, "bf16-true"),
    Setting("qwen-1.5b", 4, 2048, "bf16-true"),
    Setting("gpt2", 2, 1024, "bf16-true"),
    Setting("gpt2", 16, 1024, "compile"),
    Setting("resnet50", 128, precision="compile"),
)
"""What was measured afterwards, to see how the simulator does on settings that it had not seen."""
OTHERS = (
    Setting("pythia-410m", 8, 2048),
    Setting("gemma-2b", 2, 2048),
    Setting("tinyllama-1.1b", 4, 2048),
    Setting("smollm-135m", 16, 1024),
    Setting("efficientnet_v2_s", 64),
    Setting("regnet_y_8gf", 64),
    Setting("resnext50_32x4d", 64),
    Setting("vit_h_14", 16),
    Setting("t5-base", 16, 512),
    Setting("roberta-base", 32, 256),
    Setting("bloom-560m", 4, 1024),
    Setting("phi-1.5", 2, 2048),
    Setting("timm:vit_small_patch16_224", 256),
    Setting("timm:convnextv2_tiny", 64),
    Setting("llama2-7b", 1, 2048, "bf16-true"),
    Setting("qwen3-1.7b", 2, 2048),
    Setting("falcon-1b", 4, 1024),
    Setting("mistral-4l", 1, 8192),
    Setting("bart-base", 16, 512),
    Setting("wide_resnet50_2", 128),
    Setting("mobilenet_v3_large", 256),
    Setting("seg:deeplabv3_resnet50", 8),
    Setting("video:r3d_18", 16),
    Setting("whisper-small", 8, 224),
    Setting("gemma2-4l", 2, 2048),
    Setting("phi3-8l", 2, 2048),
    Setting("electra-base", 64, 128),
    Setting("deberta-base", 16, 256),
    Setting("distilbert", 64, 128),
    Setting("albert-base", 32, 256),
    Setting("gemma3-270m", 8, 1024),
    Setting("maxvit_t", 32),
    Setting("inception_v3", 64),
    Setting("convnext_base", 32, precision="tf32"),
    Setting("densenet161", 32, precision="tf32"),
    Setting("tinyllama-1.1b", 2, 2048, "tf32"),
    Setting("pythia-410m", 4, 1024, "tf32"),
    Setting("roberta-base", 16, 256, "fp32"),
    Setting("regnet_y_8gf", 32, precision="fp32"),
    Setting("t5-base", 8, 512, "tf32"),
    Setting("vit_h_14", 32, precision="bf16-true"),
    Setting("pythia-410m", 8, 2048, "bf16-true"),
    Setting("gemma-2b", 4, 2048, "bf16-true"),
    Setting("efficientnet_v2_s", 64, precision="bf16-true"),
    Setting("phi-1.5", 8, 2048, recompute=True),
    Setting("gemma-2b", 8, 2048, recompute=True),
    Setting("llama2-7b", 4, 2048, "bf16-true", recompute=True),
    Setting("timm:efficientnet_b3", 64),
    Setting("timm:mobilevit_s", 64),
    Setting("timm:swin_base_patch4_window7_224", 32),
    Setting("timm:resnetv2_50", 64),
    Setting("tinyllama-1.1b", 4, 2048, "compile"),
    Setting("pythia-410m", 8, 2048, "compile"),
    Setting("resnet18", 1024),
    Setting("timm:mixer_b16_224", 64),
    Setting("bert-tiny", 64, 128),
    Setting("alexnet", 512),
    Setting("lstm", 64, 256),
)
"""Other networks, measured on an H200 later still."""


def language_model(
    setting: Setting, device: torch.device
) -> tuple[Any, Callable[[], torch.Tensor]]:
    """A model of transformers, and what computes its loss of a batch that is on the device."""
    fields = json.loads(NETWORKS.read_text())[setting.network]
    kind, (architecture,) = fields.pop("model_type"), fields.pop("architectures")
    config = transformers.AutoConfig.for_model(kind, **fields, use_cache=False)
    with device:
        model = getattr(transformers, architecture)(config)
    if setting.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    tokens = torch.randint(2, config.vocab_size, (setting.batch, setting.sequence), device=device)
    if kind == "whisper":
        dtype = torch.bfloat16 if setting.precision == "bf16-true" else torch.float32
        speech = torch.randn(setting.batch, 80, 3000, device=device, dtype=dtype)
        return model, lambda: model(input_features=speech, labels=tokens).loss
    return model, lambda: model(input_ids=tokens, labels=tokens).loss


class Lstm(torch.nn.Module):
    """A language model as in torch's examples: two layers of 650, and 33,278 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = torch.nn.Embedding(33278, 650), torch.nn.Linear(650, 33278)
        self.layers = torch.nn.LSTM(650, 650, 2, dropout=0.5, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The scores of each next word."""
        scores: torch.Tensor = self.out(self.layers(self.words(tokens))[0])
        return scores


def recurrent_model(
    setting: Setting, device: torch.device
) -> tuple[Any, Callable[[], torch.Tensor]]:
    """The LSTM, and what computes its loss of a batch that is on the device."""
    with device:
        model = Lstm()
    tokens = torch.randint(0, 33278, (setting.batch, setting.sequence), device=device)
    return model, lambda: torch.nn.functional.cross_entropy(
        model(tokens).flatten(0, 1), tokens.flatten()
    )


def image_model(setting: Setting, device: torch.device) -> tuple[Any, Callable[[], torch.Tensor]]:
    """A model of torchvision or timm (``timm:NAME``), and what computes its loss of a batch that is on the
    device. ``seg:`` are torchvision's segmentation models, and ``video:`` its models of films."""
    library, _, name = setting.network.rpartition(":")
    sizes, classes, targets = (IMAGE_SIZE, IMAGE_SIZE), CLASSES, ()
    options: dict[str, Any] = {"weights": None}
    models: Any = torchvision.models
    if library == "seg":
        sizes, classes, targets = (512, 512), 21, (512, 512)
        options |= {"weights_backbone": None, "num_classes": classes}
        models = torchvision.models.segmentation
    elif library == "video":
        sizes, classes, models = (16, 112, 112), 400, torchvision.models.video
    elif name == "inception_v3":
        sizes, options = (299, 299), {"weights": None, "aux_logits": False, "init_weights": False}
    with device:
        if library == "timm":
            model = importlib.import_module("timm").create_model(name, pretrained=False)
        else:
            model = getattr(models, name)(**options)
    dtype = torch.bfloat16 if setting.precision == "bf16-true" else torch.float32
    images = torch.randn(setting.batch, 3, *sizes, device=device, dtype=dtype)
    target = torch.randint(0, classes, (setting.batch, *targets), device=device)

    def loss() -> torch.Tensor:
        scores = model(images)
        return torch.nn.functional.cross_entropy(
            scores["out"] if library == "seg" else scores, target
        )

    return model, loss


def network(setting: Setting, device: torch.device) -> tuple[Any, Callable[[], torch.Tensor]]:
    """The network of a setting, and what computes its loss of a batch that is on the device."""
    make = language_model if setting.sequence else image_model
    model, loss_of = (recurrent_model if setting.network == "lstm" else make)(setting, device)
    return (model.to(torch.bfloat16) if setting.precision == "bf16-true" else model), loss_of


def training(setting: Setting, device: torch.device) -> tuple[int, Callable[[], None]]:
    """The parameters of a setting's network, and what makes one step of its training."""
    torch.set_float32_matmul_precision("high" if setting.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = setting.precision == "tf32"
    model, loss_of = network(setting, device)
    if setting.precision == "compile":
        model.compile()
    if not setting.sequence:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), lr=0.01, momentum=0.9, fused=True
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model.train()
    is_amp = setting.precision in ("amp", "compile")
    cast = torch.autocast(device.type, dtype=torch.bfloat16) if is_amp else nullcontext()

    def step() -> None:
        with cast:
            loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return sum(parameter.numel() for parameter in model.parameters()), step


def windowed(step: Callable[[], None], gpu: Any) -> dict[str, float]:
    """Seconds, joules and clock of a step, over a window in which the host waits after each few steps."""
    settled_s = time.perf_counter() + SETTLING_S
    while time.perf_counter() < settled_s:
        step()
        torch.cuda.synchronize()
    steps, clocks = 0, []
    begin_mj, begin_s = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu), time.perf_counter()
    while time.perf_counter() - begin_s < WINDOW_S:
        for _ in range(STEPS_OF_A_WAIT):
            step()
        torch.cuda.synchronize()
        steps += STEPS_OF_A_WAIT
        clocks.append(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM))
    joules = (pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) - begin_mj) / 1e3
    seconds = time.perf_counter() - begin_s
    return {
        "step_s": seconds / steps,
        "step_j": joules / steps,
        "gpu_w": joules / seconds,
        "sm_mhz": median_high(clocks),
    }


def seconds_in_a_row(step: Callable[[], None], step_s: float) -> float:
    """Seconds of a step on the GPU, of steps for which the host does not wait."""
    steps = max(FEWEST_IN_A_ROW, min(MOST_IN_A_ROW, int(IN_A_ROW_S / step_s)))
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(steps):
        step()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / steps


def measured(setting: Setting, gpu: Any) -> dict[str, Any]:
    """The row of a setting, without its round."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    parameters, step = training(setting, torch.device("cuda"))
    for _ in range(FIRST_STEPS):
        step()
    torch.cuda.synchronize()
    window = windowed(step, gpu)
    window["event_step_s"] = seconds_in_a_row(step, window["step_s"])
    return {
        **setting._asdict(),
        "sequence": setting.sequence or None,
        "source": "joulecast",
        "gpu": torch.cuda.get_device_name(),
        "optimizer": setting.optimizer,
        "parameters": parameters,
        **{name: f"{value:.6g}" for name, value in window.items()},
        "memory_bytes": torch.cuda.max_memory_allocated(),
        "torch": torch.__version__,
    }


def measure(out: Path) -> None:
    """Measure all settings into a new table.

    Args:
        out: the table; each row is there as soon as it is measured.

    Raises:
        JoulecastError: there is no NVIDIA GPU, or ``out`` is there already.
    """
    if not torch.cuda.is_available() or torch.version.hip:
        raise JoulecastError("torch sees no NVIDIA GPU here; run this on a machine with one")
    if out.exists():
        raise JoulecastError(f"{out} is there already; name a new file, or remove it")
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    with out.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        rounds = enumerate((SETTINGS, LATER, OTHERS), start=1)
        for number, setting in [(number, s) for number, each in rounds for s in each]:
            row = measured(setting, gpu)
            table.writerow({"round": number, **row})
            file.flush()
            print(f"{setting}: {row['step_s']} s, {row['step_j']} J", flush=True)


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
