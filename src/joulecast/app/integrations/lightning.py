"""A callback for Lightning's Trainer: observes the training that it runs.

trainer = Trainer(..., callbacks=[JoulecastCallback("mylm")])
"""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from joulecast.app.api.observing import Observing, observe


class JoulecastCallback(Callback):  # type: ignore[misc]  # not installed with us
    """Observes from the begin of a training to its end, or to its failure.

    Args:
        name: name of the training.
        options: options of :func:`joulecast.observe`.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self._observing: Observing = observe(name, **options)

    @property
    def folder(self) -> Path | None:
        """Folder of the record, once it is written by this process."""
        return self._observing.folder

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to observe."""
        self._observing.__enter__()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the loss, if the module logs one."""
        logged = trainer.callback_metrics
        for name in ("train_loss", "loss"):
            if name in logged:
                self._observing.log_loss(float(logged[name]))
                return

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the record."""
        self._observing.__exit__(None, None, None)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write the record of a training that failed."""
        self._observing.__exit__(type(exception), exception, None)
