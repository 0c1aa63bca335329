"""Observe a training from inside its own program, with one line of code in place of a command."""

from __future__ import annotations

import math
import os
import sys
from contextlib import ContextDecorator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from joulecast.app.api.arguments import takes_request
from joulecast.measure.observer.request import ObserveRequest, observed

if TYPE_CHECKING:
    from joulecast.measure.observer.observation import Observation
    from joulecast.runs.spec import RunSpec


class Observing(ContextDecorator):
    """The observation of the training in a block or a function. :func:`observe` makes it."""

    def __init__(self, asked: RunSpec, out: Path) -> None:
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
        """Keep the current loss of the training. The record gets the last loss of rank 0."""
        from joulecast.measure.observer.inside import note

        known = float(loss)
        # Under `joulecast measure`, the observer was loaded from its folder, under this name.
        loaded = sys.modules.get("joulecast_inside")
        (note if loaded is None else loaded.note)(loss=known if math.isfinite(known) else None)

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


@takes_request(ObserveRequest, "name")
def observe(request: ObserveRequest) -> Observing:
    """Observe the training in a ``with`` block or a decorated function, as ``joulecast measure`` does.

    All ranks must enter it. The first rank writes the record. Under ``joulecast measure`` it has no effect.

    Returns:
        A context manager and decorator. Afterwards, ``folder`` is the folder of the record, in the process
        that wrote it.

    Raises:
        JoulecastError: no folder can have this name, or a platform or meter is unknown.
    """
    return Observing(observed(request, sys.argv), request.out)
