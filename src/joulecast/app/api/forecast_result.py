"""What :func:`joulecast.forecast` returns: plain data that a notebook shows as a table, and a chart."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd


class Forecast(dict[str, Any]):
    """The result of a forecast, as ``joulecast forecast --json`` prints it.

    A notebook shows it as a table with intervals and units for people.
    """

    @property
    def table(self) -> pd.DataFrame:
        """A data frame with a row for each workload, platform and scale, in base units (s, J, kg)."""
        import pandas as pd

        return pd.DataFrame(self["forecasts"])

    def plot(self) -> alt.HConcatChart:
        """An Altair chart of energy (kWh) and time (h) against the scale, with 90 % intervals."""
        from joulecast.report.figures.forecast import forecast_chart

        return forecast_chart(self["forecasts"])

    def _repr_html_(self) -> str:
        from joulecast.report.forecast_lines import forecast_cells, forecast_notes

        rows = forecast_cells(self)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        body = "".join(_line("td", [row.get(name, "") for name in columns]) for row in rows)
        notes = "<br>".join(map(escape, forecast_notes(self)))
        first = "<br>".join(map(escape, self["first"]))
        return f"<p>{first}</p><table>{_line('th', columns)}{body}</table><p>{notes}</p>"


def _line(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
