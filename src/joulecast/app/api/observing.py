"""Observing a training from inside its own program: one line in place of a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ContextDecorator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from joulecast.app.api.given import AnyPath
from joulecast.runs.spec import THIS_MACHINE

if TYPE_CHECKING:
    from joulecast.measure.observer.observation import Observation
    from joulecast.measure.observer.request import MeasureRequest


def observe(
    name: str,
    *,
    samples_per_step: int | None = None,
    steps: tuple[int, int] | None = None,
    out: AnyPath | None = None,
    platform: AnyPath = THIS_MACHINE,
    meters: Sequence[str] | None = None,
    period_s: float = 0.1,
) -> Observing:
    """Observe the training in a ``with`` block, or of a decorated function, as ``joulecast measure`` does.

    All ranks must enter it; the first one writes the record. Under ``joulecast measure`` it has no effect.

    Args:
        name: name of the training, for :func:`joulecast.forecast`.
        samples_per_step: samples of a step on all ranks; by default the batches of the loaders.
        steps: first and last step that count, from 0; all but the first one by default.
        out: folder of the records, ``results/measured`` by default; all hosts must see it.
        platform: platform that it runs on: a name, or a FILE.yaml.
        meters: kinds of meters, best first; all by default.
        period_s: seconds between two readings.

    Returns:
        A context manager and decorator. Afterwards its ``folder`` is the folder of the record, in the process
        that wrote it.

    Raises:
        JoulecastError: a name that no folder can have, an unknown platform or meter.
    """
    from joulecast.measure.observer.request import measure_request
    from joulecast.measure.power.meter_registry import ALL_METERS
    from joulecast.runs.folders import MEASURED

    asked = measure_request(
        name,
        tuple(sys.argv),
        platform=str(platform),
        samples_per_step=samples_per_step,
        steps=steps,
        meters=ALL_METERS if meters is None else tuple(meters),
        period_s=period_s,
    )
    return Observing(asked, MEASURED if out is None else Path(out))


class Observing(ContextDecorator):
    """The observation of what a block, or a function, trains; :func:`observe` makes it."""

    def __init__(self, asked: MeasureRequest, out: Path) -> None:
        self._asked, self._out = asked, out
        self._observation: Observation | None = None
        self.folder: Path | None = None

    def __enter__(self) -> Observing:
        """Begin to observe."""
        from joulecast.measure.observer.inside import install
        from joulecast.measure.observer.observation import FOLDER, Observation

        if FOLDER not in os.environ:
            self._observation = Observation(self._asked, self._out, os.environ)
            self._marks = install(str(self._observation.marks))
        return self

    def log_loss(self, loss: float) -> None:
        """Keep the loss of the training so far; the record gets the last one of rank 0."""
        from joulecast.measure.observer.inside import note

        # Under `joulecast measure` the observer was loaded from its folder, by this name.
        loaded = sys.modules.get("joulecast_inside")
        (note if loaded is None else loaded.note)(loss=float(loss))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the record, and a summary to standard error."""
        from joulecast.report.measured_training import result_lines

        if self._observation is None:
            return
        self._marks.close()
        try:
            faults = [] if error is None else [f"failed: the training raised {error!r}"]
            result = self._observation.end(None, faults)
        finally:
            self._observation.close()
            self._observation = None
        self.folder = result.folder
        if lines := result_lines(result):
            print("\n".join(lines), file=sys.stderr, flush=True)
