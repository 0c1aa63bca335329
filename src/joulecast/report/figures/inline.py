"""Charts as SVG inside a page. They are drawn when the page is made, and keep the numbers of each mark.

The attribute ``data-tip`` of a mark has the text that a reader sees on hovering. It consists of parts ``name:
text``, separated by :data:`PARTED`. Colours are those of :data:`~joulecast.report.figures.style.SHADES`, so
that a page shows them on a dark background, too.
"""

import json
import re
from typing import Any

import vl_convert

from joulecast.report.figures.style import CONFIG, SERIES, SHADES, VEGA_LITE, WHITE, Chart

PARTED = " · "
_WIDTH = 400
"""Width of a whole chart with its axes, in pixels. A telephone has this width, so text stays legible
there."""
_QUIET = {"aria": False}
_SIZE = re.compile(r' (?:version|xmlns(?::xlink)?|xmlns:xlink)="[^"]*"')


def inline_svg(chart: Chart, name: str) -> str:
    """The chart as an SVG element.

    Args:
        name: name of the chart. No other chart on the page has this name.
    """
    fit: dict[str, Any] = {"autosize": {"type": "fit-x", "contains": "padding"}, "width": _WIDTH}
    spec = _described(chart.to_dict()) | fit
    quiet = {part: CONFIG.get(part, {}) | _QUIET for part in ("axis", "legend", "title")}
    config = {key: value for key, value in CONFIG.items() if key != "aria"} | quiet
    svg = str(vl_convert.vegalite_to_svg(spec | {"config": config}, vl_version=VEGA_LITE))
    head, marks = svg.split(">", 1)
    marks = re.sub(r"\b(clip|gradient_)(\d+)", rf"{name}-\1\2", marks)
    marks = marks.replace(' aria-label="', ' data-tip="')
    return f'{_SIZE.sub("", head)} aria-hidden="true" focusable="false">{marks}'


def _described(part: dict[str, Any]) -> dict[str, Any]:
    """The specification of a chart, in which the text that is shown on hovering is the description of each
    mark."""
    found = dict(part)
    if "layer" in found:
        found["layer"] = [_described(inner) for inner in found["layer"]]
    encoding = dict(found.get("encoding", {}))
    shown = encoding.pop("tooltip", None)
    if isinstance(shown, list):
        texts = [
            f"{json.dumps(s['title'] + ': ')} + datum[{json.dumps(s['field'])}]" for s in shown
        ]
        joined = f" + {json.dumps(PARTED)} + ".join(texts)
        more = {"calculate": joined, "as": "described"}
        found["transform"] = [*found.get("transform", []), more]
        encoding["description"] = {"field": "described", "type": "nominal"}
        found["encoding"] = encoding
    elif "mark" in found:
        mark = found["mark"]
        found["mark"] = ({"type": mark} if isinstance(mark, str) else mark) | _QUIET
    return found


def page_colours() -> str:
    """CSS with the page's colours by name, for light and for dark screens (paper is light). The charts use
    the same colours."""
    light, dark = (
        "".join(f"--{name}:{shades[of]};" for name, shades in SHADES.items()) for of in (0, 1)
    )
    drawn = {SHADES[name][0]: name for name in ("ink", "soft", "grid")} | {SERIES[-1]: "ink"}
    rules = [
        f'.chart [{attribute}="{colour}" i]{{{attribute}:var(--{name})}}'
        for colour, name in drawn.items()
        for attribute in ("fill", "stroke")
    ]
    return "\n".join(
        [
            f":root{{{light}}}",
            f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}",
            *rules,
            f'.chart [stroke="{WHITE}"]{{stroke:var(--paper)}}',
        ]
    )
