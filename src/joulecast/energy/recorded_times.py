"""Times that others measured, and that come with joulecast. In addition to own runs, they show the work and
the rate of a benchmark.

Source: MLPerf Training v3.1, v4.0 and v4.1 (``recorded/mlperf-times``). They are evidence about a
benchmark only: the runs of the submitter that is judged are left out.
"""

from functools import cache

import pandas as pd

from joulecast.logs.mlperf_tables import times_table
from joulecast.runs.files.shipped import RECORDED, find
from joulecast.runs.observations import accelerator_model, identity


@cache
def recorded_times() -> pd.DataFrame:
    """A row for each recorded run, with the columns that :class:`joulecast.energy.run_time.RunTimes`
    reads. Empty if the data are not in this installation."""
    folder = find(RECORDED, "mlperf-times")
    if folder is None:
        return pd.DataFrame()
    table = times_table(folder)
    models = [
        accelerator_model(name if isinstance(name, str) else None, system)
        for name, system in zip(table["accelerator"], table["system"], strict=True)
    ]
    named = zip(table["submission"], table["network"], models, table["system"], strict=True)
    known = pd.DataFrame([identity(*names) for names in named])
    return table.assign(
        **{name: known[name] for name in known},
        ranks=table["nodes"] * table["accelerators_per_node"].fillna(1),
    )


def times_of_others(runs: pd.DataFrame) -> pd.DataFrame:
    """Recorded runs of submitters that are not in ``runs``.

    A recorded run that is also in ``runs`` is left out, too. It is recognised by its benchmark, and by its
    time to the hundredth of a second.
    """
    recorded = recorded_times()
    if recorded.empty or runs.empty:
        return recorded
    own = set(runs["submitter"].str.lower())
    seen = set(zip(runs["network"], runs["total_s"].round(2), strict=True))
    twice = [
        key in seen for key in zip(recorded["network"], recorded["total_s"].round(2), strict=True)
    ]
    return recorded[
        ~recorded["submitter"].str.lower().isin(own) & ~pd.Series(twice, index=recorded.index)
    ]
