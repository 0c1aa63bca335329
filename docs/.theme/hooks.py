"""Hooks of MkDocs: a description for each page, and a name for the search."""

import re
from typing import Any

_MOST = 300


def on_page_markdown(markdown: str, page: Any, **_: Any) -> None:
    """Take the first paragraph below the title as the page's description, without links and code marks."""
    below = re.sub(r"^# .*$", "", markdown, count=1, flags=re.M)
    for paragraph in re.split(r"\n\s*\n", below):
        if paragraph.strip() and not re.match(r"\s*(#|\||```|!|<|- |\* |\d+\. )", paragraph):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            page.meta.setdefault("description", re.sub(r"[`*]", "", text)[:_MOST])
            return


def on_post_template(output_content: str, **_: Any) -> str:
    """Name the search of pages that are no page of ours, as the one of a wrong address."""
    return on_post_page(output_content)


def on_post_page(output: str, **_: Any) -> str:
    """Name the search of the theme for screen readers."""
    unnamed = '<div class="md-search" data-md-component="search" role="dialog">'
    return output.replace(unnamed, unnamed.replace(">", ' aria-label="Search">'))
