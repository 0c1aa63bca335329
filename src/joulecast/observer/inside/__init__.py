"""The observer inside a training: marks when steps and their parts begin and end.

This package runs in processes whose Python environment is the user's, where joulecast and what it needs may
be missing. It therefore imports the standard library alone, and of torch what the user's program has
imported itself. Its modules import each other by relative names, as it is loaded as `joulecast_inside`.
"""

from .imports import after_import
from .marks import Marks


def install(folder: str) -> None:
    """Observe this process: hooks come in when it imports torch.

    Args:
        folder: of this host, which gets the marks of each process.
    """
    from . import hooks

    watch = hooks.Watch(Marks(folder))
    for module, hook in watch.by_module().items():
        after_import(module, hook)
