"""Puts the observer into every Python process of a command that `joulecast measure` runs.

When Python starts, it imports the first `sitecustomize` on its path. This one loads the observer, which waits
until torch is imported. Then it loads the site's own `sitecustomize`. An error in this file must not reach
the user's program.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load(name: str, path: str) -> ModuleType:
    folders = [os.path.dirname(path)]
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _observe() -> None:
    folder = os.environ.get("JOULECAST_OBSERVER")
    if not folder:
        return
    try:
        inside = os.path.join(os.path.dirname(_HERE), "inside", "__init__.py")
        capture = os.environ.get("JOULECAST_CAPTURE")
        _load("joulecast_inside", inside).install(folder, capture)
    except Exception as error:
        sys.stderr.write(f"joulecast: this process is not observed: {error}\n")


def _import_the_sites_own() -> None:
    others = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_observe()
_import_the_sites_own()
