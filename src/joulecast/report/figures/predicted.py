"""The figure that shows predictions against measurements."""

import altair as alt
import pandas as pd

from joulecast.energy.campaign_fit import CampaignFit
from joulecast.quantities import digits, joules, percent, seconds
from joulecast.report.figures.forecast import ENERGIES, TIMES, Quantity
from joulecast.report.figures.style import (
    INK,
    SHAPES,
    Chart,
    Figure,
    colours,
    titled,
    tooltips,
    value_axis,
    value_scale,
    values,
)
from joulecast.report.tables.errors import (
    SPLIT_SENTENCES,
    error_sentences,
    judged_energies,
    judged_times,
)
from joulecast.runs.judging import OURS
from joulecast.runs.scale import scale_in_words

_MOST_NAMES = 7
_OTHERS = "others"


def predicted_against_measured(fit: CampaignFit) -> Figure:
    """MC2's predictions of settings that its fit had not seen, against the measurements: one chart of times,
    one chart of energies.

    Raises:
        NothingToShow: nothing was fitted.
    """
    time = judged_times(fit)
    charts = [_against_runs("measured time", TIMES, time)]
    for source, cells in judged_energies(fit):
        charts.append(_against_runs(f"{source} energy", ENERGIES, cells))
    return Figure(
        "predicted",
        "Is the forecast right?",
        charts,
        " ".join(error_sentences(fit)),
        "Each point is a network on a number of nodes. On the line, the forecast was right. Above it, "
        f"the forecast was too high. {SPLIT_SENTENCES[time['split'].iloc[0]]}",
        files=("tables/energy/time_error", "tables/energy/energy_error"),
    )


def _against_runs(of_runs: str, quantity: Quantity, judged: pd.DataFrame) -> Chart:
    """Chart of predicted against measured values of settings, by network (colour) and node count (shape). On
    the line, the two values are equal."""
    cells = judged[judged["model"] == OURS]
    network = _few(cells["network"].astype(str))
    factor, unit = quantity.unit_for(cells["measured"])
    in_words = seconds if quantity is TIMES else joules
    shown = pd.DataFrame(
        {
            "measured": cells["measured"].astype(float) / factor,
            "predicted": cells["predicted"].astype(float) / factor,
            "network": network,
            "nodes": cells["nodes"].astype(int).astype(str),
            "setting": [
                f"{row.network}, {scale_in_words(row.nodes, row.nodes_are)}, batch {digits(row.batch)}"
                for row in cells.itertuples()
            ],
            of_runs: cells["measured"].map(in_words),
            "predicted by MC2": cells["predicted"].map(in_words),
            "off by": [percent(d, signed=True) for d in cells["difference_percent"]],
        }
    )
    counts = [str(count) for count in sorted(set(cells["nodes"].astype(int)))]
    scale = value_scale(shown["measured"], shown["predicted"])
    ticks = value_axis(scale)
    x = alt.X("measured:Q", title=f"{of_runs}, {unit}", scale=scale, axis=ticks)
    y = alt.Y("predicted:Q", title=f"predicted, {unit}", scale=scale, axis=ticks)
    ends = pd.DataFrame({"measured": scale.domain, "predicted": scale.domain})
    line = alt.Chart(values(ends)).mark_line(color=INK, strokeWidth=1, clip=True)
    points = (
        alt.Chart(values(shown))
        .mark_point(filled=True, size=90, opacity=0.9, stroke=INK, strokeWidth=0.6)
        .encode(
            x=x,
            y=y,
            color=alt.Color("network:N", scale=colours(sorted(set(network)))),
            shape=alt.Shape("nodes:N", scale=colours(counts, SHAPES)),
            tooltip=tooltips("setting", of_runs, "predicted by MC2", "off by"),
        )
    )
    return titled(line.encode(x=x, y=y) + points, f"Predicted and {of_runs}")


def _few(names: pd.Series) -> pd.Series:
    """The name of each row, with ``others`` in place of rare names, so that there are enough colours."""
    most = names.value_counts().index[:_MOST_NAMES]
    if names.nunique() <= len(most):
        return names
    return names.where(names.isin(most[:-1]), _OTHERS)
