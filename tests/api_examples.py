"""The examples of docs/how-to/use-from-python.md: run in a folder, and compared with what the page prints."""

import contextlib
import io
import re
from pathlib import Path

from conftest import ROOT
from same_text import assert_alike

import joulecast

PAGE = ROOT / "docs/how-to/use-from-python.md"
MEASURING = ("observe", "tune_training")


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
    """Check what a function's example prints: words, and numbers to 2 %."""
    assert_alike(printed(function), shown(f"{function} prints"))
