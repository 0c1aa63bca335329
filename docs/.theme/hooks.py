"""Hooks of MkDocs: a description for each page, a name for the search, no wait for styles."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MOST = 300
_BLOCK = re.compile(r"(<pre\b[^>]*>(?:<span></span>)?<code>)(.*?)(</code></pre>)", re.S)
_STYLESHEET = re.compile(r'<link rel="stylesheet" href="([^"]+)">')
_KEPT_AS_IS = re.compile(r"(<(pre|script|textarea|style)\b.*?</\2>)", re.S)
_URL_VARIABLE = re.compile(r"""(--[\w-]+):url\((?:'[^']*'|"[^"]*"|[^)]*)\);?""")
_STRING_OR_BRACE = re.compile(r"""'[^']*'|"[^"]*"|[{}]""")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> None:
    """Take the first paragraph below the title as the page's description, without links and code marks."""
    below = re.sub(r"^# .*$", "", markdown, count=1, flags=re.M)
    for paragraph in re.split(r"\n\s*\n", below):
        if paragraph.strip() and not re.match(r"\s*(#|\||```|!|<|- |\* |\d+\. )", paragraph):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            page.meta.setdefault("description", re.sub(r"[`*]", "", text)[:_MOST])
            return


def on_post_template(output_content: str, **_: Any) -> str:
    """Mend the theme's own pages, as the one of a wrong address, in the same way."""
    return on_post_page(output_content)


def on_post_page(output: str, **_: Any) -> str:
    """Mend the theme for screen readers and the keyboard; leave out the indents of its templates.

    The search gets a name. Blocks of code take the focus, as they scroll where the screen is narrow.
    """
    unnamed = '<div class="md-search" data-md-component="search" role="dialog">'
    named = output.replace(unnamed, unnamed.replace(">", ' aria-label="Search">'))
    # The theme takes the focus from blocks that are not in view, hence the element inside of each.
    named = _BLOCK.sub(r'\1<span tabindex="0">\2</span>\3', named)
    parts = _KEPT_AS_IS.split(named)
    # A split by two groups has the text between, the whole match, and its tag, in turn.
    return "".join(
        re.sub(r"\s*\n\s*", "\n", part) if number % 3 == 0 else part
        for number, part in enumerate(parts)
        if number % 3 != 2
    )


def on_post_build(config: Any, **_: Any) -> None:
    """Put the styles into each page, so that it is drawn without waiting for other files.

    Styles of the theme are left out that no page and no script of this site names.
    """
    site = Path(config["site_dir"])
    pages = {file: file.read_text() for file in site.rglob("*.html")}
    texts = [*pages.values(), *(file.read_text() for file in site.rglob("*.js"))]
    words = {word for text in texts for word in re.findall(r"[\w-]+", text)}
    styles = [*(site / "assets/stylesheets").glob("*.css"), *site.glob("assets/*.css")]
    used = {file.name: _without_unused_pictures(_used(file.read_text(), words)) for file in styles}
    for file, text in pages.items():
        file.write_text(
            _STYLESHEET.sub(lambda match: f"<style>{used[Path(match[1]).name]}</style>", text)
        )


def _without_unused_pictures(css: str) -> str:
    variables = set(re.findall(r"var\((--[\w-]+)", css))
    return _URL_VARIABLE.sub(lambda match: match[0] if match[1] in variables else "", css)


def _used(css: str, words: set[str]) -> str:
    """The rules of minified CSS whose classes are among words; none of them is for right to left."""
    kept = []
    for head, body in _rules(css):
        if head.startswith("@media") or head.startswith("@supports"):
            inner = _used(body, words)
            kept += [f"{head}{{{inner}}}"] if inner else []
        elif head.startswith("@") or not body:
            kept.append(f"{head}{{{body}}}" if body else head)
        else:
            selectors = [each for each in _selectors(head) if _is_used(each, words)]
            kept += [f"{','.join(selectors)}{{{body}}}"] if selectors else []
    return "".join(kept)


def _is_used(selector: str, words: set[str]) -> bool:
    # What stands in these brackets need not be there.
    asked = re.sub(r":(not|is|where)\([^)]*\)", "", selector)
    names = re.findall(r"\.(-?[A-Za-z_][\w-]*)", asked)
    return "[dir=rtl]" not in asked and all(name in words for name in names)


def _selectors(head: str) -> list[str]:
    """The selectors of a rule, divided at the commas that stand in no brackets."""
    found, depth, begin = [], 0, 0
    for place, sign in enumerate(head):
        depth += (sign in "([") - (sign in ")]")
        if sign == "," and depth == 0:
            found.append(head[begin:place])
            begin = place + 1
    return [*found, head[begin:]]


def _rules(css: str) -> Iterator[tuple[str, str]]:
    """Head and body of each rule; a statement without a body has an empty one."""
    begin = opened = depth = 0
    for match in _STRING_OR_BRACE.finditer(css):
        if match[0] == "{":
            if depth == 0:
                opened = match.start()
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if depth == 0:
                head = css[begin:opened]
                while head.startswith("@") and ";" in head and not head.startswith("@media"):
                    statement, _, head = head.partition(";")
                    yield f"{statement};", ""
                yield head, css[opened + 1 : match.start()]
                begin = match.end()
    if css[begin:].strip():
        yield css[begin:], ""
