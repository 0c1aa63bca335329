"""The public functions that measure: the examples of their page."""

import pytest
from api_examples import MEASURING, assert_prints_what_the_page_says


@pytest.mark.long
@pytest.mark.parametrize("function", MEASURING)
def test_the_example_of_the_page(function, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_prints_what_the_page_says(function)
