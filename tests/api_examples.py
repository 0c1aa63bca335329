"""The examples of docs/api.md: run in a folder, what they print compared with what the page says."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from conftest import ROOT

import joulecast

PAGE = ROOT / "docs/api.md"
MEASURING = ("measure", "tune")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")


def shown(title: str) -> str:
    """The text of the page's block of a title."""
    fenced = rf'^```\w+ title="{re.escape(title)}"\n(.*?)^```$'
    (text,) = re.findall(fenced, PAGE.read_text(), re.M | re.S)
    return str(text)


def printed(function: str) -> str:
    """What a function's example prints, run in the working directory."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = compile(shown(function), f"{PAGE.name}: {function}", "exec")
        exec(code, {"joulecast": joulecast, "Path": Path})
    return said.getvalue()


def assert_prints_what_the_page_says(function: str) -> None:
    """Words are the same, numbers to 2 %: their last digits are the processor's."""
    said, expected = printed(function), shown(f"{function} prints")
    assert _NUMBER.sub("#", said) == _NUMBER.sub("#", expected), said
    numbers = [[float(n) for n in _NUMBER.findall(text)] for text in (said, expected)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.02), said
