"""Callbacks for the trainers of other libraries; skipped where the library is not installed."""

import pytest
import torch

from joulecast.runs.record import read_record


class Pieces(torch.utils.data.Dataset):
    """Random tokens."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 64, (16,))
        return {"input_ids": tokens, "labels": tokens}


def test_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    from joulecast.app.integrations.transformers import JoulecastCallback

    sizes = {"n_layer": 1, "n_head": 1, "n_embd": 16, "vocab_size": 64, "n_positions": 16}
    network = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    callback = JoulecastCallback("mine", out=tmp_path)
    arguments = transformers.TrainingArguments(
        str(tmp_path / "trainer"),
        max_steps=6,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
    )
    transformers.Trainer(network, arguments, train_dataset=Pieces(), callbacks=[callback]).train()
    info = read_record(callback.folder).info
    assert (info.outcome.steps, info.global_batch_size) == (5, 6)


def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")
    from joulecast.app.integrations.lightning import JoulecastCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = torch.nn.Linear(8, 8)

        def training_step(self, batch, index):
            return self.network(batch[0]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    callback = JoulecastCallback("mine", out=tmp_path)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[callback],
        accumulate_grad_batches=2,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))
    info = read_record(callback.folder).info
    assert (info.outcome.steps, info.global_batch_size) == (7, 8)
