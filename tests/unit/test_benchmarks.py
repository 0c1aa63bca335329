"""The benchmarks, which CI does not run: what they import of the library is there."""

import ast
import importlib

import pytest
from conftest import ROOT

BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.stem)
def test_what_a_benchmark_imports_is_there(file):
    imports = [
        node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)
    ]
    for node in imports:
        if node.module is None or not node.module.startswith("joulecast"):
            continue
        module = importlib.import_module(node.module)
        for name in node.names:
            if not hasattr(module, name.name):
                importlib.import_module(f"{node.module}.{name.name}")
