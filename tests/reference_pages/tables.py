"""The page of the tables and figures of a campaign, from the captions of Snakemake's report."""

import re
from pathlib import Path

from reference_pages.words import table

CAPTIONS = Path(__file__).resolve().parents[2] / "workflow/report"
_HEAD = """# Tables

A campaign leaves these tables in `results/NAME/tables/SUBJECT/`, if their
[target](../how-to/run-a-campaign.md#what-a-campaign-does) was made: with all digits as `.parquet`, and
rounded as `.csv`, `.md` and `.html`. `results/NAME/metered/tables/` has the tables of
`energy` for metered runs of others.

"""
_SUBJECTS = (
    *(
        "energy",
        "checks",
        "advice",
        "simulator",
        "partition",
        "tuning",
        "tuning_live",
        "papers",
    ),
)
_TABLE = re.compile(r"^``(\w+)``\n((?:  .*\n)+)", re.M)


def _plain(text: str) -> str:
    text = " ".join(text.split()).replace("``", "`")
    # The pages of the documentation, as links from this page.
    return re.sub(r"docs/explanation/(([\w-]+)\.md)", r"[\2](../explanation/\1)", text)


def page() -> str:
    """The page: a section a folder, a line a table; what its tables share stands below them."""
    text = _HEAD
    for subject in _SUBJECTS:
        caption = (CAPTIONS / f"{subject}.rst").read_text()
        rows = [[f"`{name}`", _plain(content)] for name, content in _TABLE.findall(caption)]
        shared = _plain(_TABLE.sub("", caption))
        text += f"## {subject}\n\n{table(['table', 'content'], rows)}\n"
        text += f"{shared}\n\n" if shared else ""
    return text.rstrip() + "\n"
