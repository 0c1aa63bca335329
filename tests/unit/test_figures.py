"""Figures as files: what is drawn says its units and its source, and what is missing is said."""

import re

import pytest
from conftest import ROOT

from joulecast.report.figures.live import tuned_live
from joulecast.report.figures.look import Figure, save_static
from joulecast.report.results_folder import NothingToShow


def words_of(figure, folder):
    """All text of a figure, which is written as SVG and as PDF."""
    save_static(figure, folder)
    stem = folder / f"overview_{figure.name}"
    assert stem.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    return re.findall(r"<text[^>]*>([^<]+)</text>", stem.with_suffix(".svg").read_text())


def test_one_module_has_all_colours():
    found = {
        path.name
        for path in (ROOT / "src/joulecast/report/figures").glob("*.py")
        if re.search(r"#[0-9A-Fa-f]{6}", path.read_text())
    }
    assert found == {"look.py"}


def test_a_training_that_was_tuned_live(tmp_path):
    row = {"number": 0, "cost": 2.0, "batch_size": 32, "phase": "prune", "energy_j": None}
    rows = [row, row | {"number": 1, "cost": None, "batch_size": 64}]
    record = {"network": "lenet5", "policy": "zeus", "cost_unit": "s", "recurrences": rows}
    words = words_of(tuned_live(record), tmp_path)
    assert {"lenet5, tuned live by zeus", "cost, s", "mean so far"} <= set(words)
    with pytest.raises(NothingToShow, match="no training that was tuned live"):
        tuned_live(record | {"recurrences": rows[1:]})


def test_a_figure_that_is_missing_says_why(tmp_path):
    missing = Figure("stages", "Where does the time go?", why_none="no run tells its stages")
    assert "Nothing to show: no run tells its stages." in words_of(missing, tmp_path)
