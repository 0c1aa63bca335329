"""A table of any form, as wattmeters and PDUs write it, read by a map of its columns.

``time=T,watts=P`` is enough; ``joules=E`` in place of ``watts`` is a counter, ``node=N`` names the node of
each row, ``device=D`` a part of it. Several columns of watts (or joules) without a node are a node each;
with one (``node=``, or the user's) they are parts of it, as its supplies.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.importers.log_series import Gathered
from joulecast.importers.log_table import LogTable
from joulecast.importers.logs import Log, LoggedMeter, LogOptions
from joulecast.importers.traps import Floats

NAMES = ("time", "watts", "joules", "node", "device")
_WHAT = "table of readings"
_MOST_W = 100e3
_LEAST_OF_COUNTER, _MOST_RISES = 20, 0.5
"""So many readings in order of which more rise and none falls are no power."""
_WAY_OUT = "name them with --map, as time=COLUMN,watts=COLUMN,node=COLUMN"


def map_of(text: str) -> dict[str, tuple[str, ...]]:
    """The columns of ``--map``, as ``time=T,watts=P1,watts=P2``.

    Raises:
        JoulecastError: it is not of that form, or lacks the times or the readings.
    """
    found: dict[str, tuple[str, ...]] = {}
    for pair in text.split(","):
        name, is_pair, column = pair.partition("=")
        if name.strip() not in NAMES or not is_pair or not column.strip():
            raise JoulecastError(
                f"--map: `{pair[:40]}` is none of {', '.join(f'{n}=COLUMN' for n in NAMES)}"
            )
        found[name.strip()] = (*found.get(name.strip(), ()), column.strip())
    if len(found.get("time", ())) != 1 or bool(found.get("watts")) == bool(found.get("joules")):
        raise JoulecastError("--map: needs time=COLUMN, and either watts=COLUMN or joules=COLUMN")
    if any(len(found.get(name, ())) > 1 for name in ("node", "device")):
        raise JoulecastError("--map: node= and device= are one column each")
    return found


def read(file: Path, options: LogOptions) -> Log:
    """The readings of a table.

    Raises:
        JoulecastError: it is no such table; names line and column.
    """
    if not options.mapped:
        raise JoulecastError(f"{file}: which columns are what? {_WAY_OUT}")
    table = LogTable(file, _WHAT, options.columns, options.delimiter, options.decimal)
    mapped = options.mapped
    what = "watts" if "watts" in mapped else "joules"
    table.require([column for columns in mapped.values() for column in columns], _WAY_OUT)
    gathered = {column: Gathered(options.clock, str(file)) for column in mapped[what]}
    names = [*mapped.get("node", ()), *mapped.get("device", ())]
    for part in table.parts([*mapped["time"], *mapped[what], *names]):
        if not len(part):
            continue
        t_s: Floats | None = None
        for column, series in gathered.items():
            t_s = (
                series.times(table.with_point(part[mapped["time"][0]]), mapped["time"][0])
                if t_s is None
                else t_s
            )
            series.same_form_as(next(iter(gathered.values())))
            values = table.readings(part[column], column, what, options.unit)
            series.add([part[name] for name in names], t_s, values)
    log = Log(remarks=["truncated line: its last line was cut short"] if table.cut_short else [])
    for column, series in gathered.items():
        for key, times, values in series.meters():
            named = dict(
                zip([name for name in ("node", "device") if name in mapped], key, strict=True)
            )
            node, device = named.get("node") or options.node, named.get("device")
            if len(gathered) > 1:
                # Of one node its supplies, say; else a node each.
                node, device = node or column, column if node else device
            origin = f"{file}, {column}" if len(gathered) > 1 else str(file)
            covers = options.covers or "node"
            log.form = times.form
            meter = LoggedMeter(node or options.node_of(file), device, covers, origin, times.t_s)
            log.meters.append(_meter(meter, values, what, column))
    if not log.meters:
        raise JoulecastError(f"{file}: has a header and no reading")
    return log


def _meter(meter: LoggedMeter, values: Floats, what: str, column: str) -> LoggedMeter:
    if what == "joules":
        return replace(meter, joules=values)
    known = values[np.isfinite(values)]
    steps = np.diff(known)
    rising = float(np.mean(steps > 0)) if len(known) >= _LEAST_OF_COUNTER else 0.0
    if rising > _MOST_RISES and steps.min() >= 0:
        raise JoulecastError(
            f"{meter.file}, column {column}: rises in {100 * rising:.0f} % of its readings and never falls, "
            "as a counter of energy; map it as joules="
        )
    if len(known) and float(np.median(known)) > _MOST_W:
        raise JoulecastError(
            f"{meter.file}, column {column}: {float(np.median(known)):.4g} W in the middle, "
            "which no node draws; if it is in another unit, say --unit mW"
        )
    return replace(meter, watts=values)
