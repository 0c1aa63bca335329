"""The log of a workflow script."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from joulecast.errors import JoulecastError


@contextmanager
def logged(log: Path) -> Iterator[None]:
    """Send the output of a workflow script to its log.

    A :class:`JoulecastError` ends it with code 2 and is said on the terminal too; any other error
    leaves its traceback in the log and goes on.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    terminal = sys.stderr
    with open(log, "w", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            yield
        except JoulecastError as error:
            print(f"error: {error}", file=file)
            print(f"error: {error}", file=terminal)
            sys.exit(2)
        except BaseException:
            traceback.print_exc(file=file)
            raise
