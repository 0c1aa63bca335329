"""What :func:`joulecast.forecast` returns: plain data that a notebook shows as a table, and a chart."""

from __future__ import annotations

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
        import pandas as pd

        from joulecast.report.forecast_lines import forecast_cells, forecast_notes

        # Without this, pandas cuts long texts.
        with pd.option_context("display.max_colwidth", None):
            table = pd.DataFrame(forecast_cells(self)).to_html(index=False, na_rep="")
        first, notes = (
            "<br>".join(map(escape, each)) for each in (self["first"], forecast_notes(self))
        )
        return f"<p>{first}</p>{table}<p>{notes}</p>"
