"""Hooks of MkDocs: a description for each page, tables that scroll, and percentages on one line."""

import re
from typing import Any

_MOST = 300


def on_page_markdown(markdown: str, page: Any, **_: Any) -> None:
    """Take the first paragraph below the title as the page's description, without links and code marks."""
    below = re.sub(r"^# .*$", "", markdown, count=1, flags=re.M)
    for paragraph in re.split(r"\n\s*\n", below):
        if paragraph.strip() and not re.match(r"\s*(#|\||```|!|<|- |\* |\d+\. )", paragraph):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            page.meta.setdefault("description", re.sub(r'[`*"]', "", text)[:_MOST])
            return


def on_page_content(html: str, **_: Any) -> str:
    """Put each table into a box that scrolls, and keep "10 %" on one line outside of code."""
    html = re.sub(r"(<pre.*?</pre>)|(?<=\d) (?=%)", lambda of: of[1] or "&nbsp;", html, flags=re.S)
    return html.replace("<table>", '<div class="scroll"><table>').replace(
        "</table>", "</table></div>"
    )
