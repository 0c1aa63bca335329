"""The page of the tables and figures of a campaign, from the captions of Snakemake's report."""

import re
from collections import Counter
from pathlib import Path

from reference_pages.words import table

CAPTIONS = Path(__file__).resolve().parents[2] / "workflow/report"
_HEAD = """# Tables

What a campaign leaves in `results/NAME/tables/` (as CSV, Markdown and HTML). The figures of the page are in
`results/NAME/figures/`, as SVG and PDF. A table is there if its target was made: `all` makes most of them
([targets](../how-to/run-a-campaign.md#what-a-campaign-does)). Tables of the models on the metered runs
of others are in `results/NAME/metered/tables/`.

"""
_SHARED = 3
"""Captions of a subject that have a sentence, for it to stand above them."""
_SUBJECTS = {
    "Overview": ("overview", "papers", "checks"),
    "Energy and time": ("energy_", "time_error", "scaling"),
    "Simulator": ("simulator_", "scaling_forecast"),
    "Partitioner": ("partition",),
    "Tuning": ("tuning_",),
}


def _caption(file: Path) -> str:
    text = " ".join(file.read_text().split()).replace("``", "`")
    # The pages of the documentation, as links from this page.
    return re.sub(r"docs/explanation/(([\w-]+)\.md)", r"[\2](../explanation/\1)", text)


def _subject(name: str) -> str:
    fitting = [
        (len(start), subject)
        for subject, starts in _SUBJECTS.items()
        for start in starts
        if name.startswith(start)
    ]
    assert fitting, f"{name}: no subject of the page has it"
    return max(fitting)[1]


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.) (?=[A-Z])", text)


def page() -> str:
    """The page: a line a table or figure. What several captions of a subject share stands above them."""
    files = [f for f in sorted(CAPTIONS.glob("*.rst")) if f.stem != "workflow"]
    text = _HEAD
    for subject in _SUBJECTS:
        captions = {f.stem: _sentences(_caption(f)) for f in files if _subject(f.stem) == subject}
        counted = Counter(sentence for found in captions.values() for sentence in found)
        shared = [sentence for sentence, times in counted.items() if times >= _SHARED]
        rows = [
            [f"`{name}`", " ".join(s for s in found if s not in shared)]
            for name, found in captions.items()
        ]
        above = "".join(f"* {sentence}\n" for sentence in shared) + ("\n" if shared else "")
        text += f"## {subject}\n\n{above}{table(['table or figure', 'content'], rows)}\n"
    return text.rstrip() + "\n"
