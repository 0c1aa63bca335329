"""A training whose network `joulecast measure --capture` captures is simulated and planned by its name."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launching import two_ranks
from typer.testing import CliRunner

from joulecast.app.cli.main import app
from joulecast.runs.provenance import nvidia_gpus

TRAINING = """
import torch
import torch.distributed as dist

class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(1000, 64)
        self.layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.tags = torch.nn.Linear(64, 50)

    def forward(self, ids=None, labels=None):
        logits = self.tags(self.layer(self.words(ids)))
        if labels is None:
            return logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return loss, logits

dist.init_process_group("gloo")
network = torch.nn.parallel.DistributedDataParallel(Tagger())
optimizer = torch.optim.AdamW(network.parameters())
for step in range(4):
    for micro_batch in range(2):
        ids = torch.randint(0, 50, (4, 16))
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = network(ids=ids, labels=ids)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
PARAMETERS = (
    1000 * 64 + 64 * 192 + 192 + 64 * 64 + 64 + 2 * 64 * 128 + 128 + 64 + 4 * 64 + 64 * 50 + 50
)


def captured(folder: Path, program: str, samples: int = 4, ranks: int = 1):
    """The op graph and the record of a training that was measured with its network captured."""
    (folder / "train.py").write_text(program)
    options = ["--out", str(folder), "--name", "net", "--samples-per-step", str(samples)]
    command = [sys.executable, str(folder / "train.py")]
    command = command if ranks == 1 else two_ranks(*command)
    joulecast("measure", "--capture", *options, "--", *command)
    files = (folder / "net-n1-run1" / name for name in ("network.json", "run.json"))
    return tuple(json.loads(file.read_text()) for file in files)


def joulecast(*words: str) -> str:
    result = CliRunner().invoke(app, [*words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which the training was measured, on two ranks."""
    folder = tmp_path_factory.mktemp("captured")
    (folder / "train.py").write_text(TRAINING)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        ranks = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
        options = ["--capture", "--name", "tagger", "--samples-per-step", "16"]
        joulecast("measure", *options, "--", *ranks)
    return folder


def simulated(*options: str) -> dict:
    words = [
        "--platform",
        "h100-sxm",
        "--precision",
        "amp",
        "--optimizer",
        "adam",
        "--json",
        *options,
    ]
    return json.loads(joulecast("simulate", "--network", "tagger", *words))


def test_a_captured_network_is_simulated_by_the_name_of_its_training(folder, monkeypatch):
    monkeypatch.chdir(folder)
    found = simulated("--strategy", "dp=2", "--batch", "64")
    assert found["parameters"] == PARAMETERS
    assert found["global_batch"] == 128 and found["step_s"] > 0


def test_its_record_is_forecast_on_a_platform_by_its_own_network(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = folder / "results/measured"
    words = ["--records", str(records), "--platform", "h200-sxm", "--ran-on", "h100-sxm"]
    found = json.loads(joulecast("forecast", *words, "--json"))
    (forecast,) = found["forecasts"]
    assert forecast["rests_on"].startswith(f"{records}/tagger-n1-run1/network.json at bf16 on 2 x")
    # Two backward passes a step, as in the record.
    assert "micro=2" in forecast["rests_on"]
    words += ["--batch", "17"]
    (odd,) = json.loads(joulecast("forecast", *words, "--gpus", "1", "--json"))["forecasts"]
    assert "micro" not in odd["rests_on"]


def test_its_record_says_which_gpus_it_ran_on(folder, tmp_path):
    record = tmp_path / "records/tagger-n1-run1"
    shutil.copytree(folder / "results/measured/tagger-n1-run1", record)
    info = json.loads((record / "run.json").read_text())
    assert info["hosts"][0]["gpus"] == nvidia_gpus()
    info["hosts"][0]["gpus"] = ["NVIDIA H100 80GB HBM3"]
    (record / "run.json").write_text(json.dumps(info))
    words = ["--records", str(record), "--platform", "h200-sxm", "--json"]
    (forecast,) = json.loads(joulecast("forecast", *words))["forecasts"]
    assert forecast["rests_on"].endswith("from 1 run on 2 x h100-sxm:gpus=2")


def test_its_record_calibrates_a_plan_if_it_ran_on_gpus(folder, monkeypatch):
    monkeypatch.chdir(folder)
    record = "results/measured/tagger-n1-run1"
    setting = ("--strategy", "dp=2,micro=2", "--batch", "8")
    on_cpu = ["simulate", "--network", "tagger", "--platform", "h100-sxm", *setting]
    refused = CliRunner().invoke(app, [*on_cpu, "--calibrate", record])
    assert refused.exit_code != 0 and "--capture" in refused.output
    # As if it had run on GPUs, where its steps take 1.3 times as long as simulated.
    plain = simulated(*setting)
    path = Path(record) / "run.json"
    info = json.loads(path.read_text())
    outcome = info["outcome"]
    outcome["device"] = "cuda"
    outcome["stop_s"] = outcome["start_s"] + outcome["steps"] * 1.3 * plain["step_s"]
    path.write_text(json.dumps(info))
    again = simulated(*setting, "--calibrate", record)
    assert again["step_s"] == pytest.approx(1.3 * plain["step_s"], rel=0.01)
    assert again["basis"] == "calibrated"
    asked = ["--network", "tagger", "--platform", "h100-sxm", "--samples", "1e4", "--devices"]
    plan = json.loads(joulecast("plan", *asked, "2:8", "--calibrate", record, "--json"))
    rows = plan["candidates"]
    assert {row["gpus"] for row in rows} == {2, 4, 8}
    assert all(row["is_calibrated"] and row["time_low_s"] < row["time_high_s"] for row in rows)
    assert record in plan["rests_on"]
    assert {row["precision"] for row in rows} == {"amp"}
    # Its precision is the default, with and without its steps.
    words = ["simulate", "--network", "tagger", "--platform", "h100-sxm", *setting, "--json"]
    for more in ([], ["--calibrate", record]):
        assert json.loads(joulecast(*words, *more))["precision"] == "amp"
    words = ["search", "--network", "tagger", "--platform", "h100-sxm", "--devices", "2", "--json"]
    assert json.loads(joulecast(*words))["precision"] == "amp"
    # As if it had been compiled.
    info["observed_step"]["compiled"] = True
    path.write_text(json.dumps(info))
    for platform, fused in (("h100-sxm", "bf16"), ("v100", "fp16")):
        words = ["simulate", "--network", "tagger", "--platform", platform, *setting, "--json"]
        assert json.loads(joulecast(*words))["precision"] == fused
    # As if torch had computed its products at TF32, which older GPUs do not have.
    info["observed_step"] |= {"precision": "tf32", "compiled": False}
    path.write_text(json.dumps(info))
    for platform, usual in (("h100-sxm", "tf32"), ("v100", "fp32")):
        words = ["simulate", "--network", "tagger", "--platform", platform, *setting, "--json"]
        assert json.loads(joulecast(*words))["precision"] == usual
    # As if its weights were bf16, too.
    info["observed_step"] |= {"precision": "bfloat16", "compiled": True}
    info["observed_step"]["weights"] = "bfloat16"
    path.write_text(json.dumps(info))
    plan = json.loads(joulecast("plan", *asked, "2", "--calibrate", record, "--json"))
    assert {row["precision"] for row in plan["candidates"]} == {"bf16-true"}
    plan = json.loads(joulecast("plan", *asked, "2", "--json"))
    assert {row["precision"] for row in plan["candidates"]} == {"bf16-true"}


@pytest.mark.long
def test_a_training_without_joulecast_is_measured_and_says_why_it_was_not_captured(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import sys\n"
        "sys.modules['joulecast'] = None\n"
        "import torch\n"
        "network = torch.nn.Linear(8, 8)\n"
        "optimizer = torch.optim.SGD(network.parameters(), lr=0.1)\n"
        "for step in range(5):\n"
        "    network(torch.randn(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    out = ["--out", str(tmp_path), "--name", "plain", "--samples-per-step", "4"]
    joulecast("measure", "--capture", *out, "--", sys.executable, str(program))
    info = json.loads((tmp_path / "plain-n1-run1" / "run.json").read_text())
    assert info["outcome"]["steps"] == 4
    assert any("not captured" in remark for remark in info["remarks"])
    assert not (tmp_path / "plain-n1-run1" / "network.json").exists()


@pytest.mark.long
def test_a_compiled_network_inside_of_a_module_that_cannot_be_captured_is_captured(tmp_path):
    """As in Lightning, whose module gets the batch and gives the loss. A compiled module has no length; T5's
    decoder takes its inputs from the labels. A step that calls it for two views of a batch of 4 has 8 samples
    of the network."""
    graph, info = captured(
        tmp_path,
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.words, self.out = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50)\n"
        "    def forward(self, labels):\n"
        "        logits = self.out(self.words(labels))\n"
        "        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())\n"
        "class Training(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.network = torch.compile(Net(), backend='eager')\n"
        "    def forward(self, batch):\n"
        "        loss = self.network(labels=batch) + self.network(labels=batch.flip(1))\n"
        "        return loss * 2 if loss.item() > 99 else loss\n"
        "training = Training()\n"
        "optimizer = torch.optim.SGD(training.parameters(), lr=0.1)\n"
        "for ids in torch.utils.data.DataLoader(torch.randint(0, 50, (20, 6)), batch_size=4):\n"
        "    training(ids).backward()\n"
        "    optimizer.step()\n",
    )
    assert [op["kind"] for op in graph["ops"]] == ["embedding", "linear", "cross_entropy"]
    assert info["observed_step"]["compiled"]
    assert any("8 samples" in remark and "gives 4" in remark for remark in info["remarks"])


SHARDED = """
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.checkpoint import checkpoint

from joulecast.graphs.capture import capture_trained

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))
        self.out = torch.nn.Linear(16, 3)

    def forward(self, rows):
        for layer in self.layers:
            rows = checkpoint(layer, rows, use_reentrant=False)
        return self.out(rows)

def first_generation(network, **how):
    how["device_id"] = torch.device("cpu")
    network.layers[0] = FullyShardedDataParallel(network.layers[0], **how)
    return FullyShardedDataParallel(network, **how)

def second_generation(network):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for part in (*network.layers, network):
        fully_shard(part, mesh=mesh)
    return network

dist.init_process_group("gloo")
network = first_generation(Net(), use_orig_params=True)
optimizer = torch.optim.AdamW(network.parameters())
for step in range(4):
    target = torch.zeros(8, dtype=torch.long)
    torch.nn.functional.cross_entropy(network(torch.randn(8, 16)), target).backward()
    optimizer.step()
    optimizer.zero_grad()
for name, shard in (("flat", first_generation), ("second", second_generation)):
    sharded = shard(Net())
    sharded(torch.randn(8, 16)).sum().backward()
    graph = capture_trained(sharded, [torch.randn(8, 16)], {})
    graph.write(Path(f"{name}{dist.get_rank()}.json"))
    assert sharded(torch.randn(8, 16)).isfinite().all()
dist.destroy_process_group()
"""


@pytest.mark.long
def test_sharded_weights_are_captured_whole_and_recomputed_activations_are_noted(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    own, info = captured(tmp_path, SHARDED, samples=16, ranks=2)
    others = [json.loads((tmp_path / f"{name}1.json").read_text()) for name in ("flat", "second")]
    for graph in (own, *others):
        shapes = [each["shape"] for each in graph["tensors"] if each["role"] == "parameter"]
        assert shapes == [[16, 16], [16], [16, 16], [16], [3, 16], [3]]
    assert info["observed_step"]["recomputes"]
    # FSDP 1 rounds each part up.
    assert 595 <= info["parameters"] <= 600


WITHOUT_AN_OPTIMIZER = """
import torch
from torch.optim.sgd import sgd

network = torch.nn.Linear(16, 5)
for step in range(4):
    network(torch.randn(4, 16)).square().sum().backward()
    weights = list(network.parameters())
    with torch.no_grad():
        sgd(weights, [weight.grad for weight in weights], [None, None], weight_decay=0, momentum=0, lr=0.1,
            dampening=0, nesterov=False, maximize=False)
    network.zero_grad()
"""


@pytest.mark.long
def test_a_network_without_an_optimizer_is_captured(tmp_path):
    graph, info = captured(tmp_path, WITHOUT_AN_OPTIMIZER)
    assert [op["kind"] for op in graph["ops"]] == ["linear", "cross_entropy"]
    assert info["observed_step"]["optimizer"] == "sgd"


COPIES = """
import torch

network = torch.nn.Linear(16, 5, dtype=torch.bfloat16)
# As DeepSpeed does: one tensor at 32 bits has copies of all weights.
weights = torch.nn.utils.parameters_to_vector(network.parameters()).detach().float()
weights.requires_grad_()
optimizer = torch.optim.AdamW([weights])
for step in range(4):
    network(torch.randn(4, 16, dtype=torch.bfloat16)).float().square().sum().backward()
    weights.grad = torch.cat([each.grad.flatten() for each in network.parameters()]).float()
    optimizer.step()
    torch.nn.utils.vector_to_parameters(weights.detach().bfloat16(), network.parameters())
"""


@pytest.mark.long
def test_a_network_of_which_the_optimizer_updates_copies_is_captured(tmp_path):
    graph, info = captured(tmp_path, COPIES)
    assert [op["kind"] for op in graph["ops"]] == ["linear", "cross_entropy"]
    # The copies are at 32 bits, and the network is not.
    assert info["observed_step"]["precision"] == "bfloat16"


STAGES = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
is_first = dist.get_rank() == 0
stage = torch.nn.Linear(16, 32) if is_first else torch.nn.Linear(32, 5)
optimizer = torch.optim.AdamW(stage.parameters())
for step in range(4):
    hidden = stage(torch.randn(8, 16)) if is_first else torch.zeros(8, 32)
    dist.broadcast(hidden.detach(), src=0)
    (hidden if is_first else stage(hidden)).square().sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_stage_of_a_pipeline_is_not_taken_for_the_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(STAGES)
    ranks = two_ranks(sys.executable, "train.py")
    joulecast("measure", "--capture", "--name", "net", "--samples-per-step", "8", "--", *ranks)
    folder = tmp_path / "results/measured/net-n1-run1"
    (remark,) = (
        r for r in json.loads((folder / "run.json").read_text())["remarks"] if "captur" in r
    )
    assert "165 to 544 parameters" in remark
    assert not (folder / "network.json").exists()


REMEMBERS = """
import random
import torch

random.seed(0)
torch.manual_seed(0)
shown = []

class Remembers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen, self.inside = torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 32)
        self.outside = torch.nn.utils.spectral_norm(torch.nn.Linear(32, 5))
        self.register_buffer("queue", torch.zeros(4, 32))
        self.mean, self.calls, self.sizes, self.last = torch.zeros(32), 0, [], {"hidden": None}

    def forward(self, batch):
        self.calls += 1
        self.sizes.append(len(batch["x"]))
        hidden = torch.nn.functional.dropout(self.inside(self.frozen(batch["x"])).relu(), 0.1)
        with torch.no_grad():
            self.queue[self.calls % 4] = hidden.mean(0) * random.randint(1, 3)
            self.mean += hidden.mean(0)
        self.last["hidden"] = hidden.detach()
        return self.outside(hidden) + self.queue.mean() + self.mean.mean()

network = Remembers()
network.frozen.eval()
network.outside.register_forward_hook(lambda module, given, result: shown.append(result))
critic = torch.nn.Linear(5, 1)
both = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (network, critic)]
with torch.no_grad():
    network({"x": torch.randn(16).expand(1, 16)})
    shown.clear()
for step in range(6):
    x = torch.randn(8, 16)
    loss = critic(network({"x": x})).mean() + sum(each.square().mean() for each in shown)
    shown.clear()
    loss.backward()
    for optimizer in both:
        optimizer.step()
        optimizer.zero_grad()
said = [loss.item(), network.calls, network.sizes, network.mean.tolist(), network.queue.tolist()]
said += [network.frozen.training, network.frozen.running_mean.tolist()]
print(said, network.last["hidden"].sum().item(), torch.rand(1).item(), random.random())
"""


@pytest.mark.long
def test_a_capture_changes_nothing_of_a_network_that_remembers_its_calls(tmp_path, capfd):
    plain = subprocess.run(
        [sys.executable, "-c", REMEMBERS], capture_output=True, text=True, check=True
    )
    graph, info = captured(tmp_path, REMEMBERS, samples=8)
    assert plain.stdout in capfd.readouterr().out
    assert "linear" in {op["kind"] for op in graph["ops"]}
    # The graph has no critic, which has six parameters.
    trained = 2 * 16 + 16 * 32 + 32 + 32 * 5 + 5
    assert any(f"{trained} of the {trained + 6} trained" in remark for remark in info["remarks"])
