"""Figures: one module has their colours."""

import re

from conftest import ROOT


def test_one_module_has_all_colours():
    found = {
        path.name
        for path in (ROOT / "src/joulecast/report/figures").glob("*.py")
        if re.search(r"#[0-9A-Fa-f]{6}", path.read_text())
    }
    assert found == {"style.py"}
