"""A callback for the Trainer of Hugging Face's transformers: observes the training that it runs.

trainer = Trainer(..., callbacks=[JoulecastCallback("mylm")])
"""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from joulecast.app.api.observing import Observing, observe


class JoulecastCallback(TrainerCallback):  # type: ignore[misc]  # not installed with us
    """Observes from the begin of a training to its end. The Trainer gives the number of samples in a step.

    Args:
        name: name of the training.
        options: options of :func:`joulecast.observe`.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self._name, self._options = name, options
        self._observing: Observing | None = None

    @property
    def folder(self) -> Path | None:
        """Folder of the record, once it is written by this process."""
        return None if self._observing is None else self._observing.folder

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **others: Any,
    ) -> None:
        """Begin to observe."""
        samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        options = {"samples_per_step": samples, **self._options}
        self._observing = observe(self._name, **options)
        self._observing.__enter__()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Keep the loss."""
        if self._observing is not None and logs and "loss" in logs:
            self._observing.log_loss(logs["loss"])

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **others: Any,
    ) -> None:
        """Write the record."""
        if self._observing is not None:
            self._observing.__exit__(None, None, None)
