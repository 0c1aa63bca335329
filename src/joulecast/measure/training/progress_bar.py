"""Progress of a run: a bar on a terminal, a plain line every few seconds in a log."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LINE_EVERY_S = 5.0


@contextmanager
def shown_progress(run: str, steps: int, shown: bool) -> Iterator[Callable[[int, float], None]]:
    """A function to be called with steps done and loss; ``shown`` is true on one rank only."""
    if not shown:
        yield lambda done, loss: None
        return
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task(run, total=steps)
            yield lambda done, loss: bar.update(
                task, completed=done, description=f"{run} loss {loss:.3f}"
            )
        return
    begin = last = time.monotonic()

    def line(done: int, loss: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINE_EVERY_S or done == steps:
            last = now
            left = (now - begin) / done * (steps - done)
            print(f"{run}: step {done}/{steps}, loss {loss:.3f}, {left:.0f} s left", flush=True)

    yield line
